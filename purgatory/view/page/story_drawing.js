// The lanes of a story: a lane for each host and broker, a column for each step, messages as arrows.
//
// Steps are between no time and hours apart, so each has a column, and the time that passes stands
// above. Only the columns around the step shown are drawn.

import { newDrawing } from "./elements.js";
import { duration } from "./units.js";

const COLUMN = 36;
const LANE = 64;
const HEAD = 26;
const MARGIN = 24;
const BEHIND = 0.65; // of the columns lie before the step shown

/** The drawn part: the columns from `first` on, and the places of columns and lanes. */
class Frame {
  constructor(story, shown, position, width) {
    this.columns = Math.max(3, Math.floor((width - 2 * MARGIN) / COLUMN) + 1);
    const last = Math.max(0, shown.length - this.columns);
    this.first = Math.min(last, Math.max(0, position - Math.floor(this.columns * BEHIND)));
    this.shown = shown;
    this.positions = new Map(shown.map((index, place) => [index, place]));
    this.lanes = new Map(story.nodes.map((node, lane) => [node, HEAD + LANE * (lane + 0.6)]));
    this.height = HEAD + LANE * story.nodes.length + 4;
    this.width = width;
  }

  x(place) {
    return MARGIN + COLUMN * (place - this.first);
  }

  y(node) {
    return this.lanes.get(node);
  }

  /** The place of a step; between two columns if it is not shown. */
  xOf(index) {
    if (this.positions.has(index)) return this.x(this.positions.get(index));
    return this.x(this.shown.findLastIndex((one) => one < index) + 0.5);
  }

  /** Whether something that lasts from one x to another can be seen. */
  sees(from, to) {
    return to >= 0 && from <= this.width;
  }
}

/** The drawing of a story at a step, as an element; `position` is its place among those shown. */
export function drawingOf(story, shown, position, width, go) {
  const frame = new Frame(story, shown, position, width);
  const current = shown[position];
  const svg = newDrawing("svg", {
    viewBox: `0 0 ${width} ${frame.height}`, width, height: frame.height, role: "img",
    "aria-label": `${story.nodes.length} lanes; the step shown is told below`,
  });
  svg.append(newDrawing("line", { class: "now", x1: frame.xOf(current), x2: frame.xOf(current), y1: HEAD - 4, y2: frame.height }));
  svg.append(...bands(story, frame), ...lanes(story, frame), ...times(story, frame));
  svg.append(...story.messages.flatMap((message) => arrow(message, frame, current)));
  svg.append(...wokenBy(story, frame, current), ...marks(story, frame, position), ...names(story, frame));
  svg.addEventListener("click", (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    const place = frame.first + Math.round((at - MARGIN) / COLUMN);
    go(Math.min(shown.length - 1, Math.max(0, place)));
  });
  return svg;
}

function lanes(story, frame) {
  return story.nodes.map((node) => newDrawing("line", { class: "lane", x1: 0, x2: frame.width, y1: frame.y(node), y2: frame.y(node) }));
}

/** Drawn last, so that no arrow lies over them. */
function names(story, frame) {
  return story.nodes.map((node) => newDrawing("text", { class: "name", x: 4, y: frame.y(node) - LANE * 0.36 }, node));
}

function bands(story, frame) {
  return story.bands.flatMap((band) => {
    const from = Math.max(-4, frame.xOf(band.from));
    const to = Math.min(frame.width + 4, band.until === null ? frame.width + 4 : frame.xOf(band.until));
    if (!frame.sees(from, to) || to <= from) return [];
    return band.nodes.filter((node) => frame.lanes.has(node)).map((node) => {
      const rect = newDrawing("rect", { class: `band ${band.kind}`, x: from, y: frame.y(node) - 11, width: to - from, height: 22 });
      rect.append(newDrawing("title", {}, band.text));
      return rect;
    });
  });
}

/** How much time passes before a step, where there is room to say so. */
function times(story, frame) {
  const drawn = [];
  let free = 0;
  const end = Math.min(frame.shown.length, frame.first + frame.columns);
  for (let place = Math.max(1, frame.first); place < end; place += 1) {
    const passed = story.steps[frame.shown[place]].at_us - story.steps[frame.shown[place - 1]].at_us;
    if (passed === 0) continue;
    const x = frame.x(place - 0.5);
    drawn.push(newDrawing("line", { class: "passed", x1: x, x2: x, y1: HEAD - 6, y2: frame.height }));
    const text = `+${duration(passed)}`;
    const half = text.length * 3.6;
    if (x - half < free || x + half > frame.width) continue;
    drawn.push(newDrawing("text", { class: "small", x, y: 14, "text-anchor": "middle" }, text));
    free = x + half + 6;
  }
  return drawn;
}

function arrow(message, frame, current) {
  const isShown = (one) => one === null || one < 0 || frame.positions.has(one);
  if (!isShown(message.sent) || !isShown(message.ended)) return [];
  const fromX = message.sent < 0 ? frame.x(-1) : frame.xOf(message.sent);
  const toX = message.ended === null ? fromX + COLUMN : frame.xOf(message.ended);
  if (!frame.sees(fromX, toX)) return [];
  const [fromY, toY] = [frame.y(message.source), frame.y(message.target)];
  const isLost = message.outcome === "lost" || message.outcome === "dropped";
  const state = message.sent > current ? "later" : isUnderWay(message, current) ? "under-way" : "";
  // A message that never arrives ends half way.
  const part = message.outcome === "arrived" ? 1 : 0.6;
  const [x, y] = [fromX + (toX - fromX) * part, fromY + (toY - fromY) * part];
  const length = Math.hypot(x - fromX, y - fromY) || 1;
  const [ux, uy] = [(x - fromX) / length, (y - fromY) / length];
  const back = message.outcome === "arrived" ? 9 : 0; // an arrow ends at the rim of its mark
  const [tipX, tipY] = [x - ux * back, y - uy * back];
  const tip = isLost
    ? `M${x - 4} ${y - 4}l8 8M${x + 4} ${y - 4}l-8 8`
    : `M${tipX - ux * 7 - uy * 4} ${tipY - uy * 7 + ux * 4}L${tipX} ${tipY}L${tipX - ux * 7 + uy * 4} ${tipY - uy * 7 - ux * 4}`;
  const path = newDrawing("path", { class: `message ${state} ${isLost ? "lost" : ""}`, d: `M${fromX} ${fromY}L${tipX} ${tipY}${tip}` });
  path.append(newDrawing("title", {}, `${message.source} > ${message.target}: ${message.text}`));
  return [path];
}

/** Whether a message is on its way at a step. */
export function isUnderWay(message, current) {
  return message.sent <= current && (message.ended === null || current < message.ended);
}

function wokenBy(story, frame, current) {
  const step = story.steps[current];
  if (step.cause === null) return [];
  const cause = story.steps[step.cause];
  const [fromX, toX] = [frame.xOf(step.cause), frame.xOf(current)];
  const [fromY, toY] = [frame.y(cause.node), frame.y(step.node)];
  const bend = Math.min(fromY, toY) - 24;
  return [newDrawing("path", { class: "woken", d: `M${fromX} ${fromY}Q${(fromX + toX) / 2} ${bend} ${toX} ${toY}` })];
}

function marks(story, frame, position) {
  const drawn = [];
  const end = Math.min(frame.shown.length, frame.first + frame.columns);
  for (let place = frame.first; place < end; place += 1) {
    const step = story.steps[frame.shown[place]];
    const [x, y] = [frame.x(place), frame.y(step.node)];
    const later = place > position ? "later" : "";
    if (place === position) drawn.push(newDrawing("circle", { class: "current", cx: x, cy: y, r: 11 }));
    let mark;
    if (step.fault) mark = newDrawing("path", { class: `fault-step ${later}`, d: `M${x} ${y - 9}l9 9-9 9-9-9z` });
    else mark = newDrawing("circle", { class: `${step.place ? "own-step" : "other-step"} ${later}`, cx: x, cy: y, r: step.place ? 7 : 4 });
    mark.append(newDrawing("title", {}, step.place ? `${step.name} at line ${step.place.line}` : step.notes.join("; ") || step.name));
    drawn.push(mark);
    const [task] = (step.place && step.name.match(/#\d+$/)) || [];
    if (task) drawn.push(newDrawing("text", { class: `small ${later}`, x, y: y + 21, "text-anchor": "middle" }, task));
  }
  return drawn;
}
