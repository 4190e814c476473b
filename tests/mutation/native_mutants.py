"""Faults that are put into the native parts, one at a time: each is to be noticed by a test.

Text of a source is replaced by other text, once. Those with a program are found by the scheduler,
in the interleavings of that program (``tests/proofs/core/test_native_interleavings.py``); for all
others see ``native``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

TASK = "timer/native/task.pyx"
WHEEL = "timer/native/wheel.pyx"
TIMER = "timer/native/timer.pyx"
HEAP = "timer/native/heap.pxd"
LINKS = "timer/native/links.pxd"
OPERATION = "purgatory/core/native/operation.pyx"
WATCHERS = "purgatory/core/native/watchers.pyx"
STATE = "purgatory/core/native/state.pyx"
TRAMPOLINE = "purgatory/core/native/trampoline.pyx"
PURGATORY = "purgatory/core/native/purgatory.pyx"


@dataclass(frozen=True)
class NativeMutant:
    """A fault, the source that it is put into, what is replaced there, and by what."""

    fault: str
    path: str
    old: str
    new: str
    program: str | None = None

    def source(self) -> str:
        """Return the source with the fault in it.

        Raises:
            ValueError: what is to be replaced does not stand there exactly once.
        """
        source = Path(ROOT, self.path).read_text(encoding="utf-8")
        if source.count(self.old) != 1:
            raise ValueError(f"{self.path} has {source.count(self.old)} times: {self.old!r}")
        return source.replace(self.old, self.new)


MUTANTS = [
    NativeMutant(
        "a subclass of int is taken for an int",
        TASK,
        "    if type(delay_ms) is int:\n        ms =",
        "    if isinstance(delay_ms, int):\n        ms =",
    ),
    NativeMutant(
        "a deferred check stays deferred",
        TASK,
        "    task.is_handed_over = False  # an executor",
        "    # an executor",
    ),
    NativeMutant(
        "a task that leaves stays counted",
        TASK,
        "    unlink(&task.link)\n    task.pending.count -= 1\n",
        "    unlink(&task.link)\n",
    ),
    NativeMutant(
        "a task that leaves is never freed",
        TASK,
        "    Py_DECREF(task)\n",
        "    pass\n",
    ),
    NativeMutant(
        "cancel finds nothing on a wheel in pure Python",
        TASK,
        "        return entry is not None and entry.remove()\n",
        "        return False\n",
    ),
    NativeMutant(
        "a call that is run by another timer has lost its arguments",
        TASK,
        "partial(self.function, *self.args) if self.args else self.function",
        "self.function",
    ),
    NativeMutant(
        "a task due within the present tick is put on the wheel",
        WHEEL,
        "        if expiration_ms - level.tick_ms < level.current_ms:\n"
        "            return EXPIRED\n",
        "        if expiration_ms < level.current_ms:\n            return EXPIRED\n",
    ),
    NativeMutant(
        "a level ends one millisecond early",
        WHEEL,
        "        while expiration_ms > level.last_ms:\n",
        "        while expiration_ms >= level.last_ms:\n",
    ),
    NativeMutant(
        "a level ends one millisecond late",
        WHEEL,
        "level.current_ms + level.tick_ms * self.wheel_size - 1",
        "level.current_ms + level.tick_ms * self.wheel_size",
    ),
    NativeMutant(
        "a level's end goes beyond 64 bits",
        WHEEL,
        "        if level.tick_ms <= (INT64_MAX - level.current_ms) // self.wheel_size:\n",
        "        if True:\n",
    ),
    NativeMutant(
        "a level does not begin at a tick",
        WHEEL,
        "        level.current_ms = time_ms - time_ms % level.tick_ms\n",
        "        level.current_ms = time_ms\n",
    ),
    NativeMutant(
        "a level moves one tick late",
        WHEEL,
        "            if time_ms - level.tick_ms < level.current_ms:\n                return\n",
        "            if time_ms - level.tick_ms <= level.current_ms:\n                return\n",
    ),
    NativeMutant(
        "a bucket is due one millisecond late",
        WHEEL,
        "self.queue.ranked[0].number <= now_ms",
        "self.queue.ranked[0].number < now_ms",
    ),
    NativeMutant(
        "a bucket that comes before all others tells nobody",
        WHEEL,
        "PLACED if bucket.ranked.place else PLACED_FIRST",
        "PLACED",
    ),
    NativeMutant(
        "buckets of one time come in no order of levels",
        WHEEL,
        "self.level_count * self.wheel_size + index",
        "self.level_count * self.wheel_size + self.wheel_size - 1 - index",
    ),
    NativeMutant(
        "cascaded tasks and those added later are mixed",
        TIMER,
        "task_of(link)._timer_expiration_ms, True)",
        "task_of(link)._timer_expiration_ms, False)",
    ),
    NativeMutant(
        "a task added later runs before cascaded ones",
        TIMER,
        "        move_all(&bucket.cascaded, taken)\n        move_all(&bucket.added, taken)\n",
        "        move_all(&bucket.added, taken)\n        move_all(&bucket.cascaded, taken)\n",
    ),
    NativeMutant(
        "a task that cascades to the first bucket tells nobody",
        TIMER,
        "            elif placed == PLACED_FIRST:\n                self.tell_earlier()\n",
        "",
    ),
    NativeMutant(
        "a task that was added first tells nobody",
        TIMER,
        "    if placed == PLACED_FIRST:\n        core.tell_earlier()\n    return 0",
        "    return 0",
    ),
    NativeMutant(
        "a closed timer takes tasks",
        TIMER,
        "    if core._closed:\n        raise TimerClosedError",
        "    if False:\n        raise TimerClosedError",
    ),
    NativeMutant(
        "a task that the executor refused is lost",
        TIMER,
        "                    leave(task)\n"
        "                    enter(task, &self.pending, &self.in_hand[DUE])\n",
        "                    leave(task)\n",
    ),
    NativeMutant(
        "an executor's task begins though it was added again since",
        TIMER,
        "        if task.pending is &self.pending and task.is_handed_over:\n            self.run(",
        "        if task.pending is &self.pending:\n            self.run(",
    ),
    NativeMutant(
        "a task is put back on a closed timer",
        TIMER,
        "        if task.pending is NULL and not self._closed:\n",
        "        if task.pending is NULL:\n",
    ),
    NativeMutant(
        "nobody looks whether the user's clock cancelled what is due",
        TIMER,
        "            if not is_empty(&self.in_hand[DUE]):  # the user's clock may have changed "
        "that\n    ",
        "            if True:\n    ",
    ),
    NativeMutant(
        "a task in the middle of a cascade is not waited for",
        TIMER,
        "not is_empty(&self.in_hand[CASCADING]) or (self._own_executor is None",
        "(self._own_executor is None",
    ),
    NativeMutant(
        "closing leaves the buckets in the queue",
        TIMER,
        "        while self.wheel.queue.size:\n"
        "            remove(&self.wheel.queue, self.wheel.queue.ranked[0])\n",
        "",
    ),
    NativeMutant(
        "failures are not counted",
        TIMER,
        "        self.failures += 1\n",
        "",
    ),
    NativeMutant(
        "the collector is not told of the tasks",
        TIMER,
        "        while link is not root and not told:\n            told = visit(",
        "        while False:\n            told = visit(",
    ),
    NativeMutant(
        "those of one number have no order",
        HEAP,
        "    return one.number < other.number or (one.number == other.number and one.order < "
        "other.order)\n",
        "    return one.number < other.number\n",
    ),
    NativeMutant(
        "an entry that takes another's place in a heap is left there",
        HEAP,
        "        heap.ranked[place] = heap.ranked[heap.size]\n        sift(heap, place)\n",
        "        stand_at(heap, heap.ranked[heap.size], place)\n",
    ),
    NativeMutant(
        "lists are put together the wrong way round",
        LINKS,
        "    source.next.previous = target.previous\n"
        "    target.previous.next = source.next\n"
        "    source.previous.next = target\n"
        "    target.previous = source.previous\n",
        "    source.previous.next = target.next\n"
        "    target.next.previous = source.previous\n"
        "    source.next.previous = target\n"
        "    target.next = source.next\n",
    ),
    NativeMutant(
        "the second completer leaves the flags to be served",
        OPERATION,
        "        operation._op_expiry_due = False\n        operation._op_forced_outcome = None\n"
        "        return False\n    if operation._op_outcome is PENDING:\n",
        "        return False\n    if operation._op_outcome is PENDING:\n",
    ),
    NativeMutant(
        "an operation deferred by a chain is completed at once when forced",
        OPERATION,
        "    elif operation.stage == DONE or (operation.stage == DEFERRED and not resuming):\n",
        "    elif operation.stage == DONE:\n",
    ),
    NativeMutant(
        "a chain has no end",
        OPERATION,
        "            if trampoline.depth >= MAX_DEPTH:\n                deferred = ",
        "            if False:\n                deferred = ",
    ),
    NativeMutant(
        "a completed operation leaves its retry on the timer",
        OPERATION,
        "        retry.cancel()\n        operation._op_retry = None  # no cycle",
        "        operation._op_retry = None  # no cycle",
        "with a lock: close by expiry, stranger",
    ),
    NativeMutant(
        "a completed operation stays on the timer",
        OPERATION,
        "    leave_timer(operation)\n    retry = operation._op_retry\n",
        "    retry = operation._op_retry\n",
        "on one key: event, cancel",
    ),
    NativeMutant(
        "a close does not wait for the check of what was forced meanwhile",
        OPERATION,
        "            state.note_still_checked(operation)  # completed from outside, amid a check\n",
        "            pass\n",
    ),
    NativeMutant(
        "listeners are looked for before the outcome counts as told",
        OPERATION,
        "    operation.stage = DONE\n    if operation._op_listeners is not None:\n"
        "        notify(operation)\n    return 0\n",
        "    if operation._op_listeners is not None:\n        notify(operation)\n"
        "    operation.stage = DONE\n    return 0\n",
    ),
    NativeMutant(
        "a submission completes an operation that another thread completed",
        OPERATION,
        "is_from_submitter = operation.moved_by == me\n        operation.completer",
        "is_from_submitter = operation.moved_by != 0\n        operation.completer",
    ),
    NativeMutant(
        "the flags are not looked at after the release",
        OPERATION,
        "            operation.owner = 0\n            is_ours = False\n"
        "            if retry is not None and operation._op_is_deferred_to(retry):\n"
        "                break\n",
        "            operation.owner = 0\n            is_ours = False\n            break\n",
        "with a lock: event, check",
    ),
    NativeMutant(
        "an operation is served by two",
        OPERATION,
        "            if operation.owner:\n                if between is NO_CALL:\n",
        "            if operation.owner and between is not NO_CALL:\n"
        "                if between is NO_CALL:\n",
        "on one key: event, check",
    ),
    NativeMutant(
        "a retry that is put on the timer is not looked after",
        OPERATION,
        "            if retry is not None and operation._op_is_deferred_to(retry):\n",
        "            if retry is not None:\n",
    ),
    NativeMutant(
        "a check that meets another is not noted (KAFKA-6653)",
        OPERATION,
        "        operation._op_check_due = True\n"
        "        return own(operation, me, NO_CALL, None)\n",
        "        return 0\n",
        "on one key: event, check",
    ),
    NativeMutant(
        "a check requested during a false one is dropped",
        OPERATION,
        "    operation.owner = 0\n"
        "    if is_due(operation):\n"
        "        return own(operation, me, NO_CALL, None)\n"
        "    return 0\n",
        "    operation.owner = 0\n    return 0\n",
        "on one key: event, check",
    ),
    NativeMutant(
        "an event checks under no lock of the user's",
        OPERATION,
        "        or operation._op_lock is not None\n",
        "",
    ),
    NativeMutant(
        "an event does not see that the time is up",
        OPERATION,
        "is not None\n        or operation._op_expiry_due\n",
        "is not None\n",
    ),
    NativeMutant(
        "an event checks what another thread is checking",
        OPERATION,
        "        or operation.owner\n",
        "",
        "on one key: event, check",
    ),
    NativeMutant(
        "no second check after the watching",
        OPERATION,
        "    if operation._op_outcome is PENDING and call(operation, between):\n"
        "        return False\n    operation._op_check_due = True\n"
        "    return do_due(operation)\n",
        "    if operation._op_outcome is PENDING and call(operation, between):\n"
        "        return False\n    return False\n",
        "new: watch, event",
    ),
    NativeMutant(
        "the flags are not looked at after a submission",
        OPERATION,
        "                between = NO_CALL\n            operation.owner = 0\n"
        "            is_ours = False\n",
        "                if between is not NO_CALL:\n                    operation.owner = 0\n"
        "                    is_ours = False\n                    break\n"
        "                between = NO_CALL\n            operation.owner = 0\n"
        "            is_ours = False\n",
        "new with a lock: watch, event",
    ),
    NativeMutant(
        "the flag is cleared after a check that no event asked for, not before",
        OPERATION,
        "        operation._op_check_due = False\n        answer = ask(operation, TRY_COMPLETE)\n",
        "        answer = ask(operation, TRY_COMPLETE)\n        operation._op_check_due = False\n",
    ),
    NativeMutant(
        "the flag is cleared after the check, not before",
        OPERATION,
        "        operation._op_check_due = False\n        answer = ask(operation, TRY_COMPLETE)\n",
        "        answer = ask(operation, TRY_COMPLETE)\n        operation._op_check_due = False\n",
        "on one key: event, check",
    ),
    NativeMutant(
        "an expiry counts with a check that began before it",
        OPERATION,
        "        expiring = operation._op_expiry_due\n        operation._op_check_due = False\n"
        "        answer = ask(operation, TRY_COMPLETE)\n",
        "        operation._op_check_due = False\n"
        "        answer = ask(operation, TRY_COMPLETE)\n"
        "        expiring = operation._op_expiry_due\n",
    ),
    NativeMutant(
        "every completion at an expiry is a missed one",
        OPERATION,
        "        unasked = not operation._op_check_due  # no event",
        "        unasked = operation._op_expiry_due  # no event",
    ),
    NativeMutant(
        "an operation abandoned during a check is expired by it",
        OPERATION,
        "    if operation._op_was_abandoned():  # by the check\n",
        "    if False:\n",
    ),
    NativeMutant(
        "an interrupted check leaves the operation pending",
        OPERATION,
        "        complete(operation, FAILED, interrupt, False)\n        raise\n",
        "        raise\n",
    ),
    NativeMutant(
        "an interrupted completion is not noted in the state",
        OPERATION,
        "    if operation._op_state is not None:\n"
        "        operation._op_state.interrupted.append((operation,))\n",
        "",
    ),
    NativeMutant(
        "a timeout starts though its operation was completed meanwhile",
        OPERATION,
        "    if operation._op_outcome is not PENDING or not operation._op_keys:\n"
        "        leave_timer(operation)\n",
        "",
        "new: watch, event",
    ),
    NativeMutant(
        "a closed purgatory takes operations",
        OPERATION,
        "        if state.is_closed:\n            state.counters.rejected += 1\n",
        "        if False:\n            state.counters.rejected += 1\n",
        "new: watch, close by failure",
    ),
    NativeMutant(
        "an operation completed before its submission counts as pending",
        OPERATION,
        "            if operation._op_outcome is PENDING:\n"
        "                state.add_pending(operation)\n",
        "            state.add_pending(operation)\n",
    ),
    NativeMutant(
        "a thread's number is taken for another's that completed it and ended",
        OPERATION,
        "self.owner == thread or (self.stage != DONE and self.completer == thread)",
        "self.owner == thread or self.completer == thread",
    ),
    NativeMutant(
        "an operation without a timeout is put on the timer",
        OPERATION,
        "    if operation.delay.ms >= FOREVER if operation.has_delay_ms else operation.delay_ms >= "
        "FOREVER_MS:\n",
        "    if False:\n",
    ),
    NativeMutant(
        "a value does not reach its own number",
        WATCHERS,
        "        while self.numbers.size and self.numbers.ranked[0].number <= value:\n",
        "        while self.numbers.size and self.numbers.ranked[0].number < value:\n",
        "with a threshold: advance, listen",
    ),
    NativeMutant(
        "an operation that waits for a new number keeps its place",
        WATCHERS,
        "order or threshold.ranked.order",
        "threshold.ranked.order",
    ),
    NativeMutant(
        "nobody waits anew for a number",
        WATCHERS,
        "            rearm_one(operation, watchers, self.order)\n",
        "            pass\n",
    ),
    NativeMutant(
        "an operation that is no longer pending is put on lists",
        WATCHERS,
        "        if not count or operation.membership != IS_PENDING:\n",
        "        if not count:\n",
    ),
    NativeMutant(
        "an operation is put on a list that was dropped",
        WATCHERS,
        "        while not are_kept(watches, count):\n            self.find_lists(keys, watches)\n",
        "",
    ),
    NativeMutant(
        "all lists stay in the map when they are empty",
        WATCHERS,
        "            if len(self.kept) <= MOST_KEPT:\n",
        "            if True:\n",
    ),
    NativeMutant(
        "a list that is kept no more is taken for one that is",
        WATCHERS,
        "            watchers.is_kept = False\n",
        "            pass\n",
    ),
    NativeMutant(
        "a key is not counted when somebody comes",
        WATCHERS,
        "            self.key_count += watchers.count == 0\n",
        "            pass\n",
    ),
    NativeMutant(
        "a list that is dropped does not say so",
        WATCHERS,
        "            watchers.is_dropped = watchers.count == 0\n",
        "            pass\n",
    ),
    NativeMutant(
        "a list to which somebody came while it was dropped is lost",
        WATCHERS,
        "            self.restore(popped)\n        return 0\n",
        "            pass\n        return 0\n",
    ),
    NativeMutant(
        "a turn is taken by two",
        WATCHERS,
        "            sleep(PAUSE_S)\n        self.holder = me\n",
        "            break\n        self.holder = me\n",
    ),
    NativeMutant(
        "a completed operation keeps its place",
        STATE,
        "            if self.max_pending is not None:\n"
        "                self.admitted.discard(id(operation))\n",
        "",
    ),
    NativeMutant(
        "an abandoned operation is counted",
        STATE,
        "            if operation.membership == IS_COMPLETING:\n                if counted_as",
        "            if True:\n                if counted_as",
    ),
    NativeMutant(
        "an abandoned operation stays counted as pending",
        STATE,
        "        if operation.membership == IS_PENDING:\n            self.pending_count -= 1\n"
        "        operation.membership = NOT_HELD\n",
        "        operation.membership = NOT_HELD\n",
        "on one key: close by leaving, look",
    ),
    NativeMutant(
        "lists whose key could not be compared are not mended",
        STATE,
        "        if key_error is not None:\n            self.interrupted.append((None,))\n",
        "",
    ),
    NativeMutant(
        "the collector is not told of operations being completed",
        STATE,
        "    return told or _traverse_list(&state.completing, visit, arg)\n",
        "    return told\n",
    ),
    NativeMutant(
        "an operation is completed before it counts as completing",
        STATE,
        "                operation.membership = IS_COMPLETING\n"
        "                append(&self.completing, &operation.state_link)\n",
        "                operation.membership = NOT_HELD\n",
        "on one key: event, close by failure",
    ),
    NativeMutant(
        "an event that is broken off forgets whom it had yet to check",
        PURGATORY,
        "            for operation in (alone,) if alone is not None else operations or ():\n"
        "                state.interrupted.append((operation,))\n",
        "",
    ),
    NativeMutant(
        "a key that is given twice is watched twice",
        PURGATORY,
        "            if hashes[number] == hashes[other]:\n",
        "            if False:\n",
    ),
    NativeMutant(
        "an interrupted listener is lost",
        OPERATION,
        "            operation._op_listeners.insert(0, listener)\n",
        "",
    ),
    NativeMutant(
        "each call has a chain of its own",
        TRAMPOLINE,
        "        trampoline = kept.setdefault(_KEY, _new_trampoline())\n",
        "        return _new_trampoline()\n",
    ),
    NativeMutant(
        "checks are not counted",
        PURGATORY,
        "                watchers.collect(operations)\n"
        "                state.counters.checks += len(operations)\n",
        "                watchers.collect(operations)\n",
    ),
]
