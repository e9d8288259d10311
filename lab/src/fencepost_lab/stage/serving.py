"""Metrics of a long-running command, served while it runs."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fencepost.errors import ConfigError
from fencepost.events import Hook
from fencepost.hooks.instruments import INSTRUMENTS, PREFIX

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def metrics(port: int, *, host: str = "127.0.0.1") -> tuple[Hook, str]:
    """A hook that counts, and the address where its counts are served; port 0 picks a free one.

    Raises ConfigError if the port is taken, or prometheus_client is not installed.
    """
    from fencepost.hooks.prometheus import Metrics  # first: it names the pip command if prometheus_client is missing

    from prometheus_client import CollectorRegistry  # isort: skip

    registry = CollectorRegistry()
    return Metrics(registry), serve(registry, port, host=host)


def counters(port: int, *names: str, host: str = "127.0.0.1") -> tuple[Callable[..., None], str]:
    """The same for one that counts by itself, many at once: ``count(lock_acquire_success_total=1000)``."""
    import fencepost.hooks.prometheus  # noqa: F401

    from prometheus_client import CollectorRegistry, Counter  # isort: skip

    registry = CollectorRegistry()
    made = {name: Counter(PREFIX + name, INSTRUMENTS[name].text, registry=registry) for name in names}

    def count(**more: int) -> None:
        for name, number in more.items():
            made[name].inc(number)

    return count, serve(registry, port, host=host)


def serve(registry: "CollectorRegistry", port: int, *, host: str = "127.0.0.1") -> str:
    """Serve what a registry collects; the address. ConfigError if the port is taken."""
    from prometheus_client import start_http_server

    try:
        server, _ = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot serve metrics on {host} port {port}: {error}; choose another") from error
    return f"http://{host}:{server.server_port}/metrics"
