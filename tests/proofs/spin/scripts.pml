/* The calls of the two threads, and the user's lock, by configuration. */

/* Two operations, one on both keys and one on one of them, are submitted while events come. */
#ifdef EVENTS
#define TIMEOUTS
#define FIRST submit(0); submit(1)
#define SECOND event(0); event(1)
#endif

/* Each thread submits an operation, and reports the event that the other one waits for. */
#ifdef BOTH_SUBMIT
#define TIMEOUTS
#define FIRST submit(0); event(0)
#define SECOND submit(1); event(1)
#endif

/* A user forces or cancels while other threads submit, check and expire. */
#ifdef FROM_OUTSIDE
#define TIMEOUTS
#define FIRST submit(0); event(0)
#define SECOND if :: force(0) :: cancel(0) fi; event(1)
#endif

/* As EVENTS, by numbers, with a value forgotten in between. */
#ifdef THRESHOLDS
#define NUMBERS 1
#define FIRST submit(0); advance(0); forget(0)
#define SECOND advance(1); advance(0); submit(1)
#endif

/* A value that is forgotten in between, and reported again. */
#ifdef FORGET
#define NUMBERS 1
#define TIMEOUTS
#define FIRST submit(0); advance(1)
#define SECOND advance(0); forget(0); advance(0)
#endif

/* A stranger takes the lock again and again. */
#ifdef LOCK
#define TIMEOUTS
#define LOCKED
#define STRANGER
#define FIRST submit(0); event(0)
#define SECOND event(1)
#endif

/* A stranger takes the lock while a user forces the operation. */
#ifdef LOCK_FORCED
#define LOCKED
#define STRANGER
#define FIRST submit(0); event(0)
#define SECOND force(0)
#endif

/* Two operations share a lock. */
#ifdef SHARED_LOCK
#define LOCKED
#define SHARED
#define FIRST submit(0); event(0)
#define SECOND submit(1); event(1)
#endif

/* The holder of one operation's lock reports the event that the other one waits for. */
#ifdef HELD_LOCKS
#define LOCKED
#define KEYS_OF_0 1
#define KEYS_OF_1 2
#define FIRST submit(0); hold(0); event(1); let_loose(0)
#define SECOND submit(1); hold(1); event(0); let_loose(1)
#endif

/* One thread closes. */
#ifdef CLOSE
#define TIMEOUTS
#define FIRST submit(0); submit(1)
#define SECOND event(1); close_purgatory()
#endif

#ifdef CLOSE_FORCED
#define TIMEOUTS
#define FIRST submit(0); event(1); if :: force(0) :: cancel(0) fi
#define SECOND close_purgatory()
#endif

#ifdef CLOSE_LOCKED
#define TIMEOUTS
#define LOCKED
#define STRANGER
#define FIRST submit(0); event(1)
#define SECOND event(0); close_purgatory()
#endif

/* One thread closes, and times out while the lock is taken. */
#ifdef DEADLINE_EXPIRING
#define DEADLINE
#define TIMEOUTS
#endif
#ifdef DEADLINE
#define LOCKED
#define STRANGER
#define OWN_TIMER
#define KEYS_OF_0 1
#define FIRST submit(0)
#define SECOND event(0); close_purgatory()
#endif

/* The stranger takes and releases the lock for ever. */
#ifdef FOR_EVER
#define LOCKED
#define STRANGER
#define FIRST submit(0)
#define SECOND event(0); event(1)
#endif

#ifndef NUMBERS
#define NUMBERS 0
#endif
#define NUMBERS_OF(o) (NUMBERS -> KEYS_OF(o) : 0)

#ifdef STRANGER
#define THREADS 3
#else
#define THREADS 2
#endif

#ifdef FOR_EVER
#define STRANGER_MAY_STOP false
#else
#define STRANGER_MAY_STOP true
#endif
#define STRANGERS 4 /* the stranger's number as the holder of a lock */
