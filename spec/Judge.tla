-------------------------------- MODULE Judge -------------------------------
\* The rule against the worst world: a lock service that excludes nobody and repeats tokens at will, a network that
\* delays, reorders and repeats every message for ever, holders that stop anywhere, some of them bare. Each
\* does read-modify-write of one counter, again and again under one lease; one whose write gets no answer may read
\* again and go on. Nothing may be lost.
EXTENDS Rule, FiniteSets, TLC
CONSTANTS Clients, MaxToken, MaxLeases, MaxSeq,
          EnterFirst,   \* FALSE: a holder reads without entering, so only its writes are fenced
          Barrier       \* FALSE: a holder that goes on enters without a seq of its own, so what is under way is let in

VARIABLES granted,      \* how many leases were ever granted; a lease's number is also its holder id
          state,        \* per client: idle, entering, in, read, waiting
          lease,        \* per client: [l |-> the lease's number, t |-> its token, h |-> the holder it tells, s |-> its seq]
          seen,         \* per client: the value it read
          net,          \* every message ever sent: any may arrive at any time, again and again
          mark, value,  \* the resource
          done,         \* the writes that the resource admitted, as <<lease, seq>>
          told          \* the writes whose holder was told that they stand
vars == <<granted, state, lease, seen, net, mark, value, done, told>>

Init == /\ granted = 0
        /\ state = [c \in Clients |-> "idle"]
        /\ lease = [c \in Clients |-> [l |-> 0, t |-> 0, h |-> 0, s |-> 0]]
        /\ seen = [c \in Clients |-> 0]
        /\ net = {}
        /\ mark = NoMark /\ value = 0 /\ done = {} /\ told = {}

Stamp(m) == [t |-> m.t, s |-> m.s, h |-> m.h]
Message(c, own, v, k) == [c |-> c, l |-> own.l, t |-> own.t, h |-> own.h, s |-> own.s, v |-> v, k |-> k]
Enter(c, own) == state' = [state EXCEPT ![c] = "entering"] /\ net' = net \cup {Message(c, own, 0, "enter")}

\* Any client, at any time, gets any token. It tells its holder id, or nothing but the token. A holder's enter takes a seq.
Acquire(c) ==
    /\ state[c] = "idle" /\ granted < MaxLeases
    /\ granted' = granted + 1
    /\ \E token \in 1..MaxToken, holder \in {Bare, granted + 1} :
         lease' = [lease EXCEPT ![c] = [l |-> granted + 1, t |-> token, h |-> holder,
                                        s |-> IF EnterFirst /\ holder # Bare THEN 1 ELSE 0]]
    /\ IF EnterFirst
       THEN Enter(c, lease'[c])
       ELSE state' = [state EXCEPT ![c] = "in"] /\ UNCHANGED net
    /\ UNCHANGED <<seen, mark, value, done, told>>

Read(c) ==
    /\ state[c] = "in" /\ lease[c].s < (IF lease[c].h = Bare THEN 1 ELSE MaxSeq)
    /\ seen' = [seen EXCEPT ![c] = value]
    /\ state' = [state EXCEPT ![c] = "read"]
    /\ UNCHANGED <<granted, lease, net, mark, value, done, told>>

Write(c) ==
    /\ state[c] = "read"
    /\ lease' = [lease EXCEPT ![c].s = @ + 1]
    /\ net' = net \cup {Message(c, lease'[c], seen[c] + 1, "write")}
    /\ state' = [state EXCEPT ![c] = "waiting"]
    /\ UNCHANGED <<granted, seen, mark, value, done, told>>

\* A message arrives, and not for the last time. A client that still waits for its answer may get it, or not.
Arrive(m) ==
    LET verdict == Verdict(mark, Stamp(m))
        admitted == verdict = "admit"
        stands == verdict \in {"admit", "replay"}
        awaited == /\ lease[m.c].l = m.l /\ lease[m.c].s = m.s
                   /\ state[m.c] = IF m.k = "enter" THEN "entering" ELSE "waiting"
    IN /\ mark' = IF admitted THEN Raised(mark, Stamp(m)) ELSE mark
       /\ value' = IF admitted /\ m.k = "write" THEN m.v ELSE value
       /\ done' = IF admitted /\ m.k = "write" THEN done \cup {<<m.l, m.s>>} ELSE done
       /\ \/ UNCHANGED <<state, told>>
          \/ /\ awaited
             /\ state' = [state EXCEPT ![m.c] = IF stands THEN "in" ELSE "idle"]
             /\ told' = IF stands /\ m.k = "write" THEN told \cup {<<m.l, m.s>>} ELSE told
       /\ UNCHANGED <<granted, lease, seen, net>>

Stop(c) == /\ state[c] # "idle" /\ state' = [state EXCEPT ![c] = "idle"]
           /\ UNCHANGED <<granted, lease, seen, net, mark, value, done, told>>

\* No answer came, and the holder reads again and goes on under the same lease. Its enter makes late what is under way.
GoOn(c) ==
    /\ state[c] = "waiting" /\ lease[c].h # Bare /\ lease[c].s + 1 < MaxSeq
    /\ IF EnterFirst /\ Barrier
       THEN lease' = [lease EXCEPT ![c].s = @ + 1] /\ Enter(c, lease'[c])
       ELSE state' = [state EXCEPT ![c] = "in"] /\ UNCHANGED <<lease, net>>
    /\ UNCHANGED <<granted, seen, mark, value, done, told>>

Next == \/ \E c \in Clients : Acquire(c) \/ Read(c) \/ Write(c) \/ Stop(c) \/ GoOn(c)
        \/ \E m \in net : Arrive(m)
Spec == Init /\ [][Next]_vars

\* Every admitted increment is in the counter, and nobody was told of one that is not.
NothingLost == value = Cardinality(done) /\ told \subseteq done
\* Replay is said only of writes that were made. Late is not: the write may have been overtaken before it arrived.
\* Clash is said only when the lock service gave one token to two leases.
VerdictsAreTrue ==
    \A m \in net : LET verdict == Verdict(mark, Stamp(m)) IN
        /\ verdict = "replay" /\ m.k = "write" => <<m.l, m.s>> \in done
        /\ verdict = "clash" => \E other \in net : other.t = m.t /\ other.l # m.l
MarkNeverFalls ==
    [][mark'.t > mark.t \/ (mark'.t = mark.t /\ mark'.h = mark.h /\ mark'.s >= mark.s)]_mark
Symmetric == Permutations(Clients)
=============================================================================
