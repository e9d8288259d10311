"""etcd's methods, and what their failures mean."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from fencepost.backends.etcd.proto import etcd_pb2 as pb
from fencepost.errors import BackendError

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


@dataclass(frozen=True)
class Method(Generic[Q, R]):
    """One of etcd's methods: its path on the wire, and what it answers."""

    path: str
    answer: type[R]
    fits: Callable[[Any, R], bool]
    """Whether this may be the answer to the request: a message of any kind, even an empty one, can be read as one."""


def _stamped(_: Any, answer: Any) -> bool:
    return bool(answer.header.revision)


_ANSWERS = {f"request_{each}": f"response_{each}" for each in ("range", "put", "delete_range")}


def _each_answered(request: pb.TxnRequest, answer: pb.TxnResponse) -> bool:
    done, answers = request.failure if request.compare and not answer.succeeded else request.success, answer.responses
    if not answer.header.revision or len(answers) != len(done):
        return False
    return all(
        _ANSWERS[each.WhichOneof("request") or ""] == found.WhichOneof("response")
        for each, found in zip(done, answers, strict=True)
    )


RANGE = Method[pb.RangeRequest, pb.RangeResponse]("/etcdserverpb.KV/Range", pb.RangeResponse, _stamped)
TXN = Method[pb.TxnRequest, pb.TxnResponse]("/etcdserverpb.KV/Txn", pb.TxnResponse, _each_answered)
GRANT = Method[pb.LeaseGrantRequest, pb.LeaseGrantResponse](
    "/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse, lambda _, answer: answer.ID != 0 and answer.TTL > 0
)
REVOKE = Method[pb.LeaseRevokeRequest, pb.LeaseRevokeResponse](
    "/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse, _stamped
)
TIME_TO_LIVE = Method[pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse](
    "/etcdserverpb.Lease/LeaseTimeToLive",
    pb.LeaseTimeToLiveResponse,
    lambda request, answer: answer.ID == request.ID,
)
KEEP_ALIVE = Method[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse](
    "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveResponse, lambda _, answer: answer.ID != 0
)
WATCH = Method[pb.WatchRequest, pb.WatchResponse]("/etcdserverpb.Watch/Watch", pb.WatchResponse, _stamped)
AUTHENTICATE = Method[pb.AuthenticateRequest, pb.AuthenticateResponse](
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateResponse, lambda _, answer: bool(answer.token)
)
MEMBERS = Method[pb.MemberListRequest, pb.MemberListResponse](
    "/etcdserverpb.Cluster/MemberList", pb.MemberListResponse, lambda _, answer: bool(answer.members)
)
STATUS = Method[pb.StatusRequest, pb.StatusResponse](
    "/etcdserverpb.Maintenance/Status", pb.StatusResponse, lambda _, answer: bool(answer.version)
)


class Outage(BackendError):
    """Nobody answered in time; another try may do better."""


class LeaseGone(BackendError):
    """etcd does not know the lease, or knows it no longer."""


class HungUp(grpc.RpcError):
    """The connection was closed under a call that was about to be sent."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "failed to connect in time: hung up"


class Unfit(grpc.RpcError):
    """What came is no answer to the request; nobody knows whether that was carried out."""

    def __init__(self, method: Method[Any, Any]) -> None:
        self._method = method.path.rpartition("/")[2]

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INTERNAL

    def details(self) -> str:
        return f"this is no answer to {self._method}; does the URL name an etcd?"


class Sent:
    """What may still become of a request that must not take effect unnoticed."""

    __slots__ = ("doubtful", "pending")

    def __init__(self) -> None:
        self.doubtful = False
        """Some try of it failed, and may have reached the store, or may reach it yet."""
        self.pending: Any = None
        """The try that was under way when its caller was cancelled: it goes on."""


class Fault(NamedTuple):
    """What a failed call means."""

    passing: bool
    ambiguous: bool
    login: bool
    silent: bool
    words: str

    @classmethod
    def of(cls, error: grpc.RpcError) -> "Fault":
        code: grpc.StatusCode = error.code()
        words = (error.details() or "").partition("\n")[0]  # gRPC may add the raw bytes of an address
        low = words.lower()
        asked = ("auth token", "auth store is old", "user name is empty")
        login = code is grpc.StatusCode.UNAUTHENTICATED or any(sign in low for sign in asked)
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
            unsent = ("failed to connect", "refused", "no leader", "name resolution", "dns", "too many requests")
            sent = not any(sign in low for sign in unsent)
            full = code is grpc.StatusCode.RESOURCE_EXHAUSTED and sent
            return cls(not full, sent and not full, login, False, f"{words or code.name}")
        lost = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)
        passing = code in (*lost, grpc.StatusCode.INTERNAL)
        silent = code is grpc.StatusCode.DEADLINE_EXCEEDED
        return cls(passing, passing, login, silent, f"{words} ({code.name.lower().replace('_', ' ')})")
