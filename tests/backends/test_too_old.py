"""A server that is too old is refused with the version that fencepost takes; scripts/versions asks real ones."""

from __future__ import annotations

import secrets

import pytest
from kazoo.protocol.serialization import Create2

from fencepost import BackendError, connect
from fencepost.backends.etcd import doctor
from fencepost.backends.postgres import connection
from fencepost.backends.zookeeper import session
from tests.harness.servers import Endpoint
from tests.harness.waiting import run


def test_postgres_before_14(postgres_server: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "OLDEST", 1000)
    with (
        connect(postgres_server.url) as locks,
        pytest.raises(
            BackendError, match=r"^Postgres: this is version \d+\.\d+.*; fencepost needs Postgres 1000 or newer"
        ),
    ):
        locks.acquire(secrets.token_hex(4))


def test_etcd_before_3_4_is_a_warning_of_the_doctor(etcd_server: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "WAKES", (1000,))
    with connect(etcd_server.url) as locks:
        findings = run(locks._core.backend.doctor())
    assert any(each.level == "warn" and "too old to wake waiters" in each.means for each in findings)


class Unknown(Create2):  # type: ignore[misc]  # kazoo has no types
    """A request that no ZooKeeper knows, as 3.4 does not know Create2."""

    type = 99


def test_zookeeper_before_3_5(zookeeper_server: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Create2", Unknown)
    monkeypatch.setattr(session.Container, "type", Unknown.type)
    with (
        connect(f"{zookeeper_server.url}/{secrets.token_hex(4)}") as locks,
        pytest.raises(BackendError, match=r"fencepost needs ZooKeeper 3\.5 or newer"),
    ):
        locks.acquire("name")
