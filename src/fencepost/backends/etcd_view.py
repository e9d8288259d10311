"""The locks of an etcd cluster as anybody sees them, and their end by force."""

from fencepost.backend import LOOK, Status
from fencepost.backends import etcd_keys as keys
from fencepost.backends.etcd_rpc import Rpc
from fencepost.backends.etcd_watch import Watches
from fencepost.backends.etcd_wire import RANGE, TIME_TO_LIVE, TXN
from fencepost.backends.proto import etcd_pb2 as pb
from fencepost.drive import Driver

_PAGE = 5000


async def line(rpc: Rpc, name: str, *, keys_only: bool = True) -> list[keys.KV]:
    """All contenders for a lock, the holder first."""
    found = await rpc.call(RANGE, keys.line(name, keys_only=keys_only))
    start = keys.prefix(name)
    return [kv for kv in found.kvs if keys.contends(kv, start)]


async def status(rpc: Rpc, name: str | None, prefix: str) -> list[Status]:
    """One lock, or all whose names begin with ``prefix``."""
    if name is None:
        return [found for each in await _names(rpc, prefix) for found in await status(rpc, each, "")]
    contenders = await line(rpc, name, keys_only=False)
    if not contenders:
        return []
    first = contenders[0]
    left = await rpc.call(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=first.lease))
    if left.TTL < 0:
        return []
    # etcd rounds down what is left; it is gone for certain only after the whole second.
    remaining = min(float(left.TTL + 1), float(left.grantedTTL))
    holder, *waiters = map(keys.holder, contenders)
    return [Status(name, holder, first.create_revision, remaining, tuple(waiters))]


async def changed(rpc: Rpc, watches: Watches, driver: Driver, name: str, token: int | None) -> None:
    """Return once the lock may have another holder than who has ``token``."""
    found = await rpc.call(RANGE, keys.line(name))
    start = keys.prefix(name)
    first = next((kv for kv in found.kvs if keys.contends(kv, start)), None)
    if (first.create_revision if first else None) != token:
        return
    signal = driver.signal()
    key, until = (first.key, b"") if first else (start, keys.end(start))
    watch = watches.add(key, found.header.revision + 1, signal, until=until)
    try:
        await signal.wait()
        if watch.refused:
            await driver.sleep(LOOK)
    finally:
        watches.remove(watch)


async def _names(rpc: Rpc, prefix: str) -> list[str]:
    """The locks under a prefix that somebody contends for."""
    start = prefix.encode()
    names: set[str] = set()
    request = pb.RangeRequest(key=start or b"\0", range_end=keys.end(start), keys_only=True, limit=_PAGE)
    while True:
        page = await rpc.call(RANGE, request)
        names |= {keys.name(kv.key) for kv in page.kvs if keys.native(kv)}
        if not page.more:
            return sorted(name for name in names if name and name.startswith(prefix))
        request.key = page.kvs[-1].key + b"\0"


async def evict(rpc: Rpc, name: str) -> Status | None:
    """Delete the holder's key, whoever it is; the hold that this ended."""
    for found in await status(rpc, name, ""):
        for kv in await line(rpc, name):
            if kv.create_revision == found.token:
                answer = await rpc.call(TXN, keys.remove(kv.key, revision=found.token))
                return found if answer.succeeded else None
    return None
