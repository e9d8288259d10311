"""Latencies in constant memory: counted in buckets that grow with the value, as HdrHistogram does."""

from array import array
from collections.abc import Iterable
from math import ceil
from typing import Any

_BITS = 7
_LONGEST = (1 << 43) - 1  # some two hours, in nanoseconds
ERROR = 2**-_BITS
"""A percentile is off by less than this fraction of itself."""


def _bucket(value: int) -> int:
    # Below 2^8 each number has its bucket; above, every doubling shares 2^7 of them.
    shift = max(0, value.bit_length() - _BITS - 1)
    return (shift << _BITS) + (value >> shift)


def _highest(bucket: int) -> int:
    """The largest value that a bucket counts."""
    shift = max(0, (bucket >> _BITS) - 1)
    return (((bucket - (shift << _BITS)) + 1) << shift) - 1


_BUCKETS = _bucket(_LONGEST) + 1


class Recorder:
    """Counts durations in seconds; those of several processes add up."""

    __slots__ = ("_counts", "count", "longest", "total")

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * _BUCKETS))
        self.count = 0
        self.longest = 0.0
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self._counts[_bucket(min(max(int(seconds * 1e9), 0), _LONGEST))] += 1
        self.count += 1
        self.total += seconds
        if seconds > self.longest:
            self.longest = seconds

    def merge(self, other: "Recorder") -> None:
        for bucket, count in enumerate(other._counts):
            if count:
                self._counts[bucket] += count
        self.count += other.count
        self.total += other.total
        self.longest = max(self.longest, other.longest)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float | None:
        """The duration that ``percent`` of all do not exceed, never less than it is; None if nothing was counted."""
        if not self.count:
            return None
        left = max(1, ceil(self.count * percent / 100))
        for bucket, count in enumerate(self._counts):
            left -= count
            if left <= 0:
                return min(_highest(bucket) / 1e9, self.longest)
        return self.longest

    def summary(self) -> dict[str, Any]:
        """The figures that everybody asks for, in seconds."""
        points = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}
        figures: dict[str, Any] = {name: self.percentile(percent) for name, percent in points.items()}
        return {"count": self.count, "mean": self.mean, **figures, "max": self.longest if self.count else None}

    def data(self) -> dict[str, Any]:
        """What ``parse`` reads."""
        counts = {str(bucket): count for bucket, count in enumerate(self._counts) if count}
        return {"counts": counts, "total": self.total, "longest": self.longest}


def parse(data: dict[str, Any]) -> Recorder:
    """A recorder that another process has sent."""
    made = Recorder()
    for bucket, count in data["counts"].items():
        made._counts[int(bucket)] = count
        made.count += count
    made.total, made.longest = data["total"], data["longest"]
    return made


def merged(recorders: Iterable[Recorder]) -> Recorder:
    """All of them in one."""
    made = Recorder()
    for each in recorders:
        made.merge(each)
    return made
