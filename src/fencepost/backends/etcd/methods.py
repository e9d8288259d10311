"""etcd's methods, and what their failures mean."""

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


RANGE = Method[pb.RangeRequest, pb.RangeResponse]("/etcdserverpb.KV/Range", pb.RangeResponse)
TXN = Method[pb.TxnRequest, pb.TxnResponse]("/etcdserverpb.KV/Txn", pb.TxnResponse)
GRANT = Method[pb.LeaseGrantRequest, pb.LeaseGrantResponse]("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse)
REVOKE = Method[pb.LeaseRevokeRequest, pb.LeaseRevokeResponse](
    "/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse
)
TIME_TO_LIVE = Method[pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse](
    "/etcdserverpb.Lease/LeaseTimeToLive", pb.LeaseTimeToLiveResponse
)
KEEP_ALIVE = Method[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse](
    "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveResponse
)
WATCH = Method[pb.WatchRequest, pb.WatchResponse]("/etcdserverpb.Watch/Watch", pb.WatchResponse)
AUTHENTICATE = Method[pb.AuthenticateRequest, pb.AuthenticateResponse](
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateResponse
)
MEMBERS = Method[pb.MemberListRequest, pb.MemberListResponse]("/etcdserverpb.Cluster/MemberList", pb.MemberListResponse)
STATUS = Method[pb.StatusRequest, pb.StatusResponse]("/etcdserverpb.Maintenance/Status", pb.StatusResponse)


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
