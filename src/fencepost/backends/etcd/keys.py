"""The layout of etcd's own Mutex: the keys of contenders, which keys contend, and the transactions on them.

A contender for ``name`` is a key ``name/<lease id in hex>`` with that lease. The key with the smallest create
revision holds the lock; that revision plus the lock's base is the token. A second contender under the same lease
adds its holder's id: ``name/<lease id in hex>-<holder>``. The value is the holder's id; or, as in etcd's own
Election, what a candidate proposes: its metadata, with its id in the key. A sharer's key ends with ``~`` and the
number of sharers that may hold at the same time. A sharer waits while there are exclusive contenders before it, or
that many sharers.

A lock whose tokens were raised has another key ``name~base``, without a lease; see ``backends.base``.

For etcd's own clients every key under ``name/`` is a contender. Here only the direct children with a lease are:
``name/other/<lease>`` belongs to the lock ``name/other``.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from fencepost import holders
from fencepost.backends.base import Base
from fencepost.backends.etcd import messages as pb
from fencepost.backends.etcd.codec import sized, varint
from fencepost.errors import ConfigError

KV: TypeAlias = pb.KeyValue

BASE = b"~base"


def prefix(name: str) -> bytes:
    return f"{name}/".encode()


def end(start: bytes) -> bytes:
    """The end of the range of all keys that begin with ``start``; no name ends in 0xff."""
    return start[:-1] + bytes([start[-1] + 1]) if start else b"\0"


def contends(kv: KV, start: bytes) -> bool:
    """Whether a key under ``start``, the prefix of a name, is a contender for that name."""
    return kv.lease != 0 and b"/" not in kv.key[len(start) :]


def native(kv: KV) -> bool:
    """Whether a key is named after its own lease, as a lock's key is; another key with a lease may be anything."""
    return kv.lease != 0 and kv.key.rpartition(b"/")[2].partition(b"-")[0] == b"%x" % kv.lease


def holder(kv: KV) -> str:
    """The holder id of a contender's key; the lease's id for etcd's own clients, which write no holder id."""
    said = kv.value.decode(errors="replace")
    identity = kv.key.rpartition(b"/")[2].partition(b"-")[2].partition(b"~")[0].decode(errors="replace")
    own = holders.split(said)[0]
    if (own == identity and "@" not in said) or (not identity and holders.ours(own)):
        return said or f"{kv.lease:x}"
    try:
        return holders.compose(identity or f"{kv.lease:x}", said)
    except ConfigError:
        return identity or f"{kv.lease:x}"  # the proposal is not valid as part of a holder


def spell(lock: str, lease: int, holder: str, limit: int | None, *, alone: bool) -> tuple[bytes, bytes]:
    """The key and the value of a contender; ``alone``: no other contender uses the lease's own key."""
    identity, proposal = holders.split(holder)
    key = prefix(lock) + b"%x" % lease
    if proposal or limit or not alone:
        key += b"-" + identity.encode()
    if limit:
        key += b"~%d" % limit
    return key, (proposal or holder).encode()


def limit(kv: KV) -> int | None:
    """How many sharers the sharer with this key allows, itself included; None for an exclusive contender."""
    return limit_of(kv.key)


def limit_of(key: bytes) -> int | None:
    most = key.rpartition(b"/")[2].rpartition(b"~")[2]
    return int(most) if b"~" in key.rpartition(b"/")[2] and most.isdigit() else None


def base_of(lock: str) -> pb.RangeRequest:
    """The request for the base of a lock's tokens."""
    return pb.RangeRequest(key=lock.encode() + BASE)


def base(lock: str) -> pb.RequestOp:
    """The request for the base, as a part of a transaction."""
    return pb.RequestOp(request_range=base_of(lock))


def read_base(lock: str, kvs: Sequence[KV]) -> Base:
    """The base, out of the answer to the request for it."""
    return Base.read("etcd", lock, kvs[0].value, kvs[0].mod_revision) if kvs else Base("etcd", lock)


def raise_base(base: Base, value: bytes) -> pb.TxnRequest:
    """Write a base, unless another client has changed it in the meantime."""
    key = base.name.encode() + BASE
    unchanged = pb.Compare(target=pb.MOD, key=key, mod_revision=base.since)
    return pb.TxnRequest(compare=[unchanged], success=[put(key, value, 0)])


def name(key: bytes) -> str:
    """The lock that a key contends for."""
    return key.rpartition(b"/")[0].decode(errors="replace")


def contenders(lock: str, *, keys_only: bool = True) -> pb.RangeRequest:
    """Everything under a lock's prefix, oldest first."""
    start = prefix(lock)
    return pb.RangeRequest(
        key=start, range_end=end(start), sort_order=pb.ASCEND, sort_target=pb.BY_CREATE, keys_only=keys_only
    )


def first(lock: str, *, keys_only: bool = True) -> pb.RequestOp:
    """The oldest key under a lock's prefix, and the number of keys there."""
    request = contenders(lock, keys_only=keys_only)
    request.limit = 1
    return pb.RequestOp(request_range=request)


def before(lock: str, revision: int) -> pb.RequestOp:
    """The youngest key under a lock's prefix that is older than ``revision``."""
    start = prefix(lock)
    return pb.RequestOp(
        request_range=pb.RangeRequest(
            key=start,
            range_end=end(start),
            limit=1,
            sort_order=pb.DESCEND,
            sort_target=pb.BY_CREATE,
            keys_only=True,
            max_create_revision=revision - 1,
        )
    )


def own(key: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key))


def put(key: bytes, value: bytes, lease: int) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))


def created(key: bytes, revision: int, until: bytes = b"") -> pb.Compare:
    """True if the key, or every key up to ``until``, was created at ``revision``; 0 stands for a missing key."""
    return pb.Compare(target=pb.CREATE, key=key, create_revision=revision, range_end=until)


# The requests of each acquire and release are put together as bytes: to make messages and encode them takes five times
# as long. tests/backends/etcd/test_messages.py checks that both give the same bytes.
_PUT = pb.RequestOp(request_put=pb.PutRequest())
_RANGE = pb.RequestOp(request_range=pb.RangeRequest())
_DELETE = pb.RequestOp(request_delete_range=pb.DeleteRangeRequest())
_ONE = (pb.Compare(),)
_IF, _THEN, _ELSE = b"\x0a", b"\x12", b"\x1a"
_lease = lru_cache(varint)  # one session has many keys


def join(lock: str, key: bytes, value: bytes, lease: int) -> pb.Prepared:
    """Put a contender's key, and read which key is first. A retry finds the key that the first attempt put."""
    name, own = lock.encode(), sized(b"\x0a", key)
    put = sized(b"\x12", own + sized(b"\x12", value) + b"\x18" + _lease(lease))
    # The same request as ``first`` makes, with the range of ``prefix`` and ``end``.
    oldest = sized(b"\x0a", name + b"/") + sized(b"\x12", name + b"0") + b"\x18\x01\x28\x01\x30\x02\x40\x01"
    return pb.Prepared(
        sized(_IF, b"\x10\x01" + sized(b"\x1a", key) + b"\x28\x00")
        + sized(_THEN, put)
        + sized(_THEN, sized(b"\x0a", oldest))
        + sized(_THEN, sized(b"\x0a", sized(b"\x0a", name + BASE)))
        + sized(_ELSE, sized(b"\x0a", own)),
        _ONE,
        (_PUT, _RANGE, _RANGE),
        (_RANGE,),
    )


def release(key: bytes, value: bytes, revision: int) -> pb.Prepared:
    """Delete a key if it still has this value and was created at this revision."""
    named = sized(b"\x1a", key)
    return pb.Prepared(
        sized(_IF, b"\x10\x03" + named + sized(b"\x3a", value))
        + sized(_IF, b"\x10\x01" + named + b"\x28" + varint(revision))
        + sized(_THEN, sized(b"\x1a", sized(b"\x0a", key))),
        _ONE,
        (_DELETE,),
    )


def ask(lock: str, key: bytes, value: bytes, lease: int) -> pb.TxnRequest:
    """Put a contender's key only if there is no other key under the lock's prefix."""
    start = prefix(lock)
    return pb.TxnRequest(
        compare=[created(start, 0, end(start))],
        success=[put(key, value, lease), base(lock)],
        failure=[own(key), first(lock)],
    )


def look(lock: str, key: bytes, revision: int) -> pb.TxnRequest:
    """This contender's own key, the one before it, and the base of the tokens."""
    return pb.TxnRequest(success=[own(key), before(lock, revision), base(lock)])


def look_all(lock: str) -> pb.TxnRequest:
    """All contenders, and the base of the tokens."""
    return pb.TxnRequest(success=[pb.RequestOp(request_range=contenders(lock)), base(lock)])


def remove(key: bytes, value: bytes = b"", revision: int = 0, lock: str = "") -> pb.TxnRequest:
    """Delete a key, if it has this value and create revision, where given; with a ``lock``, read which key is first."""
    compare = [pb.Compare(target=pb.VALUE, key=key, value=value)] if value else []
    if revision:
        compare.append(created(key, revision))
    success = [pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))]
    if lock:
        success.append(first(lock, keys_only=False))
    return pb.TxnRequest(compare=compare, success=success)


def together(requests: Sequence[pb.TxnRequest]) -> pb.NestedRequest:
    """Many transactions in one, each with its own conditions. No two of them may change the same key."""
    return pb.NestedRequest(success=[pb.InnerRequest(request_txn=each) for each in requests])


def present(keys: list[tuple[bytes, int]]) -> pb.TxnRequest:
    """Find each key that exists and was created at its revision."""
    return pb.TxnRequest(
        success=[
            pb.RequestOp(
                request_range=pb.RangeRequest(
                    key=key, keys_only=True, min_create_revision=revision, max_create_revision=revision
                )
            )
            for key, revision in keys
        ]
    )
