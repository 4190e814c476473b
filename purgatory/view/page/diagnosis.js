// The diagnosis of the moment shown: which partition, which replica, and why.

import { byId, newElement } from "./elements.js";
import { counted, duration } from "./units.js";

const MOST = 4;

/** Produces that wait, by the partition that they wait for: how many, and since when the oldest. */
function producesByPartition(model) {
  const waiting = new Map();
  for (const { purgatory, keys, startUs } of model.operations.values()) {
    if (purgatory !== "Produce") continue;
    for (const key of keys) {
      const found = waiting.get(key) ?? { count: 0, sinceUs: startUs };
      waiting.set(key, { count: found.count + 1, sinceUs: Math.min(found.sinceUs, startUs) });
    }
  }
  return waiting;
}

/** The replicas of a partition that are behind its leader, the furthest first. */
function behind({ leader, replicas, isr, log_end_offsets: ends }) {
  const end = ends[leader] ?? 0;
  return replicas
    .filter((id) => id !== leader)
    .map((id) => ({ id, records: end - (ends[id] ?? 0), isIn: isr.includes(id) }))
    .filter(({ records, isIn }) => records > 0 || !isIn)
    .sort((one, other) => other.records - one.records);
}

function stateOf(model, id) {
  const broker = model.brokers.get(id);
  if (!broker) return "";
  return broker.alive ? broker.paused ? ", paused" : "" : ", dead";
}

function lineOf(model, name, one, waits) {
  const late = behind(one);
  const named = (replicas) => replicas.slice(0, 2).map(({ id, records, isIn }) =>
    `broker ${id}${stateOf(model, id)} (${counted(records, "record")} behind, ${isIn ? "in the ISR" : "not in the ISR"})`).join(" and ");
  const awaited = late.filter(({ isIn }) => isIn); // a produce waits for in-sync replicas alone
  if (one.leader === null || one.leader < 0) return { weight: Infinity, text: `${name} has no leader.` };
  if (waits && awaited.length) {
    const oldest = duration(Math.max(0, Math.floor(model.atUs) - waits.sinceUs));
    const text = `${name}: ${counted(waits.count, "produce")} at broker ${one.leader} ${waits.count === 1 ? "waits" : "wait"} for ${named(awaited)}; the oldest for ${oldest}.`;
    return { weight: 1e9 + waits.count * (awaited[0].records + 1), text };
  }
  const out = late.filter(({ isIn }) => !isIn);
  if (out.length === 0) return null;
  return { weight: out[0].records, text: `${name}: ${named(out)}.` };
}

export class Diagnosis {
  constructor(model) {
    this.model = model;
    this.place = byId("diagnosis");
    this.known = null;
  }

  render() {
    const lines = this.#lines();
    const known = JSON.stringify(lines);
    if (known === this.known) return;
    this.known = known;
    this.place.replaceChildren(...lines.map(([text, isWorry]) => newElement("li", text, isWorry ? "worry" : "faint")));
  }

  #lines() {
    const { model } = this;
    if (model.unknown.has("topics")) return [];
    const waiting = producesByPartition(model);
    const found = [...model.topics.values()].flatMap((topic) => topic.partitions.map((one) => {
      const name = `${topic.name}-${one.partition}`;
      return lineOf(model, name, one, waiting.get(name));
    })).filter((line) => line !== null).sort((one, other) => other.weight - one.weight);
    const faults = model.faults.filter(({ active }) => active).map(({ text }) => text);
    const why = faults.length ? [[`Faults: ${faults.slice(0, MOST).join("; ")}.`, true]] : [];
    if (found.length === 0) return [...why, ["No partition is behind: no produce waits for a replica.", false]];
    const more = found.length - MOST;
    return [
      ...found.slice(0, MOST).map(({ text }) => [text, true]),
      ...(more > 0 ? [[`${counted(more, "more partition")}.`, false]] : []),
      ...why,
    ];
  }
}
