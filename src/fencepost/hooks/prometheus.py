"""Prometheus metrics of locks and guards, as a hook: ``connect(..., hooks=[Metrics()])``."""

from collections.abc import Callable
from typing import Any

from fencepost.errors import ConfigError
from fencepost.events import Event
from fencepost.hooks.instruments import INSTRUMENTS, PREFIX, Classes, measure, named

__all__ = ["INSTRUMENTS", "Metrics"]

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
except ModuleNotFoundError as error:
    raise ConfigError(
        "fencepost.hooks.prometheus needs the package 'prometheus_client': pip install 'fencepost[metrics]'"
    ) from error


class Metrics:
    """Counts what happens to locks and at guards. No label ever names a lock, a holder or a token.

    The names begin with ``prefix``. With ``classes``, a function from the name of a lock or a resource to its class,
    each metric has the labels ``backend`` (the store, or the kind of guard) and ``class``, of which there are at most
    20: later ones count as "other".

    Make one for each registry (prometheus_client's own by default); a second one in the same registry
    is a ValueError of prometheus_client.

        locks = fencepost.connect("redis://localhost", hooks=[Metrics()])
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        prefix: str = PREFIX,
        classes: Callable[[str], str] | None = None,
    ) -> None:
        self._classes = None if classes is None else Classes(classes)
        self._families: dict[str, Any] = {}
        self._series: dict[tuple[str, ...], dict[tuple[str, str], Any]] = {}
        common = () if classes is None else ("backend", "class")
        for name, whole in named(prefix).items():
            text, buckets, label, _ = INSTRUMENTS[name]
            labels = (*common, label) if label else common
            self._families[name] = (
                Histogram(whole, text, labels, buckets=buckets, registry=registry)
                if buckets
                else Counter(whole, text, labels, registry=registry)
            )
        if classes is None:
            self._begin(())

    def _begin(self, key: tuple[str, ...]) -> dict[tuple[str, str], Any]:
        """Create all series of a backend and class at its first event.

        If a series appeared only with its own first count, a rate over it would not see that count.
        """
        made: dict[tuple[str, str], Any] = {}
        for name, family in self._families.items():
            instrument = INSTRUMENTS[name]
            for value in instrument.values or ("",):
                labels = (*key, value) if instrument.label else key
                made[name, value] = family.labels(*labels) if labels else family
        return self._series.setdefault(key, made)

    def __call__(self, event: Event) -> None:
        key = () if self._classes is None else (event.source, self._classes(event.name))
        series = self._series.get(key) or self._begin(key)
        for name, value, label in measure(event):
            found = series[name, label]
            if INSTRUMENTS[name].buckets:
                found.observe(value)
            else:
                found.inc(value)
