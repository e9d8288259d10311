"""Held locks in etcd, in the backend's layout: name/<lease id in hex> -> holder, each under a lease of its own.

fencepost itself shares one lease among all locks of a process; a million locks of a million holders need a
million leases, and that is what is to be seen here.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import ceil

from fencepost.address import Address
from fencepost.backends.etcd import keys as etcd_keys
from fencepost.backends.etcd import messages as pb
from fencepost.backends.etcd.methods import GRANT, RANGE, STATUS, TXN
from fencepost.backends.etcd.rpc import Rpc
from fencepost.driver import run
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError
from fencepost_lab.gen.ground import Facts, Laid
from fencepost_lab.gen.keys import PREFIX, Batch

_MOST = 100  # puts in one transaction; etcd takes no more than 128 operations
_AT_ONCE = 32  # leases asked for at the same time


class EtcdGround:
    """Leases are granted many at a time; each batch's keys are put in one transaction, in order."""

    size = "db_size"

    def __init__(self, address: Address) -> None:
        self._rpc = Rpc(address, Blocking())
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="gen")

    def progress(self, seed: int) -> int:
        found = run(self._rpc.call(RANGE, pb.RangeRequest(key=_progress(seed)))).kvs
        return int(found[0].value) if found else 0

    def lay(self, batches: Iterable[Batch], seed: int, ttl: float) -> Iterator[Laid]:
        for batch in batches:
            for first in range(0, len(batch.names), _MOST):
                part = slice(first, first + _MOST)
                end = min(first + _MOST, len(batch.names)) - len(batch.names) + batch.end
                yield self._lay(batch.names[part], batch.holders[part], end, seed, ttl)

    def _lay(self, names: list[str], holders: list[str], end: int, seed: int, ttl: float) -> Laid:
        leases = [_lease(holder) for holder in holders]
        list(self._pool.map(lambda lease: self._grant(lease, ttl), leases))
        keys = [etcd_keys.prefix(name) + b"%x" % lease for name, lease in zip(names, leases, strict=True)]
        puts = [_put(*each) for each in zip(keys, holders, leases, strict=True)]
        # It expires with the last lock that it counts: there is nothing to go on with after that.
        note = _put(_progress(seed), str(end), leases[-1])
        compare, look = [etcd_keys.created(key, 0) for key in keys], [etcd_keys.own(key) for key in keys]
        answer = self._txn(pb.TxnRequest(compare=compare, success=[*puts, note], failure=look))
        if answer.succeeded:
            return Laid(len(puts), len(puts))
        missing = [put for put, at in zip(puts, answer.responses, strict=True) if not at.kvs]
        self._txn(pb.TxnRequest(success=[*missing, note]))
        return Laid(len(puts), len(missing))

    def facts(self) -> Facts:
        status = run(self._rpc.call(STATUS, pb.StatusRequest()))
        locks = pb.RangeRequest(key=PREFIX.encode(), range_end=etcd_keys.end(PREFIX.encode()), count_only=True)
        return {
            "expiring": run(self._rpc.call(RANGE, locks)).count,
            "revision": status.header.revision,
            "db_size": status.dbSize,
            "db_size_in_use": status.dbSizeInUse,
            "raft_index": status.raftIndex,
        }

    def close(self) -> None:
        self._pool.shutdown()
        self._rpc.channels.close()

    def _txn(self, request: pb.TxnRequest) -> pb.TxnResponse:
        return run(self._rpc.call(TXN, request))

    def _grant(self, lease: int, ttl: float) -> None:
        try:
            run(self._rpc.call(GRANT, pb.LeaseGrantRequest(ID=lease, TTL=ceil(ttl))))
        except BackendError as error:
            if "already exists" not in str(error):  # an earlier try of this run, or of one that was killed
                raise


def _put(key: bytes, value: str, lease: int) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value.encode(), lease=lease))


def _progress(seed: int) -> bytes:
    return b"fencepost-gen-%d" % seed  # no slash: no lock's key


def _lease(holder: str) -> int:
    """The lease of a holder; the same again for one who goes on after a kill, so that the keys are the same."""
    return int(holder[:16], 16) >> 1 or 1
