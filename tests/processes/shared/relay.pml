/* One process of a service: one wait for a value of 1 on one key, its relay, and the store.

   The names are those of purgatory/shared: watch, added, keys(), connected(), read. LOSSY lets
   messages get lost; RESYNC reads again and again. Without LOSSY, messages and connections that
   begin have to be enough. */

#define LAST 2      /* the highest value of the store */
#define CUTS 2      /* how often the connection may end */

byte store;         /* what all processes read */
byte here;          /* the highest value that this process has been told of */
bool watched;       /* somebody waits on the key */
bool added;         /* the relay has yet to subscribe to it */
bool unread;        /* it has yet to be read */
bool done;          /* the wait has ended */
bool connected;
bool subscribed;    /* in the session that there is */
bool connecting;    /* listen() runs, and the connection does not stand yet */
bool catching_up;   /* the connection stands, and all keys are to be read */
bool live;
bool syncing;       /* sync_subscriptions is under way: one at a time */
byte since;         /* what the store had when the session's subscriptions stood */
byte cuts;
bool at_rest;       /* no more cuts come */
chan messages = [LAST] of { byte };

inline take(value) {
    d_step {
        if
        :: value > here -> here = value
        :: else
        fi;
        assert(here <= store);                          /* safe */
        if
        :: watched && here >= 1 -> done = true
        :: else
        fi
    }
}

/* Subscribe to what was added, while connected; a message that comes after it is not missed. */
inline sync() {
    atomic { !syncing -> syncing = true };
    if
    :: d_step { added && connected -> added = false } ;
       d_step {
           if
           :: connected -> subscribed = true
           :: else                                      /* with the next session */
           fi
       }
    :: else
    fi;
    syncing = false
}

active proctype writer() {
    do
    :: store < LAST ->
        store++;                                        /* the state first, */
        if                                              /* then the message */
        :: connected && subscribed -> messages ! store
#ifdef LOSSY
        :: true
#endif
        :: !(connected && subscribed)
        fi
    :: else -> break
    od
}

active proctype waiter() {
    d_step {
        watched = true; added = true; unread = true;
        if
        :: here >= 1 -> done = true
        :: else
        fi
    }
}

/* _read_unread: subscribe, and only then read. */
active proctype reader() {
    byte found;
    unread -> unread = false;
#ifdef BREAK_READ_FIRST
    found = store;
    sync();
#else
    sync();
    found = store;
#endif
    take(found)
}

active proctype receiver() {
    byte number;
end:
    do
    :: messages ? number -> take(number)
    od
}

/* The relay's sessions: connect, subscribe to keys(), read all, be live; until the connection ends. */
active proctype sessions() {
    byte found;
    bool wanted;
end:
    do
    :: !connected && !connecting ->
        connecting = true;
        d_step {                                        /* keys() */
            wanted = watched;
#ifndef BREAK_CLEARED_LATE
            added = false
#endif
        };
        d_step { subscribed = wanted };
        d_step {                                        /* connected() */
            connected = true; connecting = false; since = store;
#ifdef BREAK_CLEARED_LATE
            added = false
#endif
        };
#ifdef BREAK_LIVE_FIRST
        live = true;
        assert(!live || here >= since);
#endif
        sync();
        found = store;
        take(found);
        d_step {
            if
            :: connected -> live = true
            :: else
            fi
        };
        assert(!live || here >= since)                  /* being deaf is known */
    :: connected && cuts < CUTS ->
        d_step {
            connected = false; subscribed = false; live = false; cuts++;
            do
            :: messages ? [found] -> messages ? found
            :: else -> break
            od
        }
    :: atomic { connected && !at_rest -> cuts = CUTS; at_rest = true }
    od
}

#ifdef RESYNC
active proctype resync() {
    byte found;
end:
    do
    :: !done && watched -> found = store; take(found)
    :: done -> break
    od
}
#endif

ltl ends { [] (store >= 1 && watched -> <> done) }
