"""Metrics of a long-running command, served while it runs."""

from fencepost.errors import ConfigError
from fencepost.events import Hook


def metrics(port: int, *, host: str = "127.0.0.1") -> tuple[Hook, str]:
    """A hook that counts, and the address where its counts are served; port 0 picks a free one.

    Raises ConfigError if the port cannot be had, or prometheus_client is not installed.
    """
    from fencepost.metrics import Metrics  # first: it names the pip command if prometheus_client is missing

    from prometheus_client import CollectorRegistry, start_http_server  # isort: skip

    registry = CollectorRegistry()
    try:
        server, _ = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot serve metrics on {host} port {port}: {error}; choose another") from error
    return Metrics(registry), f"http://{host}:{server.server_port}/metrics"
