"""A guard for etcd: the mark is a key of its own, compared and raised in the same transaction as yours.

    guard = EtcdGuard("http://127.0.0.1:2379")
    guard.write("account/42", b"...", lease)                 # a value, plain under its key
    guard.transact("account/42", lease, success=[...])       # a transaction of your own, fenced

With another client: take a ``ticket``, and put its condition and its put into your transaction.

It speaks etcd's JSON gateway (3.4 and newer) over the standard library's HTTP, so it needs no client of etcd.
"""

import base64
import http.client
import json
import ssl
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from fencepost.driver.fork import in_child
from fencepost.driver.sockets import silent
from fencepost.errors import BackendError, ConfigError
from fencepost.events import Hook
from fencepost.guards import cas
from fencepost.guards.envelope import Content, pack, unpack
from fencepost.guards.policy import Policy
from fencepost.lease import AMBIENT, FenceOrAmbient
from fencepost.rule import Verdict, raised

__all__ = ["EtcdGuard", "Ticket"]

Json = dict[str, Any]


def text(value: str | bytes) -> str:
    """Bytes as the gateway's JSON carries them."""
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


class Ticket(NamedTuple):
    """What fences a transaction of yours: it may happen only while the mark's key is at ``revision``.

    ``compare`` and ``put`` are in the gateway's JSON; with another client use key, revision and value. If the
    transaction fails on this condition, another access was admitted first: take another ticket.
    """

    key: bytes
    revision: int
    value: bytes

    @property
    def compare(self) -> Json:
        """The condition: no other access was admitted since."""
        return _unchanged(text(self.key), self.revision)

    @property
    def put(self) -> Json:
        """The operation that raises the mark."""
        return {"requestPut": {"key": text(self.key), "value": text(self.value)}}


class _Version(NamedTuple):
    """The revisions of a mark and its value, 0 where there is none, and what else the next write needs."""

    mark: int
    data: int
    earlier: int | None
    """The revision of the old mark key, which did not contain the prefix; None if that key does not count."""
    value: bytes | None
    of: bytes
    """The data key that the mark names. Old marks name none: they may belong to any prefix, and stay so."""


class EtcdGuard(cas.Guard):
    """The guarded keys under ``prefix``; the mark of each is the key of the same name under ``marks``.

    So guards with different prefixes have marks of their own, and guards that write to the same key share its mark. All
    of them need the same ``marks``: a guard with another one does not see what the others admitted.

    Give a prefix of your own where the same etcd holds locks: without one, the value of ``account/42/x`` is a key below
    the lock ``account/42``, and `etcdctl lock` and Go's Mutex take it for an older contender that never goes away.

    ``endpoints`` are tried in turn. ``headers`` go with every request, such as an Authorization. A forked child
    opens connections of its own.

        guard = EtcdGuard("http://127.0.0.1:2379", prefix="config/")
        guard.write("limits", b"100", lease)
    """

    source = "etcd"

    def __init__(
        self,
        *endpoints: str,
        prefix: str = "",
        marks: str = "fencepost/mark/",
        timeout: float = 10.0,
        context: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        hooks: Iterable[Hook] = (),
        policy: Policy | None = None,
    ) -> None:
        super().__init__(hooks, policy)
        parsed = [urlsplit(endpoint) for endpoint in endpoints]
        if not parsed or not all(map(_is_endpoint, parsed)):
            # Do not repeat the endpoints in the message: they may contain a password.
            raise ConfigError(
                "etcd's endpoints are written like http://127.0.0.1:2379; a user goes into headers= as Authorization"
            )
        self._endpoints = [(endpoint.scheme, endpoint.netloc) for endpoint in parsed]
        self._prefix = prefix
        self._marks = marks
        self._timeout = timeout
        self._context = context
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._turn = 0
        self._idle: deque[http.client.HTTPConnection] = deque()  # shared by threads, each of which takes one
        # Two processes on one connection would read each other's answers. Closing the child's copy sends nothing.
        in_child(self, EtcdGuard.close)

    def ticket(self, resource: str, lease: FenceOrAmbient = AMBIENT) -> Ticket | None:
        """What admits one transaction of yours; None where the policy lets everything pass.

        Raises the Refused of the verdict.
        """
        access = self._access(resource, lease, "write")
        if not access.judged:
            return None
        while (found := self._load(resource)).version.earlier and found.content.mark:
            self._save(resource, *found)  # a ticket has only one condition, so first move an old mark to its new key
        content, version = found
        stamp = access.take()
        verdict = access.weigh(content.mark, stamp)
        access.conclude(content.mark, stamp, verdict)
        after = Content(raised(content.mark, stamp), None, b"") if verdict is Verdict.ADMIT else content
        return Ticket(self._mark_key(resource), version.mark, pack(after._replace(value=version.of)))

    def transact(
        self,
        resource: str,
        lease: FenceOrAmbient = AMBIENT,
        *,
        compare: Sequence[Json] = (),
        success: Sequence[Json] = (),
    ) -> Json | None:
        """Run a transaction of yours, in the gateway's JSON: its answer, or None if your ``compare`` did not hold."""
        for _ in self._tries(resource):
            ticket = self.ticket(resource, lease)
            fence, raises = ([ticket.compare], [ticket.put]) if ticket else ([], [])
            answer = self._ask("txn", {"compare": [*fence, *compare], "success": [*success, *raises]})
            if answer.get("succeeded"):
                return answer
            if ticket is None or self._load(resource).version.mark == ticket.revision:
                return None
        raise AssertionError("unreachable")

    def _load(self, resource: str) -> cas.Found:
        keys = [self._mark_key(resource), self._data_key(resource)]
        if self._prefix:
            keys.append(self._earlier_key(resource))
        # One transaction, so that all values are of the same moment.
        answer = self._ask("txn", {"success": [{"requestRange": {"key": text(key)}} for key in keys]}, reads=True)
        mark, data, *rest = (each["response_range"].get("kvs", [None])[0] for each in answer["responses"])
        content, earlier = _content(mark), None
        of = content.value or b"" if mark else keys[1]
        if rest and not mark and not (before := _content(rest[0])).value:  # a mark that names a key is for that alone
            content, earlier = before, _revision(rest[0])
        value = None if data is None else base64.b64decode(data.get("value", ""))
        return cas.Found(content._replace(value=value), _Version(_revision(mark), _revision(data), earlier, value, of))

    def _save(self, resource: str, content: Content, version: _Version) -> bool:
        mark, data = (text(key) for key in (self._mark_key(resource), self._data_key(resource)))
        compare = [_unchanged(mark, version.mark), _unchanged(data, version.data)]
        if version.earlier is not None:
            compare.append(_unchanged(text(self._earlier_key(resource)), version.earlier))
        success: list[Json] = []
        # An enter does not write the value, so that watchers of its key get no event.
        if content.value != version.value:
            # A value that is attached to an etcd lease stays attached.
            leased = {"ignore_lease": True} if version.value is not None else {}
            write = {"requestPut": {"key": data, "value": text(content.value or b""), **leased}}
            success.append({"requestDeleteRange": {"key": data}} if content.value is None else write)
        if content.mark is not None:
            success.append({"requestPut": {"key": mark, "value": text(pack(content._replace(value=version.of)))}})
        return bool(self._ask("txn", {"compare": compare, "success": success}).get("succeeded"))

    def _mark_key(self, resource: str) -> bytes:
        return self._marks.encode() + self._data_key(resource)

    def _earlier_key(self, resource: str) -> bytes:
        """The old mark key, which did not contain the prefix."""
        return (self._marks + resource).encode()

    def _data_key(self, resource: str) -> bytes:
        key = self._prefix + resource
        if key.startswith(self._marks):
            raise ConfigError(
                f"the value of {resource!r} would be in the place of a mark; give prefix=, or other marks="
            )
        return key.encode()

    def _ask(self, call: str, body: Json, *, reads: bool = False) -> Json:
        for left in reversed(range(len(self._endpoints) + 1)):
            connection: http.client.HTTPConnection | None = None
            sent = False
            try:
                connection = self._take()  # for https it reads files
                if connection.sock is None:
                    connection.connect()
                sent = True
                connection.request("POST", f"/v3/kv/{call}", json.dumps(body), self._headers)
                response = connection.getresponse()
                data = response.read()
            except (OSError, http.client.HTTPException) as error:
                if connection is not None:
                    connection.close()
                self.close()  # the idle connections may be broken for the same reason
                self._turn += 1
                # A request that was not sent, or that only reads, may be sent to the next endpoint.
                if left and (reads or not sent):
                    continue
                raise BackendError(
                    f"etcd did not answer: {type(error).__name__}", backend="etcd", ambiguous=sent and not reads
                ) from error
            if response.status != 200:
                self._idle.append(connection)
                # etcd carries out a write that exceeds its quota, although it refuses it.
                unsure = response.status >= 500 or b"space exceeded" in data
                raise BackendError(f"etcd refused: {data[:200]!r}", backend="etcd", ambiguous=unsure and not reads)
            answer = _answer(body, data)
            if answer is None:
                connection.close()
                raise BackendError(
                    f"this is no answer to a transaction of etcd's; does the URL name its gateway? {data[:200]!r}",
                    backend="etcd",
                    ambiguous=not reads,
                )
            self._idle.append(connection)
            return answer
        raise AssertionError("unreachable")

    def _take(self) -> http.client.HTTPConnection:
        with suppress(IndexError):  # none is idle
            while True:
                idle = self._idle.pop()
                if idle.sock is None or silent(idle.sock):
                    return idle
                idle.close()
        scheme, server = self._endpoints[self._turn % len(self._endpoints)]
        if scheme == "https":
            return http.client.HTTPSConnection(server, timeout=self._timeout, context=self._context)
        return http.client.HTTPConnection(server, timeout=self._timeout)

    def close(self) -> None:
        """Close the connections."""
        with suppress(IndexError):  # another thread was faster
            while True:
                self._idle.pop().close()


def _unchanged(key: str, revision: int) -> Json:
    """The condition that a key was not changed since a revision; revision 0 means that it does not exist."""
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def _revision(found: Json | None) -> int:
    return int(found["mod_revision"]) if found else 0


def _content(found: Json | None) -> Content:
    return unpack(base64.b64decode(found.get("value", ""))) if found else Content()


def _kind(operation: Json, side: str) -> str:
    """An operation's kind: etcd accepts ``requestPut`` and ``request_put``, and answers ``response_put``."""
    [(name, _)] = operation.items()
    return str(name).replace("_", "").lower().removeprefix(side)


def _answer(asked: Json, data: bytes) -> Json | None:
    """The answer to a transaction; None if this cannot be it, such as the page of some other server."""
    try:
        answer = json.loads(data)
        done = asked["success"] if answer.get("succeeded") or not asked.get("compare") else []
        fits = [_kind(each, "request") for each in done] == [
            _kind(each, "response") for each in answer.get("responses", [])
        ]
        return answer if fits and int(answer["header"]["revision"]) > 0 else None
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _is_endpoint(url: SplitResult) -> bool:
    try:
        port = url.port
    except ValueError:
        return False
    bare = url.hostname and "@" not in url.netloc and url.path in ("", "/") and not url.query
    return url.scheme in ("http", "https") and bool(bare) and port != 0
