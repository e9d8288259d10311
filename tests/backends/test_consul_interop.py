"""fencepost and ``consul lock`` exclude each other, holding and waiting."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost import sync
from fencepost.lab.servers.processes import dying_with_us, program, wait_until
from tests.backends.peer import background
from tests.harness.servers import Endpoint

PATIENCE = 60.0
LONG = 60.0


class ConsulLock:
    """``consul lock`` around a child that says it runs, until it is told to end."""

    def __init__(self, server: Endpoint, prefix: str, folder: Path) -> None:
        self.running, self.over = folder / "running", folder / "over"
        script = f"touch {self.running}; while [ ! -e {self.over} ]; do sleep 0.05; done; rm {self.running}"
        address = server.url.partition("://")[2]
        self.process = subprocess.Popen(
            dying_with_us([program("CONSUL"), "lock", "-verbose", prefix, script]),
            env={**os.environ, "CONSUL_HTTP_ADDR": address},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said: list[str] = []
        self._listener = background(self._listen)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        self.said += self.process.stdout

    def has_it(self) -> bool:
        return self.running.exists()

    def end(self) -> None:
        """Let the child end, and ``consul lock`` release."""
        self.over.touch()
        assert self.process.wait(PATIENCE) == 0, self.said

    def close(self) -> None:
        self.over.touch()  # for a child that outlives its parent
        self.process.kill()
        self.process.wait()
        self._listener.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def prefix() -> str:
    return f"interop-{secrets.token_hex(4)}"


@pytest.fixture
def locks(consul_server: Endpoint) -> Iterator[sync.Locks]:
    with fencepost.connect(consul_server.url, ttl=LONG) as connected:
        yield connected


@pytest.fixture
def consul_lock(consul_server: Endpoint, prefix: str, tmp_path: Path) -> Iterator[ConsulLock]:
    other = ConsulLock(consul_server, prefix, tmp_path)
    yield other
    other.close()


def test_while_consul_lock_holds_fencepost_waits_and_then_gets_it(
    locks: sync.Locks, prefix: str, consul_lock: ConsulLock
) -> None:
    assert wait_until(consul_lock.has_it, timeout=PATIENCE), consul_lock.said
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
    other = ConsulLock(consul_server, prefix, tmp_path)
    try:
        asking = "Attempting lock acquisition"
        assert wait_until(lambda: any(asking in line for line in other.said), timeout=PATIENCE)
        assert locks.try_acquire(prefix) is None
        assert not other.has_it()
        assert lease.release()
        assert wait_until(other.has_it, timeout=PATIENCE), other.said
        assert locks.try_acquire(prefix) is None
        other.end()
        with locks.lock(prefix, timeout=PATIENCE) as again:
            assert again.token > lease.token
    finally:
        other.close()


def test_consul_lock_learns_that_it_was_evicted(locks: sync.Locks, prefix: str, consul_lock: ConsulLock) -> None:
    assert wait_until(consul_lock.has_it, timeout=PATIENCE), consul_lock.said
    ended = locks.evict(prefix)
    assert ended is not None
    assert wait_until(lambda: any("Lock lost" in line for line in consul_lock.said), timeout=PATIENCE), consul_lock.said
    assert locks.acquire(prefix, timeout=PATIENCE).token > ended.token
