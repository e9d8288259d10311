"""Hosts in namespaces of their own: they reach each other, nobody else does, and a cut loses packets."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost.errors import ConfigError
from fencepost_lab.faults import network as nemesis
from fencepost_lab.faults.network import Network, RedisOnHost
from fencepost_lab.faults.record import Faults
from fencepost_lab.servers.processes import spawn
from tests.harness.servers import unavailable
from tests.harness.waiting import PATIENCE, until

pytestmark = pytest.mark.server


def reaches(host: str, server: RedisOnHost) -> bool:
    """A client on a host is answered, as soon as the network has learned who is where."""
    return until(lambda: server.answers(host), f"{host} reaches the server")


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def network(faults: Faults) -> Iterator[Network]:
    made = Network(["A", "B", "store"], faults=faults)
    try:
        made.__enter__()
    except ConfigError as error:
        unavailable(str(error))
    yield made
    made.close()


def test_a_cut_host_hears_nothing_the_others_do_and_healing_helps(network: Network, faults: Faults) -> None:
    with RedisOnHost(network=network, host="store", args=["--save", ""]) as server:
        assert reaches("A", server)
        assert reaches("B", server)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((network.address("store"), server.port), PATIENCE)
        network.cut("A")
        assert not server.answers("A")
        assert reaches("B", server)
        network.heal("A")
        assert reaches("A", server)
        network.cut("store", to="B")
        network.heal("A")
        assert not server.answers("B"), "requests arrive, answers do not"
        assert reaches("A", server)
        network.heal()
        assert reaches("B", server)
    assert [(fault["do"], fault["who"], fault.get("to")) for fault in faults] == [
        ("cut", "A", None),
        ("heal", "A", None),
        ("cut", "store", "B"),
        ("heal", "store", "B"),
    ]


def test_the_hosts_end_with_the_network(network: Network) -> None:
    holders = [holder.pid for holder in network._holders.values()]
    network.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in holders)


def test_where_it_is_not_permitted_the_error_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def unprivileged(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return spawn(command, user="nobody" if os.geteuid() == 0 else None, **options)

    monkeypatch.setattr(nemesis, "spawn", unprivileged)
    monkeypatch.setattr(nemesis, "_UNPRIVILEGED", False)
    with pytest.raises(ConfigError, match=r"tried '\S*unshare --net sleep infinity', which said .*not permitted"):
        Network(["A"]).__enter__()
