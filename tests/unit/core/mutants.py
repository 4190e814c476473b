"""Defects that are put into the core, to check that the scheduler finds them.

Each is one that Kafka has had, that this project has had, or that a hasty change would make. Each
is written as a diff: removed lines begin with a minus, added ones with a plus, and those around
them with a space.
"""

from __future__ import annotations

from dataclasses import dataclass

OPERATION = "purgatory.core.operation"
STATE = "purgatory.core.state"
PURGATORY = "purgatory.core.purgatory"
WATCHERS = "purgatory.core.watchers"
CLOSING = "purgatory.core.closing"


@dataclass(frozen=True)
class Mutant:
    """A fault, the program that is to find it, and the change to one module that makes it."""

    fault: str
    program: str
    module: str
    change: str

    @property
    def replacements(self) -> dict[str, str]:
        """The replacements in the module's source."""
        pieces = [piece.splitlines() for piece in self.change.strip("\n").split("\n\n")]
        return {_without("+", lines): _without("-", lines) for lines in pieces}


def _without(sign: str, lines: list[str]) -> str:
    return "".join(f"{line[1:]}\n" for line in lines if not line.startswith(sign))


MUTANTS = [
    Mutant(
        "a check that meets a taken lock is skipped (KAFKA-6653)",
        "two_halves_of_a_condition",
        OPERATION,
        """
         # operation.maybe_try_complete(), written out.
+        if "owner" in operation._op_claims:
+            continue
         operation._op_check_due = True
""",
    ),
    Mutant(
        "a check is noted after the try of the lock, not before",
        "two_halves_of_a_condition",
        OPERATION,
        """
         # operation.maybe_try_complete(), written out.
+        free = "owner" not in operation._op_claims
         operation._op_check_due = True
-        if operation._op_own(me):
+        if free and operation._op_own(me):
""",
    ),
    Mutant(
        "the flags are not looked at after the release",
        "two_halves_of_a_condition",
        OPERATION,
        """
                     del claims["owner"]
+                    break
                 else:
                     trampoline = this_thread.trampoline
""",
    ),
    Mutant(
        "the flag is cleared after the check, not before",
        "two_halves_of_a_condition",
        OPERATION,
        """
-            self._op_check_due = False
             try:

             else:
+                self._op_check_due = False
                 if not completed:
""",
    ),
    Mutant(
        "no second check after the watching",
        "new: watch, event",
        OPERATION,
        """
+        return False
-        self._op_check_due = True
-        return self._op_do_due()
""",
    ),
    Mutant(
        "the flags are not looked at after the watching",
        "new: watch, event",
        OPERATION,
        """
                         completed = self._op_check_twice(between)
+                        del claims["owner"]
+                        return completed
                         between = None
""",
    ),
    Mutant(
        "an operation is claimed by looking and then writing (KAFKA-17848)",
        "on one key: force_complete, cancel",
        OPERATION,
        """
-            if claims.setdefault("completer", me) is not me:
+            if self._op_outcome is not PENDING:
""",
    ),
    Mutant(
        "the claim is given back before the outcome is noted",
        "on one key: force_complete, cancel",
        OPERATION,
        """
                 self._op_error = error
-                self._op_outcome = outcome
+                del claims["completer"]
+                self._op_outcome = outcome
+                claims["completer"] = me
             elif self._op_stage == DONE or (self._op_stage == DEFERRED and not resuming):
""",
    ),
    Mutant(
        "a call that lost the claim goes round until the winner's outcome shows",
        "on one key: cancel, expiry",
        OPERATION,
        """
-                self._op_expiry_due = False
-                self._op_forced_outcome = None
""",
    ),
    Mutant(
        "expiry does not take the operation's lock (KAFKA-19312)",
        "two_halves_of_a_condition_and_expiry",
        OPERATION,
        """
+        self._op_complete(EXPIRED)
-        self._op_expiry_due = True
-        self._op_process()
""",
    ),
    Mutant(
        "an operation leaves the lists before its outcome is set",
        "new: watch, force_complete",
        OPERATION,
        """
                 self._op_error = error
-                self._op_outcome = outcome
+                pass
             elif self._op_stage == DONE or (self._op_stage == DEFERRED and not resuming):

                 self._op_detach()
+                self._op_outcome = outcome
""",
    ),
    Mutant(
        "a completed operation stays on the timer",
        "new: watch, event",
        OPERATION,
        """
-        TimerTask.cancel(self)
+        pass
         retry = self._op_retry
         if retry is not None:
             retry.cancel()
             self._op_retry = None  # no cycle keeps the two alive
""",
    ),
    Mutant(
        "the outcome is not looked at after a listener was added",
        "two_who_wait_and_one_who_forces",
        OPERATION,
        """
-        if self._op_is_done():
-            self._op_notify()
""",
    ),
    Mutant(
        "no look for a retry that came while the operation was busy",
        "users_lock_that_is_taken_until_retries_came",
        OPERATION,
        """
-        return not (retry.has_run or isinstance(state.timer, SystemTimer))
+        return True
""",
    ),
    Mutant(
        "no retry where the user's lock is taken (KAFKA-8334)",
        "with a lock: event, stranger",
        OPERATION,
        """
-                state.timer.add(retry)
+                pass

-        return not (retry.has_run or isinstance(state.timer, SystemTimer))
+        return True
""",
    ),
    Mutant(
        "a retry stays on the timer though its operation completed meanwhile",
        "users_lock_event_and_cancel",
        OPERATION,
        """
-            retry.cancel()
-            self._op_retry = None
             return True
""",
    ),
    Mutant(
        "a list takes a completed operation",
        "new: watch, force_complete",
        WATCHERS,
        """
-        if operation._op_outcome is not PENDING:
-            self.unwatch(operation)

     def _put(self, key: Hashable, operation: W) -> None:
""",
    ),
    Mutant(
        "a submission changes the lists without their lock",
        "two_operations_watched_on_one_key",
        STATE,
        """
-        with self.lock:
+        if True:
             self.watchers.watch(operation)
""",
    ),
    Mutant(
        "a completion changes the lists without their lock",
        "on one key: cancel, come",
        STATE,
        """
-        with self.lock:
+        if True:
             if identity in self.pending:
""",
    ),
    Mutant(
        "an operation leaves one of its lists alone (KAFKA-2147)",
        "on two keys: event, event",
        WATCHERS,
        """
-            for key in operation._op_keys if keys is None else keys:
+            for key in (operation._op_keys if keys is None else keys)[:1]:
""",
    ),
    Mutant(
        "the outcome is not looked at after the timeout was started",
        "new: watch, event",
        OPERATION,
        """
-        if self._op_outcome is not PENDING or not self._op_keys:
+        if False:
""",
    ),
    Mutant(
        "a closed purgatory takes operations in",
        "new: watch, close by expiry",
        OPERATION,
        """
-                    if state.is_closed:
+                    if False:
                         state.counters.rejected += 1
""",
    ),
    Mutant(
        "closing does not wait for callbacks that run",
        "on one key: event, close by failure",
        CLOSING,
        """
-        while not self._is_drained(closer, deadline_s):
-            time.sleep(POLL_S)
+        self._is_drained(closer, deadline_s)
""",
    ),
    Mutant(
        "closing does not wait for the check of an operation completed from outside",
        "on one key: check, cancel, close by expiry",
        OPERATION,
        """
-                if owner is not None and owner[0] != me[0]:
+                if False:
""",
    ),
    Mutant(
        "a closing purgatory leaves operations on the lists",
        "new: watch, close by leaving",
        OPERATION,
        """
-                keys, self._op_keys = self._op_keys, ()
+                keys = self._op_keys
""",
    ),
    Mutant(
        "a value is stored after the look for its waiters",
        "new with a threshold: watch, advance",
        PURGATORY,
        """
-                known = values.get(key)
-                if known is None or value > known:
-                    values[key] = value
                 if key in state.watchers.numbers_by_key:

+            values[key] = max(value, values.get(key, value))
             return check_each(operations, [threading.get_ident()]) if operations else 0
""",
    ),
    Mutant(
        "a lower value takes the place of a higher one",
        "with a threshold: advance, lower advance",
        PURGATORY,
        """
-                if known is None or value > known:
+                if known != value:
                     values[key] = value
""",
    ),
    Mutant(
        "numbers are looked up without the lists' lock",
        "new with a threshold: watch, lower advance, advance",
        PURGATORY,
        """
-            with state.lock:
+            if True:
                 known = values.get(key)
""",
    ),
    Mutant(
        "an operation is put among the numbers though it completed",
        "new with a threshold: watch, cancel",
        WATCHERS,
        """
-        if operation._op_outcome is not PENDING:
-            self.unwatch(operation)

     def _put(self, key: Hashable, operation: W) -> None:

-        if operation._op_outcome is not PENDING:
-            self._take_number(key, operation, number)
""",
    ),
    Mutant(
        "an operation with one of two numbers reached leaves the key's list",
        "two_halves_of_two_thresholds",
        WATCHERS,
        """
             waiting.pop_reached(value, taken)
+            for operation in taken:
+                self.entries -= self.by_key[key].pop(id(operation), None) is not None
""",
    ),
    Mutant(
        "an operation that expires with its number reached stays counted on the key",
        "with a threshold: expiry, advance",
        WATCHERS,
        """
-                    unwatched += 1
+                    unwatched += not operation._op_thresholds or key in self.numbers_by_key
""",
    ),
    Mutant(
        "listeners are looked for before the operation is DONE",
        "on one key: force_complete, listen",
        OPERATION,
        """
-            self._op_stage = DONE
             if self._op_listeners is not None:
                 self._op_notify()
+            self._op_stage = DONE
             trampoline.depth = depth
""",
    ),
    Mutant(
        "two listeners make two lists",
        "two_listeners_come_while_it_completes",
        OPERATION,
        """
                 listeners = self._op_listeners
-                if listeners is None:
+                if True:
                     listeners = self._op_listeners = made
""",
    ),
    Mutant(
        "an abandoned operation does not notify its listeners",
        "on one key: close by leaving, listen",
        OPERATION,
        """
-        self._op_notify()  # no other call will wake its waiters
""",
    ),
]
