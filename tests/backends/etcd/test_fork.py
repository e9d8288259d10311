"""Forks beside open connections, streams and threads at work: parent and child both go on with their locks."""

import pytest

from fencepost_lab.servers import QUICK_ETCD, Etcd
from tests import FUZZ
from tests.harness.child import Child

FORKS = 500 if FUZZ else 20

BLOCKING = """
import os, sys, threading
import fencepost

locks = fencepost.connect(sys.argv[1], ttl=300)
held = locks.acquire("held")
waiting = threading.Thread(target=lambda: locks.acquire("held", timeout=300).release(), daemon=True)
waiting.start()
stop = threading.Event()

def work(number):
    while not stop.is_set():
        assert locks.acquire(f"work-{number}", timeout=30).release()

busy = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for each in busy:
    each.start()
streams = locks._core.backend._watches
while streams._stream is None or streams._stream._opened is None:  # until the waiter's stream is open
    pass
stream = streams._stream

for number in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        try:
            mine = locks.acquire("child", timeout=30)
            assert locks.try_acquire("held") is None
            assert locks.acquire(f"{number}", ttl=60).release()
            assert mine.release()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(2)
    assert locks.acquire("parent", timeout=30).release()
    assert os.waitpid(pid, 0)[1] == 0
stop.set()
for each in busy:
    each.join()
assert streams._stream is stream, "no child has touched the parent's stream"
held.check()
assert held.release()
waiting.join(30)
print(waiting.is_alive(), locks._core.backend._rpc.channels.dial, flush=True)
locks.close()
"""

ASYNCIO = """
import asyncio, os, sys
from fencepost import aio

async def child(locks, number):
    mine = await locks.acquire("child", timeout=30)
    assert await locks.try_acquire("held") is None
    assert await (await locks.acquire(f"{number}", ttl=60)).release()
    assert await mine.release()

async def main():
    async with aio.connect(sys.argv[1], ttl=300) as locks:
        held = await locks.acquire("held")
        waiting = asyncio.create_task(locks.acquire("held", timeout=300))
        stop = asyncio.Event()

        async def work(number):
            while not stop.is_set():
                assert await (await locks.acquire(f"work-{number}", timeout=30)).release()

        busy = [asyncio.create_task(work(number)) for number in range(3)]
        streams = locks._core.backend._watches
        while streams._stream is None or streams._stream._opened is None:
            await asyncio.sleep(0)
        stream, links = streams._stream, dict(locks._core.backend._rpc.channels._links)
        for number in range(int(sys.argv[2])):
            pid = os.fork()
            if pid == 0:
                try:
                    asyncio.run(child(locks, number))
                    os._exit(0)
                except BaseException as error:
                    print(repr(error), file=sys.stderr, flush=True)
                    os._exit(2)
            assert await (await locks.acquire("parent", timeout=30)).release()
            assert (await asyncio.to_thread(os.waitpid, pid, 0))[1] == 0
        stop.set()
        await asyncio.gather(*busy)
        assert streams._stream is stream, "no child has touched the parent's stream"
        assert locks._core.backend._rpc.channels._links == links, "nor its connection"
        held.check()
        assert await held.release()
        assert await (await waiting).release()
        print(False, locks._core.backend._rpc.channels.dial, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("program", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
def test_parent_and_child_go_on_with_their_locks(program: str) -> None:
    with Etcd(args=QUICK_ETCD) as server, Child.python("-c", program, server.url, str(FORKS)) as child:
        assert child.succeed(120 if FUZZ else 60) == ["False 0"]
