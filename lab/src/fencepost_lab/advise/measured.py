"""What a program's own metrics say about its locks: honest bounds from Prometheus histograms."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from fencepost.errors import ConfigError

HELD = "lock_held_seconds"
LATENCY = "lock_acquire_latency_seconds"
SLACK = "lock_renew_slack_ratio"
_LINE = re.compile(r'(?P<name>\w+)_bucket\{(?:[^}]*,)?le="(?P<le>[^"]+)"[^}]*\} (?P<count>\S+)')


class Bounds(NamedTuple):
    """A quantile lies above ``low`` and not above ``high``; more is not known."""

    low: float
    high: float
    seen: int
    """How many were observed."""


class Histogram:
    """How many observations lie at or below each bound."""

    def __init__(self, buckets: Mapping[float, float]) -> None:
        self._buckets = sorted(buckets.items())

    @property
    def count(self) -> int:
        """How many observations there are."""
        return int(self._buckets[-1][1]) if self._buckets else 0

    def quantile(self, fraction: float) -> Bounds | None:
        """Between which bounds the observation lies that ``fraction`` of all do not exceed; None without any."""
        if not self.count:
            return None
        low = -math.inf
        for bound, reached in self._buckets:
            if reached >= fraction * self.count and reached > 0:
                return Bounds(low, bound, self.count)
            low = bound
        raise AssertionError("the last bucket holds them all")


def _known(name: str) -> str:
    """The histogram that a metric is, whatever prefix its program has; empty if it is none of ours."""
    return next((known for known in (HELD, LATENCY, SLACK) if name.endswith(known)), "")


def histograms(text: str) -> dict[str, Histogram]:
    """The histograms in a page of metrics, series that differ in other labels added up.

    Raises ConfigError where there is none of fencepost's.
    """
    found: dict[str, dict[float, float]] = {}
    for match in map(_LINE.match, text.splitlines()):
        if match and (name := _known(match["name"])):
            buckets = found.setdefault(name, {})
            bound = float(match["le"].replace("+Inf", "inf"))
            buckets[bound] = buckets.get(bound, 0.0) + float(match["count"])
    if not found:
        raise ConfigError(
            f"no {HELD}, {LATENCY} or {SLACK} on that page; give locks the hook fencepost.hooks.prometheus.Metrics()"
        )
    return {name: Histogram(buckets) for name, buckets in found.items()}


class Measured(NamedTuple):
    """What a ttl has to reckon with; None where nothing was observed."""

    work: Bounds | None
    """Between which bounds 99.9 % of the holds end."""
    trip: Bounds | None
    """Between which bounds the quickest tenth of the acquires end: those that waited for nobody but the store."""
    slack: Bounds | None
    """Between which bounds the fraction of the ttl lies that is left at the latest hundredth of the renewals."""


def measured(text: str) -> Measured:
    """The quantiles that an advice is made from."""
    found = histograms(text)

    def quantile(name: str, fraction: float) -> Bounds | None:
        return found[name].quantile(fraction) if name in found else None

    return Measured(quantile(HELD, 0.999), quantile(LATENCY, 0.1), quantile(SLACK, 0.01))
