"""A stopped process does nothing, a killed one is gone, and the record says when."""

from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fencepost_lab.faults.record import Faults
from fencepost_lab.faults.signals import Victim
from fencepost_lab.servers import HOST, Redis
from fencepost_lab.servers.freeze import is_stopped
from fencepost_lab.servers.processes import ENDED, family_of, state_of
from tests.harness.child import Child

NEVER = Retry(NoBackoff(), 0)
COUNTING = "import subprocess, sys; child = subprocess.Popen(['cat']); print('up', flush=True); child.wait()"


@pytest.fixture
def client() -> Iterator[Child]:
    """A client with a child of its own."""
    with Child.python("-c", COUNTING) as child:
        child.heard("up")
        yield child


def test_a_client_is_stopped_with_its_children_and_goes_on(client: Child) -> None:
    faults = Faults()
    victim = Victim(client.pid, "A", faults)
    family = family_of(client.pid)
    assert len(family) == 2
    with victim.paused():
        assert all(is_stopped(pid) for pid in family)
    assert not any(is_stopped(pid) for pid in family)
    assert [(fault["do"], fault["who"]) for fault in faults] == [("pause", "A"), ("resume", "A")]
    assert faults[0]["at"] < faults[1]["at"]


def test_a_client_is_killed_with_its_children(client: Child) -> None:
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
        with (
            redis.Redis(HOST, server.port, socket_timeout=0.3, retry=NEVER) as impatient,
            redis.Redis(HOST, server.port) as client,
        ):
            with victim.paused(), pytest.raises(redis.TimeoutError):
                impatient.ping()
            assert client.ping()
        victim.kill()
        assert not server.running
        server.restart()
        with redis.Redis(HOST, server.port) as client:
            assert client.ping()
    assert [fault["do"] for fault in faults] == ["pause", "resume", "kill"]
