// The run at a glance, behind the slider: requests that came, waited and failed, and the faults.

import { byId, newDrawing, newElement, setText } from "./elements.js";
import { number } from "./units.js";

export const HEIGHT = 100;

/** Points of an area from bucket to bucket, as steps. */
export function area(values, most) {
  const heights = values.map((value) => HEIGHT * (1 - value / most));
  const steps = heights.flatMap((height, index) => [`${index},${height}`, `${index + 1},${height}`]);
  return `M0,${HEIGHT} L${steps.join(" ")} L${values.length},${HEIGHT} Z`;
}

/** Draw the overview, if the server has one. */
export function drawOverview({ begin_us: beginUs, end_us: endUs, overview }) {
  const band = byId("band");
  if (!overview || endUs <= beginUs) return;
  const { width_us: widthUs, started, pending, failed, faults } = overview;
  const [mostStarted, mostPending] = [Math.max(1, ...started), Math.max(1, ...pending)];
  const end = (endUs - beginUs) / widthUs;
  band.setAttribute("viewBox", `0 0 ${end} ${HEIGHT}`);
  band.setAttribute("preserveAspectRatio", "none");
  const marks = faults.map(({ from_us: from, until_us: until, text }) => {
    const start = (from - beginUs) / widthUs;
    const length = Math.max(end / 400, ((until ?? endUs) - beginUs) / widthUs - start);
    const mark = newDrawing("rect", { class: "fault", x: start, y: 0, width: length, height: HEIGHT });
    mark.append(newDrawing("title", {}, text));
    return mark;
  });
  const expiries = failed.flatMap((count, index) => (count === 0 ? [] : [
    newDrawing("rect", { class: "failed", x: index, y: 0, width: Math.max(1, end / 240), height: HEIGHT * 0.16 }),
  ]));
  band.replaceChildren(
    ...marks,
    newDrawing("path", { class: "load", d: area(started, mostStarted) }),
    newDrawing("path", { class: "waiting", d: area(pending, mostPending) }),
    ...expiries,
  );
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const parts = [
    ["load", `load: ${number.format(sum(started))} requests`],
    ["waiting", `pending: at most ${number.format(mostPending)}`],
    ["failed", `timed out or failed: ${number.format(sum(failed))}`],
    ["fault", `faults: ${number.format(faults.length)}`],
  ];
  byId("band-legend").replaceChildren(...parts.map(([name, text]) => newElement("li", text, name)));
  setText(byId("band-title"), parts.map(([, text]) => text).join("; "));
  byId("band-place").hidden = false;
}
