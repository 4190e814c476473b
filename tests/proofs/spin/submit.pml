/* Submission: purgatory/core/operation.py, and WatcherList.watch. */

/* _PureOperation._op_submit. */
inline submit(o) {
    d_step {
        turn == NOBODY ->
        AT(submit_take_lock);
        got = !closed;
        if
        :: got -> turn = ME; op[o].keys = KEYS_OF(o); op[o].numbers = NUMBERS_OF(o)
        :: else
        fi
    };
    if
    :: got ->
        d_step { AT(submit_note_state); op[o].books = true };
        d_step {
            AT(submit_note_pending);
            op[o].pending = (op[o].outcome == PENDING);
            turn = NOBODY;
            got = false
        };
        check_else_watch(o);
        atomic { AT(submit_look); seen = (op[o].outcome == PENDING); completed = false };
        if
        :: seen -> start_timeout(o)
        :: else
        fi;
        seen = false
    :: else
    fi
}

/* _PureOperation._op_own, with WatcherList.watch. */
inline check_else_watch(o) {
    d_step { AT(else_note); op[o].check_due = true };
    d_step {
        AT(else_claim);
        got = (op[o].owner == NOBODY);
        if
        :: got -> op[o].owner = ME; begin_to_try()
        :: else
        fi
    };
    if
    :: !got ->
        watch(o);
        d_step { AT(else_note_again); op[o].check_due = true }
    :: else ->
#ifdef LOCKED
        lock(o);
        if
        :: !got ->
            watch(o);
            d_step { AT(else_note_again); op[o].check_due = true }
        :: else ->
            check_twice(o);
            d_step { AT(release_lock); users_lock[LOCK_OF(o)] = NOBODY }
        fi;
#else
        check_twice(o);
#endif
        d_step { AT(else_release_owner); op[o].owner = NOBODY; got = false };
    fi;
    /* The check after the release; a thread that was not the owner checks as well. */
    serve(o)
}

/* _PureOperation._op_check_twice. */
inline check_twice(o) {
    do_due(o);
    if
    :: !completed ->
        d_step { AT(twice_look); seen = (op[o].outcome == PENDING) };
        if
        :: seen -> seen = false; watch(o)
        :: else
        fi;
#ifndef BREAK_NO_SECOND_CHECK
        d_step { AT(twice_note); op[o].check_due = true };
        do_due(o)
#endif
    :: else
    fi
}

/* WatcherList.watch. */
inline watch(o) {
    d_step {
        turn == NOBODY ->
        AT(watch_put);
        turn = ME;
        op[o].on_lists = op[o].keys;
        op[o].on_numbers = op[o].numbers
    };
    d_step {
        AT(watch_look);
#ifndef BREAK_WATCHING_UNLOOKED
        if
        :: op[o].outcome != PENDING -> op[o].on_lists = 0; op[o].on_numbers = 0
        :: else
        fi;
#endif
        turn = NOBODY
    }
}

/* _PureOperation._op_start_timeout. */
inline start_timeout(o) {
#ifdef TIMEOUTS
    d_step { AT(start_point); op[o].entry = CURRENT };
    d_step { AT(start_home); op[o].in_home = !timer_closed };
#ifndef BREAK_TIMEOUT_UNLOOKED
    d_step { AT(start_look_outcome); gone = (op[o].outcome != PENDING) };
    if
    :: !gone -> d_step { AT(start_look_keys); gone = (op[o].keys == 0) }
    :: else
    fi;
    if
    :: gone -> d_step { AT(start_cancel); op[o].in_home = false; gone = false }
    :: else
    fi
#endif
#endif
    skip
}
