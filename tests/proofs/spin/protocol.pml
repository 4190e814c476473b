/* The protocol of operations, lists, timer and closing: the core's steps.
 *
 * Spin tries every order of the steps of two threads, the timer's driver and, in some, a stranger
 * that holds the user's lock. A macro chooses the configuration (scripts.pml); another may break a
 * rule (BREAK_...). docs/proof.md describes the model, map.md has the line of code of each step.
 *
 * Properties, beside the asserts on the way: at the end, JUDGE; no thread waits for ever (Spin's
 * invalid end states); none goes round for ever while the others stand still (its non-progress
 * cycles); a retry is not given up (the claim at the end of scripts.pml).
 */

#include "scripts.pml"
#include "state.pml"
#include "complete.pml"
#include "serve.pml"
#include "submit.pml"
#include "events.pml"
#include "closing.pml"

active proctype First() {
    LOCAL
    FIRST;
    ended++
}

active proctype Second() {
    LOCAL
    SECOND;
    ended++
}

#include "driver.pml"

#ifdef STRANGER
/* Code that holds the lock for reasons of its own, and knows nothing of the library. */
active proctype Stranger() {
    do
    :: atomic { users_lock[0] == NOBODY -> users_lock[0] = STRANGERS };
        users_lock[0] = NOBODY;
progress_stranger: /* no progress while the stranger holds it */
        skip
    :: STRANGER_MAY_STOP -> break
    od;
    ended++
}
#endif

/* The invariants of one operation, once no thread runs any more. */
inline judge(o) {
    assert(op[o].owner == NOBODY || op[o].owner == ABANDONED);
    assert(op[o].wins <= 1); /* at most one call returned that it completed it */
    assert(!op[o].completing);
    assert(!retry[RETRY(o, 1)].in_home && !retry[RETRY(o, 2)].in_home);
    if
    :: op[o].outcome != PENDING ->
        assert(op[o].wins == 1 && op[o].is_done);
        assert(op[o].calls == (op[o].outcome == CANCELLED -> 0 : 1));
        assert(op[o].on_lists == 0 && op[o].on_numbers == 0); /* no entry is left on a list, */
        assert(!op[o].in_home && !op[o].pending) /* nor on the timer, nor in the books */
    :: op[o].outcome == PENDING && op[o].books && op[o].keys == 0 -> /* it was abandoned */
        assert(op[o].calls == 0);
        assert(op[o].on_lists == 0 && op[o].on_numbers == 0);
        assert(!op[o].in_home && !op[o].pending)
    :: op[o].outcome == PENDING && op[o].books && op[o].keys != 0 ->
        assert(!HOLDS(o)); /* no completion was lost, */
        assert(op[o].verdict == PENDING && !op[o].expiry_due); /* nor an expiry, nor a verdict */
        assert(op[o].on_lists == op[o].keys);
        assert((op[o].numbers & ~op[o].on_numbers & ~values) == 0); /* waits for unreached numbers */
        assert(op[o].pending);
#ifdef TIMEOUTS
        assert(op[o].in_home);
#endif
        assert(!closed) /* a purgatory that was closed has completed or abandoned it */
    :: op[o].outcome == PENDING && !op[o].books -> skip
    fi
}

active proctype Judge() {
    ended == THREADS && driver_ended ->
    atomic { judge(0); judge(1) };
    assert(turn == NOBODY)
}

#ifdef FOR_EVER
/* An operation whose events came completes, if endless tries of its lock do not all fail. A retry
 * that was given up is no endless try: this claim finds it. */
ltl retry_lives {
    ((([]<> (trying > 0)) -> ([]<> (users_lock[0] != NOBODY && users_lock[0] != STRANGERS)))
        -> [] ((ended == 2) -> <> (op[0].outcome != PENDING)))
}
#endif
