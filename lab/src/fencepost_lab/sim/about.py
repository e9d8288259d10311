"""What the page says about each store, each way of fencing and each setting."""

STORES: dict[str, dict[str, str]] = {
    "redis": {
        "name": "Redis",
        "token": "INCR of a counter in Redis",
        "about": (
            "One Redis server. A lease is a key with a ttl, and Redis counts the ttl down on its wall clock: a"
            " clock that jumps ends the lease early. The token is a counter in the same server. Redis answers"
            " before its replica has the write, so a failover or a crash can forget the last grant and the"
            " counter with it: two holders, and the same token twice. With fence = hybrid the token is the"
            " larger of counter + 1 and the server's time, and goes on growing."
        ),
    },
    "redlock": {
        "name": "Redlock, 5 nodes",
        "token": "the largest counter of a majority, which the majority then remembers",
        "about": (
            "Five independent Redis servers. A client holds the lock while a majority has its key, minus the"
            " time that acquiring took and a margin for drift. There is no queue: a client that did not get a"
            " majority asks again after a random pause. Each node counts on its own wall clock, so one clock"
            " that jumps, or one node that restarts without its data, can make two majorities. Plain Redlock has no"
            " token; this one takes the largest counter of the majority, which a node that forgot can repeat. With"
            " fence = hybrid it takes the largest counter or clock, as redlock:// does, and goes on growing."
        ),
    },
    "etcd": {
        "name": "etcd",
        "token": "the create revision of the holder's key",
        "about": (
            "Three servers that agree by Raft, drawn as one. What etcd has answered it never forgets, a"
            " failover included. Leases run on the leader's monotonic clock and end at most half a second late;"
            " a new leader gives each lease its full ttl again. Ttls are whole seconds. The token is a revision"
            " of the whole store, so it grows with every change, in steps larger than one."
        ),
    },
    "zookeeper": {
        "name": "ZooKeeper",
        "token": "the czxid of the holder's node",
        "about": (
            "Servers that agree by ZAB, drawn as one. The lock is a node that lives as long as its session, and"
            " the leader ends a session that it has not heard of in time, tick by tick. Nothing that was"
            " answered is lost in a failover. The token is the transaction number that created the node: it"
            " never repeats, and sessions count too, so it grows in steps larger than one."
        ),
    },
    "embedded": {
        "name": "embedded",
        "token": "a counter beside the lock",
        "about": (
            "The store of one host: here memory://, with its real code. All clients share its clock, and there"
            " is no network between them and the lock, so there is nothing to partition, kill or fail over. A"
            " client that pauses past its lease is replaced all the same."
        ),
    },
}
"""By backend: its name, where its token comes from, and a paragraph."""

FENCINGS: dict[str, tuple[str, str]] = {
    "off": ("off", "The resource takes every write, whatever its token."),
    "writes": ("writes only", "Each write is compared with the mark. Reads are not, so the mark rises too late."),
    "enter": ("enter first (on)", "The whole rule: a holder enters, which raises the mark, before it reads."),
    "noseq": ("on, but without seq", "Writes of one lease are not numbered, so a late one can overtake a newer one."),
    "noholder": (
        "on, but without holder",
        "Only numbers are compared: two holders with the same token look like one.",
    ),
    "nobarrier": (
        "on, but without barrier",
        "Entering again does not end what is still under way under the same lease.",
    ),
}
"""By fencing: its label, and what the guard does."""

SETTINGS: dict[str, str] = {
    "seed": "decides every delay, loss and tie: the same seed gives the same run",
    "backend": "the lock service",
    "fence": "tokens of Redis and Redlock: counter (INCR), or hybrid (last + 1, or server time in us if larger)",
    "fencing": "how much of the rule the resource applies",
    "release": "conditional: one atomic step, only if it is still mine; getdel: GET, compare, DEL",
    "ttl": "seconds that each lease is granted for",
    "renew": "holders renew their lease every third of its ttl",
    "heed": "clients look at their lease before each access, and stop if it is over",
    "bump": "a client that is refused although its lease holds raises the token counter past the mark",
    "clients": "the programs that want the lock",
    "delay": "shortest and longest time of a message, in seconds",
    "loss": "fraction of the messages that are lost",
    "duplicate": "fraction of the messages that arrive twice",
    "patience": "seconds that a client waits for an answer",
    "retries": "how often a client repeats a write that got no answer",
    "go_on": "a client whose write got no answer reads again, and goes on under the same lease",
    "fickle": "a repeated write has another value than the first time: a broken program, which the guard refuses",
    "offsets": "the clocks start at different readings",
    "shuffle": "the seed decides what comes first at one instant",
    "until": "seconds until the run ends",
}
"""By setting: what it means."""
