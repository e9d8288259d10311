"""Held locks in etcd, in the backend's layout: name/<lease id in hex> -> holder, each under a lease of its own.

fencepost itself shares one lease among all locks of a process; a million locks of a million holders need a
million leases, and that is what is to be seen here.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from math import ceil
from time import monotonic
from typing import Any

from fencepost.address import Address
from fencepost.backends.etcd import keys as etcd_keys
from fencepost.backends.etcd import messages as pb
from fencepost.backends.etcd.methods import GRANT, KEEP_ALIVE, RANGE, STATUS, TXN
from fencepost.backends.etcd.rpc import Rpc
from fencepost.driver import run
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError
from fencepost_lab.gen.ground import Facts, Laid
from fencepost_lab.gen.keys import PREFIX, Batch, batches

_MOST = 100  # puts in one transaction; etcd takes no more than 128 operations
_AT_ONCE = 32  # leases asked for at the same time
_UNANSWERED = 4000  # keep-alives under way at most
_MOMENT = 0.02  # seconds between two looks at what is due


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


class Keeper:
    """Keeps the first leases of a seed's list alive, each every third of its ttl, as their holders would.

    On one stream to the leader, which answers a keep-alive by itself; another member would have to ask it each time.
    """

    def __init__(self, address: Address, seed: int, ttl: float) -> None:
        self._rpc = Rpc(address, Blocking())
        self.every = ttl / 3
        """Seconds between two keep-alives of a lease; 0 for as many as etcd answers."""
        self._leases = _leases(seed)
        self._due: deque[tuple[float, bytes]] = deque()  # all wait for equally long, so the first is the next
        self._stream: Any = None
        self._under_way = 0
        self.streams = 0
        """How often a stream was opened."""
        self.kept = 0
        """How many leases it keeps."""
        self.answered = 0
        """Keep-alives that were answered."""
        self.lost: set[int] = set()
        """Leases that etcd had ended before their keep-alive came."""

    @property
    def late(self) -> float:
        """By how many seconds the next keep-alive is late."""
        return max(monotonic() - self._due[0][0], 0.0) if self._due else 0.0

    def keep(self, leases: int) -> None:
        """Keep so many from now on; those that are new had their ttl a moment ago."""
        due = monotonic() + self.every
        for lease in islice(self._leases, max(leases - self.kept, 0)):
            message = pb.LeaseKeepAliveRequest(ID=lease).encode()
            self._due.append((due, b"\0" + len(message).to_bytes(4) + message))  # as gRPC frames it
        self.kept = max(self.kept, leases)

    def turn(self) -> None:
        """Send what is due, and take what came, for a moment. BackendError if no member can be reached."""
        if self._stream is None:
            self._stream = self._rpc.stream(KEEP_ALIVE, _leader(self._rpc))
            self._under_way = 0
            self.streams += 1
        socket, call = self._stream
        now, out = monotonic(), []
        while self._due and self._due[0][0] <= now and self._under_way < _UNANSWERED:
            request = self._due.popleft()[1]
            self._due.append((now + self.every, request))
            self._under_way += 1
            out.append(request)
        socket.connection.send(call, b"".join(out))
        socket.flush(now + self._rpc.timeout)
        if socket.wait(_MOMENT):
            socket.drain()
        messages, call.messages = call.messages, []
        for answer in (KEEP_ALIVE.read(None, message) for message in messages):
            if answer.TTL <= 0:
                self.lost.add(answer.ID)
        self._under_way -= len(messages)
        self.answered += len(messages)
        if call.over:  # such as after the leader has changed; what was under way comes again with the next turn of each
            self._rpc.channels.drop(socket)
            self._stream = None

    def close(self) -> None:
        if self._stream is not None:
            self._rpc.channels.drop(self._stream[0])
        self._rpc.channels.close()


def _leases(seed: int) -> Iterator[int]:
    for batch in batches(seed, 0, 1 << 62, 1024):
        yield from map(_lease, batch.holders)


def _leader(rpc: Rpc) -> int:
    """Which member leads, as an index of the hosts; the first if none says so."""
    for member in range(len(rpc.channels.hosts)):
        status = run(rpc.once(STATUS, pb.StatusRequest(), member, rpc.timeout))
        if status.leader == status.header.member_id:
            return member
    return 0


def _put(key: bytes, value: str, lease: int) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value.encode(), lease=lease))


def _progress(seed: int) -> bytes:
    return b"fencepost-gen-%d" % seed  # no slash: no lock's key


def _lease(holder: str) -> int:
    """The lease of a holder; the same again for one who goes on after a kill, so that the keys are the same."""
    return int(holder[:16], 16) >> 1 or 1
