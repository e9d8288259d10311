"""etcd's messages, as far as fencepost sends and reads them; the names and numbers are those of etcd's v3 API.

``tests/backends/etcd/test_messages.py`` checks that they have the same bytes as protobuf's own.
"""

from collections.abc import Sequence
from typing import Annotated

from fencepost.backends.etcd.codec import ENUM, UNSIGNED, Message

# How a range is sorted, and by what.
ASCEND, DESCEND = 1, 2
BY_CREATE = 2
# What a condition compares.
CREATE, MOD, VALUE = 1, 2, 3
# What a watch leaves out.
NOPUT, NODELETE = 0, 1


class KeyValue(Message):
    key: Annotated[bytes, 1] = b""
    create_revision: Annotated[int, 2] = 0
    mod_revision: Annotated[int, 3] = 0
    value: Annotated[bytes, 5] = b""
    lease: Annotated[int, 6] = 0


class ResponseHeader(Message):
    member_id: Annotated[int, 2, UNSIGNED] = 0
    revision: Annotated[int, 3] = 0


# KV


class RangeRequest(Message):
    key: Annotated[bytes, 1] = b""
    range_end: Annotated[bytes, 2] = b""
    limit: Annotated[int, 3] = 0
    sort_order: Annotated[int, 5, ENUM] = 0
    sort_target: Annotated[int, 6, ENUM] = 0
    keys_only: Annotated[bool, 8] = False
    count_only: Annotated[bool, 9] = False
    min_create_revision: Annotated[int, 12] = 0
    max_create_revision: Annotated[int, 13] = 0


class RangeResponse(Message):
    header: Annotated[ResponseHeader, 1] = ResponseHeader()
    kvs: Annotated[Sequence[KeyValue], 2] = ()
    more: Annotated[bool, 3] = False
    count: Annotated[int, 4] = 0


class FoundRange(Message):
    """A RangeResponse inside a transaction, which has a header of its own."""

    kvs: Annotated[Sequence[KeyValue], 2] = ()
    count: Annotated[int, 4] = 0


class PutRequest(Message):
    key: Annotated[bytes, 1] = b""
    value: Annotated[bytes, 2] = b""
    lease: Annotated[int, 3] = 0


class PutResponse(Message):
    pass


class DeleteRangeRequest(Message):
    key: Annotated[bytes, 1] = b""
    range_end: Annotated[bytes, 2] = b""


class DeleteRangeResponse(Message):
    deleted: Annotated[int, 2] = 0


class RequestOp(Message):
    """One operation of a transaction: exactly one of these is not None."""

    request_range: Annotated[RangeRequest | None, 1] = None
    request_put: Annotated[PutRequest | None, 2] = None
    request_delete_range: Annotated[DeleteRangeRequest | None, 3] = None


class ResponseOp(Message):
    """The answer to one operation: exactly one of these is not None."""

    response_range: Annotated[FoundRange | None, 1] = None
    response_put: Annotated[PutResponse | None, 2] = None
    response_delete_range: Annotated[DeleteRangeResponse | None, 3] = None

    @property
    def kvs(self) -> Sequence[KeyValue]:
        """The keys that a range found; none, if this is the answer to something else."""
        return () if self.response_range is None else self.response_range.kvs


class Compare(Message):
    """A condition: the key's ``target`` is equal to the one of the five optional fields that is not None."""

    result: Annotated[int, 1, ENUM] = 0
    target: Annotated[int, 2, ENUM] = 0
    key: Annotated[bytes, 3] = b""
    version: Annotated[int | None, 4] = None
    create_revision: Annotated[int | None, 5] = None
    mod_revision: Annotated[int | None, 6] = None
    value: Annotated[bytes | None, 7] = None
    lease: Annotated[int | None, 8] = None
    range_end: Annotated[bytes, 64] = b""


class TxnRequest(Message):
    compare: Annotated[Sequence[Compare], 1] = ()
    success: Annotated[Sequence[RequestOp], 2] = ()
    failure: Annotated[Sequence[RequestOp], 3] = ()


class Prepared:
    """A transaction in encoded form; ``compare``, ``success`` and ``failure`` only show the kind of each part."""

    __slots__ = ("_data", "compare", "failure", "success")

    def __init__(
        self, data: bytes, compare: Sequence[Compare], success: Sequence[RequestOp], failure: Sequence[RequestOp] = ()
    ) -> None:
        self._data = data
        self.compare = compare
        self.success = success
        self.failure = failure

    def encode(self) -> bytes:
        return self._data


class TxnResponse(Message):
    header: Annotated[ResponseHeader, 1] = ResponseHeader()
    succeeded: Annotated[bool, 2] = False
    responses: Annotated[Sequence[ResponseOp], 3] = ()


# A transaction of transactions: each inner transaction is an operation of the outer one, and has its own conditions.


class InnerRequest(Message):
    request_txn: Annotated[TxnRequest, 4] = TxnRequest()


class InnerResponse(Message):
    response_txn: Annotated[TxnResponse | None, 4] = None


class NestedRequest(Message):
    success: Annotated[Sequence[InnerRequest], 2] = ()


class NestedResponse(Message):
    header: Annotated[ResponseHeader, 1] = ResponseHeader()
    responses: Annotated[Sequence[InnerResponse], 3] = ()


# Lease


class LeaseGrantRequest(Message):
    TTL: Annotated[int, 1] = 0
    ID: Annotated[int, 2] = 0


class LeaseGrantResponse(Message):
    header: Annotated[ResponseHeader, 1] = ResponseHeader()
    ID: Annotated[int, 2] = 0
    TTL: Annotated[int, 3] = 0
    error: Annotated[str, 4] = ""


class LeaseRevokeRequest(Message):
    ID: Annotated[int, 1] = 0


class LeaseRevokeResponse(Message):
    header: Annotated[ResponseHeader, 1] = ResponseHeader()


class LeaseKeepAliveRequest(Message):
    ID: Annotated[int, 1] = 0


class LeaseKeepAliveResponse(Message):
    header: Annotated[ResponseHeader, 1] = ResponseHeader()
    ID: Annotated[int, 2] = 0
    TTL: Annotated[int, 3] = 0


class LeaseTimeToLiveRequest(Message):
    ID: Annotated[int, 1] = 0
    keys: Annotated[bool, 2] = False


class LeaseTimeToLiveResponse(Message):
    header: Annotated[ResponseHeader, 1] = ResponseHeader()
    ID: Annotated[int, 2] = 0
    TTL: Annotated[int, 3] = 0
    grantedTTL: Annotated[int, 4] = 0
    keys: Annotated[Sequence[bytes], 5] = ()


# Watch


class Event(Message):
    type: Annotated[int, 1, ENUM] = 0
    kv: Annotated[KeyValue, 2] = KeyValue()


class WatchCreateRequest(Message):
    key: Annotated[bytes, 1] = b""
    range_end: Annotated[bytes, 2] = b""
    start_revision: Annotated[int, 3] = 0
    filters: Annotated[Sequence[int], 5, ENUM] = ()
    watch_id: Annotated[int, 7] = 0


class WatchCancelRequest(Message):
    watch_id: Annotated[int, 1] = 0


class WatchRequest(Message):
    create_request: Annotated[WatchCreateRequest | None, 1] = None
    cancel_request: Annotated[WatchCancelRequest | None, 2] = None


class WatchResponse(Message):
    header: Annotated[ResponseHeader, 1] = ResponseHeader()
    watch_id: Annotated[int, 2] = 0
    created: Annotated[bool, 3] = False
    canceled: Annotated[bool, 4] = False
    compact_revision: Annotated[int, 5] = 0
    cancel_reason: Annotated[str, 6] = ""
    events: Annotated[Sequence[Event], 11] = ()


# Auth, Cluster, Maintenance


class AuthenticateRequest(Message):
    name: Annotated[str, 1] = ""
    password: Annotated[str, 2] = ""


class AuthenticateResponse(Message):
    header: Annotated[ResponseHeader, 1] = ResponseHeader()
    token: Annotated[str, 2] = ""


class Member(Message):
    ID: Annotated[int, 1, UNSIGNED] = 0
    name: Annotated[str, 2] = ""


class MemberListRequest(Message):
    linearizable: Annotated[bool, 1] = False


class MemberListResponse(Message):
    header: Annotated[ResponseHeader, 1] = ResponseHeader()
    members: Annotated[Sequence[Member], 2] = ()


class StatusRequest(Message):
    pass


class StatusResponse(Message):
    header: Annotated[ResponseHeader, 1] = ResponseHeader()
    version: Annotated[str, 2] = ""
    dbSize: Annotated[int, 3] = 0
    leader: Annotated[int, 4, UNSIGNED] = 0
    raftIndex: Annotated[int, 5, UNSIGNED] = 0
    errors: Annotated[Sequence[str], 8] = ()
    dbSizeInUse: Annotated[int, 9] = 0
