"""etcd's methods, and what their failures mean."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from fencepost.backends.etcd import messages as pb
from fencepost.backends.etcd.codec import DecodeError, Message
from fencepost.backends.etcd.http2 import Call
from fencepost.backends.etcd.status import Code, Failure
from fencepost.errors import BackendError


class Request(Protocol):
    def encode(self) -> bytes: ...


Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Message)


@dataclass(frozen=True)
class Method(Generic[Q, R]):
    """One of etcd's methods: its path, and the type of its answer."""

    path: str
    answer: type[R]
    fits: Callable[[Any, R], bool]
    """Whether this can be the answer to the request: another message, even an empty one, also decodes without error."""

    def read(self, request: Any, data: bytes) -> R:
        """The answer to the request; Failure if it is none: then it is unknown whether the request was executed."""
        try:
            answer = self.answer.decode(data)
            if self.fits(request, answer):
                return answer
        except DecodeError:
            pass
        name = self.path.rpartition("/")[2]
        raise Failure(Code.INTERNAL, f"this is no answer to {name}; does the URL name an etcd?")


def _stamped(_: Any, answer: Any) -> bool:
    return bool(answer.header.revision)


def _each_answered(request: pb.TxnRequest | pb.Prepared, answer: pb.TxnResponse) -> bool:
    return bool(answer.header.revision) and _all_answered(request, answer)


def _all_answered(request: pb.TxnRequest | pb.Prepared, answer: pb.TxnResponse) -> bool:
    done, answers = request.failure if request.compare and not answer.succeeded else request.success, answer.responses
    return len(answers) == len(done) and all(map(_answered, done, answers))


def _each_of_them_answered(request: pb.NestedRequest, answer: pb.NestedResponse) -> bool:
    asked, answers = request.success, answer.responses
    if not answer.header.revision or len(answers) != len(asked):
        return False
    return all(
        inner.response_txn is not None and _all_answered(each.request_txn, inner.response_txn)
        for each, inner in zip(asked, answers, strict=True)
    )


def _answered(each: pb.RequestOp, found: pb.ResponseOp) -> bool:
    if each.request_range is not None:
        return found.response_range is not None
    if each.request_put is not None:
        return found.response_put is not None
    return found.response_delete_range is not None


RANGE = Method[pb.RangeRequest, pb.RangeResponse]("/etcdserverpb.KV/Range", pb.RangeResponse, _stamped)
TXN = Method[pb.TxnRequest | pb.Prepared, pb.TxnResponse]("/etcdserverpb.KV/Txn", pb.TxnResponse, _each_answered)
TXNS = Method[pb.NestedRequest, pb.NestedResponse](TXN.path, pb.NestedResponse, _each_of_them_answered)
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
    """etcd did not answer in time, or could not; a retry may succeed."""


class LoginRefused(Outage):
    """There are no credentials, or etcd rejects them; ``credentials=`` may return valid ones later."""


class LeaseGone(BackendError):
    """etcd does not know the lease, or knows it no longer."""


class Sent:
    """Whether a request may still take effect. For requests that must not take effect unnoticed."""

    __slots__ = ("doubtful", "pending")

    def __init__(self) -> None:
        self.doubtful = False
        """An attempt failed, and its request may have reached the store, or may reach it later."""
        self.pending: Call | None = None
        """The attempt that was in flight when its caller was cancelled: it goes on."""


class Fault(NamedTuple):
    """What a failed call means."""

    passing: bool
    ambiguous: bool
    """The request may have been executed, or may be executed later."""
    login: bool
    silent: bool
    words: str
    done: bool = False
    """The request may have been executed, but will not be executed later."""

    @classmethod
    def of(cls, error: Failure) -> "Fault":
        code = error.code
        words = error.words.partition("\n")[0]
        low = words.lower()
        asked = ("auth token", "auth store is old", "user name is empty")
        login = code is Code.UNAUTHENTICATED or any(sign in low for sign in asked)
        if code in (Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED):
            # etcd's grpc-proxy reports in these words that it could not connect, or was refused.
            unsent = ("failed to connect", "refused", "no leader", "name resolution", "dns", "too many requests")
            sent = not error.unsent and not any(sign in low for sign in unsent)
            full = code is Code.RESOURCE_EXHAUSTED and sent
            # The request with which the store exceeds its quota is executed, although etcd answers with this error.
            done = full and "space exceeded" in low
            return cls(not full, sent and not full, login, False, f"{words or code.name}", done)
        lost = (Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.UNKNOWN)
        passing = code in (*lost, Code.INTERNAL)
        silent = code is Code.DEADLINE_EXCEEDED
        said = f"{words} ({code.name.lower().replace('_', ' ')})"
        return cls(passing, passing and not error.unsent, login, silent, said)
