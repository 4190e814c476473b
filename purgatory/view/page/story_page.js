// The story of a run in a world, step by step: what each host does, what woke it, what is under way.

import { button, byId, newElement, setText } from "./elements.js";
import { listenForKeys } from "./keys.js";
import { ask } from "./requests.js";
import { drawingOf, isUnderWay } from "./story_drawing.js";
import { counted, duration, moment, number } from "./units.js";

const PLAY_EVERY_MS = 700;
const MOST_LISTED = 12;
const KINDS = { down: "down", pause: "paused" };

const placeOf = ({ file, line }) => `${file.split(/[\\/]/).pop()}:${line}`;
const lasts = (one, index) => one.from <= index && (one.until === null || index < one.until);

/** The effects of a library's steps, by their indexes, in words. */
function wordsOf(messages) {
  const words = new Map();
  messages.forEach((one) => { if (!words.has(one.sent)) words.set(one.sent, `sends to ${one.target}: ${one.text}`); });
  messages.forEach((one) => { if (one.ended !== null) words.set(one.ended, `${one.outcome} from ${one.source}: ${one.text}`); });
  return words;
}

class Story {
  constructor(story) {
    this.story = story;
    this.words = wordsOf(story.messages);
    this.playing = null;
    this.position = 0;
    this.written = "";
    this.choose(false);
    byId("all-steps").disabled = story.steps.every((step) => step.matters);
    new ResizeObserver(() => this.draw()).observe(byId("lanes"));
  }

  get index() {
    return this.shown[this.position];
  }

  get step() {
    return this.story.steps[this.index];
  }

  /** A step in words: what ran and where, or what happened in it. */
  #nameOf(index) {
    const step = this.story.steps[index];
    if (step.place) return `${step.name} at ${placeOf(step.place)}`;
    return step.notes[0] ?? this.words.get(index) ?? step.name;
  }

  /** Take all steps, or those that matter; stay at the step, or at the last one before it. */
  choose(all) {
    const { steps } = this.story;
    const index = this.shown ? this.index : (this.story.begins_at ?? steps.length - 1);
    this.shown = [...steps.keys()].filter((one) => all || steps[one].matters);
    if (this.shown.length === 0) this.shown = [...steps.keys()];
    byId("step").max = this.shown.length - 1;
    this.position = Math.max(0, this.shown.findLastIndex((one) => one <= index));
  }

  show(position) {
    this.position = Math.min(this.shown.length - 1, Math.max(0, position));
    this.render();
  }

  /** Go to a step; to one that is left out by showing all. */
  goTo(index) {
    this.stop();
    if (!this.shown.includes(index)) {
      byId("all-steps").checked = true;
      this.choose(true);
    }
    this.show(this.shown.indexOf(index));
  }

  /** Go to the step that the address names; whether it names another than the one shown. */
  seekAddress() {
    const wanted = new URLSearchParams(location.hash.slice(1)).get("step");
    const index = this.story.steps.findIndex((step) => String(step.number) === wanted);
    if (index < 0 || wanted === this.written) return false;
    this.goTo(index);
    return true;
  }

  stepBy(by) {
    this.stop();
    this.show(this.position + by);
  }

  toCause() {
    if (this.step.cause !== null) this.goTo(this.step.cause);
  }

  toggle() {
    if (this.playing !== null) {
      this.stop();
      return;
    }
    if (this.position === this.shown.length - 1) this.show(0);
    setText(byId("play"), "Pause");
    this.playing = setInterval(() => {
      this.show(this.position + 1);
      if (this.position === this.shown.length - 1) this.stop();
    }, PLAY_EVERY_MS);
  }

  stop() {
    clearInterval(this.playing);
    this.playing = null;
    setText(byId("play"), "Play");
  }

  draw() {
    const place = byId("lanes");
    const width = Math.max(240, place.clientWidth);
    place.replaceChildren(drawingOf(this.story, this.shown, this.position, width, (position) => {
      this.stop();
      this.show(position);
    }));
  }

  render() {
    const { step, position, shown } = this;
    this.draw();
    setText(byId("clock"), moment(step.at_us));
    byId("step").value = position;
    byId("step").setAttribute("aria-valuetext", `step ${position + 1}: ${this.#nameOf(this.index)}`);
    for (const id of ["back", "to-begin"]) byId(id).disabled = position === 0;
    for (const id of ["forward", "to-end"]) byId(id).disabled = position === shown.length - 1;
    setText(byId("happened"), `Step ${number.format(position + 1)} of ${number.format(shown.length)}, on ${step.node}: ${this.#nameOf(this.index)}`);
    setText(byId("source").firstElementChild, step.place?.source ?? "");
    setText(byId("place"), `${step.place ? `${step.place.file}, line ${step.place.line}; ` : ""}number ${number.format(step.number)} of ${counted(this.story.total_steps, "step")} of the run`);
    this.#renderCause();
    list(byId("notes"), step.notes.map((text) => newElement("li", text)));
    this.#renderMessages();
    byId("hosts").replaceChildren(...this.story.nodes.map((node) => this.#host(node)));
    const faults = this.story.bands.filter((band) => lasts(band, this.index));
    list(byId("faults"), faults.map((band) => newElement("li", band.text)), "None.");
    this.written = String(step.number);
    history.replaceState(null, "", `#step=${this.written}`);
  }

  #renderCause() {
    const { step } = this;
    const { steps } = this.story;
    const parts = [newElement("span", step.cause === null ? "What woke it is not in the story." : "Woken by")];
    if (step.cause !== null) parts.push(this.#link(step.cause));
    const woke = steps.flatMap((one, index) => (one.cause === this.index ? [index] : []));
    if (woke.length) parts.push(newElement("span", "It woke"), ...woke.slice(0, MOST_LISTED).map((index) => this.#link(index)));
    byId("cause").replaceChildren(...parts);
  }

  #link(index) {
    const step = this.story.steps[index];
    const apart = Math.abs(step.at_us - this.step.at_us);
    const when = apart === 0 ? "" : `, ${duration(apart)} ${step.at_us < this.step.at_us ? "earlier" : "later"}`;
    return button(`${this.#nameOf(index)}${when}`, () => this.goTo(index));
  }

  #renderMessages() {
    const { index } = this;
    const { messages } = this.story;
    const sent = messages.filter((one) => one.sent === index).map((one) => this.#message(one, "sent"));
    const ended = messages.filter((one) => one.ended === index).map((one) => this.#message(one, one.outcome));
    list(byId("messages"), [...ended, ...sent], "None.");
    const underWay = messages.filter((one) => isUnderWay(one, index));
    list(byId("under-way"), underWay.slice(-MOST_LISTED).map((one) => this.#message(one, "")), "Nothing.");
    if (underWay.length > MOST_LISTED) byId("under-way").prepend(newElement("li", `${underWay.length - MOST_LISTED} more, sent before these`, "faint"));
  }

  #message(message, how) {
    const item = newElement("li");
    const since = how || message.sent < 0 ? "" : `, for ${duration(this.step.at_us - this.story.steps[message.sent].at_us)}`;
    item.append(newElement("span", `${how ? `${how}: ` : ""}${message.connection}: ${message.text}${since}`));
    const records = message.frames.flatMap((frame) => frame.records);
    if (records.length) item.append(newElement("pre", records.join("\n"), "records"));
    return item;
  }

  /** A host or broker at the step: its state, its last step, and its waiting tasks. */
  #host(node) {
    const { steps, bands, waits } = this.story;
    const place = newElement("div", undefined, "host");
    const state = bands.find((band) => KINDS[band.kind] && band.nodes.includes(node) && lasts(band, this.index));
    place.append(newElement("h3", state ? `${node}: ${KINDS[state.kind]}` : node, state ? "worry" : ""));
    const last = steps.slice(0, this.index + 1).findLastIndex((step) => step.node === node);
    place.append(last < 0 ? newElement("p", "No step yet.", "faint") : this.#link(last));
    const waiting = waits.filter((wait) => wait.node === node && lasts(wait, this.index));
    const items = waiting.slice(-MOST_LISTED).map((wait) => {
      const item = newElement("li", `${wait.name} waits at ${placeOf(wait.place)} `);
      item.append(newElement("code", wait.place.source));
      return item;
    });
    if (waiting.length > MOST_LISTED) items.unshift(newElement("li", `${waiting.length - MOST_LISTED} tasks more`, "faint"));
    if (items.length) {
      const tasks = newElement("ul", undefined, "plain");
      tasks.append(...items);
      place.append(tasks);
    }
    return place;
  }
}

function list(place, items, otherwise) {
  place.replaceChildren(...(items.length || !otherwise ? items : [newElement("li", otherwise, "faint")]));
}

function introduce(story) {
  if (story.title) {
    document.title = `${story.title}: a story`;
    setText(byId("name"), story.title);
  }
  setText(byId("failure"), story.failure ?? "");
  byId("command").hidden = !story.command;
  setText(byId("command").firstElementChild, story.command ?? "");
  byId("report").hidden = !story.report;
  setText(byId("report").lastElementChild, story.report ?? "");
}

function note(text) {
  setText(byId("note"), text);
  byId("note").hidden = false;
}

async function begin() {
  let document;
  try {
    document = await ask("story");
  } catch (error) {
    note(`No story: ${error.message}.`);
    return;
  }
  introduce(document);
  if (document.steps.length === 0) {
    note("No step was taken.");
    return;
  }
  byId("story").hidden = false;
  const story = new Story(document);
  window.purgatoryView = { story, get drawn() { return byId("lanes").childNodes; } };
  byId("back").addEventListener("click", () => story.stepBy(-1));
  byId("forward").addEventListener("click", () => story.stepBy(1));
  byId("to-begin").addEventListener("click", () => story.stepBy(-Infinity));
  byId("to-end").addEventListener("click", () => story.stepBy(Infinity));
  byId("play").addEventListener("click", () => story.toggle());
  byId("step").addEventListener("input", () => { story.stop(); story.show(Number(byId("step").value)); });
  byId("all-steps").addEventListener("change", (event) => { story.choose(event.target.checked); story.render(); });
  addEventListener("hashchange", () => story.seekAddress());
  listenForKeys([
    [[" "], "play, pause", () => story.toggle()],
    [["ArrowRight", "."], "a step forward", () => story.stepBy(1)],
    [["ArrowLeft", ","], "a step back", () => story.stepBy(-1)],
    [["w"], "to what woke this step", () => story.toCause()],
    [["Home", "End"], "to the first step, to the last", () => story.stepBy(-Infinity), () => story.stepBy(Infinity)],
  ]);
  if (!story.seekAddress()) story.render();
}

begin();
