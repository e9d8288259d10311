"""Laying down a seed's locks: at a pace, from where an earlier run was cut off, with a count of what it cost."""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fencepost import check
from fencepost.errors import ConfigError
from fencepost_lab.gen.ground import Facts, Ground, Laid
from fencepost_lab.gen.keys import Batch, batches
from fencepost_lab.gen.stores import ground

# After the last ttl, a store that reclaims at all has done so within these seconds and a second for so many locks.
_GRACE, _PACE = 60.0, 25_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to lay down: the first ``keys`` locks of the seed's list. Raises ConfigError for what cannot be meant."""

    keys: int
    seed: int = 7
    ttl: float = 600.0
    rate: float | None = None
    """Locks per second; None: as fast as the store takes them."""
    batch: int = 1000
    fresh: bool = False
    """Begin at the first lock, whatever an earlier run has laid."""

    def __post_init__(self) -> None:
        check.ttl(self.ttl)
        for what in ("keys", "batch"):
            if getattr(self, what) < 1:
                raise ConfigError(f"{what} must be at least 1, not {getattr(self, what)}")
        if self.rate is not None and self.rate <= 0:
            raise ConfigError(f"rate must be greater than 0, not {self.rate:g}")


@dataclass(slots=True, kw_only=True)
class Result:
    """What a run did and what it cost the store."""

    order: Order
    resumed: int
    """How many locks an earlier run had laid already."""
    laid: int = 0
    found: int = 0
    """Locks that were not free."""
    seconds: float = 0.0
    before: Facts
    after: Facts
    expired: Facts | None = None
    """The store once every lock's ttl had passed, and it had time to reclaim them."""
    size: str
    peak_memory: int = 0
    """Bytes that this process had at most."""

    @property
    def rate(self) -> float:
        return (self.laid + self.found) / self.seconds if self.seconds else 0.0

    def each(self, facts: Facts) -> float:
        """Bytes of the store per lock that was laid now."""
        return (facts[self.size] - self.before[self.size]) / max(self.laid, 1)

    def data(self) -> dict[str, Any]:
        """The result as JSON has it."""
        return asdict(self) | {
            "rate": self.rate,
            "bytes_per_key": self.each(self.after),
            "bytes_per_key_after_expiry": self.each(self.expired) if self.expired else None,
        }


def lay(
    url: str, order: Order, *, told: Callable[[int, Laid], None] = lambda start, laid: None, wait: bool = False
) -> Result:
    """Lay the locks down; ``told`` hears where it began and of each batch. With ``wait``, stay until they have expired.

    Raises BackendError, ConfigError.
    """
    store = ground(url)
    try:
        start = 0 if order.fresh else min(store.progress(order.seed), order.keys)
        before = store.facts()
        done = Result(order=order, resumed=start, before=before, after=before, size=store.size)
        told(start, Laid(0, 0))
        begin = time.monotonic()
        for laid in store.lay(_paced(order, start), order.seed, order.ttl):
            done.laid += laid.free
            done.found += laid.locks - laid.free
            told(start, laid)
        done.seconds = time.monotonic() - begin
        done.after = store.facts()
        done.peak_memory = _peak_memory()
        if wait:
            done.expired = _outlive(store, done, begin + done.seconds + order.ttl)
        return done
    finally:
        store.close()


def _peak_memory() -> int:
    """The most memory that this program has taken, in bytes.

    Linux's ru_maxrss also counts what the process was before it became this program.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _paced(order: Order, start: int) -> Iterator[Batch]:
    """The batches, each when its time has come."""
    size = order.batch if order.rate is None else max(1, min(order.batch, int(order.rate / 20)))
    begin = time.monotonic()
    for batch in batches(order.seed, start, order.keys, size):
        if order.rate is not None:
            time.sleep(max(begin + (batch.end - start) / order.rate - time.monotonic(), 0.0))
        yield batch


def _outlive(store: Ground, done: Result, end: float) -> Facts:
    """The store once nothing is left in it that expires, beyond what was there before."""
    time.sleep(max(end - time.monotonic(), 0.0))
    wanted = done.before.get("expiring", 0)
    until = end + _GRACE + done.order.keys / _PACE
    while (facts := store.facts()).get("expiring", wanted) > wanted and time.monotonic() < until:
        time.sleep(0.2)
    return facts
