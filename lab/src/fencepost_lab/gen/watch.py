"""Looking on while locks are laid down and expire: the store's own figures, over time."""

import threading
import time
from bisect import bisect_left
from typing import NamedTuple, Self

from fencepost.errors import BackendError
from fencepost_lab.gen.ground import Facts
from fencepost_lab.gen.stores import ground


class Sample(NamedTuple):
    """The store at an instant; ``answer``: how long it took to say so."""

    at: float
    facts: Facts
    answer: float


class Watch:
    """Samples a store from a thread of its own, on a connection of its own, while the block runs."""

    def __init__(self, url: str, *, every: float) -> None:
        self.samples: list[Sample] = []
        self.start = time.monotonic()
        self._url = url
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="fencepost-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def overdue(self, sample: Sample, ttl: float) -> int:
        """Locks that had expired by then and still took up room, as far as the samples tell when each was laid."""
        live = self.laid(sample.at) - self.laid(sample.at - ttl)
        return max(round(sample.facts["expiring"] - live), 0)

    def laid(self, at: float) -> float:
        """How many locks had been laid by an instant: those that are there, and those that are gone since."""
        samples = self.samples
        index = bisect_left(samples, at, key=lambda sample: sample.at)
        if index == 0:
            return 0.0
        before = samples[index - 1]
        after = samples[min(index, len(samples) - 1)]
        fraction = (at - before.at) / (after.at - before.at) if after.at > before.at else 0.0
        return self._count(before) + fraction * (self._count(after) - self._count(before))

    def _count(self, sample: Sample) -> int:
        first = self.samples[0].facts["expired_keys"]
        return sample.facts["expiring"] + sample.facts["expired_keys"] - first

    def _look(self) -> None:
        store = ground(self._url)
        try:
            while True:
                begin = time.monotonic()
                facts = store.facts()
                end = time.monotonic()
                self.samples.append(Sample(end - self.start, facts, end - begin))
                if self._over.wait(self._every):
                    return
        except BackendError:
            pass  # the store has ended before the watch; what was seen counts
        finally:
            store.close()
