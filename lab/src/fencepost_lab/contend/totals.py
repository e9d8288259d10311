"""The metrics of several processes as one, for Prometheus."""

from collections.abc import Iterator
from typing import Any


class Totals:
    """A collector that adds up what each process has counted so far."""

    def __init__(self) -> None:
        self._counted: dict[int, list[Any]] = {}

    def take(self, process: int, counted: list[Any]) -> None:
        """What a process has counted since it began."""
        self._counted[process] = counted

    def collect(self) -> Iterator[Any]:
        from prometheus_client import Metric

        sums: dict[str, tuple[str, str, dict[tuple[str, tuple[tuple[str, str], ...]], float]]] = {}
        for counted in self._counted.values():
            for name, text, kind, samples in counted:
                values = sums.setdefault(name, (text, kind, {}))[2]
                for sample, labels, value in samples:
                    if not sample.endswith("_created"):
                        key = sample, tuple(sorted(labels.items()))
                        values[key] = values.get(key, 0.0) + value
        for name, (text, kind, values) in sums.items():
            metric = Metric(name, text, kind)
            for (sample, labels), value in values.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric

    def serve(self, port: int) -> str:
        """Serve them while this process runs; the address. ConfigError if that cannot be."""
        import fencepost.hooks.prometheus  # noqa: F401 - it names the pip command if prometheus_client is missing
        from fencepost_lab.stage.serving import serve

        from prometheus_client import CollectorRegistry  # isort: skip

        registry = CollectorRegistry()
        registry.register(self)
        return serve(registry, port)
