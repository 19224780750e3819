/* Who owns a member, in a hall with three nodes: a model for SPIN, which tries every order of its steps.

There are one member and its calls, and on each node a worker, a guard and a process of the member. A step is one
statement of the database, or one thing that a process does. Between two steps of a worker anything can happen, and any
number of ticks can pass. So the model needs no switches for these faults:

    a paused worker                takes no step
    requests that do not arrive    it takes no step either
    answers that do not arrive     the lease is renewed, and the worker does not learn of it (`renewal`). The answer of
                                   a START is lost if the worker ends between `starts` and `runs`
    a late commit                  a transfer commits at any later time (`gift`), and so does a statement of a worker
                                   that has ended (`Fate`)

A statement that compares the version, lease or beat of a row fails after a change of these, for they never have an old
value again. So they are not stored. Instead, such a change forgets the transfers that wait for their commit. Claims and
revocations do not wait in the model. What they depend on either stays true until they commit, or makes them fail.

Time is in ticks, of which only the order of the bounds counts. A tick is 2.5 s: the fence strikes at 2 ticks (5 s), and
before the next tick nothing runs any more. Others take the members at 3 ticks (8 s, rounded down). They count in
`quiet`, which begins when a row changes. A real watch begins later, when it sees the change.

A switch (-D) selects what SPIN checks, so that each search stays small:

    CALLS            the processes and the calls of the member
    FREEZES          its processes, if a machine may be paused as a whole
    LIVENESS         that the member finds an owner if one node lives for ever

Other switches give the model an error, which SPIN must find:

    SLOW_FENCE       the fence is slower than the watch
    ANSWER_COUNTS    a renewal counts from its answer, and not from before it was sent
    NO_VERSIONS      a transfer does not compare the version of the member
    NO_TARGET_LEASE  a transfer does not compare the lease of its target (with LIVENESS)

Not in the model: a node that is alone and has no fence yet, local state, labels and folders (all nodes are eligible),
clocks that differ, and renewals that are sent late. `tests/unit/mcp_runtime/nodes` simulates these. In a calm hall
(LIVENESS) one statement of a worker that has ended can still commit. With more, a node could renew its lease for ever.
*/

#define NODES 3
#define NOBODY 3

#define WATCH 3
#ifdef SLOW_FENCE
#define FENCE 4
#else
#define FENCE 2
#endif

/* The lease in the row of a node: none, that of the worker that runs there now, or that of one that has ended. */
#define NONE 0
#define CURRENT 1
#define OLD 2

#define QUEUED 0
#define RUNNING 1
#define OVER 2

hidden byte i; /* of one step */

/* The rows */
byte lease[NODES];
byte quiet[NODES];           /* ticks since the last change of the row of the node, WATCH at most */
byte owner = NOBODY;
bit owner_is_current;        /* whether the lease in the member's row is that of the worker that runs there now */
byte gift[NODES];            /* 1 if a transfer of the member to this node can still commit, with or without its sender */
byte call = QUEUED;
byte claimer = NOBODY;       /* the node that runs the call */

/* The nodes */
bit is_leased[NODES];        /* the worker runs and knows that it has a lease */
byte renewal[NODES];         /* 1 + ticks since a renewal was sent that committed, and whose answer is under way. Or 0 */
byte age[NODES];             /* ticks since the last successful renewal was sent, as the guard sees it. FENCE + 1 at most */
bit starts[NODES];           /* the worker is about to start a process of the member */
bit runs[NODES];             /* a process of the member exists */
byte held[NODES];            /* 1 if the worker has claimed the call, 2 if it has sent it */

bit was_sent;                /* the call */

#ifdef LIVENESS
bit is_calm;                 /* nothing new happens to the hall */
bit is_hung[NODES];          /* a worker that takes no more steps, or cannot reach the database, or a dead machine */
bit can_be_late = 1;         /* one late commit of a worker that has ended can still come when the hall is calm */
#define FAULTS (!is_calm)
#define CAN_BE_LATE can_be_late
#define NOTE_LATE can_be_late = !is_calm
#define IS_FROZEN(n) false
#define ACTS(n) (!is_hung[n])
#define CAN_CLAIM(n) (is_leased[n] && lease[n] == CURRENT)
/* Placement prefers the highest number, so the node that lives for ever is the last choice. */
#define IS_PLACED_ON(n) (n == 2 || (!IS_LIVING(2) && (n == 1 || !IS_LIVING(1))))
#else
byte frozen = NOBODY;        /* the machine that is paused as a whole, with its guard */
#define FAULTS true
#define CAN_BE_LATE true
#define NOTE_LATE skip
#define IS_FROZEN(n) (frozen == n)
#define ACTS(n) (!IS_FROZEN(n))
#define CAN_CLAIM(n) (lease[n] != NONE) /* which is all that is needed when it commits. The worker may have ended */
#define IS_PLACED_ON(n) true /* each node may have read something else */
#endif

/* The documented exception: a machine was frozen when its fence should have struck, and its guard strikes when it goes
on. Only then is a process older than the fence. */
#define IS_EXCUSED(n) (age[n] > FENCE)
#define COUNTS(n) (runs[n] && !IS_EXCUSED(n))
#define CHECK_PROCESSES assert(COUNTS(0) + COUNTS(1) + COUNTS(2) <= 1)

#define OWNS(n) (is_leased[n] && owner == n && owner_is_current)
#define IS_GONE(n) (quiet[n] == WATCH)
#define IS_LIVING(n) (lease[n] != NONE && !IS_GONE(n))
#define IS_IDLE(n) (!runs[n] && !starts[n])

/* Rows ------------------------------------------------------------------------------------------------------------- */

inline change_member() {
#ifndef NO_VERSIONS
    gift[0] = 0; gift[1] = 0; gift[2] = 0
#else
    skip
#endif
}

inline change_lease(n, new) {
    lease[n] = new;
#ifdef NO_TARGET_LEASE
    gift[n] = (gift[n] > 0 -> 2 : 0) /* with a lease that nobody has any more */
#else
    gift[n] = 0
#endif
}

/* `take_over_own` is in the same transaction. */
inline take(n, new) {
    change_lease(n, new);
    quiet[n] = 0;
    if
    :: owner == n -> owner_is_current = (new == CURRENT); change_member()
    :: else
    fi
}

/* A claim or a transfer. The row of the new owner is locked, so its lease is the one that the member gets. */
inline own(n) {
    owner = n; owner_is_current = (lease[n] == CURRENT);
    change_member()
}

/* Nodes ------------------------------------------------------------------------------------------------------------ */

inline end_call(n) {
    held[n] = 0;
    if
    :: claimer == n -> call = OVER; claimer = NOBODY
    :: else
    fi
}

/* Its calls end as lost a moment later. Until then nobody can do anything with them. */
inline end_worker(n) {
    is_leased[n] = 0; renewal[n] = 0; starts[n] = 0;
    end_call(n);
    if
    :: lease[n] == CURRENT -> lease[n] = OLD
    :: else
    fi;
    if
    :: owner == n -> owner_is_current = 0
    :: else
    fi;
    if
    :: !runs[n] -> age[n] = 0
    :: else
    fi
}

inline end_process(n) {
    runs[n] = 0;
    if
    :: !is_leased[n] -> age[n] = 0
    :: else
    fi
}

#ifdef ANSWER_COUNTS
#define SENT_AGO(n) 0
#else
#define SENT_AGO(n) (renewal[n] - 1)
#endif

/* The worker's thread that takes and renews the lease. A worker begins when the processes of the last one have ended. */
proctype Lease(byte n) {
    do
    :: d_step { ACTS(n) && !is_leased[n] && !runs[n] && renewal[n] == 0 ->
        if
        :: lease[n] == CURRENT -> quiet[n] = 0 /* an earlier try has succeeded, and this one renews the lease */
        :: else -> take(n, CURRENT)
        fi;
        renewal[n] = 1 }
    :: d_step { ACTS(n) && is_leased[n] && renewal[n] == 0 && lease[n] == CURRENT -> quiet[n] = 0; renewal[n] = 1 }
    :: d_step { ACTS(n) && is_leased[n] && renewal[n] == 0 && lease[n] != CURRENT -> end_worker(n) }
    :: d_step { ACTS(n) && renewal[n] > 0 ->
        is_leased[n] = 1; age[n] = SENT_AGO(n); renewal[n] = 0; CHECK_PROCESSES }
    :: d_step { FAULTS && renewal[n] > 0 -> renewal[n] = 0 } /* the answer is lost */
    od
}

/* The worker's thread that claims, starts and gives away members */
proctype Supervisor(byte n; byte next; byte last) {
    do
    :: d_step { ACTS(n) && OWNS(n) && IS_IDLE(n) -> starts[n] = 1; change_member() }
    :: d_step { ACTS(n) && starts[n] -> starts[n] = 0; runs[n] = 1; CHECK_PROCESSES }
    /* It has ended the process, or it has never run. If there is no answer, it may start it again. */
    :: d_step { FAULTS && ACTS(n) && OWNS(n) && IS_IDLE(n) && IS_LIVING(next) -> gift[next] = 1 }
    :: d_step { FAULTS && ACTS(n) && OWNS(n) && IS_IDLE(n) && IS_LIVING(last) -> gift[last] = 1 }
    :: d_step { ACTS(n) && CAN_CLAIM(n) && IS_PLACED_ON(n) &&
                (owner == NOBODY || (owner != n && lease[owner] == NONE && IS_GONE(owner))) -> own(n) }
    :: d_step { ACTS(n) && is_leased[n] && lease[next] != NONE && IS_GONE(next) -> change_lease(next, NONE) }
    :: d_step { ACTS(n) && is_leased[n] && lease[last] != NONE && IS_GONE(last) -> change_lease(last, NONE) }
    od
}

/* The guard ends the worker and its processes, when the fence strikes or the worker has ended. */
proctype Guard(byte n) {
    do
    :: d_step { !IS_FROZEN(n) && is_leased[n] && age[n] >= FENCE -> end_worker(n) }
    :: d_step { !IS_FROZEN(n) && !is_leased[n] && runs[n] -> end_process(n) }
    od
}

#ifdef CALLS
/* The worker's thread that sends calls. No call begins while the member moves, and it does not move while one runs. */
proctype Dispatcher(byte n) {
    do
    :: d_step { ACTS(n) && OWNS(n) && runs[n] && call == QUEUED && held[n] == 0 ->
        call = RUNNING; claimer = n; held[n] = 1 }
    :: d_step { ACTS(n) && OWNS(n) && runs[n] && call == QUEUED -> call = OVER } /* without an answer. It is not sent */
    :: d_step { ACTS(n) && held[n] == 1 && runs[n] ->
        assert(!was_sent);
        assert(IS_EXCUSED(n) || claimer == n); /* nobody has ended it */
        was_sent = 1; held[n] = 2 }
    :: d_step { ACTS(n) && (held[n] == 2 || (held[n] == 1 && !runs[n])) -> end_call(n) }
    od
}

active proctype Calls() {
    do
    :: d_step { call == RUNNING && lease[claimer] != CURRENT -> call = OVER; claimer = NOBODY } /* it is lost */
    :: d_step { call == OVER && held[0] + held[1] + held[2] == 0 -> call = QUEUED; was_sent = 0 } /* the next one */
    od
}
#endif

/* What can happen to a node, and the late commits of its statements. A worker that has ended can still take, renew and
release the lease, as long as no other has taken it. */
proctype Fate(byte n) {
    do
    :: d_step { FAULTS && ACTS(n) && (is_leased[n] || renewal[n] > 0 || lease[n] == CURRENT) -> end_worker(n) }
    :: d_step { FAULTS && ACTS(n) && runs[n] -> end_process(n) } /* also before a stop, or a move */
    /* A stop. The others wait for the node, or not if it was drained. */
    :: d_step { FAULTS && ACTS(n) && is_leased[n] && IS_IDLE(n) && lease[n] == CURRENT ->
        change_lease(n, NONE); quiet[n] = 0; end_worker(n) }
    :: d_step { FAULTS && ACTS(n) && is_leased[n] && IS_IDLE(n) && lease[n] == CURRENT ->
        change_lease(n, NONE); quiet[n] = WATCH; end_worker(n) }
    :: d_step { gift[n] == 1 -> gift[n] = 0; own(n) }
#ifdef NO_TARGET_LEASE
    :: d_step { gift[n] == 2 -> gift[n] = 0; own(n); owner_is_current = 0 }
#endif
    :: d_step { gift[n] > 0 -> gift[n] = 0 } /* it never commits */
    :: d_step { CAN_BE_LATE && lease[n] != CURRENT -> NOTE_LATE; take(n, OLD) }
    :: d_step { CAN_BE_LATE && lease[n] == OLD -> NOTE_LATE; quiet[n] = 0 }
    :: d_step { CAN_BE_LATE && lease[n] == OLD && !runs[n] -> NOTE_LATE; change_lease(n, NONE); quiet[n] = 0 }
#ifdef FREEZES
    /* By symmetry it is the first one. */
    :: d_step { n == 0 && frozen == NOBODY -> frozen = n }
    :: d_step { frozen == n -> frozen = NOBODY }
#endif
    od
}

/* Before the next tick the guard has acted. In a calm hall answers also come in time, and so does the next renewal. */
#define HAS_CODE(n) (is_leased[n] || runs[n])
#ifdef LIVENESS
#define IS_WELL(n) (is_calm && !is_hung[n])
#define IS_DUE(n) ((HAS_CODE(n) && age[n] >= (IS_WELL(n) -> 1 : FENCE)) || (IS_WELL(n) && renewal[n] == 2))
#else
#define IS_DUE(n) (HAS_CODE(n) && age[n] >= FENCE && !IS_FROZEN(n))
#endif

active proctype Clock() {
    do
    :: d_step { !IS_DUE(0) && !IS_DUE(1) && !IS_DUE(2) ->
        for (i : 0 .. NODES - 1) {
            if
            :: (is_leased[i] || runs[i]) && age[i] <= FENCE -> age[i]++
            :: else
            fi;
            if
            :: renewal[i] == 1 -> renewal[i] = 2
            :: renewal[i] == 2 -> renewal[i] = 0 /* an answer that comes so late changes nothing */
            :: else
            fi;
            if
            :: quiet[i] < WATCH -> quiet[i]++
            :: else
            fi
        } }
    od
}

#ifdef LIVENESS
/* From some moment on the other nodes are well too, or hang. */
active proctype Weather() {
    atomic {
        if
        :: is_hung[1] = 1
        :: skip
        fi;
        if
        :: is_hung[2] = 1
        :: skip
        fi;
        is_calm = 1
    }
}

#define IS_OWNED (owner != NOBODY && OWNS(owner) && ACTS(owner))
ltl recovers { [] (is_calm -> <> IS_OWNED) }
#endif

init {
    atomic {
        run Lease(0); run Lease(1); run Lease(2);
        run Supervisor(0, 1, 2); run Supervisor(1, 2, 0); run Supervisor(2, 0, 1);
        run Guard(0); run Guard(1); run Guard(2);
        run Fate(0); run Fate(1); run Fate(2);
#ifdef CALLS
        run Dispatcher(0); run Dispatcher(1); run Dispatcher(2)
#endif
    }
}
