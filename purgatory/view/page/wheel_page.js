// The wheel alone, for teaching: a walk from the server, step by step, with the code beside it.

import { byId, newElement, setText } from "./elements.js";
import { listenForKeys } from "./keys.js";
import { Model } from "./model.js";
import { ask } from "./requests.js";
import { durationOfMs } from "./units.js";
import { LISTING, happened, linesOf, stepName } from "./wheel_code.js";
import { WheelDrawing } from "./wheel_drawing.js";

const PLAY_EVERY_MS = 1600;

/** The walk's state after a step, in the words of the view's wire. */
function stateOf(walk, index) {
  const { state } = walk.steps[index];
  const clockMs = Math.max(walk.start_ms, state.levels[0].covers_ms[0]);
  const operations = state.levels.flatMap(({ level, buckets }) => buckets.flatMap(({ tasks }, bucket) =>
    tasks.map((task) => [task, 0, "Produce", "task", [], 0, walk.expirations.get(task), level, bucket])));
  const levels = state.levels.map(({ level, tick_ms, covers_ms }) => ({ level, tick_ms, covers_ms }));
  const wheel = { tick_ms: walk.tick_ms, size: walk.wheel_size, clock_ms: clockMs, start_ms: walk.start_ms, levels };
  const pending = operations.length;
  const broker = { id: 0, alive: true, address: null, connections: null, wheel, purgatories: [{ name: "Produce", pending, outcomes: {} }] };
  return { at_us: 0, brokers: [broker], operations, pending, shown: pending, topics: [], groups: [], transactions: [], faults: [], unknown: [] };
}

/** The changes from one state to the next, as on the wire. */
function changesBetween(from, to) {
  const before = new Map(from.operations.map((tuple) => [tuple[0], tuple]));
  const after = new Map(to.operations.map((tuple) => [tuple[0], tuple]));
  const [{ wheel }] = to.brokers;
  const changes = [{ change: "clock", broker: 0, clock_ms: wheel.clock_ms, levels: wheel.levels }];
  for (const [id, tuple] of after) {
    const was = before.get(id);
    if (!was) changes.push({ change: "parked", operation: tuple });
    else if (was[7] !== tuple[7] || was[8] !== tuple[8]) changes.push({ change: "moved", id, level: tuple[7], bucket: tuple[8] });
  }
  for (const id of before.keys()) {
    if (!after.has(id)) changes.push({ change: "completed", id, broker: 0, purgatory: "Produce", kind: "task", outcome: "completed", keys: [] });
  }
  return changes;
}

class Lesson {
  constructor() {
    this.model = new Model();
    this.drawing = new WheelDrawing(byId("wheel"), (task) => String(task.id));
    this.lines = LISTING.map((text) => {
      const line = newElement("li");
      line.append(newElement("span", text), newElement("span", "", "value"));
      return line;
    });
    byId("code").append(...this.lines);
    this.walk = null;
    this.index = 0;
    this.playing = null;
  }

  async load(parameters) {
    const walk = await ask("wheel/walk", parameters);
    walk.expirations = new Map(walk.steps.filter((step) => step.task !== undefined)
      .map((step) => [step.task, step.expiration_ms]));
    this.stop();
    this.walk = walk;
    byId("step").max = walk.steps.length - 1;
    this.show(0);
  }

  /** Show a step: the next one by what it changes, any other at once. */
  show(index) {
    if (!this.walk) return;
    const wanted = Math.max(0, Math.min(this.walk.steps.length - 1, index));
    const state = stateOf(this.walk, wanted);
    if (wanted === this.index + 1) {
      this.model.applyChanges(changesBetween(stateOf(this.walk, this.index), state), 0);
    } else {
      this.model.apply(state);
      this.drawing.settle();
    }
    this.index = wanted;
    this.#render();
  }

  #render() {
    const { walk, index } = this;
    const step = walk.steps[index];
    const before = walk.steps[Math.max(0, index - 1)].state;
    const seconds = (ms) => durationOfMs(ms - walk.start_ms);
    setText(byId("happened"), happened(step, seconds));
    setText(byId("where"), `Step ${index} of ${walk.steps.length - 1}: ${stepName(step, before)}`);
    byId("step").value = index;
    byId("step").setAttribute("aria-valuetext", `step ${index}: ${step.event}`);
    byId("back").disabled = index === 0;
    byId("forward").disabled = index === walk.steps.length - 1;
    const queue = step.state.delay_queue.map(({ expiration_ms: at, level, bucket }) => `${seconds(at)} (level ${level}, bucket ${bucket})`);
    setText(byId("queue"), queue.length > 12 ? `${queue.slice(0, 12).join(", ")} and ${queue.length - 12} more` : queue.join(", ") || "empty");
    setText(byId("held"), heldIn(step.state));
    this.#markLines(linesOf(step, before, walk.expirations));
  }

  #markLines(run) {
    this.lines.forEach((line, index) => {
      const isRun = run.has(index);
      line.classList.toggle("runs", isRun);
      if (isRun) line.setAttribute("aria-current", "true");
      else line.removeAttribute("aria-current");
      setText(line.lastChild, isRun && run.get(index) ? `  # ${run.get(index)}` : "");
    });
    const first = this.lines.find((line, index) => run.has(index));
    const box = byId("listing");
    if (first) box.scrollTop = Math.max(0, first.offsetTop - box.offsetTop - 40);
  }

  toggle() {
    if (this.playing !== null) {
      this.stop();
      return;
    }
    if (this.walk && this.index === this.walk.steps.length - 1) this.show(0);
    setText(byId("play"), "Pause");
    this.playing = setInterval(() => {
      this.show(this.index + 1);
      if (this.index === this.walk.steps.length - 1) this.stop();
    }, PLAY_EVERY_MS);
  }

  stop() {
    clearInterval(this.playing);
    this.playing = null;
    setText(byId("play"), "Play");
  }

  step(by) {
    this.stop();
    this.show(this.index + by);
  }

  draw(nowMs) {
    const broker = this.model.brokers.get(0);
    const effects = this.model.takeEffects();
    effects.forEach((effect) => this.drawing.begin(effect, nowMs));
    if (broker && (this.drawing.moves || this.drawnVersion !== this.model.version)) {
      this.drawnVersion = this.model.version;
      this.drawing.draw(broker, nowMs);
    }
  }
}

/** The places of all tasks, in words, for those who can't see the picture. */
function heldIn(state) {
  const held = state.levels.flatMap(({ level, buckets }) => buckets.flatMap(({ tasks }, bucket) =>
    (tasks.length ? [`level ${level}, bucket ${bucket}: ${tasks.slice(0, 12).join(", ")}${tasks.length > 12 ? ` and ${tasks.length - 12} more` : ""}`] : [])));
  return held.join("; ") || "nothing";
}

function begin() {
  const lesson = new Lesson();
  window.purgatoryView = { model: lesson.model, get drawn() { return { 0: lesson.drawing.drawn }; }, listing: LISTING };
  const load = async () => {
    const form = Object.fromEntries(new FormData(byId("settings")));
    try {
      await lesson.load(form);
      setText(byId("note"), "");
    } catch (error) {
      setText(byId("note"), error.message);
    }
  };
  byId("settings").addEventListener("submit", (event) => { event.preventDefault(); load(); });
  byId("back").addEventListener("click", () => lesson.step(-1));
  byId("forward").addEventListener("click", () => lesson.step(1));
  byId("play").addEventListener("click", () => lesson.toggle());
  byId("step").addEventListener("input", () => lesson.step(Number(byId("step").value) - lesson.index));
  listenForKeys([
    [[" "], "play, pause", () => lesson.toggle()],
    [["ArrowRight", "."], "a step forward", () => lesson.step(1)],
    [["ArrowLeft", ","], "a step back", () => lesson.step(-1)],
    [["Home", "End"], "to the first step, to the last", () => lesson.step(-lesson.index),
      () => lesson.step(lesson.walk ? lesson.walk.steps.length : 0)],
  ]);
  const frame = (nowMs) => {
    lesson.draw(nowMs);
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
  load();
}

begin();
