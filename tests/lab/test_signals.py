"""A stopped process does nothing, a killed one is gone, and the record says when."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fencepost.lab.freeze import is_stopped
from fencepost.lab.nemesis.faults import Faults
from fencepost.lab.nemesis.signals import Victim
from fencepost.lab.servers import HOST, Redis
from fencepost.lab.servers.processes import ENDED, family_of, state_of

NEVER = Retry(NoBackoff(), 0)
COUNTING = "import subprocess, sys; child = subprocess.Popen(['cat']); print('up', flush=True); child.wait()"


@pytest.fixture
def client() -> Iterator[subprocess.Popen[str]]:
    """A client with a child of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", COUNTING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


def test_a_client_is_stopped_with_its_children_and_goes_on(client: subprocess.Popen[str]) -> None:
    faults = Faults()
    victim = Victim(client.pid, "A", faults)
    family = family_of(client.pid)
    assert len(family) == 2
    with victim.paused():
        assert all(is_stopped(pid) for pid in family)
    assert not any(is_stopped(pid) for pid in family)
    assert [(fault["do"], fault["who"]) for fault in faults] == [("pause", "A"), ("resume", "A")]
    assert faults[0]["at"] < faults[1]["at"]


def test_a_client_is_killed_with_its_children(client: subprocess.Popen[str]) -> None:
    faults = Faults()
    family = family_of(client.pid)
    Victim(client.pid, "A", faults).kill()
    assert all(state_of(pid) in ENDED for pid in family)
    assert client.wait() == -9
    assert faults[0]["do"] == "kill"


@pytest.mark.redis
def test_a_stopped_server_answers_nobody_and_a_killed_one_can_come_back() -> None:
    faults = Faults()
    with Redis() as server:
        victim = Victim(server.pid, "r1", faults)
        with redis.Redis(HOST, server.port, socket_timeout=0.3, retry=NEVER) as client:
            with victim.paused(), pytest.raises(redis.TimeoutError):
                client.ping()
            assert client.ping()
        victim.kill()
        assert not server.running
        server.restart()
        with redis.Redis(HOST, server.port) as client:
            assert client.ping()
    assert [fault["do"] for fault in faults] == ["pause", "resume", "kill"]
