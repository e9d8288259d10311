"""What becomes of a lock when the Consul agent that its holder talks to goes away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import fencepost
from fencepost.driver import run
from fencepost.driver.threads import Blocking
from fencepost.registry import connect
from fencepost_lab.servers import Consul, http_json
from fencepost_lab.servers.processes import HOST
from tests.conformance.faces import FACES, Client
from tests.harness.threads import on_thread
from tests.harness.waiting import PATIENCE, until, until_async

pytestmark = pytest.mark.consul

TTL = 300.0  # nothing here gets free by expiry


@dataclass(kw_only=True, eq=False)
class Agent(Consul):
    """A client agent on a node of its own, as it runs on every host."""

    server: Consul

    @property
    def node(self) -> str:
        """No other agent's: for half a minute Consul refuses one that has the name of another whose leave got lost."""
        return f"agent-{self.port}"

    def prepare(self) -> None:
        super().prepare()
        path = self.folder / "consul.json"
        settings = json.loads(path.read_text())
        del settings["bootstrap_expect"]
        join = f"{HOST}:{self.server.ports[2]}"
        path.write_text(json.dumps(settings | {"node_name": self.node, "server": False, "retry_join": [join]}))

    def ping(self) -> bool:
        return bool(http_json(self.port, "GET", f"/v1/health/node/{self.node}"))


@pytest.fixture(scope="module")
def server() -> Iterator[Consul]:
    with Consul() as started:
        yield started


@pytest.fixture
def agent(server: Consul) -> Iterator[Agent]:
    with Agent(server=server) as started:
        yield started


def test_a_crash_of_the_holders_agent_gives_its_lock_to_nobody(server: Consul, agent: Agent) -> None:
    with (
        fencepost.connect(f"{agent.url}/crash", ttl=TTL) as here,
        fencepost.connect(f"{server.url}/crash", ttl=TTL) as there,
    ):
        lease = here.acquire("x")
        agent.kill()

        def checks() -> list[Any]:
            found: list[Any] = http_json(server.port, "GET", f"/v1/health/node/{agent.node}")
            return found

        until(lambda: [each["Status"] for each in checks()] == ["critical"], "the cluster noticed the crash")
        assert there.try_acquire("x") is None
        assert not lease.lost
        agent.restart()
        lease.renew()
        assert lease.release()
        assert there.acquire("x", timeout=PATIENCE).release()


def test_doctor_tells_that_a_restart_of_the_agent_ends_its_holders_locks(server: Consul, agent: Agent) -> None:
    for url, expected in ((agent.url, True), (server.url, False)):
        backend = connect(url, Blocking())
        findings = run(backend.doctor())
        run(backend.close())
        assert any("leave_on_terminate = false" in finding.means for finding in findings) is expected


@pytest.mark.parametrize("how", ["deregistered", "restarted"])
@pytest.mark.parametrize("face", FACES)
async def test_a_holder_learns_at_once_that_its_agent_lost_its_session(
    server: Consul, agent: Agent, face: str, how: str
) -> None:
    here, there = (Client(face, f"{each.url}/{face}-{how}", ttl=TTL) for each in (agent, server))
    lease = await here.acquire("x")
    if how == "restarted":
        await on_thread(agent.stop)  # which is a leave, unless the agent is told otherwise

        def sessions() -> list[Any]:
            found: list[Any] = http_json(server.port, "GET", f"/v1/session/node/{agent.node}")
            return found

        # Who comes back at once has not left: Serf tells the servers only of the last thing that it has seen.
        await until_async(lambda: not sessions(), "its sessions have ended")
        await on_thread(agent.start)
    else:
        http_json(server.port, "PUT", "/v1/catalog/deregister", json.dumps({"Node": agent.node}))
    assert PATIENCE < TTL / 3, "no renewal tells it before"
    assert await lease.wait_lost(PATIENCE / 2)
    assert not await lease.release()
    assert await (await there.acquire("x", timeout=PATIENCE)).release()
    for client in (here, there):
        await client.close()
