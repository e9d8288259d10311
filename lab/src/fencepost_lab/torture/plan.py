"""What is run: one slice of torture, by its store, its guard, its seed and its faults."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

TTLS = {"etcd": 1.0, "zookeeper": 1.0, "consul": 1.0, "redis+sentinel": 1.0, "redis+cluster": 0.6}
"""The ttl for each store: as short as it takes without losing leases to a busy machine."""
DEFAULT_TTL = 0.5
LINGER = {"consul": (1.0, 2.2), "zookeeper": (0.4, 1.5), "etcd": (0.3, 1.5)}
"""How many ttls a pause lasts beyond the lease: some stores free a lock only some time after its holder gave it up."""
STORES = (
    "sqlite",
    "redis",
    "redlock",
    "redis+cluster",
    "redis+sentinel",
    "etcd",
    "zookeeper",
    "consul",
    "postgres",
)
"""What can be started by name."""
CONTROLS = ("off", "writes", "noseq", "noholder", "redis-py", "set-nx")
"""Runs that must show violations: a weakened guard, or another library's lock without one."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One slice. Equal plans draw equal faults and equal work, in as far as a real machine repeats itself."""

    store: str
    guard: str = ""
    """KIND:ADDRESS of values that are there already; empty: the run starts what it needs."""
    control: str = ""
    """Empty for the product as it is, else one of CONTROLS."""
    seed: int = 0
    operations: int | None = 2000
    seconds: float | None = None
    faults: tuple[str, ...] | None = None
    """Which of the catalogue may be drawn; None: all that this store knows."""
    staging: str = ""
    """The name of a stack that is not ours: only our own processes are harmed."""
    workers: int = 10
    locks: int = 10
    ttl: float = DEFAULT_TTL
    pauses: float = 0.4
    """The share of the workers that is paused, or ordered to be, at any time."""
    server_every: float = 1.0
    """Seconds between two faults of servers, network and clocks, on average."""

    @property
    def keys(self) -> list[str]:
        return [f"torture/{self.seed}/{number}" for number in range(self.locks)]

    def data(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Plan:
        faults = data.get("faults")
        return cls(**{**data, "faults": None if faults is None else tuple(faults)})
