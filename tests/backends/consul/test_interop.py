"""fencepost and ``consul lock`` exclude each other, holding and waiting."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost import sync
from fencepost_lab.servers.processes import program
from tests.harness.child import Child
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until

LONG = 300.0


class ConsulLock(Child):
    """``consul lock`` around a child that says it runs, until it is told to end."""

    def __init__(self, server: Endpoint, prefix: str, folder: Path) -> None:
        self._running, self._over = folder / "running", folder / "over"
        script = f"touch {self._running}; while [ ! -e {self._over} ]; do sleep 0.05; done; rm {self._running}"
        address = {"CONSUL_HTTP_ADDR": server.url.partition("://")[2]}
        command = [program("CONSUL"), "lock", "-verbose", prefix, script]
        super().__init__(command, env=address, stdin=subprocess.DEVNULL, merged=True)

    def has_it(self) -> bool:
        return self._running.exists()

    def end(self) -> None:
        """Let the child end, and ``consul lock`` release."""
        self._over.touch()
        self.succeed()

    def close(self) -> None:
        self._over.touch()  # for a child that outlives its parent
        super().close()


@pytest.fixture
def prefix() -> str:
    return f"interop-{secrets.token_hex(4)}"


@pytest.fixture
def locks(consul_server: Endpoint) -> Iterator[sync.Locks]:
    with fencepost.connect(consul_server.url, ttl=LONG) as connected:
        yield connected


@pytest.fixture
def consul_lock(consul_server: Endpoint, prefix: str, tmp_path: Path) -> Iterator[ConsulLock]:
    with ConsulLock(consul_server, prefix, tmp_path) as other:
        yield other


def test_while_consul_lock_holds_fencepost_waits_and_then_gets_it(
    locks: sync.Locks, prefix: str, consul_lock: ConsulLock
) -> None:
    until(consul_lock.has_it, "consul lock has it", watching=[consul_lock])
    held = locks.status(prefix)
    assert held is not None
    assert locks.try_acquire(prefix) is None
    got: list[sync.Lease] = []
    waiting = background(lambda: got.append(locks.acquire(prefix, timeout=PATIENCE)))
    assert locks.try_acquire(prefix) is None
    assert not got
    consul_lock.end()
    waiting.join(PATIENCE)
    assert got[0].token > held.token
    assert got[0].release()


def test_while_fencepost_holds_consul_lock_waits_and_then_gets_it(
    locks: sync.Locks, prefix: str, consul_server: Endpoint, tmp_path: Path
) -> None:
    lease = locks.acquire(prefix)
    with ConsulLock(consul_server, prefix, tmp_path) as other:
        other.heard("Attempting lock acquisition")
        assert locks.try_acquire(prefix) is None
        assert not other.has_it()
        assert lease.release()
        until(other.has_it, "consul lock has it", watching=[other])
        assert locks.try_acquire(prefix) is None
        other.end()
        with locks.lock(prefix, timeout=PATIENCE) as again:
            assert again.token > lease.token


def test_consul_lock_learns_that_it_was_evicted(locks: sync.Locks, prefix: str, consul_lock: ConsulLock) -> None:
    until(consul_lock.has_it, "consul lock has it", watching=[consul_lock])
    ended = locks.break_lock(prefix)
    assert ended is not None
    consul_lock.heard("Lock lost")
    assert locks.acquire(prefix, timeout=PATIENCE).token > ended.token
