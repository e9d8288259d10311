"""The current state of a service, for Prometheus: its mode, its keys, and its queues."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from fencepost.guards.policy import STEPS, fraction
from fencepost.hooks.instruments import PREFIX
from fencepost.resource.store import Store

FAMILIES = {
    "resource_mode": "1 for the mode that the service is in, 0 for the others; canary without its percentage.",
    "resource_enforced_ratio": "The fraction of keys for which an access against the rule is refused.",
    "resource_keys": "Keys that have a value or a mark, as of the last count.",
    "resource_keys_limit": "How many keys there may be.",
    "resource_queue": "Requests that wait for the store.",
    "resource_queue_limit": "How many may wait, for each thread.",
    "resource_turned_away_total": "Requests that met a limit: the queue of the writer or the reader, or the keys.",
}


LABELS = {
    "resource_mode": ("mode", STEPS),
    "resource_queue": ("thread", ("writer", "reader")),
    "resource_turned_away_total": ("limit", ("writer", "reader", "keys")),
}
"""The label of a family, and its possible values."""


class State:
    """Collects the metrics that do not come from events."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> Iterator[Metric]:
        """Yield nothing. Without this method, a registry would collect once to learn the names."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """The state now."""
        store, mode = self._store, self._store.policy.mode
        yield _gauge("resource_mode", {step: float(step == mode.partition(":")[0]) for step in STEPS})
        yield _gauge("resource_enforced_ratio", value=fraction(mode))
        if store.census.count is not None:
            yield _gauge("resource_keys", value=store.census.count)
        yield _gauge("resource_keys_limit", value=store.census.limit)
        yield _gauge("resource_queue", {name: each.waiting for name, each in store.workers.items()})
        yield _gauge("resource_queue_limit", value=store.queue)
        name = "resource_turned_away_total"
        away = CounterMetricFamily(PREFIX + name, FAMILIES[name], labels=[LABELS[name][0]])
        for thread, worker in store.workers.items():
            away.add_metric([thread], worker.turned_away)
        away.add_metric(["keys"], store.census.turned_away)
        yield away


def _gauge(name: str, values: dict[str, float] | None = None, value: float | None = None) -> Metric:
    label = LABELS.get(name)
    made = GaugeMetricFamily(PREFIX + name, FAMILIES[name], labels=[label[0]] if label else None, value=value)
    for each, number in (values or {}).items():
        made.add_metric([each], number)
    return made
