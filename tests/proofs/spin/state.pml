/* The shared state of all threads, and the names of the steps.
 *
 * Ground rules
 * ------------
 * - A step is atomic: one read or write of shared state, one call of a dict or of a lock. AT names
 *   it; map.md has its line of code.
 * - A section in the lists' turn is one step where it touches no state that is used outside of a
 *   turn. Otherwise the turn is taken in its first step, and given back in its last.
 * - Names of inlines' parameters: o is an operation, k a key, s a retry task.
 */

#define OPS 2
#define KEYS 2
#define ME (_pid + 1)
#define NOBODY 0
#define ABANDONED 100 /* the final owner of an abandoned operation */
#define NONE 0

/* Outcomes. */
#define PENDING 0
#define COMPLETED 1
#define EXPIRED 2
#define CANCELLED 3
#define FAILED 4
#define LEAVE 5 /* no outcome: a policy of closing */

/* The entry that a task points at: none yet, the current one, an older one. */
#define NOT_ADDED 0
#define CURRENT 1
#define STALE 2

#define HAS(mask, bit_) (((mask) >> (bit_)) & 1)
#define BIT(bit_) (1 << (bit_))

#define AT(step) printf("%d: %e\n", _pid, step)

mtype = {
    /* submission: submit.pml */
    submit_take_lock, submit_note_state, submit_note_pending, submit_look,
    start_point, start_home, start_look_outcome, start_look_keys, start_cancel,
    watch_put, watch_look, else_note, else_claim, else_note_again, else_release_owner,
    twice_look, twice_note,
    /* ownership: serve.pml */
    note_check, process_look_outcome, process_look_check, process_look_expiry, process_look_forced,
    claim_owner, try_lock, release_lock, release_owner,
    noted_look_check, noted_look_expiry, noted_look_outcome, noted_expiry, noted_clear_check,
    try_complete, tried, noted_forced, noted_look_abandon, drop_abandon_expiry, drop_abandon_forced,
    retry_look, retry_make, retry_is_due, retry_point, retry_home, retry_home_again,
    retry_point_again, waits_look_outcome, waits_look_keys, waits_drop_retry, waits_is_due,
    waits_look_gave_up, waits_look_closed,
    /* completion: complete.pml */
    claim_completer, drop_expiry, drop_forced, set_outcome, leave_look_entry, leave_cancel,
    leave_look_retry, leave_drop_retry, leave_look_state, leave_lists, call_back, called_back,
    finish_look_state, finish_look_owner, note_still_checked, count_done, set_done, cancel_look_entry, cancel_pop,
    /* events of keys: events.pml */
    change_state, list_watchers, advance_value, advance_take, forget_value, forget_watch_anew,
    forget_look,
    /* the timer: driver.pml */
    run_expiry, note_expiry, run_retry,
    /* closing: closing.pml */
    stop_intake, close_look, close_look_outcome, close_note_expiry, close_note_forced,
    claim_abandon, abandon_look, abandon_lists, abandon_cancel, abandon_look_retry, abandon_forget,
    give_up_note, give_up_look, fail_claim, fail_release, close_timer, close_returned
};

typedef Operation {
    byte outcome;
    byte owner;        /* claims["owner"] */
    byte completer;       /* claims["completer"] */
    bool check_due;
    bool expiry_due;
    byte verdict;       /* PENDING for none */
    bool books;         /* it was submitted */
    byte keys;          /* a bit for each; 0 before the submission, and once it was abandoned */
    byte numbers;       /* the keys on which it waits for a number */
    byte on_lists;      /* the keys whose lists have it: by_key */
    byte on_numbers;    /* the same of numbers_by_key */
    bool pending;       /* in books.pending */
    bool completing;      /* in state.completing */
    bool still_checked; /* in books.still_checked */
    byte entry;         /* _timer_entry: the entry that the task points at */
    bool in_home;       /* its entry is in its bucket: the timeout is pending */
    byte retry;         /* _op_retry: NONE, or 1 or 2 */
    bool is_done;       /* its stage is DONE */
    byte inside;        /* the thread that runs a callback */
    byte wins;          /* the number of calls that returned that they completed it */
    byte calls;         /* the number of calls of on_complete (or on_failure) */
    bool held_at_expiry /* whether its condition held at its timeout */
};

/* A retry task of an operation. A second one may exist: the first was dropped, and is cancelled
 * soon. */
typedef Retry {
    byte entry;
    bool in_home
};

Operation op[OPS];
Retry retry[5];         /* the retry s of operation o is RETRY(o, s) */
#define RETRY(o, s) (2 * (o) + (s))

byte turn;              /* the thread in the lists' turn, or NOBODY */
byte values;            /* for each key: whether its value was reached, or its event has happened */
bool closed;
bool timer_closed;
bool gave_up;           /* books.gave_up_error */
bool returned;          /* close has returned */
byte looked_at[6];      /* the retry whose entry a thread looked at, and is about to pop */
byte ended;             /* the number of threads at their end, without the driver */
bool driver_ended;

#ifdef LOCKED
byte users_lock[OPS];   /* the thread that holds it, or NOBODY */
#ifdef SHARED
#define LOCK_OF(o) 0
#else
#define LOCK_OF(o) o
#endif
byte trying;            /* the number of owners about to try a lock */
#endif

#define HOLDS(o) ((values & KEYS_OF(o)) == KEYS_OF(o)) /* its condition: all of its keys' events */
#define KEYS_OF(o) (o -> KEYS_OF_1 : KEYS_OF_0)

#ifndef KEYS_OF_0
#define KEYS_OF_0 3
#endif
#ifndef KEYS_OF_1
#define KEYS_OF_1 2
#endif

/* The local variables of a thread: one name for each use, since inlines have no variables. */
#define LOCAL \
    bool won; bool completed; bool gone; bool due; bool got; bool expiring; bool seen; bool waits; bool passed; \
    byte verdict; byte known; byte number; byte who; byte reached;
