"""An acquire that fails halfway leaves no key in etcd, not even under a session that others keep alive."""

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
from fencepost import aio, sync
from fencepost.backend import Hold, Renewal
from fencepost.backends.etcd.backend import Etcd as Backend
from fencepost.backends.etcd.rpc import Rpc
from fencepost.driver import run
from fencepost.errors import BackendError
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.servers import QUICK_ETCD, Etcd
from tests.backends.etcd.tools import LONG
from tests.harness.waiting import GIVES_UP, PATIENCE, until, until_async


@pytest.fixture
def server() -> Iterator[Etcd]:
    with Etcd(args=QUICK_ETCD) as started:
        yield started


def kill_after_a_put(server: Etcd, locks: sync.Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server killed as soon as it has put the next key of these locks, and all its connections closed."""
    backend, real = locks._core.backend, Rpc.call
    assert isinstance(backend, Backend)

    async def call(rpc: Rpc, method: Any, request: Any, **options: Any) -> Any:
        answer = await real(rpc, method, request, **options)
        if rpc is backend._rpc and server.running and any(op.request_put for op in request.success):
            assert answer.succeeded
            server.kill()
            rpc.channels.hang_up()  # so that what comes next is surely not sent
        return answer

    monkeypatch.setattr(Rpc, "call", call)


@pytest.mark.parametrize("way", ["alone, with a lock below its name", "shared", "semaphore"])
def test_a_key_that_was_put_is_removed_although_what_came_next_was_never_sent(
    server: Etcd, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    name = secrets.token_hex(4)
    with (
        fencepost.connect(f"{server.url}?timeout={GIVES_UP:g}s", ttl=LONG) as locks,
        fencepost.connect(server.url, ttl=LONG) as others,
    ):
        kept, below = locks.acquire("kept"), others.acquire(f"{name}/below")
        lock = locks.lock(name)
        if way != "alone, with a lock below its name":
            lock = locks.shared(name) if way == "shared" else locks.semaphore(name, 2)
        with monkeypatch.context() as patch:
            kill_after_a_put(server, locks, patch)
            with pytest.raises(BackendError):
                lock.acquire()
            assert not server.running
        server.restart()

        def free() -> bool:
            lease = others.try_acquire(name)
            return lease is not None and lease.release()

        until(free, "it is free", poll=0.2)
        for lease in (kept, below):
            lease.check()


async def test_a_key_is_removed_although_the_clean_up_was_cancelled_while_it_waited_for_its_put(server: Etcd) -> None:
    name = secrets.token_hex(4)
    with Proxy(server.port) as proxy:
        async with (
            aio.connect(f"etcd://{proxy.address}?timeout={PATIENCE:g}s", ttl=LONG) as locks,
            aio.connect(server.url, ttl=LONG) as others,
        ):
            kept = await locks.acquire("kept")
            proxy.lose_answer_to(name.encode())
            acquiring = asyncio.create_task(locks.acquire(name))

            async def there() -> bool:
                return await others.status(name) is not None

            await until_async(there, "its key is put", watching=[acquiring])
            acquiring.cancel()
            found = lambda: [task for task in asyncio.all_tasks() if task.get_name() == "fencepost-cleanup"]  # noqa: E731
            [cleaning] = await until_async(found, "it cleans up")
            cleaning.cancel()
            await asyncio.wait([cleaning, acquiring])
            assert cleaning.cancelled()
            assert acquiring.cancelled()
            proxy.heal()
            assert await (await others.acquire(name, timeout=PATIENCE)).release()
            kept.check()


@pytest.mark.parametrize("how", ["kept", "doomed"])
def test_a_renewal_under_way_does_not_take_back_that_a_key_is_to_go(
    server: Etcd, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    name, real = secrets.token_hex(4), Backend._there
    with fencepost.connect(server.url, ttl=LONG) as locks, fencepost.connect(server.url, ttl=LONG) as others:
        lease = locks.acquire(name, renew=False)
        backend = locks._core.backend
        assert isinstance(backend, Backend)

        async def there(self: Backend, timeout: float, contenders: Any) -> list[bool]:
            found = await real(self, timeout, contenders)
            if how == "kept":
                assert await backend.keep(name, lease._stored, lease.token, 1.0)
            else:
                # As a release does that got no answer; the keeper comes to it later than the renewal goes on.
                contenders[0].deadline = backend.driver.now()
            return found

        monkeypatch.setattr(Backend, "_there", there)
        assert run(backend.renew([Hold(name, lease._stored, lease.token, lease.ttl)])) == [Renewal.LOST]
        backend._sessions._service.wake()
        assert others.acquire(name, timeout=PATIENCE).release()
