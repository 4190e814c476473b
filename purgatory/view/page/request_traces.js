// A produce on its way from the client through leader and followers to its answer, as a drawing of
// who did what when: a lane for each, time runs down. Each step has a row, since steps are between
// a microsecond and seconds apart.

import { byId, newDrawing, newElement, setText } from "./elements.js";
import { ask } from "./requests.js";
import { duration } from "./units.js";

const ROW = 34;
const HEAD = 30;
const EVERY_MS = 1000;
const AFTER_FAILURE_MS = 10_000; // a server without traces will hardly have them soon

const WORDS = {
  created: "the record is made",
  sent: "the client sends it",
  arrived: "it arrives; requests before it go first",
  served: "the broker takes it up",
  appended: "it is appended to the leader's log",
  copied: "a follower has copied it",
  committed: "all in sync have it: the high watermark passes it",
  completed: "the produce leaves the purgatory",
  answered: "the client has its answer",
};

const OUTCOMES = { ok: "acknowledged", fail: "failed", unknown: "without an answer", open: "on its way" };

export class RequestTraces {
  constructor(model, isLive) {
    this.model = model;
    this.isLive = isLive;
    this.choice = byId("trace-choice");
    this.place = byId("trace-drawing");
    this.note = byId("trace-note");
    this.traces = [];
    this.kept = null; // a trace that was found by its record stays
    this.askedAt = -Infinity;
    this.everyMs = EVERY_MS;
    this.askedUs = null;
    this.choice.addEventListener("change", () => { this.kept = null; this.#draw(); });
    new ResizeObserver(() => this.#draw()).observe(this.place);
  }

  /** Fetch the latest traces, at most once a second, and only where the moment is another. */
  async render(nowMs) {
    const atUs = Math.floor(this.model.atUs);
    if (atUs === this.askedUs || nowMs - this.askedAt < this.everyMs || byId("trace-hold").checked) return;
    this.askedAt = nowMs;
    this.askedUs = atUs;
    try {
      const asked = this.isLive ? { limit: 20 } : { at_us: atUs, limit: 20 };
      const { request_traces: traces } = await ask("view/request-traces", asked);
      this.everyMs = EVERY_MS;
      if (this.kept === null) this.#offer(traces);
    } catch (error) {
      this.everyMs = AFTER_FAILURE_MS;
      this.askedUs = null;
      setText(this.note, `No request traces: ${error.message}`);
    }
  }

  /** Show the trace of one record; returns it. Throws an Error where there is none. */
  async show(topic, partition, offset) {
    const trace = await ask("view/request-trace", { topic, partition, offset });
    this.#offer([trace]);
    this.kept = trace;
    return trace;
  }

  /** Follow the latest again. */
  followLatest() {
    this.kept = null;
    this.askedUs = null;
  }

  #offer(traces) {
    const chosen = this.choice.value;
    this.traces = traces;
    this.choice.replaceChildren(...traces.map((one) => {
      const option = newElement("option", `${one.title}: ${OUTCOMES[one.outcome] ?? one.outcome}`);
      option.value = `${one.topic}-${one.partition}@${one.offset} ${one.title}`;
      return option;
    }));
    if ([...this.choice.options].some((option) => option.value === chosen)) this.choice.value = chosen;
    this.choice.disabled = traces.length === 0;
    setText(this.note, traces.length ? "" : this.model.unknown.has("request_traces") ? "Not in this trace." : "No produce yet.");
    this.#draw();
  }

  #draw() {
    const trace = this.traces[Math.max(0, this.choice.selectedIndex)];
    if (!trace) {
      this.place.replaceChildren();
      return;
    }
    const drawing = drawingOf(trace, Math.max(260, this.place.clientWidth));
    this.place.replaceChildren(drawing);
  }
}

const laneOf = (stage) => (stage.broker === null ? "client" : `broker ${stage.broker}`);

function drawingOf(trace, width) {
  const { stages } = trace;
  const lanes = ["client", ...new Set(stages.map(laneOf).filter((lane) => lane !== "client"))];
  const between = Math.min(90, (width * 0.45) / lanes.length);
  const x = (stage) => between * (lanes.indexOf(laneOf(stage)) + 0.5);
  const y = (index) => HEAD + ROW * (index + 0.5);
  const height = HEAD + ROW * stages.length + 4;
  const svg = newDrawing("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": inWords(trace) });
  lanes.forEach((lane, index) => {
    const at = between * (index + 0.5);
    svg.append(newDrawing("line", { class: "lane", x1: at, x2: at, y1: HEAD - 6, y2: height }));
    const name = lane === "client" ? "client" : between < 60 ? lane.replace("broker ", "b") : lane;
    svg.append(newDrawing("text", { class: "small", x: at, y: 16, "text-anchor": "middle" }, name));
  });
  stages.slice(1).forEach((stage, index) => svg.append(stepBetween(stages, index, x, y)));
  stages.forEach((stage, index) => svg.append(...rowOf(trace, index, x(stage), y(index), between * lanes.length + 8)));
  return svg;
}

/** From where a stage came: what is copied and committed is made from the leader's log. */
function stepBetween(stages, index, x, y) {
  const stage = stages[index + 1];
  const source = stage.name === "copied" ? stages.findIndex((one) => one.name === "appended") : index;
  const from = source < 0 ? index : source;
  const sameLane = x(stages[from]) === x(stage);
  return newDrawing("path", {
    class: sameLane ? "wait" : "step",
    d: `M${x(stages[from])} ${y(from)}L${x(stage)} ${y(index + 1)}`,
  });
}

function rowOf({ stages, outcome }, index, x, y, textX) {
  const stage = stages[index];
  const isLate = outcome !== "ok" && outcome !== "open" && index === stages.length - 1;
  const since = stage.at_us - stages[0].at_us;
  const row = [
    newDrawing("circle", { class: isLate ? "stage late" : "stage", cx: x, cy: y, r: 5 }),
    newDrawing("text", { x: textX, y: y - 1 }, stage.name),
    newDrawing("text", { class: "small", x: textX, y: y + 14 }, `+${duration(since)}`),
  ];
  row[1].append(newDrawing("title", {}, WORDS[stage.name] ?? stage.name));
  return row;
}

function inWords({ title, outcome, error, stages }) {
  const steps = stages.map((stage) => `${stage.name} at the ${laneOf(stage)} after ${duration(stage.at_us - stages[0].at_us)}`);
  return `${title}: ${OUTCOMES[outcome] ?? outcome}${error ? ` (${error})` : ""}. ${steps.join("; ")}.`;
}
