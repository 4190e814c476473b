// The code of a timing wheel, cut down to what a lesson needs, and which of its lines a step runs.
//
// It is `timer/timing_wheel.py` and the insertion and the poll of `timer/_timer_pure.py` without
// locks, interrupts and cancelling. A test runs the listing as Python beside the real timer.

export const LISTING = `\
def add(timer, task):
    expiration_ms = timer.now_ms + task.delay_ms
    if not insert(timer.wheel, task, expiration_ms):
        task.run()

def insert(wheel, task, expiration_ms):
    if expiration_ms < wheel.current_time_ms + wheel.tick_ms:
        return False
    while expiration_ms >= wheel.end_ms:
        wheel = wheel.overflow_wheel or add_overflow_wheel(wheel)
    virtual_id = expiration_ms // wheel.tick_ms
    bucket = wheel.buckets[virtual_id % wheel.wheel_size]
    if bucket.expiration_ms != virtual_id * wheel.tick_ms:
        wheel.queue.offer(bucket, virtual_id * wheel.tick_ms)
    bucket.add(task, expiration_ms)
    return True

def poll(timer):
    begin_ms, bucket = timer.queue.first_due(timer.now_ms)
    waiting = bucket.empty()
    advance_clock(timer.wheel, begin_ms)
    for task, expiration_ms in waiting:
        if not insert(timer.wheel, task, expiration_ms):
            task.run()

def advance_clock(wheel, time_ms):
    if time_ms < wheel.current_time_ms + wheel.tick_ms:
        return
    if wheel.overflow_wheel:
        advance_clock(wheel.overflow_wheel, time_ms)
    wheel.current_time_ms = time_ms - time_ms % wheel.tick_ms
    wheel.end_ms = wheel.current_time_ms + wheel.tick_ms * wheel.wheel_size`.split("\n");

/** The number of the line, from 0, that begins so; after another line, if that is given. */
function lineOf(text, after = 0) {
  const found = LISTING.findIndex((line, index) => index >= after && line.trim().startsWith(text));
  if (found < 0) throw new Error(`no line ${text}`);
  return found;
}

const ADD = lineOf("def add(");
const INSERT = lineOf("def insert");
const POLL = lineOf("def poll");
const ADVANCE = lineOf("def advance_clock");

class Lines {
  constructor() {
    this.run = new Map();
  }

  /** Mark a line as run, with what it found. */
  mark(text, from, value = "") {
    const line = lineOf(text, from);
    const before = this.run.get(line);
    this.run.set(line, before && value && before !== value ? `${before}; ${value}` : value || before || "");
  }
}

const levelOf = (state, number) => state.levels[number - 1];

function homeOf(state, task) {
  for (const { level, buckets } of state.levels) {
    const bucket = buckets.findIndex((one) => one.tasks.includes(task));
    if (bucket >= 0) return { level, bucket, expiration: buckets[bucket].expiration_ms };
  }
  return null;
}

/** Lines that insert a task, given the state before and after. */
function markInsert(lines, task, expiration, before, after, clockMs) {
  const home = homeOf(after, task);
  lines.mark("if expiration_ms <", INSERT, `task ${task}: ${expiration} < ${clockMs + levelOf(after, 1).tick_ms}? ${home ? "no" : "yes, due"}`);
  if (!home) {
    lines.mark("return False", INSERT);
    return;
  }
  const isHigher = home.level > 1;
  const end = levelOf(after, 1).covers_ms[1];
  lines.mark("while expiration_ms", INSERT, `task ${task}: ${expiration} >= ${end}? ${isHigher ? "yes" : "no"}`);
  if (isHigher) {
    const isMade = before.levels.length < after.levels.length;
    lines.mark("wheel = wheel.overflow", INSERT, `up to level ${home.level}${isMade ? ", which is made" : ""}`);
  }
  const { tick_ms: tick, buckets } = levelOf(after, home.level);
  lines.mark("virtual_id =", INSERT, `${expiration} // ${tick} = ${Math.floor(expiration / tick)}`);
  lines.mark("bucket = wheel", INSERT, `${Math.floor(expiration / tick)} % ${buckets.length} = bucket ${home.bucket}`);
  const was = before.levels[home.level - 1]?.buckets[home.bucket].expiration_ms;
  const isQueued = was === home.expiration;
  lines.mark("if bucket.expiration", INSERT, isQueued ? "is in the queue already" : "comes into use");
  if (!isQueued) lines.mark("wheel.queue.offer", INSERT, `due at ${home.expiration}`);
  lines.mark("bucket.add", INSERT);
  lines.mark("return True", INSERT);
}

function markAdd(lines, step, before) {
  lines.mark("expiration_ms = timer", ADD, `${step.expiration_ms - step.delay_ms} + ${step.delay_ms} = ${step.expiration_ms}`);
  lines.mark("if not insert", ADD);
  markInsert(lines, step.task, step.expiration_ms, before, step.state, before.levels[0].covers_ms[0]);
  if (step.ran?.length) lines.mark("task.run", ADD, `task ${step.ran.join(", ")}`);
}

function markAdvance(lines, before, after) {
  lines.mark("if time_ms <", ADVANCE);
  const moved = after.levels.filter(({ level, covers_ms: [begin] }) => before.levels[level - 1]?.covers_ms[0] !== begin);
  if (moved.length < after.levels.length) lines.mark("return", ADVANCE + 1, moved.length ? `level ${moved.length + 1} stays` : "its tick is not over");
  if (moved.length === 0) return;
  lines.mark("if wheel.overflow", ADVANCE);
  if (after.levels.length > 1) lines.mark("advance_clock(wheel", ADVANCE);
  moved.forEach(({ level, covers_ms: [begin, end] }) => {
    lines.mark("wheel.current_time", ADVANCE, `level ${level}: ${begin}`);
    lines.mark("wheel.end_ms", ADVANCE, `level ${level}: ${end}`);
  });
}

function markPoll(lines, step, before, expirations) {
  const buckets = step.polled.map(({ level, bucket }) => `level ${level} bucket ${bucket}`).join(", ");
  lines.mark("begin_ms, bucket", POLL, buckets);
  const taken = [...step.reinserted, ...step.ran];
  lines.mark("waiting =", POLL, taken.length ? `task ${taken.join(", ")}` : "nothing");
  lines.mark("advance_clock(timer", POLL);
  markAdvance(lines, before, step.state);
  lines.mark("for task", POLL);
  const clockMs = step.state.levels[0].covers_ms[0];
  taken.forEach((task) => {
    lines.mark("if not insert", POLL);
    markInsert(lines, task, expirations.get(task), before, step.state, clockMs);
  });
  if (step.ran.length) lines.mark("task.run", POLL, `task ${step.ran.join(", ")}`);
}

/**
 * The lines, by number from 0, that a step runs, each with what it finds there.
 *
 * @param before the state before the step
 * @param expirations when each task is due, by its number
 */
export function linesOf(step, before, expirations) {
  const lines = new Lines();
  if (step.task !== undefined) markAdd(lines, step, before);
  else if (step.polled !== undefined) markPoll(lines, step, before, expirations);
  return lines.run;
}

/** The kind of a step, in a word or two. */
export function stepName(step, before) {
  if (step.task !== undefined) {
    if (step.ran?.length) return "insert: due at once";
    return homeOf(step.state, step.task).level > 1 ? "insert, overflow" : "insert";
  }
  if (step.polled === undefined) return "start";
  return step.reinserted.length ? "advance, insert again" : "advance";
}

/** The effects of a step, in sentences. */
export function happened(step, seconds) {
  if (step.task !== undefined) {
    const home = homeOf(step.state, step.task);
    const due = `Task ${step.task} comes, due at ${seconds(step.expiration_ms)}. `;
    if (!home) return `${due}That is within the present tick: it runs at once.`;
    const where = `bucket ${home.bucket} of level ${home.level}`;
    if (home.level === 1) return `${due}Level 1 reaches so far: it goes into ${where}.`;
    return `${due}Level ${home.level - 1} does not reach so far: it goes up into ${where}.`;
  }
  if (step.polled === undefined) return "An empty wheel. Each task will go into the bucket of its expiration.";
  const polled = step.polled.map(({ level, bucket }) => `bucket ${bucket} of level ${level}`).join(" and ");
  const fell = step.reinserted.length ? ` ${named(step.reinserted)} inserted again, on a finer level.` : "";
  const ran = step.ran.length ? ` ${named(step.ran, "runs", "run")}.` : "";
  return `The clock advances to ${seconds(step.clock_ms)}, where ${polled} begins.${fell}${ran}`;
}

function named(tasks, one = "is", many = "are") {
  return tasks.length === 1 ? `Task ${tasks[0]} ${one}` : `Tasks ${tasks.join(", ")} ${many}`;
}
