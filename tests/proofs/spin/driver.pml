/* The thread that drives the timer: it removes and runs a due task in one step.
 *
 * A timeout may be over at any time after it was added, or not until the end.
 */

#define EXPIRES(o) (op[o].in_home)
#define RETRIES(o, s) (retry[RETRY(o, s)].in_home && retry[RETRY(o, s)].entry == CURRENT)
/* No retry of a completed operation may be on the timer: the driver waits for none. */
#define OWES(o) \
    ((RETRIES(o, 1) || RETRIES(o, 2)) && op[o].outcome == PENDING && op[o].keys != 0)
#define RETRY_DUE (OWES(0) || OWES(1))

active proctype Driver() {
    LOCAL
    byte o;
    do
    ::  atomic {
            if
            :: EXPIRES(0) -> o = 0
            :: EXPIRES(1) -> o = 1
            fi;
            AT(run_expiry);
            op[o].in_home = false
        };
#ifdef BREAK_EXPIRY_UNCHECKED
        op[o].held_at_expiry = HOLDS(o);
        complete(o, EXPIRED, true);
        won = false;
#else
        d_step { /* DelayedOperation.run */
            AT(note_expiry);
            if
            :: !op[o].expiry_due && op[o].outcome == PENDING -> op[o].held_at_expiry = HOLDS(o)
            :: else
            fi;
            op[o].expiry_due = true
        };
        serve(o);
#endif
        o = 0
#ifdef LOCKED
    ::  atomic {
            if
            :: RETRIES(0, 1) -> o = 0; retry[RETRY(0, 1)].in_home = false
            :: RETRIES(0, 2) -> o = 0; retry[RETRY(0, 2)].in_home = false
            :: RETRIES(1, 1) -> o = 1; retry[RETRY(1, 1)].in_home = false
            :: RETRIES(1, 2) -> o = 1; retry[RETRY(1, 2)].in_home = false
            fi;
            AT(run_retry)
        };
progress_retry:
        serve(o);
        o = 0
#endif
    ::  ended == THREADS && !RETRY_DUE -> break
    od;
    driver_ended = true
}
