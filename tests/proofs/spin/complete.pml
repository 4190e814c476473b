/* Completion: purgatory/core/operation.py. */

/* _PureTask.cancel, of a retry task. */
inline cancel_retry(o, s) {
    d_step {
        AT(cancel_look_entry);
        if
        :: retry[RETRY(o, s)].entry == CURRENT -> looked_at[_pid] = RETRY(o, s)
        :: else -> looked_at[_pid] = NONE
        fi
    };
    d_step {
        AT(cancel_pop);
        if
        :: looked_at[_pid] != NONE -> retry[looked_at[_pid]].in_home = false
        :: else
        fi;
        looked_at[_pid] = NONE
    }
}

/* _PureOperation._op_complete: `won` is true if this call set the outcome. */
inline complete(o, to, by_owner) {
    d_step {
        AT(claim_completer);
        won = (op[o].completer == NOBODY);
#ifdef BREAK_COMPLETING_UNCLAIMED
        won = (op[o].outcome == PENDING);
#endif
        if
        :: won -> op[o].completer = ME
        :: else
        fi
    };
    if
    :: !won ->
#ifndef BREAK_LOSER_KEEPS_NOTES
        d_step { AT(drop_expiry); op[o].expiry_due = false };
        d_step { AT(drop_forced); op[o].verdict = PENDING }
#else
        skip
#endif
    :: else ->
        d_step {
            AT(set_outcome);
            assert(op[o].outcome == PENDING); /* one outcome */
            assert(!(to == EXPIRED && op[o].held_at_expiry)); /* checked once more at expiry */
            op[o].outcome = to;
            op[o].wins++
        };
        leave(o);
        finish(o, to, by_owner)
    fi
}

/* _PureOperation._op_detach: off the timer and the lists. */
inline leave(o) {
#ifndef BREAK_COMPLETED_STAYS_ON_TIMER
    d_step { AT(leave_look_entry); seen = (op[o].entry == CURRENT) };
    if
    :: seen -> d_step { AT(leave_cancel); op[o].in_home = false; seen = false }
    :: else
    fi;
#endif
#ifdef LOCKED
    d_step { AT(leave_look_retry); number = op[o].retry };
    if
    :: number != NONE ->
        cancel_retry(o, number);
        d_step { AT(leave_drop_retry); op[o].retry = NONE; number = NONE }
    :: else
    fi;
#endif
    d_step { AT(leave_look_state); seen = op[o].books };
    if
    :: seen ->
        d_step {
            turn == NOBODY -> /* PurgatoryState.unwatch, in a turn */
            AT(leave_lists);
            if
            :: op[o].pending -> op[o].completing = true; op[o].pending = false
            :: else
            fi;
#ifndef BREAK_COMPLETED_STAYS_WATCHED
            op[o].on_lists = op[o].on_lists & ~op[o].keys;
            op[o].on_numbers = op[o].on_numbers & ~op[o].numbers;
#endif
            seen = false
        }
    :: else
    fi
}

/* _PureOperation._op_finish: the callbacks; then the count, and the waiters are notified. */
inline finish(o, to, by_owner) {
    if
    :: to != CANCELLED ->
        d_step {
            AT(call_back);
            assert(op[o].calls == 0); /* called once */
            op[o].calls++;
            if
            :: by_owner ->
                assert(op[o].inside == NOBODY || op[o].inside == ME); /* callbacks don't overlap */
                assert(!returned); /* nothing runs once close has returned */
                op[o].inside = ME
            :: else
            fi
        };
        d_step {
            AT(called_back);
            if
            :: by_owner -> op[o].inside = NOBODY
            :: else
            fi
        }
    :: else
    fi;
    d_step { AT(finish_look_state); seen = op[o].books };
    if
    :: seen ->
#ifndef BREAK_CLOSE_LEAVES_CHECKS
        d_step {
            AT(finish_look_owner);
            seen = (op[o].owner != NOBODY && op[o].owner != ME && op[o].owner != ABANDONED)
        };
        if
        :: seen -> d_step { turn == NOBODY -> AT(note_still_checked); op[o].still_checked = true }
        :: else
        fi;
#endif
        d_step { turn == NOBODY -> AT(count_done); op[o].completing = false; seen = false }
    :: else
    fi;
    d_step { AT(set_done); op[o].is_done = true }
}
