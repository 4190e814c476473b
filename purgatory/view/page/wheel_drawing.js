// One broker's wheel on a canvas: rings, hands, marks, and what moves for a moment.
//
// Marks at rest are painted on a layer of their own, when the model changed; each frame copies it and
// draws what moves. Ten thousand marks cost little between two changes, and nothing while all is at
// rest. Of many marks each is a small square; of few each has the shape of its kind.

import { Geometry } from "./wheel_geometry.js";
import { KINDS, OUTLINES, kindOf } from "./kinds.js";
import { durationOfMs } from "./units.js";

const FALL_MS = 450;
const FLASH_MS = 700;
const ARRIVE_MS = 350;
const MOST_FLASHES = 250;
const SHAPES_FROM = 4.5; // pixels: below, a shape can't be distinguished from another
const SPRITE = 24;

const still = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

const eased = (share) => 1 - (1 - share) ** 3;

export class WheelDrawing {
  /**
   * @param canvas where
   * @param labelOf the text within a mark, or nothing
   */
  constructor(canvas, labelOf = null) {
    this.canvas = canvas;
    this.labelOf = labelOf;
    this.front = canvas.getContext("2d");
    this.layer = document.createElement("canvas").getContext("2d");
    this.context = this.front;
    this.flashes = [];
    this.falling = new Set();
    this.chosen = null;
    this.drawn = 0;
    this.resting = 0;
    this.isStale = true;
    this.changed = true;
    this.#readColours();
    dark.addEventListener("change", () => this.#readColours());
    new ResizeObserver(() => this.#measure()).observe(canvas);
    this.#measure();
  }

  #readColours() {
    const style = getComputedStyle(document.documentElement);
    const names = ["ink", "faint", "line", "card", "good", "bad", "hand", "now", "field", ...KINDS];
    this.colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    this.sprites = Object.fromEntries(KINDS.map((kind) => [kind, spriteOf(kind, this.colours[kind])]));
    this.isStale = this.changed = true;
  }

  #measure() {
    this.side = Math.max(120, this.canvas.clientWidth);
    const ratio = devicePixelRatio || 1;
    const pixels = Math.round(this.side * ratio);
    if (this.canvas.width !== pixels) this.canvas.width = this.canvas.height = pixels;
    this.layer.canvas.width = this.layer.canvas.height = pixels;
    this.ratio = pixels / this.side;
    this.isStale = this.changed = true;
  }

  get moves() {
    return this.changed || this.flashes.length > 0 || this.falling.size > 0;
  }

  /** Let something move by an effect of the model. */
  begin({ kind, operation, outcome }, nowMs) {
    this.changed = true;
    if (kind === "completed") {
      this.falling.delete(operation);
      if (this.flashes.length < MOST_FLASHES && operation.x !== undefined) {
        this.flashes.push({ x: operation.x, y: operation.y, outcome, sinceMs: nowMs });
      }
    } else if (!still.matches) {
      const from = operation.x === undefined ? null : [operation.x, operation.y];
      operation.moving = { from, sinceMs: nowMs, forMs: from ? FALL_MS : ARRIVE_MS };
      this.falling.add(operation);
    }
  }

  /** Forget what moves: another moment is shown. */
  settle() {
    this.flashes.length = 0;
    this.falling.clear();
    this.changed = true;
  }

  /** Draw a frame; isNew says whether the model changed since the last one. */
  draw(broker, nowMs, isNew = true) {
    this.changed = false;
    if (isNew || this.isStale) this.#paintLayer(broker);
    this.#begin(this.front);
    this.front.drawImage(this.layer.canvas, 0, 0, this.side, this.side);
    for (const operation of this.falling) {
      // The effects of the model are bounded: one of an operation that left may be missing.
      if (operation.isGone || !operation.moving?.to) this.falling.delete(operation);
      else this.#move(operation, nowMs);
    }
    this.drawn = this.resting + this.falling.size;
    this.#flashes(nowMs);
    this.#choose();
  }

  #begin(context) {
    this.context = context;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.side, this.side);
  }

  #paintLayer(broker) {
    this.isStale = false;
    this.#begin(this.layer);
    const { wheel } = broker;
    if (wheel === null) {
      this.resting = 0; // of a dead broker nothing is known, and nothing waits there
      this.#say(broker.alive ? "nothing is known of its wheel" : "dead: nothing waits here");
      return;
    }
    const forever = broker.buckets.get(0);
    this.geometry = new Geometry(this.side, wheel, forever !== undefined && forever.count > 0);
    this.#rings(wheel);
    this.#marks(broker);
    this.#hands(wheel);
    this.#words(wheel, forever);
  }

  #rings(wheel) {
    const { context, geometry, colours } = this;
    const { middle } = geometry;
    for (const level of wheel.levels) {
      const [inner, outer] = geometry.radii(level.level);
      this.#sector(level.level, geometry.nowBucket(level), colours.now);
      context.strokeStyle = colours.line;
      context.lineWidth = 1;
      context.beginPath();
      context.arc(middle, middle, inner, 0, 2 * Math.PI);
      for (let bucket = 0; bucket <= wheel.size && wheel.size <= 400; bucket += 1) {
        const [angle] = geometry.angles(level.level, bucket);
        context.moveTo(...geometry.point(inner, angle));
        context.lineTo(...geometry.point(outer, angle));
      }
      context.moveTo(middle + outer, middle);
      context.arc(middle, middle, outer, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  #sector(level, bucket, colour) {
    const { context, geometry } = this;
    const [inner, outer] = geometry.radii(level);
    const [from, to] = geometry.angles(level, bucket);
    context.fillStyle = colour;
    context.beginPath();
    context.arc(geometry.middle, geometry.middle, outer, from, to);
    context.arc(geometry.middle, geometry.middle, inner, to, from, true);
    context.fill();
  }

  #hands(wheel) {
    const { context, geometry, colours } = this;
    context.strokeStyle = colours.hand;
    context.lineCap = "round";
    context.lineWidth = 2.5;
    context.beginPath();
    for (const level of wheel.levels) {
      const [angle] = geometry.angles(level.level, geometry.nowBucket(level));
      const [inner, outer] = geometry.radii(level.level);
      context.moveTo(...geometry.point(inner, angle));
      context.lineTo(...geometry.point(outer, angle));
    }
    context.stroke();
  }

  /** Paint those that rest, and start those that move. */
  #marks(broker) {
    this.resting = 0;
    for (const bucket of broker.buckets.values()) {
      if (bucket.count === 0) continue;
      const grid = this.geometry.grid(bucket.level, bucket.index, bucket.slots.length);
      for (const operation of bucket.slots) {
        if (operation === null) continue;
        const to = this.geometry.place(grid, operation.slot);
        if (operation.moving) {
          Object.assign(operation.moving, { to, size: grid.size });
        } else {
          this.resting += 1;
          this.#mark(operation, ...to, grid.size);
        }
      }
    }
  }

  #mark(operation, x, y, size) {
    operation.x = x;
    operation.y = y;
    operation.kindOf ??= kindOf(operation);
    const { context } = this;
    if (this.labelOf) this.#label(operation, x, y);
    else if (size < SHAPES_FROM) {
      context.fillStyle = this.colours[operation.kindOf];
      context.fillRect(x - size / 2, y - size / 2, size, size);
    } else {
      context.drawImage(this.sprites[operation.kindOf], x - size / 2, y - size / 2, size, size);
    }
  }

  #label(operation, x, y) {
    const { context, colours } = this;
    context.fillStyle = colours[operation.kindOf];
    context.beginPath();
    context.arc(x, y, 12, 0, 2 * Math.PI);
    context.fill();
    context.fillStyle = colours.card;
    context.font = "bold 13px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(this.labelOf(operation), x, y + 0.5);
  }

  #move(operation, nowMs) {
    const { from, to: [x, y], size, sinceMs, forMs } = operation.moving;
    const share = eased(Math.min(1, Math.max(0, (nowMs - sinceMs) / forMs)));
    if (share >= 1) this.#rest(operation);
    else if (from) {
      this.#mark(operation, from[0] + (x - from[0]) * share, from[1] + (y - from[1]) * share, Math.max(size, 5));
    } else {
      this.#mark(operation, x, y, size * (2 - share));
    }
  }

  /** It has come to where it belongs: it is painted among those that rest, and in this frame. */
  #rest(operation) {
    const { to, size } = operation.moving;
    operation.moving = null;
    this.falling.delete(operation);
    this.resting += 1;
    this.context = this.layer;
    this.#mark(operation, ...to, size);
    this.context = this.front;
    this.#mark(operation, ...to, size);
  }

  #words(wheel, forever) {
    const { context, geometry, colours } = this;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineWidth = 4;
    context.strokeStyle = colours.card;
    const put = (text, x, y, colour = colours.faint) => {
      context.strokeText(text, x, y);
      context.fillStyle = colour;
      context.fillText(text, x, y);
    };
    for (const level of wheel.levels) {
      put(durationOfMs(level.tick_ms), geometry.middle, geometry.middle - geometry.labelRadius(level.level));
    }
    if (forever && forever.count) put("no timeout", geometry.middle, geometry.middle - geometry.labelRadius(0));
    put("turned to", geometry.middle, geometry.middle - 8);
    context.font = "bold 12px system-ui, sans-serif";
    put(durationOfMs(wheel.clock_ms - wheel.start_ms), geometry.middle, geometry.middle + 7, colours.ink);
  }

  /** Say why there is no wheel. */
  #say(text) {
    const { context, side } = this;
    context.font = "16px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillStyle = this.colours.ink;
    context.fillText(text, side / 2, side / 2);
  }

  #flashes(nowMs) {
    this.flashes = this.flashes.filter((flash) => nowMs - flash.sinceMs < FLASH_MS);
    const { context } = this;
    for (const flash of this.flashes) {
      const share = Math.max(0, (nowMs - flash.sinceMs) / FLASH_MS);
      context.globalAlpha = still.matches ? 1 : 1 - share;
      this.#flash(flash, still.matches ? 9 : 4 + 6 * eased(share));
    }
    context.globalAlpha = 1;
    if (this.flashes.length === 0) return;
    this.changed = true;
  }

  /** A ring for what was answered, a cross for what expired, a bar for all else. */
  #flash({ x, y, outcome }, radius) {
    const { context, colours } = this;
    context.lineWidth = 2.5;
    context.strokeStyle = { completed: colours.good, expired: colours.bad }[outcome] ?? colours.ink;
    context.beginPath();
    if (outcome === "completed") {
      context.arc(x, y, radius, 0, 2 * Math.PI);
    } else if (outcome === "expired") {
      const reach = radius * 0.7;
      context.moveTo(x - reach, y - reach);
      context.lineTo(x + reach, y + reach);
      context.moveTo(x + reach, y - reach);
      context.lineTo(x - reach, y + reach);
    } else {
      context.moveTo(x - radius, y);
      context.lineTo(x + radius, y);
    }
    context.stroke();
  }

  #choose() {
    if (!this.chosen || this.chosen.x === undefined) return;
    const { context, colours } = this;
    context.strokeStyle = colours.ink;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(this.chosen.x, this.chosen.y, 11, 0, 2 * Math.PI);
    context.stroke();
  }

  /** The mark nearest to a point of the canvas, within a finger's width. O(operations). */
  at(broker, x, y) {
    let nearest = null;
    let least = 14 ** 2;
    for (const bucket of broker.buckets.values()) {
      for (const operation of bucket.slots) {
        if (operation === null || operation.x === undefined) continue;
        const distance = (operation.x - x) ** 2 + (operation.y - y) ** 2;
        if (distance < least) [nearest, least] = [operation, distance];
      }
    }
    return nearest;
  }
}

function spriteOf(kind, colour) {
  const sprite = document.createElement("canvas");
  sprite.width = sprite.height = SPRITE;
  const context = sprite.getContext("2d");
  context.translate(SPRITE / 2, SPRITE / 2);
  context.scale(SPRITE / 2.4, SPRITE / 2.4);
  context.fillStyle = colour;
  context.beginPath();
  const outline = OUTLINES[kind];
  if (outline === null) context.arc(0, 0, 1, 0, 2 * Math.PI);
  else outline.forEach(([x, y]) => context.lineTo(x, y));
  context.fill();
  return sprite;
}
