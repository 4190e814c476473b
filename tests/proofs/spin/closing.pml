/* Closing: purgatory/core/closing.py, called outside callbacks. POLICY: EXPIRED, FAILED, LEAVE. */

#ifdef POLICY

inline note_end(o) {
#if POLICY == EXPIRED
    d_step {
        AT(close_note_expiry);
        if
        :: !op[o].expiry_due && op[o].outcome == PENDING -> op[o].held_at_expiry = HOLDS(o)
        :: else
        fi;
        op[o].expiry_due = true
    }
#else
    d_step { AT(close_note_forced); op[o].verdict = POLICY }
#endif
}

/* DelayedOperation._op_abandon, by the owner, which no other thread can be. */
inline abandon(o) {
    d_step {
        turn == NOBODY ->
        AT(abandon_look);
        seen = (op[o].outcome == PENDING);
        if
        :: seen -> turn = ME
        :: else
        fi
    };
    if
    :: seen ->
        d_step {
            AT(abandon_lists);
            op[o].on_lists = op[o].on_lists & ~op[o].keys;
            op[o].on_numbers = op[o].on_numbers & ~op[o].numbers;
#ifndef BREAK_LET_GO_KEEPS_KEYS
            op[o].keys = 0;
            op[o].numbers = 0;
#endif
            turn = NOBODY;
            seen = (op[o].entry == CURRENT)
        };
        if
        :: seen -> d_step { AT(abandon_cancel); op[o].in_home = false; seen = false }
        :: else
        fi;
#ifdef LOCKED
        d_step { AT(abandon_look_retry); number = op[o].retry };
        if
        :: number != NONE -> cancel_retry(o, number); number = NONE
        :: else
        fi;
#endif
        d_step { AT(abandon_forget); op[o].pending = false }
    :: else
    fi
}

/* Closing._complete_in_order, for one. */
inline close_one(o) {
    d_step { AT(close_look_outcome); seen = (op[o].outcome == PENDING) };
    if
    :: seen ->
        seen = false;
#if POLICY == LEAVE
        d_step {
            AT(claim_abandon);
            got = (op[o].owner == NOBODY);
#ifdef BREAK_LET_GO_UNCLAIMED
            got = true;
#endif
            if
            :: got -> op[o].owner = ABANDONED
            :: else
            fi
        };
        if
        :: got -> got = false; abandon(o)
        :: else
        fi
#else
        note_end(o);
        serve(o)
#endif
    :: else
    fi
}

/* Closing._give_up_on: the close has timed out while a user's lock is taken. */
inline give_up_on(o) {
    d_step { AT(give_up_look); seen = (op[o].outcome == PENDING) };
    if
    :: seen ->
        seen = false;
#if POLICY == LEAVE
        abandon(o)
#else
        fail_without_lock(o)
#endif
    :: else
    fi
}

#define STILL_CHECKED(o) \
    (op[o].still_checked && op[o].owner != NOBODY && op[o].owner != ABANDONED)
#ifdef BREAK_CLOSE_LEAVES_COMPLETING
#define WAITED_FOR(o) (op[o].pending || STILL_CHECKED(o))
#else
#define WAITED_FOR(o) (op[o].pending || op[o].completing || STILL_CHECKED(o))
#endif

/* stop_intake, then Closing.close. */
inline close_purgatory() {
#ifndef BREAK_INTAKE_STOPPED_LATE
    d_step { turn == NOBODY -> AT(stop_intake); closed = true };
#endif
    do
    ::  atomic {
            turn == NOBODY ->
            AT(close_look);
            reached = WAITED_FOR(0) | (WAITED_FOR(1) << 1)
        };
progress_close:
        if
        :: reached == 0 -> break
#ifdef DEADLINE
        :: reached != 0 && passed -> /* each operation was tried once */
            who = 0;
#if POLICY != LEAVE
            atomic { AT(give_up_note); gave_up = true };
#endif
            do
            :: who < OPS && HAS(reached, who) -> give_up_on(who); who++
            :: who < OPS && !HAS(reached, who) -> who++
            :: who == OPS -> break
            od;
            who = 0;
            break
#endif
        :: reached != 0 ->
            who = 0;
            do
            :: who < OPS && HAS(reached, who) -> close_one(who); who++
            :: who < OPS && !HAS(reached, who) -> who++
            :: who == OPS -> break
            od;
            who = 0;
            passed = true
        fi
    od;
#ifdef BREAK_INTAKE_STOPPED_LATE
    atomic { turn == NOBODY -> AT(stop_intake); closed = true };
#endif
#ifdef OWN_TIMER
    atomic { /* SystemTimer._drop_all: its tasks never run */
        AT(close_timer);
        timer_closed = true;
        op[0].in_home = false;
        op[1].in_home = false;
        retry[1].in_home = false;
        retry[2].in_home = false;
        retry[3].in_home = false;
        retry[4].in_home = false
    };
#endif
    atomic {
        AT(close_returned);
        reached = 0;
        passed = false;
#ifndef DEADLINE
        assert(!op[0].pending && !op[1].pending);
        assert(!op[0].completing && !op[1].completing);
        returned = true
#endif
    }
}

#endif
