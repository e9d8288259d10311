"""Random scenarios: each seed turns on its own faults, at its own times, against its own settings.

Every sixth is gentle: nothing is stopped or cut off, so that also what a client has to clean up can be held to account.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from fencepost_lab.sim.scenario import Scenario, parse

FAULTS = (
    "pause",
    "cut",
    "kill",
    "restart",
    "skew",
    "jump",
    "failover",
    "lose",
    "stall",
    "cancel",
    "evict",
    "loss",
    "duplicate",
)
WEAKENED = ("off", "writes", "noseq", "noholder", "nobarrier")


def chaos(seed: int, *, fencing: str = "enter", calm: bool = False) -> Scenario:
    """The scenario of a seed. With ``calm`` the faults stop half-way, everything heals, and work must finish."""
    rng = Random(seed)
    kind = rng.choice(("redis", "redis", "redis", "redlock", "etcd", "zookeeper", "embedded"))
    faults = {fault for fault in FAULTS if rng.random() < 0.4}
    if gentle := seed % 6 == 5:
        faults = faults & {"evict", "duplicate"} | {"cancel"}
    ttl = rng.choice((0.5, 1.0, 2.0))
    until = 8 * ttl
    # Work that outlasts its lease, or answers that come too late, need no fault to go on without end.
    slowest = ttl * rng.choice((0.01, 0.05, 0.02 if calm else 0.2))
    settings: dict[str, Any] = {
        "backend": kind,
        "fence": rng.choice(("counter", "hybrid")),
        "fencing": fencing,
        "ttl": ttl,
        "renew": rng.random() < 0.6 or calm,
        "heed": rng.random() < 0.2,
        "clients": list("ABCD"[: rng.choice((2, 3, 3, 4))]),
        "delay": [slowest / 10, slowest],
        "loss": rng.choice((0.02, 0.1)) if "loss" in faults else 0.0,
        "duplicate": rng.choice((0.05, 0.2)) if "duplicate" in faults else 0.0,
        "patience": ttl * rng.choice((0.3, 1.0)),
        "offsets": True,
        "shuffle": True,
    }
    actions = [_work(rng, who, ttl) for who in settings["clients"]]
    busy = until / 2 if calm else until
    if not gentle:
        actions += _go_on(Random(f"{seed} goes on"), settings, busy)
        actions += _splits(Random(f"{seed} splits"), settings, busy, ttl)
        actions += _interrupted(Random(f"{seed} interrupted"), settings, busy, ttl)
    for _ in range(rng.randrange(1, 9)):
        at = rng.uniform(0, busy * 0.9)
        for later, action in _fault(rng, settings, faults, ttl):
            actions.append({"at": round(at + later, 3), **action})
    if calm:
        actions.append({"at": busy, "do": "calm"})
        until = busy + 60 * ttl
    actions.sort(key=lambda action: action["at"])
    return parse({"seed": seed, "settings": settings, "actions": actions, "until": until})


def _go_on(rng: Random, settings: dict[str, Any], busy: float) -> list[dict[str, Any]]:
    """In half of the seeds clients read again and go on after an unanswered write, which arrives later after all."""
    if rng.random() < 0.5:
        return []
    settings |= {"go_on": True, "retries": rng.choice((0, 0, 1, 2)), "fickle": rng.random() < 0.5}
    late: Callable[[], float] = lambda: settings["patience"] * rng.uniform(1.05, 1.6)  # noqa: E731 - a dice
    return [
        {"at": round(rng.uniform(0, busy * 0.9), 3), "who": who, "do": "slow", "by": round(late(), 4)}
        for who in settings["clients"]
        for _ in range(rng.randrange(8))
    ]


def _splits(rng: Random, settings: dict[str, Any], busy: float, ttl: float) -> list[dict[str, Any]]:
    """In most seeds of a quorum two machines at a time cannot be reached, now these, now those."""
    if settings["backend"] != "redlock" or rng.random() < 0.2:
        return []
    actions, at = [], 0.0
    while at < busy * 0.9:
        span = ttl * rng.uniform(0.5, 2.0)
        for machine in rng.sample(("r1", "r2", "r3", "r4", "r5"), 2):
            actions.append({"at": round(at, 3), "who": machine, "do": "cut", "for": round(span, 3)})
        at += span * rng.uniform(1.0, 1.3)
    return actions


def _interrupted(rng: Random, settings: dict[str, Any], busy: float, ttl: float) -> list[dict[str, Any]]:
    """In half of the embedded seeds clients stop, and are cancelled when they wake: a waiter may hold by then."""
    if settings["backend"] != "embedded" or rng.random() < 0.5:
        return []
    actions = []
    for _ in range(rng.randrange(1, 6)):
        who, at, span = rng.choice(settings["clients"]), rng.uniform(0, busy * 0.9), ttl * rng.uniform(0.1, 0.6)
        actions.append({"at": round(at, 3), "who": who, "do": "pause", "for": round(span, 3)})
        actions.append({"at": round(at + span * 0.9, 3), "who": who, "do": "cancel"})
    return actions


def _work(rng: Random, who: str, ttl: float) -> dict[str, Any]:
    return {
        "at": round(rng.uniform(0, ttl), 3),
        "who": who,
        "do": "work",
        "rounds": rng.choice((3, 5, 7)),
        "writes": rng.choice((1, 1, 2, 3)),
        "work": round(ttl * rng.choice((0.02, 0.1, 0.3, 0.5)), 4),
        "think": round(ttl * 0.1, 4),
        "timeout": rng.choice((None, None, None, ttl * 0.5)),
    }


def _fault(rng: Random, settings: dict[str, Any], faults: set[str], ttl: float) -> list[tuple[float, dict[str, Any]]]:
    """One fault that this seed has turned on: its actions, and how much later each comes."""
    client = rng.choice(settings["clients"])
    target = rng.choice((client, "holder"))
    kind = settings["backend"]
    service = {"redlock": f"r{rng.randrange(1, 6)}", "embedded": None}.get(kind, "service")
    span = round(ttl * rng.choice((0.2, 0.8, 1.5, 3.0)), 3)
    some = rng.choice((client, service)) or client
    victim = rng.choice((service or client, "resource"))
    weighed = sorted(faults) + ["failover"] * 3 * (kind == "redis" and "failover" in faults)
    choice = rng.choice(weighed) if weighed else None
    if choice == "pause":
        return [(0.0, {"who": target, "do": "pause", "for": span})]
    if choice == "stall":
        return [(0.0, {"who": rng.choice((some, "resource")), "do": "pause", "for": span})]
    if choice == "cut":
        other = rng.choice(("all", "resource", service or "resource"))
        way = rng.choice(("both", "out", "in"))
        return [(0.0, {"who": target, "do": "cut", "from": other, "way": way, "for": span})]
    if choice in ("kill", "restart"):
        dead = client if choice == "kill" else victim
        tail = {} if dead in (client, "resource") else {"tail": rng.choice((0.0, ttl, 1e6))}
        return [(0.0, {"who": dead, "do": "kill"}), (ttl * rng.uniform(0.1, 2), {"who": dead, "do": "restart", **tail})]
    if choice == "cancel":
        return [(0.0, {"who": client, "do": "cancel"})]
    if choice == "evict":
        return [(0.0, {"who": "service", "do": "evict"})]
    if choice == "skew" and kind != "embedded":
        return [(0.0, {"who": some, "do": "skew", "rate": rng.choice((0.5, 0.9, 1.1, 2.0))})]
    if choice == "jump" and service:
        return [(0.0, {"who": service, "do": "jump", "by": rng.choice((-1, 1)) * ttl * rng.choice((1, 5))})]
    if choice == "failover" and kind not in ("embedded", "redlock"):
        lag = rng.choice((None, None, ttl * 0.3, ttl * 1.5))
        change = {"who": "service", "do": "failover", "lag": lag, "offset": rng.choice((0.0, 0.0, -ttl, ttl))}
        # A holder that is stopped meanwhile meets, when it wakes, one that was granted the same again.
        nap = round(ttl * rng.choice((0.2, 0.4, 0.6, 1.5)), 3)
        return [(0.0, {"who": "holder", "do": "pause", "for": nap}), (0.001, change)]
    if choice == "lose" and kind in ("redis", "redlock"):
        return [(0.0, {"who": service, "do": "lose"})]
    return []
