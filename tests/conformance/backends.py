"""Which backends the suite runs over. To join it, a backend adds one line to BACKENDS."""

import dataclasses
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from fencepost import registry
from fencepost.backend import Promises

Fixture: TypeAlias = Callable[[str], Any]
"""Gives a pytest fixture by its name, such as ``fixture("redis_server").url``."""


class Row(NamedTuple):
    """A backend, and how to get the URL of an empty namespace in it. ``variant`` tells two rows of one scheme apart."""

    scheme: str
    url: Callable[[Fixture], str]
    variant: str = ""
    min_ttl: float | None = None
    """Where the test's server is set to take shorter ttls than others of its kind."""

    @property
    def label(self) -> str:
        return f"{self.scheme}:{self.variant}" if self.variant else self.scheme

    @property
    def promises(self) -> Promises:
        promises = registry.find(self.scheme).promises
        return promises if self.min_ttl is None else dataclasses.replace(promises, min_ttl=self.min_ttl)


PATIENT = "timeout=30s&connect_timeout=30s"
"""A busy machine must not look like a server that does not answer."""

BACKENDS = [
    Row("memory", lambda fixture: f"memory://{secrets.token_hex(4)}"),
    Row("sqlite", lambda fixture: f"sqlite://{fixture('tmp_path')}/locks.db"),
    Row("redis", lambda fixture: f"{fixture('redis_server').url}?prefix={secrets.token_hex(4)}:&{PATIENT}"),
    Row("redis", lambda fixture: f"{fixture('redis_server').url}?fence=counter&{PATIENT}", variant="counter"),
    Row("redis+cluster", lambda fixture: f"{fixture('redis_cluster').url}?prefix={secrets.token_hex(4)}:&{PATIENT}"),
    Row("redlock", lambda fixture: f"{fixture('redlock_servers').url}?prefix={secrets.token_hex(4)}:&node_timeout=30s"),
    Row("zookeeper", lambda fixture: f"{fixture('zookeeper_server').url}/{secrets.token_hex(4)}"),
    Row(
        "consul",
        lambda fixture: f"{fixture('consul_server').url}/{secrets.token_hex(4)}?session_ttl_min=500ms",
        min_ttl=0.5,
    ),
    Row("postgresql", lambda fixture: fixture("postgres_server").url),
    Row("postgresql", lambda fixture: fixture("pgbouncer_server").url + "?poll=20ms", variant="pgbouncer"),
    Row("etcd", lambda fixture: fixture("etcd_server").url),
    Row("etcd", lambda fixture: fixture("etcd_cluster").url, variant="cluster"),
]
