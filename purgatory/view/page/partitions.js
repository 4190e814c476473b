// Partitions: who leads, who is in sync, and how far each replica's log reaches.

import { byId, newElement, setText } from "./elements.js";
import { number } from "./units.js";

const LEAST_SPAN = 20; // records that a bar shows, if replicas are close to each other
const MOST_SHOWN = 40;

export class Partitions {
  constructor(model) {
    this.model = model;
    this.place = byId("partitions");
    this.note = byId("partitions-note");
    this.internal = byId("internal");
    this.internal.addEventListener("change", () => this.render());
    this.filter = byId("partition-filter");
    this.filter.addEventListener("input", () => this.render());
    this.rows = new Map();
  }

  render() {
    const all = [...this.model.topics.values()]
      .filter((topic) => this.internal.checked || !topic.internal)
      .flatMap((topic) => topic.partitions.map((one) => [`${topic.name}-${one.partition}`, one]))
      .filter(([name]) => name.includes(this.filter.value));
    const shown = all.slice(0, MOST_SHOWN);
    setText(this.note, this.#noteOn(all.length));
    this.#match(shown);
    shown.forEach(([name, one]) => this.rows.get(name).render(name, one));
  }

  #noteOn(count) {
    if (this.model.unknown.has("topics")) return "Not in this trace.";
    if (count === 0) return this.filter.value ? "None with this in its name." : "None.";
    return count > MOST_SHOWN ? `The first ${MOST_SHOWN} of ${number.format(count)}: say what is in the name to see others.` : "";
  }

  #match(shown) {
    const names = new Set(shown.map(([name]) => name));
    for (const [name, row] of this.rows) {
      if (names.has(name)) continue;
      row.element.remove();
      this.rows.delete(name);
    }
    shown.forEach(([name], index) => {
      if (!this.rows.has(name)) this.rows.set(name, new PartitionRow());
      const { element } = this.rows.get(name);
      if (this.place.children[index] !== element) this.place.insertBefore(element, this.place.children[index] ?? null);
    });
  }
}

class PartitionRow {
  constructor() {
    this.element = newElement("div", undefined, "partition");
    this.heading = newElement("h3");
    this.about = newElement("p", "", "faint");
    this.replicas = newElement("div");
    this.element.append(this.heading, this.about, this.replicas);
  }

  render(name, one) {
    setText(this.heading, name);
    const leader = one.leader !== null && one.leader >= 0 ? `broker ${one.leader} leads, epoch ${one.leader_epoch}` : "no leader";
    const watermark = one.high_watermark ?? 0; // nobody knows it where nobody leads
    setText(this.about, `${leader}; high watermark ${one.high_watermark === null ? "unknown" : number.format(watermark)}`);
    const ends = one.replicas.map((id) => one.log_end_offsets[id] ?? 0);
    const highest = Math.max(0, watermark, ...ends);
    const lowest = Math.min(highest, watermark, ...ends);
    const span = Math.max(LEAST_SPAN, 1.5 * (highest - lowest));
    const from = Math.max(0, highest - span);
    while (this.replicas.children.length < one.replicas.length) this.replicas.append(replica());
    while (this.replicas.children.length > one.replicas.length) this.replicas.lastChild.remove();
    one.replicas.forEach((id, index) => {
      const share = (offset) => (highest === from ? 0 : (100 * (offset - from)) / (highest - from));
      renderReplica(this.replicas.children[index], one, id, share);
    });
  }
}

function replica() {
  const row = newElement("div", undefined, "replica");
  const bar = newElement("div", undefined, "bar");
  bar.setAttribute("aria-hidden", "true");
  bar.append(newElement("span"), newElement("i"));
  row.append(newElement("span"), bar, newElement("span", "", "number"));
  return row;
}

function renderReplica(row, one, id, share) {
  const [word, bar, end] = row.children;
  const isIn = one.isr.includes(id);
  const role = id === one.leader ? "leader" : isIn ? "in sync" : "not in sync";
  setText(word, `${id} ${role}`);
  word.classList.toggle("worry", !isIn);
  bar.classList.toggle("behind", !isIn);
  const offset = one.log_end_offsets[id];
  // Styles are set through the object model, which the content security policy lets pass.
  bar.firstChild.style.width = `${Math.max(0, share(offset ?? 0))}%`;
  bar.lastChild.style.left = `calc(${Math.max(0, share(one.high_watermark ?? 0))}% - 3px)`;
  setText(end, offset === undefined ? "-" : number.format(offset));
}
