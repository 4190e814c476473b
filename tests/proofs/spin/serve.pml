/* The owner runs all pending requests of an operation: purgatory/core/operation.py. */

/* _PureOperation._op_own. */
inline serve(o) {
    do
    :: atomic { AT(process_look_outcome); gone = (op[o].outcome != PENDING) };
        if
        :: gone -> gone = false; break
        :: else
        fi;
        d_step { AT(process_look_check); due = op[o].check_due };
        if
        :: !due -> d_step { AT(process_look_expiry); due = op[o].expiry_due }
        :: else
        fi;
        if
        :: !due -> d_step { AT(process_look_forced); due = (op[o].verdict != PENDING) }
        :: else
        fi;
        if
        :: !due -> break
        :: else
        fi;
        d_step {
            AT(claim_owner);
            got = (op[o].owner == NOBODY);
#ifdef BREAK_SERVING_UNCLAIMED
            got = true;
#endif
            if
            :: got -> op[o].owner = ME; begin_to_try()
            :: else
            fi;
            due = false
        };
        if
        :: !got -> break
        :: else
        fi;
#ifdef LOCKED
        lock(o);
        if
        :: got ->
            do_due(o);
            d_step { AT(release_lock); users_lock[LOCK_OF(o)] = NOBODY };
            d_step { AT(release_owner); op[o].owner = NOBODY; got = false; completed = false }
        :: else ->
            retry_later(o);
            d_step { AT(release_owner); op[o].owner = NOBODY };
            look_for_retry(o);
            if
            :: waits -> waits = false; break
            :: else
            fi
        fi
#else
        do_due(o);
        d_step { AT(release_owner); op[o].owner = NOBODY; got = false; completed = false }
#endif
#ifdef BREAK_NO_LOOK_AFTER_RELEASE
        ; break
#endif
    od
}

#ifdef LOCKED
inline begin_to_try() { trying++ }

/* do_under: the lock is tried, never waited for. `got` is true if it was free. */
inline lock(o) {
#ifdef BREAK_LOCK_WAITED_FOR
    users_lock[LOCK_OF(o)] == NOBODY ->
#endif
    d_step {
        AT(try_lock);
        got = (users_lock[LOCK_OF(o)] == NOBODY);
        if
        :: got -> users_lock[LOCK_OF(o)] = ME
        :: else
        fi;
        trying--
    }
}

/* DelayedOperation._op_schedule_retry, as its owner. */
inline retry_later(o) {
    d_step { AT(retry_look); number = op[o].retry };
    if
    :: number == NONE ->
        d_step {
            AT(retry_make);
            number = (retry[RETRY(o, 1)].in_home -> 2 : 1);
            assert(!retry[RETRY(o, number)].in_home); /* the model has no third retry */
            retry[RETRY(o, number)].entry = NOT_ADDED;
            op[o].retry = number
        }
    :: else
    fi;
#if !defined(BREAK_NO_RETRY) && !defined(BREAK_RETRY_GOES_ROUND)
    d_step { AT(retry_is_due); due = retry[RETRY(o, number)].in_home };
    if
    :: due -> skip
    :: !due && retry[RETRY(o, number)].entry == NOT_ADDED -> /* SystemTimer.add */
        d_step { AT(retry_point); retry[RETRY(o, number)].entry = CURRENT };
        d_step { AT(retry_home); retry[RETRY(o, number)].in_home = !timer_closed }
    :: else -> /* SystemTimer._add_under_lock */
        d_step {
            AT(retry_home_again);
            retry[RETRY(o, number)].entry = STALE;
            retry[RETRY(o, number)].in_home = !timer_closed;
            forget_looks(RETRY(o, number))
        };
        d_step { AT(retry_point_again); retry[RETRY(o, number)].entry = CURRENT }
    fi;
    due = false
#endif
}

/* A thread that looked at an older entry of this retry does not pop the new one. */
inline forget_looks(entry) {
    if :: looked_at[0] == entry -> looked_at[0] = NONE :: else fi;
    if :: looked_at[1] == entry -> looked_at[1] = NONE :: else fi;
    if :: looked_at[2] == entry -> looked_at[2] = NONE :: else fi;
    if :: looked_at[3] == entry -> looked_at[3] = NONE :: else fi
}

/* DelayedOperation._op_is_deferred_to: `waits` is true if the owner has nothing more to do. */
inline look_for_retry(o) {
#ifndef BREAK_RETRY_UNLOOKED
    d_step { AT(waits_look_outcome); gone = (op[o].outcome != PENDING) };
    if
    :: !gone -> d_step { AT(waits_look_keys); gone = (op[o].books && op[o].keys == 0) }
    :: else
    fi;
#endif
    if
    :: gone ->
        cancel_retry(o, number);
        d_step { AT(waits_drop_retry); op[o].retry = NONE; gone = false };
        waits = true
    :: else ->
#ifdef DEADLINE
#ifndef BREAK_GIVING_UP_UNTOLD
        d_step { AT(waits_look_gave_up); waits = gave_up };
        if
        :: waits -> fail_without_lock(o)
        :: else
        fi;
#endif
#endif
        if
        :: !waits -> d_step { AT(waits_is_due); waits = retry[RETRY(o, number)].in_home }
        :: else
        fi;
#ifdef BREAK_NO_RETRY
        waits = true;
#endif
        if
        :: !waits -> d_step { AT(waits_look_closed); waits = (!op[o].books || closed) }
        :: else
        fi
    fi;
    number = NONE
}
#else
inline begin_to_try() { skip }
#endif

/* DelayedOperation._op_fail_without_lock, which Closing._give_up_on does as well. */
inline fail_without_lock(o) {
    d_step {
        AT(fail_claim);
        got = (op[o].owner == NOBODY);
        if
        :: got -> op[o].owner = ME
        :: else
        fi
    };
    if
    :: got ->
        complete(o, FAILED, false);
        d_step { AT(fail_release); won = false; got = false; op[o].owner = NOBODY }
    :: else
    fi
}

/* _PureOperation._op_do_due, under the locks: `completed` is true if a check completed it. */
inline do_due(o) {
    d_step { expiring = false; completed = false; gone = false };
    do
    :: atomic { AT(noted_look_check); due = op[o].check_due };
        if
        :: !due && !expiring -> d_step { AT(noted_look_expiry); due = op[o].expiry_due }
        :: else
        fi;
        if
        :: !due -> break
        :: else
        fi;
        d_step { AT(noted_look_outcome); due = false; gone = (op[o].outcome != PENDING) };
        if
        :: gone -> break
        :: else
        fi;
#ifndef BREAK_EXPIRY_SEEN_AFTER_CHECK
        d_step { AT(noted_expiry); expiring = op[o].expiry_due };
#endif
#ifndef BREAK_CLEARED_AFTER_CHECK
        d_step { AT(noted_clear_check); op[o].check_due = false };
#endif
        d_step {
            AT(try_complete);
            assert(op[o].inside == NOBODY); /* callbacks don't overlap */
#ifdef LOCKED
            assert(users_lock[LOCK_OF(o)] == ME); /* the lock is held whenever it is called back */
#endif
#ifndef DEADLINE
            assert(!returned); /* nothing runs once close has returned */
#endif
            op[o].inside = ME;
            seen = HOLDS(o)
        };
        if
        :: seen ->
            complete(o, COMPLETED, true);
            completed = won;
            won = false
        :: else
        fi;
        d_step { AT(tried); op[o].inside = NOBODY; seen = false };
#ifdef BREAK_CLEARED_AFTER_CHECK
        d_step { AT(noted_clear_check); op[o].check_due = false };
#endif
#ifdef BREAK_EXPIRY_SEEN_AFTER_CHECK
        d_step { AT(noted_expiry); expiring = op[o].expiry_due };
#endif
        if
        :: completed -> break
        :: else
        fi
    od;
    if
    :: !completed && !gone ->
        d_step { AT(noted_forced); verdict = (expiring -> EXPIRED : op[o].verdict) };
        if
        :: verdict != PENDING ->
            d_step { AT(noted_look_abandon); gone = (op[o].books && op[o].keys == 0) };
            if
            :: gone ->
                d_step { AT(drop_abandon_expiry); op[o].expiry_due = false };
                d_step { AT(drop_abandon_forced); op[o].verdict = PENDING }
            :: else ->
                complete(o, verdict, true);
                won = false
            fi
        :: else
        fi
    :: else
    fi;
    d_step { gone = false; expiring = false; verdict = PENDING }
}
