// The data of the page: a state, and the changes since, without the page or a server.
//
// state(A) and the changes in (A, B] give state(B), and toState() gives it as on the wire.
// A mark keeps its slot within its bucket for as long as it stays there, so that nothing jumps when
// a neighbour leaves. `effects` has what moved for the drawing, since it last looked; it is bounded,
// because a page in the background draws nothing for hours.

import { duration } from "./units.js";

const MOST_EFFECTS = 2000;
const MOST_LINES = 300;

/** The marks of one bucket: slots, some of which are free. */
class Bucket {
  constructor(level, index) {
    Object.assign(this, { level, index, slots: [], free: [] });
  }

  get count() {
    return this.slots.length - this.free.length;
  }

  put(operation) {
    operation.slot = this.free.length ? this.free.pop() : this.slots.length;
    this.slots[operation.slot] = operation;
  }

  take(operation) {
    this.slots[operation.slot] = null;
    this.free.push(operation.slot);
    if (this.count === 0) this.slots.length = this.free.length = 0;
  }
}

/** A broker: its wheel, and its operations by bucket. Level 0 is what never expires. */
class Broker {
  constructor(values) {
    Object.assign(this, values);
    this.purgatories = new Map(values.purgatories.map((one) => [one.name, structuredClone(one)]));
    this.buckets = new Map();
    this.marks = 0;
  }

  bucketOf(level, index) {
    const key = level * 65536 + index;
    let bucket = this.buckets.get(key);
    if (!bucket) this.buckets.set(key, (bucket = new Bucket(level, index)));
    return bucket;
  }

  put(operation) {
    this.bucketOf(operation.level ?? 0, operation.bucket ?? 0).put(operation);
    this.marks += 1;
  }

  take(operation) {
    this.bucketOf(operation.level ?? 0, operation.bucket ?? 0).take(operation);
    this.marks -= 1;
  }

  purgatory(name) {
    let one = this.purgatories.get(name);
    if (!one) {
      const outcomes = { immediate: 0, completed: 0, expired: 0, cancelled: 0, failed: 0 };
      this.purgatories.set(name, (one = { name, pending: 0, outcomes }));
    }
    return one;
  }
}

function operationOf([id, broker, purgatory, kind, keys, startUs, expiresMs, level, bucket]) {
  return { id, broker, purgatory, kind, keys, startUs, expiresMs, level, bucket, slot: 0 };
}

const tupleOf = (one) => [
  one.id, one.broker, one.purgatory, one.kind, one.keys, one.startUs, one.expiresMs, one.level, one.bucket,
];

const without = (list, is) => list.filter((one) => !is(one));

function replaced(list, is, one) {
  const at = list.findIndex(is);
  if (at < 0) return [...list, one];
  return list.with(at, one);
}

export class Model {
  constructor() {
    this.logsUnanswered = false; // the feed of a cluster has no such lines; that of a trace has
    this.rates = null; // of a cluster that runs
    this.framesPerSecond = 0;
    this.log = [];
    this.effects = [];
    this.version = 0;
    this.apply({
      at_us: 0, brokers: [], operations: [], pending: 0, shown: 0, topics: [], groups: [], transactions: [],
      faults: [], unknown: [],
    });
  }

  /** Start afresh from a state. */
  apply(state) {
    this.atUs = state.at_us;
    this.brokers = new Map(state.brokers.map((broker) => [broker.id, new Broker(broker)]));
    this.operations = new Map();
    state.operations.forEach((tuple) => this.#park(operationOf(tuple)));
    this.unshown = Math.max(0, state.pending - state.shown);
    this.topics = new Map(state.topics.map((topic) => [topic.name, structuredClone(topic)]));
    this.groups = state.groups;
    this.transactions = state.transactions;
    this.faults = state.faults;
    this.unknown = new Set(state.unknown);
    (state.log || []).forEach((line) => this.addLine(line.text, line.level, line.at_us));
    this.effects = [];
    this.version += 1;
  }

  /** Go on by what changed, up to the moment untilUs; unshown is how many are left out of a sample. */
  applyChanges(changes, untilUs, unshown = this.unshown) {
    changes.forEach((change) => {
      const apply = APPLIED[change.change];
      if (apply) apply(this, change);
    });
    this.atUs = untilUs;
    this.unshown = unshown;
    if (changes.length) this.version += 1;
  }

  /** Marks per broker. */
  get marks() {
    return Object.fromEntries([...this.brokers.values()].map((broker) => [broker.id, broker.marks]));
  }

  get pending() {
    let sum = 0;
    this.brokers.forEach((broker) => broker.purgatories.forEach((one) => { sum += one.pending; }));
    return sum;
  }

  get shown() {
    return this.operations.size;
  }

  /** The changes since the last call. */
  takeEffects() {
    const effects = this.effects;
    this.effects = [];
    return effects;
  }

  /** The same as on the wire. O(operations). */
  toState() {
    return {
      at_us: this.atUs,
      brokers: [...this.brokers.values()].map(({ buckets, marks, purgatories, ...values }) => ({
        ...values, purgatories: [...purgatories.values()],
      })),
      operations: [...this.operations.values()].map(tupleOf),
      pending: this.pending,
      shown: this.shown,
      topics: [...this.topics.values()],
      groups: this.groups,
      transactions: this.transactions,
      faults: this.faults,
      unknown: [...this.unknown],
    };
  }

  addLine(text, level = "info", atUs = this.atUs) {
    this.log.push({ text, level, atUs });
    if (this.log.length > 2 * MOST_LINES) this.log.splice(0, this.log.length - MOST_LINES);
  }

  #park(operation) {
    const broker = this.brokers.get(operation.broker);
    if (!broker) return;
    this.operations.set(operation.id, operation);
    broker.put(operation);
  }

  #record(kind, operation, outcome) {
    if (this.effects.length < MOST_EFFECTS) this.effects.push({ kind, operation, outcome });
  }

  parked(tuple) {
    const operation = operationOf(tuple);
    this.#park(operation);
    const broker = this.brokers.get(operation.broker);
    if (broker) broker.purgatory(operation.purgatory).pending += 1;
    this.#record("parked", operation);
  }

  moved(id, level, bucket) {
    const operation = this.operations.get(id);
    if (!operation) return;
    const broker = this.brokers.get(operation.broker);
    broker.take(operation);
    Object.assign(operation, { level, bucket });
    broker.put(operation);
    this.#record("moved", operation);
  }

  completed({ id, broker: brokerId, purgatory, outcome }) {
    const operation = this.operations.get(id);
    const broker = this.brokers.get(brokerId);
    if (operation) {
      this.brokers.get(operation.broker).take(operation);
      this.operations.delete(id);
      operation.isGone = true;
      this.#record("completed", operation, outcome);
    }
    if (!broker) return;
    const counts = broker.purgatory(purgatory);
    counts.outcomes[outcome] = (counts.outcomes[outcome] ?? 0) + 1;
    // One that is not known was never parked, unless it is among those that are left out of a sample.
    const isLeftOut = !operation && this.unshown > 0 && outcome !== "immediate";
    if (isLeftOut) this.unshown -= 1;
    if (operation || isLeftOut) counts.pending = Math.max(0, counts.pending - 1);
  }

  forgetPartition(topic, number) {
    const known = this.topics.get(topic);
    if (!known) return;
    known.partitions = known.partitions.filter((one) => one.partition !== number);
    if (known.partitions.length === 0) this.topics.delete(topic);
  }

  partition(topic, number) {
    let known = this.topics.get(topic);
    if (!known) this.topics.set(topic, (known = { name: topic, internal: topic.startsWith("__"), partitions: [] }));
    let found = known.partitions.find((one) => one.partition === number);
    if (!found) {
      found = {
        partition: number, leader: null, leader_epoch: 0, replicas: [], isr: [], high_watermark: null,
        log_end_offsets: {},
      };
      known.partitions.push(found);
      known.partitions.sort((one, other) => one.partition - other.partition);
    }
    return found;
  }
}

const APPLIED = {
  parked: (model, { operation }) => model.parked(operation),
  moved: (model, { id, level, bucket }) => model.moved(id, level, bucket),
  clock(model, { at_us, change, broker, ...values }) {
    const found = model.brokers.get(broker);
    if (found) found.wheel = { ...found.wheel, ...values };
  },
  completed(model, change) {
    model.completed(change);
    model.rates?.add(change, change.outcome, 1);
    if (model.logsUnanswered) logUnanswered(model, change);
  },
  completed_many(model, change) {
    const { broker, purgatory, outcomes, pending } = change;
    const found = model.brokers.get(broker)?.purgatory(purgatory);
    if (!found) return;
    Object.entries(outcomes).forEach(([name, count]) => {
      found.outcomes[name] = (found.outcomes[name] ?? 0) + count;
      model.rates?.add(change, name, count);
    });
    if (pending !== undefined) found.pending = pending;
  },
  log_end(model, { topic, partition, broker, offset }) {
    const ends = model.partition(topic, partition).log_end_offsets;
    if (offset === null) delete ends[broker];
    else ends[broker] = offset;
  },
  high_watermark(model, { topic, partition, offset }) {
    model.partition(topic, partition).high_watermark = offset;
  },
  partition(model, { topic, partition, internal, leader, leader_epoch, isr, replicas, gone }) {
    if (gone) {
      model.forgetPartition(topic, partition);
      return;
    }
    const known = model.partition(topic, partition);
    if (internal !== undefined) model.topics.get(topic).internal = internal;
    Object.assign(known, { leader, leader_epoch, isr, replicas });
  },
  broker(model, { at_us, change, broker, ...values }) {
    const found = model.brokers.get(broker);
    if (!found) return;
    Object.assign(found, values);
    if (!found.alive) found.wheel = null;
  },
  group(model, { at_us, change, ...group }) {
    const is = (one) => one.name === group.name;
    if (group.state === "Gone") model.groups = without(model.groups, is);
    else model.groups = replaced(model.groups, is, group);
  },
  transaction(model, { at_us, change, ...transaction }) {
    const is = (one) => one.id === transaction.id;
    if (transaction.state === "ended") model.transactions = without(model.transactions, is);
    else model.transactions = replaced(model.transactions, is, transaction);
  },
  fault(model, { at_us, change, ...fault }) {
    model.faults = replaced(model.faults, (one) => one.number === fault.number, fault);
  },
  log: (model, { at_us, text, level }) => model.addLine(text, level, at_us),
};

function logUnanswered(model, { at_us, broker, kind, purgatory, keys, wait_us, outcome }) {
  // A fetch that expires is answered with what there is: nothing is amiss.
  if (outcome !== "failed" && (outcome !== "expired" || purgatory !== "Produce")) return;
  const on = keys && keys.length ? ` on ${keys[0]}` : "";
  const after = Number.isFinite(wait_us) ? ` after ${duration(wait_us)}` : "";
  model.addLine(`broker ${broker}: ${purgatory} of a ${kind}${on} ${outcome}${after}`, "warning", at_us);
}
