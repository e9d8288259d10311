"""The locks of an etcd cluster as every client sees them, and breaking them by force."""

from fencepost.backend import LOOK, Status
from fencepost.backends.base import Base
from fencepost.backends.etcd import keys
from fencepost.backends.etcd import messages as pb
from fencepost.backends.etcd.methods import RANGE, TIME_TO_LIVE, TXN
from fencepost.backends.etcd.rpc import Rpc
from fencepost.backends.etcd.watch import Watches
from fencepost.backends.sharing import waiting
from fencepost.driver import Driver

_PAGE = 5000


async def contenders(rpc: Rpc, name: str, *, keys_only: bool = True) -> list[keys.KV]:
    """All contenders for a lock, the holder first."""
    found = await rpc.call(RANGE, keys.contenders(name, keys_only=keys_only))
    start = keys.prefix(name)
    return [kv for kv in found.kvs if keys.contends(kv, start)]


async def _base(rpc: Rpc, name: str) -> Base:
    return keys.read_base(name, (await rpc.call(RANGE, keys.base_of(name))).kvs)


async def status(rpc: Rpc, name: str | None, prefix: str) -> list[Status]:
    """One lock, or all whose names begin with ``prefix``."""
    if name is not None:
        found = await contenders(rpc, name, keys_only=False)
        by_lock = {name: found} if found else {}
        bases = {name: await _base(rpc, name)} if found else {}
    else:
        by_lock, bases = await _all(rpc, prefix)
    left: dict[int, float] = {}  # by lease: the locks of one process share its session
    statuses = []
    for each, known in sorted(by_lock.items()):
        waiters = waiting(known, keys.limit)
        holding = known[: len(known) - len(waiters)]
        for kv in holding:
            if kv.lease not in left:
                left[kv.lease] = await _left(rpc, kv.lease)
        if remaining := max(left[kv.lease] for kv in holding):
            base = bases.get(each) or Base("etcd", each)
            token, told = base.token(holding[-1].create_revision), tuple(map(keys.holder, holding))
            sharers = told if keys.limit(holding[0]) else ()
            statuses.append(Status(each, told[0], token, remaining, tuple(map(keys.holder, waiters)), sharers))
    return statuses


async def _left(rpc: Rpc, lease: int) -> float:
    """How long a lease lives; 0 if it is gone."""
    answer = await rpc.call(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=lease))
    if answer.TTL < 0:
        return 0.0
    # etcd rounds the remaining time down. Only after the whole second is the lease certainly gone.
    return min(float(answer.TTL + 1), float(answer.grantedTTL))


async def changed(rpc: Rpc, watches: Watches, driver: Driver, name: str, token: int | None) -> None:
    """Return once the lock may have another holder than the one with ``token``."""
    found = await rpc.call(RANGE, keys.contenders(name))
    start = keys.prefix(name)
    first = next((kv for kv in found.kvs if keys.contends(kv, start)), None)
    if first and keys.limit(first):
        await driver.sleep(LOOK)
        return
    if ((await _base(rpc, name)).token(first.create_revision) if first else None) != token:
        return
    signal = driver.signal()
    key, until = (first.key, b"") if first else (start, keys.end(start))
    watch = watches.add(key, found.header.revision + 1, signal, until, puts=not first)
    try:
        await signal.wait()
        if watch.refused:
            await driver.sleep(LOOK)
    finally:
        watches.remove(watch)


async def _all(rpc: Rpc, prefix: str) -> tuple[dict[str, list[keys.KV]], dict[str, Base]]:
    """The contenders for each lock under a prefix, the holder first; and the bases of their tokens."""
    start = prefix.encode()
    by_lock: dict[str, list[keys.KV]] = {}
    bases: dict[str, keys.KV] = {}
    request = pb.RangeRequest(key=start or b"\0", range_end=keys.end(start), limit=_PAGE)
    while True:
        page = await rpc.call(RANGE, request)
        for kv in page.kvs:
            # A leased key that fencepost did not write may be anything; below a lock's name it contends for that lock.
            if kv.lease:
                by_lock.setdefault(keys.name(kv.key), []).append(kv)
            elif kv.key.endswith(keys.BASE):
                bases[kv.key.removesuffix(keys.BASE).decode(errors="replace")] = kv
        if not page.more:
            break
        request.key = page.kvs[-1].key + b"\0"
    found = {
        name: sorted(contenders, key=lambda kv: kv.create_revision)
        for name, contenders in by_lock.items()
        if name and name.startswith(prefix) and any(map(keys.native, contenders))
    }
    return found, {name: keys.read_base(name, [bases[name]]) for name in found if name in bases}


async def break_lock(rpc: Rpc, name: str) -> Status | None:
    """Delete the key of the holder, or the keys of all sharers; return the hold that this ended."""
    for found in await status(rpc, name, ""):
        ended = False
        base = await _base(rpc, name)
        for kv in await contenders(rpc, name, keys_only=False):
            if base.token(kv.create_revision) == found.token or keys.holder(kv) in found.sharers:
                ended |= (await rpc.call(TXN, keys.remove(kv.key, revision=kv.create_revision))).succeeded
        return found if ended else None
    return None
