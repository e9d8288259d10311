"""Prometheus metrics of both halves, as a hook: ``connect(..., hooks=[Metrics()])``."""

from fencepost.errors import ConfigError
from fencepost.events import Event
from fencepost.hooks.instruments import INSTRUMENTS, measure

__all__ = ["INSTRUMENTS", "Metrics"]

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
except ModuleNotFoundError as error:
    raise ConfigError(
        "fencepost.hooks.prometheus needs the package 'prometheus_client': pip install 'fencepost[metrics]'"
    ) from error


class Metrics:
    """Counts what happens to locks and at guards. No label ever names a lock, a holder or a token.

    Make one for each registry (prometheus_client's own by default); a second one in the same registry
    is a ValueError of prometheus_client.

        locks = fencepost.connect("redis://localhost", hooks=[Metrics()])
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._counters: dict[tuple[str, str], Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for name, (text, buckets, label, values) in INSTRUMENTS.items():
            if buckets:
                self._histograms[name] = Histogram(name, text, buckets=buckets, registry=registry)
            elif label:
                family = Counter(name, text, (label,), registry=registry)
                # From the start: a rate over a series that is born with its first count does not see that count.
                self._counters |= {(name, value): family.labels(value) for value in values}
            else:
                self._counters[name, ""] = Counter(name, text, registry=registry)

    def __call__(self, event: Event) -> None:
        for name, value, label in measure(event):
            if histogram := self._histograms.get(name):
                histogram.observe(value)
            else:
                self._counters[name, label].inc(value)
