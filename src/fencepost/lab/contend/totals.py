"""The metrics of several processes as one, for Prometheus."""

from collections.abc import Iterator
from typing import Any

from fencepost.errors import ConfigError


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

    def serve(self, port: int, *, host: str = "127.0.0.1") -> str:
        """Serve them while this process runs; the address. ConfigError if that cannot be."""
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ModuleNotFoundError as error:
            raise ConfigError(
                "metrics need the package 'prometheus_client': pip install 'fencepost[metrics]'"
            ) from error
        registry = CollectorRegistry()
        registry.register(self)
        try:
            server, _ = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot serve metrics on {host} port {port}: {error}; choose another") from error
        return f"http://{host}:{server.server_port}/metrics"
