"""Random scenarios: each seed turns on its own faults, at its own times, against its own settings."""

from random import Random
from typing import Any

from fencepost.sim.scenario import Scenario, parse

FAULTS = ("pause", "cut", "kill", "restart", "skew", "jump", "failover", "lose", "stall", "cancel", "loss", "duplicate")
WEAKENED = ("off", "writes", "noseq", "noholder")


def chaos(seed: int, *, fencing: str = "enter", calm: bool = False, backend: str | None = None) -> Scenario:
    """The scenario of a seed. With ``calm`` the faults stop half-way, everything heals, and work must finish."""
    rng = Random(seed)
    kind = rng.choice(("redis", "redis", "redlock", "etcd", "zookeeper", "embedded"))
    kind = backend or kind
    faults = {fault for fault in FAULTS if rng.random() < 0.4}
    ttl = rng.choice((0.5, 1.0, 2.0))
    until = 12 * ttl
    slowest = ttl * rng.choice((0.01, 0.05, 0.2))
    settings: dict[str, Any] = {
        "backend": kind,
        "fence": rng.choice(("counter", "hybrid")),
        "fencing": fencing,
        "ttl": ttl,
        "renew": rng.random() < 0.6,
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
    for _ in range(rng.randrange(1, 9)):
        action = _fault(rng, settings, faults, ttl)
        if action is not None:
            actions.append({"at": round(rng.uniform(0, busy * 0.9), 3), **action})
            if action["do"] == "kill":
                back = {
                    "at": round(actions[-1]["at"] + ttl * rng.uniform(0.1, 2), 3),
                    "who": action["who"],
                    "do": "restart",
                }
                if action["who"] not in (*settings["clients"], "resource"):
                    back["tail"] = rng.choice((0.0, ttl, 1e6))
                actions.append(back)
    if calm:
        actions.append({"at": busy, "do": "calm"})
        until = busy + 60 * ttl
    actions.sort(key=lambda action: action["at"])
    return parse({"seed": seed, "settings": settings, "actions": actions, "until": until})


def _work(rng: Random, who: str, ttl: float) -> dict[str, Any]:
    return {
        "at": round(rng.uniform(0, ttl), 3),
        "who": who,
        "do": "work",
        "rounds": rng.choice((2, 3, 4)),
        "writes": rng.choice((1, 2, 3)),
        "work": round(ttl * rng.choice((0.02, 0.1, 0.3)), 4),
        "think": round(ttl * 0.1, 4),
    }


def _fault(rng: Random, settings: dict[str, Any], faults: set[str], ttl: float) -> dict[str, Any] | None:
    """One fault that this seed has turned on; None if its store cannot have it."""
    client = rng.choice(settings["clients"])
    kind = settings["backend"]
    service = {"redlock": f"r{rng.randrange(1, 6)}", "embedded": None}.get(kind, "service")
    span = round(ttl * rng.choice((0.2, 0.8, 1.5, 3.0)), 3)
    choice = rng.choice(sorted(faults)) if faults else None
    some = rng.choice((client, service)) or client
    if choice == "pause":
        return {"who": client, "do": "pause", "for": span}
    if choice == "stall":
        return {"who": rng.choice((some, "resource")), "do": "pause", "for": span}
    if choice == "cut":
        from_ = rng.choice(("all", "resource", service or "resource"))
        return {"who": client, "do": "cut", "from": from_, "way": rng.choice(("both", "out", "in")), "for": span}
    if choice == "kill":
        return {"who": client, "do": "kill"}
    if choice == "restart":
        return {"who": rng.choice((service or client, "resource")), "do": "kill"}
    if choice == "cancel":
        return {"who": client, "do": "cancel"}
    if choice == "skew" and kind != "embedded":
        return {"who": some, "do": "skew", "rate": rng.choice((0.5, 0.9, 1.1, 2.0))}
    if choice == "jump" and service:
        return {"who": service, "do": "jump", "by": rng.choice((-1, 1)) * ttl * rng.choice((1, 5))}
    if choice == "failover" and kind not in ("embedded", "redlock"):
        return {"who": "service", "do": "failover", "lag": span, "offset": rng.choice((0.0, -ttl, ttl))}
    if choice == "lose" and kind in ("redis", "redlock"):
        return {"who": service, "do": "lose"}
    return None
