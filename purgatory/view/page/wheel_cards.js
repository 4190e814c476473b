// A card for each broker: its wheel, what its purgatories count, and the same in words. One behind a
// proxy has no wheel there: its card counts requests.

import { button, byId, newElement, table, setText } from "./elements.js";
import { counted, duration, durationOfMs, number } from "./units.js";
import { WheelDrawing } from "./wheel_drawing.js";

const OLDEST = 8;
const MOST_IN_COLUMNS = 5;
const USUAL = ["immediate", "completed", "expired"];
const RATE_OVER_MS = 1000;

/** An operation, in a sentence. */
function described(operation, atUs) {
  const keys = operation.keys.length > 3
    ? `${operation.keys.slice(0, 3).join(", ")} and ${operation.keys.length - 3} more`
    : operation.keys.join(", ");
  const place = operation.level === null ? "not on the wheel: it never expires"
    : `level ${operation.level}, bucket ${operation.bucket}`;
  const waits = duration(Math.max(0, Math.floor(atUs) - operation.startUs));
  return `${operation.purgatory} of a ${operation.kind}${keys ? ` on ${keys}` : ""}: waits for ${waits}; ${place}`;
}

/** A place for a table that scrolls on a narrow screen, by keys too. */
function wide(name) {
  const place = newElement("div", undefined, "wide");
  place.tabIndex = 0;
  place.setAttribute("role", "region");
  place.setAttribute("aria-label", name);
  return place;
}

class WheelCard {
  constructor(id, model) {
    this.id = id;
    this.model = model;
    this.element = newElement("section", undefined, "broker");
    this.element.setAttribute("aria-label", `Broker ${id}`);
    this.heading = newElement("h3");
    this.about = newElement("span", "", "faint");
    this.canvas = newElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "slider");
    this.canvas.setAttribute("aria-valuemin", 0);
    this.tip = newElement("div", "", "tip");
    this.tip.hidden = true;
    this.counts = newElement("div", undefined, "counts");
    this.chosenText = newElement("p", "", "chosen faint");
    this.oldest = newElement("ul", undefined, "oldest");
    this.levels = wide(`Levels of the wheel of broker ${id}`);
    this.#assemble();
    this.drawing = new WheelDrawing(this.canvas);
    this.chosenId = null;
    this.walked = null; // the mark to which keys have led
    this.#listen();
  }

  #assemble() {
    const head = newElement("div", undefined, "row");
    head.append(this.heading, this.about);
    const picture = newElement("div", undefined, "picture");
    picture.append(this.canvas, this.tip);
    this.oldestDetails = newElement("details");
    this.oldestDetails.append(newElement("summary", "The oldest operations"), this.chosenText, this.oldest);
    this.levelDetails = newElement("details");
    this.levelDetails.append(newElement("summary", "The wheel as a table"), this.levels);
    for (const one of [this.oldestDetails, this.levelDetails]) {
      one.addEventListener("toggle", () => this.render());
    }
    this.element.append(head, picture, this.counts, this.oldestDetails, this.levelDetails);
  }

  #listen() {
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("keydown", (event) => this.#walk(event));
    this.canvas.addEventListener("blur", () => { this.tip.hidden = true; });
  }

  /** Go from mark to mark by keys, in the order in which they are due. O(marks log marks). */
  #walk(event) {
    const move = WALKS[event.key];
    if (!move || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    const marks = inOrder(this.broker);
    // A circled operation may have been answered: then the walk goes on from where it was due.
    const at = this.walked === null ? -1 : marks.findIndex((one) => !isBefore(one, this.walked));
    const isThere = at >= 0 && marks[at].id === this.walked.id;
    const found = marks[move(at, marks.length, isThere)] ?? null;
    if (found !== null || event.key === "Escape") this.#circle(found);
  }

  #circle(operation) {
    this.walked = operation;
    this.chosenId = operation?.id ?? null;
    this.drawing.changed = true;
    this.tip.hidden = operation === null || operation.x === undefined;
    if (!this.tip.hidden) this.#showTip(operation, operation.x, operation.y);
    this.render();
  }

  /** Circle an operation, if it is one of this broker. */
  choose(id) {
    const operation = this.model.operations.get(id);
    this.chosenId = operation?.broker === this.id ? id : null;
    this.walked = null;
    this.drawing.changed = true;
    if (this.chosenId !== null) this.oldestDetails.open = true;
    this.render();
  }

  get broker() {
    return this.model.brokers.get(this.id);
  }

  #point(event) {
    const found = this.drawing.at(this.broker, event.offsetX, event.offsetY);
    this.tip.hidden = found === null;
    if (found !== null) this.#showTip(found, event.offsetX, event.offsetY);
  }

  #showTip(operation, x, y) {
    setText(this.tip, described(operation, this.model.atUs));
    const half = this.canvas.clientWidth / 2;
    this.tip.style.left = x < half ? `${x + 12}px` : "auto";
    this.tip.style.right = x < half ? "auto" : `${2 * half - x + 12}px`;
    this.tip.style.top = `${y + 12}px`;
  }

  draw(nowMs, isNew) {
    this.drawing.chosen = this.chosenId === null ? null : this.model.operations.get(this.chosenId) ?? null;
    this.drawing.draw(this.broker, nowMs, isNew);
  }

  /** Say in words what is drawn. */
  render() {
    const broker = this.broker;
    this.element.classList.toggle("dead", !broker.alive);
    setText(this.heading, `Broker ${broker.id}${broker.alive ? broker.paused ? " (paused)" : "" : " (dead)"}`);
    const connections = broker.connections === null ? "" : counted(broker.connections, "connection");
    setText(this.about, [broker.address, connections].filter((text) => text).join(", "));
    const pending = [...broker.purgatories.values()].map((one) => `${one.name} ${one.pending}`);
    this.canvas.setAttribute(
      "aria-label",
      `Timing wheel of broker ${broker.id}: ${counted(broker.marks, "mark")}. Pending: ${pending.join(", ") || "none"}.`,
    );
    this.#renderWalk(broker);
    const counts = countsOf(broker);
    counts.classList.toggle("many", counts.rows[0].cells.length > MOST_IN_COLUMNS);
    this.counts.replaceChildren(counts);
    if (this.oldestDetails.open) this.#renderOldest(broker);
    if (this.levelDetails.open) this.levels.replaceChildren(levelsOf(broker));
  }

  #renderWalk(broker) {
    const chosen = this.model.operations.get(this.chosenId);
    const at = chosen ? inOrder(broker).indexOf(chosen) + 1 : 0;
    this.canvas.setAttribute("aria-valuemax", broker.marks);
    this.canvas.setAttribute("aria-valuenow", at);
    this.canvas.setAttribute("aria-valuetext", chosen ? described(chosen, this.model.atUs) : "no mark is circled");
    if (this.walked && !chosen) this.tip.hidden = true;
  }

  #renderOldest(broker) {
    const chosen = this.model.operations.get(this.chosenId);
    setText(this.chosenText, chosen ? `Circled: ${described(chosen, this.model.atUs)}.`
      : this.chosenId === null ? "Choose one to circle its mark." : "The one that was circled has been answered.");
    const ids = oldestOf(broker);
    const focused = [...this.oldest.querySelectorAll("button")].indexOf(document.activeElement);
    this.oldest.replaceChildren(...ids.map((operation) => this.#choice(operation)));
    if (ids.length === 0) this.oldest.append(newElement("li", "Nothing waits.", "faint"));
    if (focused >= 0) this.oldest.querySelectorAll("button")[Math.min(focused, ids.length - 1)]?.focus();
  }

  #choice(operation) {
    const item = newElement("li");
    const pressed = operation.id === this.chosenId;
    const choice = button(described(operation, this.model.atUs), () => {
      this.chosenId = pressed ? null : operation.id;
      this.drawing.changed = true;
      this.render();
    });
    choice.setAttribute("aria-pressed", String(pressed));
    item.append(choice);
    return item;
  }
}

/** The mark that a key leads to: from an index, or before it where that mark is gone, of so many. */
const WALKS = {
  ArrowRight: (at, count, isThere) => (isThere ? Math.min(at + 1, count - 1) : Math.max(at, 0)),
  ArrowDown: (at, count, isThere) => WALKS.ArrowRight(at, count, isThere),
  ArrowLeft: (at, count) => (at < 0 ? count - 1 : Math.max(at - 1, 0)),
  ArrowUp: (at, count) => WALKS.ArrowLeft(at, count),
  Home: () => 0,
  End: (at, count) => count - 1,
  Escape: () => -1,
};

const dueOf = (one) => one.expiresMs ?? Infinity;

/** Whether one is due before another; of those due together the one that came first. */
const isBefore = (one, other) => dueOf(one) < dueOf(other) || (dueOf(one) === dueOf(other) && one.id < other.id);

/** The marks of a broker, the first one due first. O(marks log marks). */
function inOrder(broker) {
  const marks = [...broker.buckets.values()].flatMap(({ slots }) => slots.filter((one) => one !== null));
  return marks.sort((one, other) => (isBefore(one, other) ? -1 : 1));
}

const isUsed = ({ pending, outcomes }) => pending > 0 || Object.values(outcomes).some((count) => count > 0);

/** The counts of its purgatories; a broker has a dozen, and unused ones are left out. */
function countsOf(broker) {
  const heads = [["purgatory", false], ["waiting", true], ["at once", true], ["completed", true], ["expired", true]];
  const purgatories = [...broker.purgatories.values()].filter(isUsed);
  const others = [...new Set(purgatories.flatMap(({ outcomes }) => Object.keys(outcomes).filter((name) => outcomes[name])))]
    .filter((name) => !USUAL.includes(name));
  const rows = purgatories.map(({ name, pending, outcomes }) => [
    name, number.format(pending), number.format(outcomes.immediate ?? 0), number.format(outcomes.completed ?? 0),
    number.format(outcomes.expired ?? 0), ...others.map((other) => number.format(outcomes[other] ?? 0)),
  ]);
  return table("Requests by what became of them", [...heads, ...others.map((name) => [name, true])], rows);
}

function levelsOf(broker) {
  const { wheel } = broker;
  if (wheel === null) return newElement("p", "Nobody turns it.", "faint");
  const marks = new Map();
  broker.buckets.forEach(({ level, count }) => marks.set(level, (marks.get(level) ?? 0) + count));
  const rows = wheel.levels.map(({ level, tick_ms, covers_ms: [from, until] }) => [
    String(level), durationOfMs(tick_ms), durationOfMs(from - wheel.start_ms), durationOfMs(until - wheel.start_ms),
    number.format(marks.get(level) ?? 0),
  ]);
  if (marks.get(0)) rows.push(["no timeout", "-", "-", "-", number.format(marks.get(0))]);
  const heads = [["level", false], ["a bucket lasts", true], ["from", true], ["until", true], ["marks", true]];
  return table(`${number.format(wheel.size)} buckets on each level, from the inside`, heads, rows);
}

function oldestOf(broker) {
  const oldest = [];
  for (const bucket of broker.buckets.values()) {
    for (const operation of bucket.slots) {
      if (operation === null) continue;
      if (oldest.length === OLDEST && operation.startUs >= oldest[OLDEST - 1].startUs) continue;
      oldest.push(operation);
      oldest.sort((one, other) => one.startUs - other.startUs);
      oldest.length = Math.min(oldest.length, OLDEST);
    }
  }
  return oldest;
}

/** The card of a broker behind a proxy. */
class ProxiedCard {
  constructor(id, model) {
    Object.assign(this, { id, model, chosenId: null });
    this.element = newElement("section", undefined, "broker");
    this.heading = newElement("h3", id < 0 ? "A bootstrap server" : `Broker ${id}`);
    this.element.setAttribute("aria-label", this.heading.textContent);
    this.about = newElement("span", "", "faint");
    const head = newElement("div", undefined, "row");
    head.append(this.heading, this.about);
    this.counts = newElement("div", undefined, "counts");
    this.element.append(head, this.counts);
    this.drawing = { drawn: 0, moves: false, begin() {}, settle() {} };
    this.looks = []; // in the last second: when, and how many requests of each API there were
  }

  choose() {}

  draw() {}

  render() {
    const { address, listener, connections, purgatories } = this.model.brokers.get(this.id);
    setText(this.about, `${address}, for clients ${listener}, ${counted(connections, "connection")}`);
    const counts = new Map([...purgatories.values()].map(({ name, outcomes }) => [name, outcomes.requests ?? 0]));
    const nowMs = performance.now();
    this.looks.push({ nowMs, counts });
    while (this.looks.length > 2 && this.looks[1].nowMs <= nowMs - RATE_OVER_MS) this.looks.shift();
    const [first] = this.looks;
    const seconds = Math.max(1, nowMs - first.nowMs) / 1000;
    const rows = [...counts].map(([name, count]) => [
      name, number.format(count), number.format(Math.round((count - (first.counts.get(name) ?? 0)) / seconds)),
    ]);
    this.counts.replaceChildren(rows.length === 0 ? newElement("p", "No request yet.", "faint")
      : table("Requests by API", [["API", false], ["requests", true], ["per second", true]], rows));
  }
}

/** All cards. */
export class WheelCards {
  constructor(model) {
    this.model = model;
    this.place = byId("brokers");
    this.cards = new Map();
    this.version = -1;
  }

  /** Marks that were drawn on each broker's wheel in its last frame. */
  get drawn() {
    return Object.fromEntries([...this.cards].map(([id, card]) => [id, card.drawing.drawn]));
  }

  /** The circled mark on each broker's wheel, or null. */
  get circled() {
    return Object.fromEntries([...this.cards].map(([id, card]) => [id, card.chosenId]));
  }

  /** Circle the mark of an operation, of which it is told in words too; null: of none. */
  choose(id) {
    this.#match();
    this.cards.forEach((card) => card.choose(id));
  }

  /** Another moment is shown: nothing moves there from here. */
  settle() {
    this.cards.forEach((card) => card.drawing.settle());
  }

  /** Draw what changed; returns whether anything was drawn. */
  draw(nowMs) {
    this.#match();
    for (const effect of this.model.takeEffects()) {
      this.cards.get(effect.operation.broker)?.drawing.begin(effect, nowMs);
    }
    const isNew = this.version !== this.model.version;
    this.version = this.model.version;
    const moving = [...this.cards.values()].filter((card) => isNew || card.drawing.moves);
    moving.forEach((card) => card.draw(nowMs, isNew));
    return moving.length > 0;
  }

  render() {
    this.#match();
    this.cards.forEach((card) => card.render());
  }

  #match() {
    for (const [id, card] of this.cards) {
      if (this.model.brokers.has(id)) continue;
      card.element.remove();
      this.cards.delete(id);
    }
    for (const [id, broker] of this.model.brokers) {
      if (this.cards.has(id)) continue;
      const card = new (broker.listener ? ProxiedCard : WheelCard)(id, this.model);
      this.cards.set(id, card);
      this.place.append(card.element);
    }
  }
}
