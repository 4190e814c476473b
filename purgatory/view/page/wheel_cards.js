// A card for each broker: its wheel, what its purgatories count, and the same in words.

import { button, byId, made, table, tell } from "./elements.js";
import { counted, duration, durationOfMs, number } from "./units.js";
import { WheelDrawing } from "./wheel_drawing.js";

const OLDEST = 8;
const USUAL = ["immediate", "completed", "expired"];

/** What an operation is, in a sentence. */
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
  const place = made("div", undefined, "wide");
  place.tabIndex = 0;
  place.setAttribute("role", "region");
  place.setAttribute("aria-label", name);
  return place;
}

class WheelCard {
  constructor(id, model) {
    this.id = id;
    this.model = model;
    this.element = made("section", undefined, "broker");
    this.element.setAttribute("aria-label", `Broker ${id}`);
    this.heading = made("h3");
    this.about = made("span", "", "faint");
    this.canvas = made("canvas");
    this.canvas.setAttribute("role", "img");
    this.tip = made("div", "", "tip");
    this.tip.hidden = true;
    this.counts = wide(`Counts of broker ${id}`);
    this.told = made("p", "", "told faint");
    this.oldest = made("ul", undefined, "oldest");
    this.levels = wide(`Levels of the wheel of broker ${id}`);
    this.#assemble();
    this.drawing = new WheelDrawing(this.canvas);
    this.chosenId = null;
    this.#listen();
  }

  #assemble() {
    const head = made("div", undefined, "row");
    head.append(this.heading, this.about);
    const picture = made("div", undefined, "picture");
    picture.append(this.canvas, this.tip);
    this.oldestDetails = made("details");
    this.oldestDetails.append(made("summary", "The oldest operations"), this.told, this.oldest);
    this.levelDetails = made("details");
    this.levelDetails.append(made("summary", "The wheel as a table"), this.levels);
    for (const one of [this.oldestDetails, this.levelDetails]) {
      one.addEventListener("toggle", () => this.tell());
    }
    this.element.append(head, picture, this.counts, this.oldestDetails, this.levelDetails);
  }

  #listen() {
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
  }

  get broker() {
    return this.model.brokers.get(this.id);
  }

  #point(event) {
    const found = this.drawing.at(this.broker, event.offsetX, event.offsetY);
    this.tip.hidden = found === null;
    if (found === null) return;
    tell(this.tip, described(found, this.model.atUs));
    const half = this.canvas.clientWidth / 2;
    this.tip.style.left = event.offsetX < half ? `${event.offsetX + 12}px` : "auto";
    this.tip.style.right = event.offsetX < half ? "auto" : `${2 * half - event.offsetX + 12}px`;
    this.tip.style.top = `${event.offsetY + 12}px`;
  }

  draw(nowMs, isNew) {
    this.drawing.chosen = this.chosenId === null ? null : this.model.operations.get(this.chosenId) ?? null;
    this.drawing.draw(this.broker, nowMs, isNew);
  }

  /** Say in words what is drawn. */
  tell() {
    const broker = this.broker;
    this.element.classList.toggle("dead", !broker.alive);
    tell(this.heading, `Broker ${broker.id}${broker.alive ? broker.paused ? " (paused)" : "" : " (dead)"}`);
    const connections = broker.connections === null ? "" : counted(broker.connections, "connection");
    tell(this.about, [broker.address, connections].filter((text) => text).join(", "));
    const pending = [...broker.purgatories.values()].map((one) => `${one.name} ${one.pending}`);
    this.canvas.setAttribute(
      "aria-label",
      `Timing wheel of broker ${broker.id}: ${counted(broker.marks, "mark")}. Pending: ${pending.join(", ") || "none"}.`,
    );
    this.counts.replaceChildren(countsOf(broker));
    if (this.oldestDetails.open) this.#tellOldest(broker);
    if (this.levelDetails.open) this.levels.replaceChildren(levelsOf(broker));
  }

  #tellOldest(broker) {
    const chosen = this.model.operations.get(this.chosenId);
    tell(this.told, chosen ? `Circled: ${described(chosen, this.model.atUs)}.`
      : this.chosenId === null ? "Choose one to circle its mark." : "The one that was circled has been answered.");
    const ids = oldestOf(broker);
    const focused = [...this.oldest.querySelectorAll("button")].indexOf(document.activeElement);
    this.oldest.replaceChildren(...ids.map((operation) => this.#choice(operation)));
    if (ids.length === 0) this.oldest.append(made("li", "Nothing waits.", "faint"));
    if (focused >= 0) this.oldest.querySelectorAll("button")[Math.min(focused, ids.length - 1)]?.focus();
  }

  #choice(operation) {
    const item = made("li");
    const pressed = operation.id === this.chosenId;
    const choice = button(described(operation, this.model.atUs), () => {
      this.chosenId = pressed ? null : operation.id;
      this.drawing.changed = true;
      this.tell();
    });
    choice.setAttribute("aria-pressed", String(pressed));
    item.append(choice);
    return item;
  }
}

const isUsed = ({ pending, outcomes }) => pending > 0 || Object.values(outcomes).some((count) => count > 0);

/** What its purgatories count; a broker has a dozen, of which those are left out that nobody came to. */
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

  tell() {
    this.#match();
    this.cards.forEach((card) => card.tell());
  }

  #match() {
    for (const [id, card] of this.cards) {
      if (this.model.brokers.has(id)) continue;
      card.element.remove();
      this.cards.delete(id);
    }
    for (const id of this.model.brokers.keys()) {
      if (this.cards.has(id)) continue;
      const card = new WheelCard(id, this.model);
      this.cards.set(id, card);
      this.place.append(card.element);
    }
  }
}
