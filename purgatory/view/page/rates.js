// Rates and waits of a live cluster in the last minutes, by purgatory; in front of a proxy by API.

import { area, HEIGHT } from "./overview.js";
import { byId, newDrawing, newElement } from "./elements.js";
import { counted, duration, number } from "./units.js";

const SECONDS = 180;
const NOW = 10; // seconds whose mean counts as the present
const MOST_SHOWN = 4;
const MOST_WAITS = 1000; // a second and purgatory: more make no percentile better

const secondOf = (us) => Math.floor(us / 1_000_000);

function percentile(sorted, share) {
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] : null;
}

/** Responses in each second, by purgatory. */
export class Rates {
  #byName = new Map();

  constructor(model) {
    this.model = model;
    this.place = byId("rates");
    this.shownAt = -1;
  }

  /** Count requests that were answered; the wait of one, in microseconds, where it is known. */
  add({ at_us: atUs, purgatory, wait_us: waitUs }, outcome, count) {
    let seconds = this.#byName.get(purgatory);
    if (!seconds) this.#byName.set(purgatory, (seconds = new Map()));
    const at = secondOf(atUs);
    let second = seconds.get(at);
    if (!second) seconds.set(at, (second = { count: 0, failed: 0, waits: [] }));
    second.count += count;
    if (outcome === "failed" || (outcome === "expired" && purgatory === "Produce")) second.failed += count;
    if (waitUs > 0 && second.waits.length < MOST_WAITS) second.waits.push(waitUs);
  }

  /** The last minutes, once a second. The present second is left out: it is not over. */
  render() {
    const end = secondOf(this.model.atUs);
    if (end === this.shownAt) return;
    this.shownAt = end;
    const shown = [];
    for (const [name, seconds] of this.#byName) {
      for (const at of seconds.keys()) if (at < end - SECONDS) seconds.delete(at);
      const row = Array.from({ length: SECONDS }, (_, index) => seconds.get(end - SECONDS + index));
      const total = row.reduce((sum, second) => sum + (second?.count ?? 0), 0);
      if (total > 0) shown.push({ name, row, total });
    }
    shown.sort((one, other) => other.total - one.total);
    byId("rates-section").hidden = shown.length === 0;
    this.place.replaceChildren(...shown.slice(0, MOST_SHOWN).map(cardOf));
  }
}

function cardOf({ name, row }) {
  const card = newElement("div");
  const recent = row.slice(-NOW);
  const rate = recent.reduce((sum, second) => sum + (second?.count ?? 0), 0) / NOW;
  const counts = row.map((second) => second?.count ?? 0);
  const failed = row.map((second) => second?.failed ?? 0);
  const failures = failed.reduce((sum, count) => sum + count, 0);
  const worst = row.map((second) => percentile((second?.waits ?? []).sort((a, b) => a - b), 0.99));
  const waits = recent.flatMap((second) => second?.waits ?? []).sort((a, b) => a - b);
  card.append(newElement("h3", name));
  card.append(newElement("p", `${number.format(rate < 10 ? Math.round(rate * 10) / 10 : Math.round(rate))} per second, at most ${number.format(Math.max(...counts))}`));
  const load = drawing();
  load.append(newDrawing("path", { class: "load", d: area(counts, Math.max(1, ...counts)) }));
  failed.forEach((count, index) => {
    if (count) load.append(newDrawing("rect", { class: "failed", x: index, y: 0, width: 1.5, height: HEIGHT * 0.3 }));
  });
  card.append(load);
  if (failures) card.append(newElement("p", `${counted(failures, "request")} timed out or failed`, "worry"));
  const most = Math.max(0, ...worst);
  if (most === 0) return card;
  const [p50, p99] = [0.5, 0.99].map((share) => duration(percentile(waits, share)));
  card.append(newElement("p", `waits: p50 ${p50}, p99 ${p99}, at most ${duration(most)}`));
  const line = drawing();
  line.append(newDrawing("path", { class: "waiting", d: area(worst.map((wait) => wait ?? 0), most) }));
  card.append(line);
  return card;
}

function drawing() {
  return newDrawing("svg", { viewBox: `0 0 ${SECONDS} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
}
