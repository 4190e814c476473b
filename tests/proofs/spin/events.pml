/* Events of keys: purgatory/core/purgatory.py. */

/* The user's part of the rule: change the state, then check. */
inline event(k) {
    d_step { AT(change_state); values = values | BIT(k) };
    check(k)
}

/* DelayedOperationPurgatory.check_and_complete. */
inline check(k) {
    d_step {
        turn == NOBODY ->
        AT(list_watchers);
        reached = HAS(op[0].on_lists, k) | (HAS(op[1].on_lists, k) << 1)
    };
    check_each()
}

/* checking.check_each, of those that are `reached`. */
inline check_each() {
    who = 0;
    do
    :: who < OPS && HAS(reached, who) ->
#ifndef BREAK_CHECK_UNNOTED
        d_step { AT(note_check); op[who].check_due = true };
#endif
        serve(who);
        who++
    :: who < OPS && !HAS(reached, who) -> who++
    :: who == OPS -> break
    od;
    atomic { who = 0; reached = 0 }
}

/* DelayedOperationPurgatory.advance, to the number for which all operations of the key wait. */
inline advance(k) {
#ifndef BREAK_VALUE_TOLD_LATE
    d_step { turn == NOBODY -> AT(advance_value); turn = ME; values = values | BIT(k) };
#else
    d_step { turn == NOBODY -> turn = ME };
#endif
    d_step {
        AT(advance_take);
        reached = HAS(op[0].on_numbers, k) | (HAS(op[1].on_numbers, k) << 1);
        op[0].on_numbers = op[0].on_numbers & ~BIT(k);
        op[1].on_numbers = op[1].on_numbers & ~BIT(k);
        turn = NOBODY
    };
#ifdef BREAK_VALUE_TOLD_LATE
    d_step { AT(advance_value); values = values | BIT(k) };
#endif
    check_each()
}

/* DelayedOperationPurgatory.forget. */
inline forget(k) {
    d_step {
        turn == NOBODY ->
        AT(forget_value);
        turn = ME;
        values = values & ~BIT(k);
        op[0].held_at_expiry = false; /* a former condition does not hold any more */
        op[1].held_at_expiry = false
    };
#ifndef BREAK_FORGET_LOSES
    d_step {
        AT(forget_watch_anew);
        op[0].on_numbers = op[0].on_numbers | (op[0].on_lists & op[0].numbers & BIT(k));
        op[1].on_numbers = op[1].on_numbers | (op[1].on_lists & op[1].numbers & BIT(k))
    };
#endif
    d_step {
        AT(forget_look);
        if
        :: op[0].outcome != PENDING -> op[0].on_numbers = op[0].on_numbers & ~BIT(k)
        :: else
        fi;
        if
        :: op[1].outcome != PENDING -> op[1].on_numbers = op[1].on_numbers & ~BIT(k)
        :: else
        fi;
        turn = NOBODY
    }
}

/* DelayedOperation.force_complete and cancel, called by a user. */
inline force(o) {
    complete(o, COMPLETED, false);
    won = false
}

inline cancel(o) {
    complete(o, CANCELLED, false);
    won = false
}

#ifdef LOCKED
/* A user that holds the lock. */
inline hold(o) { d_step { users_lock[LOCK_OF(o)] == NOBODY -> users_lock[LOCK_OF(o)] = ME } }
inline let_loose(o) { users_lock[LOCK_OF(o)] = NOBODY }
#endif
