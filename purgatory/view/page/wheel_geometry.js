// The places of buckets and marks on the picture. Level 1, whose buckets are due first, is the
// innermost ring: what falls to a finer level falls inwards. Angles begin at twelve o'clock, beside a
// strip that the rings' labels have to themselves.

const HUB_SHARE = 0.2;
const RIM = 18; // what never expires has a thin ring of its own
const TURN = 2 * Math.PI;
const LARGEST_MARK = 11;
const LABEL_WIDTH = 48;
const LABEL_INSET = 8; // of a label's middle from the ring's edge

export class Geometry {
  /**
   * @param side the width of the picture, in CSS pixels
   * @param wheel as on the wire
   * @param hasForever whether a ring is needed for what never expires
   */
  constructor(side, wheel, hasForever) {
    this.side = side;
    this.middle = side / 2;
    this.outer = side / 2 - 8;
    this.hub = this.outer * HUB_SHARE;
    this.size = wheel.size;
    this.levels = wheel.levels;
    this.rim = hasForever ? RIM : 0;
    this.thickness = (this.outer - this.rim - this.hub) / Math.max(2, wheel.levels.length);
  }

  /** The inner and outer radius of a level; level 0, of what never expires, lies outside of all. */
  radii(level) {
    if (level === 0) return [this.outer - this.rim, this.outer];
    const inner = this.hub + (level - 1) * this.thickness;
    return [inner, inner + this.thickness];
  }

  /** The angles at which a bucket begins and ends. */
  angles(level, bucket) {
    const strip = Math.min(TURN / 6, LABEL_WIDTH / this.labelRadius(level));
    const first = (strip - TURN / 2) / 2;
    const width = (TURN - strip) / (level === 0 ? 1 : this.size);
    return [first + bucket * width, first + (bucket + 1) * width];
  }

  /** How far from the middle the label of a ring is. */
  labelRadius(level) {
    return this.radii(level)[1] - LABEL_INSET;
  }

  /** The place of a level's hand: the bucket that holds the present. */
  nowBucket({ covers_ms, tick_ms }) {
    return Math.floor(covers_ms[0] / tick_ms) % this.size;
  }

  point(radius, angle) {
    return [this.middle + radius * Math.cos(angle), this.middle + radius * Math.sin(angle)];
  }

  /**
   * How the marks of a bucket are laid out: rows and columns, and their size.
   *
   * Room is made in leaps, so that a mark more does not move all the others.
   */
  grid(level, bucket, slots) {
    const [inner, outer] = this.radii(level);
    const [from, to] = this.angles(level, bucket);
    const margin = Math.min(3, (outer - inner) * 0.12);
    const height = outer - inner - 2 * margin;
    const width = Math.max(1, ((to - from) * (inner + outer)) / 2 - 2 * margin);
    const room = roomFor(slots);
    let columns = Math.max(1, Math.round(Math.sqrt((room * width) / height)));
    let rows = Math.ceil(room / columns);
    if (columns > room) [columns, rows] = [room, 1];
    const size = Math.min(LARGEST_MARK, Math.max(1.5, 0.85 * Math.min(width / columns, height / rows)));
    const aside = margin / ((inner + outer) / 2);
    return { inner: inner + margin, height, from: from + aside, arc: to - from - 2 * aside, columns, rows, size };
  }

  /** The place of one slot in a grid. */
  place(grid, slot) {
    const column = slot % grid.columns;
    const row = Math.floor(slot / grid.columns);
    const angle = grid.from + ((column + 0.5) / grid.columns) * grid.arc;
    const radius = grid.inner + ((row + 0.5) / grid.rows) * grid.height;
    return [this.middle + radius * Math.cos(angle), this.middle + radius * Math.sin(angle)];
  }
}

function roomFor(slots) {
  let room = 1;
  while (room < slots) room = Math.ceil(room * 1.6);
  return room;
}
