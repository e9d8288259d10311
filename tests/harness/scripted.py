"""A proxy in front of a real server that knows where requests and answers end, and spoils the answer to one of them.

    with Scripted(server.port, Resp) as proxy:
        proxy.plan(CLOSE, "take", 2)    # the second "take" gets no answer, and its connection is closed
        ...
        assert proxy.happened

A request is named by its label, such as a Redis script's name, and by how many of that label came before it, over all
connections: the order of requests with different labels may change from run to run.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache, partial
from typing import Any, NamedTuple, Self

import grpc

from fencepost.backends.redis.scripts import scripts
from fencepost.backends.redlock.members import node_scripts
from fencepost_lab.faults.proxy import Proxy, _Pair
from fencepost_lab.servers.processes import HOST
from tests.harness.proto import etcd_pb2


class End(Enum):
    """What becomes of an answer."""

    COME = auto()
    TWICE = auto()
    HALF = auto()
    """Its first half comes, and then the connection is closed."""
    CLOSE = auto()
    """The connection is closed instead."""
    HOLD = auto()
    """It comes when the proxy is told to let go, or once the client has hung up."""


class Fault(NamedTuple):
    """What happens to one request."""

    name: str
    end: End = End.COME
    asked: bool = True
    """Whether the server gets the request."""
    answer: bytes | None = None
    """What the client gets instead of the server's answer."""
    refusal: tuple[str, str] | None = None
    """The status and the words of a refusal, where the protocol has a place of its own for them."""

    def __repr__(self) -> str:
        return self.name


TWICE = Fault("twice", End.TWICE)
HALF = Fault("half", End.HALF)
SWALLOW = Fault("swallow", End.CLOSE, asked=False)
CLOSE = Fault("close", End.CLOSE)
LATE = Fault("late", End.HOLD)
BREAKS = (TWICE, HALF, SWALLOW, CLOSE, LATE)
"""The faults that work for every protocol."""


def wrong(answers: Mapping[str, bytes]) -> Iterator[Fault]:
    """Faults with answers that do not fit the request: each once if the server did as asked, and once if it did not."""
    for name, answer in answers.items():
        yield Fault(f"done-{name}", answer=answer)
        yield Fault(f"undone-{name}", asked=False, answer=answer)


class Part(NamedTuple):
    """A whole request or answer. Data that is neither has an empty label, and is only passed on."""

    label: str
    data: bytes
    stream: int = 0
    """The number that an answer shares with its request, if answers may come in any order."""


class Dialect(ABC):
    """How one connection's bytes are divided into requests and answers.

    Answers come in the order of the requests, except where each request is a stream.
    """

    @abstractmethod
    def requests(self, buffer: bytearray) -> Iterator[Part]:
        """Take the whole requests out of what a client has sent so far."""

    @abstractmethod
    def answers(self, buffer: bytearray) -> Iterator[Part]:
        """Take the whole answers out of what the server has sent so far."""

    def answer(self, request: bytes, fault: bytes) -> bytes:
        """A fault's answer, made to fit this request."""
        return fault


@dataclass(slots=True)
class _Request:
    fault: Fault | None
    stream: int
    instead: bytes | None = None
    answer: bytes | None = None


class _Talk(_Pair):
    """One client's connection: what it asked, in order, until that is answered."""

    dialect: Dialect

    def start(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.gate = threading.RLock()
        self.open: list[_Request] = []
        self.held = b""


class Plan:
    """Which request is to be spoiled, and how."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._fault: Fault | None = None
        self._label, self._left = "", 0
        self.seen: Counter[str] = Counter()
        """How many requests of each label have come."""
        self.happened = False
        """Whether the planned request came."""

    def plan(self, fault: Fault, label: str, nth: int) -> None:
        """Spoil the n-th request of this label from now on."""
        with self._gate:
            self._fault, self._label, self._left, self.happened = fault, label, nth, False

    def due(self, label: str) -> Fault | None:
        """Count a request that came; return the fault that is planned for it, if any."""
        with self._gate:
            self.seen[label] += 1
            if label == self._label and self._left:
                self._left -= 1
                self.happened = not self._left
                return self._fault if self.happened else None
            return None


class Scripted(Plan, Proxy):
    """Carries requests and answers, and does once what was planned."""

    def __init__(self, target: int, dialect: type[Dialect]) -> None:
        self._dialect = dialect
        Plan.__init__(self)
        Proxy.__init__(self, target)

    def let_go(self) -> None:
        """Deliver the answer that is held back, if there is one."""
        for pair in list(self._pairs):
            assert isinstance(pair, _Talk)
            with pair.gate:
                held, pair.held = pair.held, b""
                with contextlib.suppress(OSError):  # the client has hung up
                    pair.near.sendall(held)

    @property
    def clients(self) -> int:
        """How many connections clients have open."""
        return len(self._pairs)

    def _pair(self, near: socket.socket, far: socket.socket) -> _Pair:
        for each in (near, far):  # answers that were sent in one go are passed on one by one
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        talk = _Talk(near, far, self._gates)
        talk.start(self._dialect())
        return talk

    def _carry(self, pair: _Pair, up: bool) -> None:
        assert isinstance(pair, _Talk)
        source, buffer = pair.near if up else pair.far, bytearray()
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                buffer += data
                parts = (pair.dialect.requests if up else pair.dialect.answers)(buffer)
                with pair.gate:
                    for part in parts:
                        (self._asked if up else self._answered)(pair, part)
        if up and pair.held:
            with pair.gate, contextlib.suppress(OSError):
                pair.near.sendall(pair.held)
        self._over(pair, up)

    def _asked(self, talk: _Talk, part: Part) -> None:
        if not part.label:
            talk.far.sendall(part.data)
            return
        fault = self.due(part.label)
        if fault is not None and not fault.asked and fault.end is End.CLOSE:
            raise ConnectionAbortedError
        request = _Request(fault, part.stream)
        talk.open.append(request)
        if fault is not None and fault.answer is not None:
            request.instead = talk.dialect.answer(part.data, fault.answer)
        if fault is None or fault.asked:
            talk.far.sendall(part.data)
        else:
            request.answer = request.instead
        self._deliver(talk)

    def _answered(self, talk: _Talk, part: Part) -> None:
        if not part.label:
            self._pass_on(talk, part.data)
            return
        request = next(each for each in talk.open if each.answer is None and each.stream == part.stream)
        request.answer = part.data if request.instead is None else request.instead
        self._deliver(talk)

    def _deliver(self, talk: _Talk) -> None:
        for request in tuple(talk.open):
            answer, fault = request.answer, request.fault
            if answer is None:
                if request.stream:
                    continue
                return
            talk.open.remove(request)
            end = End.COME if fault is None else fault.end
            if end is End.CLOSE:
                raise ConnectionAbortedError
            if end is End.HALF:
                talk.near.sendall(answer[: len(answer) // 2])
                raise ConnectionAbortedError
            self._pass_on(talk, answer * 2 if end is End.TWICE else answer, hold=end is End.HOLD)

    def _pass_on(self, talk: _Talk, data: bytes, *, hold: bool = False) -> None:
        if hold or talk.held:  # nothing overtakes what is held back
            talk.held += data
        else:
            talk.near.sendall(data)


class Resp(Dialect):
    """Redis; a script's label is its name."""

    def requests(self, buffer: bytearray) -> Iterator[Part]:
        while (end := _resp_end(buffer, 0)) is not None:
            data = bytes(buffer[:end])
            del buffer[:end]
            words = re.findall(rb"\$\d+\r\n([^\r]*)", data)
            yield Part(_scripts().get(words[1]) or words[0].decode() if words[1:] else words[0].decode(), data)

    def answers(self, buffer: bytearray) -> Iterator[Part]:
        while (end := _resp_end(buffer, 0)) is not None:
            data = bytes(buffer[:end])
            del buffer[:end]
            news = data.startswith(b">") and b"\r\nsubscribe\r\n" not in data
            yield Part("" if news else "answer", data)


def _resp_end(buffer: bytearray, start: int) -> int | None:
    """Where a value of RESP ends; None if it is not whole."""
    line = buffer.find(b"\r\n", start)
    if line < 0:
        return None
    kind, end = buffer[start : start + 1], line + 2
    if kind in b"$=!":
        size = int(buffer[start + 1 : line])
        end += size + 2 if size >= 0 else 0
        return end if end <= len(buffer) else None
    for _ in range(int(buffer[start + 1 : line]) * (2 if kind == b"%" else 1) if kind in b"*%~>" else 0):
        after = _resp_end(buffer, end)
        if after is None:
            return None
        end = after
    return end


@cache
def _scripts() -> dict[bytes, str]:
    every = (*scripts("clock"), *scripts("counter"), *node_scripts())
    return {each.sha.encode(): each.name for each in every}


_REFUSED = (
    "ERR whatever",
    "NOPERM no permission",
    "OOM command not allowed",
    "LOADING Redis is loading",
    "READONLY You can't write",
    "BUSY Redis is busy",
    "NOSCRIPT No matching script",
)
_WRONG = {
    "text": b"+OK\r\n",
    "number": b":7\r\n",
    "list": b"*2\r\n*0\r\n*0\r\n",
    "nothing": b"_\r\n",
    "push": b">1\r\n+a\r\n",
}
RESP = (
    *(Fault(f"refused-{why.split()[0]}", asked=False, answer=f"-{why}\r\n".encode()) for why in _REFUSED),
    *wrong(_WRONG),
    Fault("garbage", answer=b"\x15\x03\x01\x00\x02\x02F\r\n"),
    *BREAKS,
)
"""The faults of one Redis."""


class Http(Dialect):
    """HTTP/1.1; a label is the method, the first two steps of the path, and the verb of a Consul transaction."""

    def requests(self, buffer: bytearray) -> Iterator[Part]:
        while (data := _http_message(buffer)) is not None:
            method, path = data.split(b" ", 2)[:2]
            verb = re.search(rb'"Verb":"([\w-]+)"', data)
            steps = re.split(rb"[/?]", path)[2:4]
            if steps[0] == b"kv":
                steps = [b"keys" if b"?keys=" in path else b"kv"]
            kind = [steps[0], verb[1]] if verb else steps
            waits = [b"waiting"] if b"index=" in path else []
            yield Part(b" ".join([*waits, method, *kind]).decode(), data)

    def answers(self, buffer: bytearray) -> Iterator[Part]:
        while (data := _http_message(buffer)) is not None:
            yield Part("answer", data)


def _http_message(buffer: bytearray) -> bytes | None:
    """Take a message that is whole out of the buffer."""
    end = buffer.find(b"\r\n\r\n") + 4
    if end < 4:
        return None
    head = bytes(buffer[:end]).lower()
    if b"\r\ntransfer-encoding: chunked" in head:
        last = buffer.find(b"0\r\n\r\n", end - 2)
        if last < 0:
            return None
        end = last + 5
    elif size := re.search(rb"\r\ncontent-length: (\d+)", head):
        end += int(size[1])
    if end > len(buffer):
        return None
    data = bytes(buffer[:end])
    del buffer[:end]
    return data


def _http(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nX-Consul-Index: 7\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


_STATUS = ("403 Forbidden", "404 Not Found", "409 Conflict", "429 Too Many Requests", "500 Internal Server Error")
_BODIES = {
    "object": b"{}",
    "list": b"[]",
    "nothing": b"null",
    "objects": b"[{}]",
    "lists": b'{"Results":[[]],"Errors":[[]]}',
    "page": b"<html>",
}
JSON = (
    *(Fault(f"refused-{each.split()[0]}", asked=False, answer=_http(each, b"no")) for each in _STATUS),
    *wrong({name: _http("200 OK", body) for name, body in _BODIES.items()}),
    Fault("garbage", answer=b"\x15\x03\x01\x00\x02\x02F\r\n\r\n"),
    *BREAKS,
)
"""The faults of a server that answers with JSON."""


class Postgres(Dialect):
    """Postgres; a label is the function of fencepost's schema that is called, else the statement's first word."""

    def __init__(self) -> None:
        self._started = self._negotiates = self._ready = False
        self._unit = b""
        self._answer = b""

    def requests(self, buffer: bytearray) -> Iterator[Part]:
        while (data := self._message(buffer, 1 if self._started else 0)) is not None:
            if not self._started:
                self._negotiates = int.from_bytes(data[4:8]) in (80877103, 80877104)
                self._started = not self._negotiates
                yield Part("negotiate" if self._negotiates else "start", data)
            elif data[:1] in b"pX":
                yield Part("", data)
            else:
                self._unit += data
                if data[:1] in b"QS":
                    unit, self._unit = self._unit, b""
                    yield Part(_statement(unit), unit)

    def answers(self, buffer: bytearray) -> Iterator[Part]:
        if self._negotiates and buffer:
            self._negotiates = False
            yield Part("answer", bytes(buffer[:1]))
            del buffer[:1]
        while (data := self._message(buffer, 1)) is not None:
            ends = data[:1] == b"Z"
            if not ends and (not self._ready or (not self._answer and data[:1] in b"ANS")):
                yield Part("", data)  # the server's part of an authentication, or news
                continue
            self._answer += data
            if ends:
                self._ready = True
                answer, self._answer = self._answer, b""
                yield Part("answer", answer)

    def _message(self, buffer: bytearray, start: int) -> bytes | None:
        end = start + int.from_bytes(buffer[start : start + 4])
        if len(buffer) < start + 4 or len(buffer) < end:
            return None
        data = bytes(buffer[:end])
        del buffer[:end]
        return data


def _statement(unit: bytes) -> str:
    if b"PREPARE " in unit:
        return "PREPARE"
    found = re.search(rb"\bfencepost\.(\w+)\(", unit) or re.search(rb"\x00(take|release|hand_over)\x00", unit)
    return (found or re.findall(rb"([A-Za-z]\w+)", unit[5:]))[1 if found else 0].decode()


def _pg(kind: bytes, body: bytes = b"") -> bytes:
    return kind + (len(body) + 4).to_bytes(4) + body


def _pg_refusal(code: str) -> bytes:
    return _pg(b"E", b"SERROR\0VERROR\0C%b\0Mno\0\0" % code.encode()) + _PG_READY


def _pg_row(value: bytes | None) -> bytes:
    column = b"a\0" + bytes(6) + (25).to_bytes(4) + (-1).to_bytes(2, signed=True) + (-1).to_bytes(4, signed=True)
    size = (-1).to_bytes(4, signed=True) if value is None else len(value).to_bytes(4)
    described = _pg(b"T", (1).to_bytes(2) + column + bytes(2))
    return described + _pg(b"D", (1).to_bytes(2) + size + (value or b"")) + _pg(b"C", b"SELECT 1\0") + _PG_READY


_PG_READY = _pg(b"Z", b"I")
POSTGRES = (
    *(Fault(f"refused-{code}", asked=False, answer=_pg_refusal(code)) for code in ("42501", "40001", "57P03", "XX000")),
    *wrong(
        {
            "empty": _pg(b"I") + _PG_READY,
            "text": _pg_row(b"OK"),
            "nothing": _pg_row(None),
        }
    ),
    Fault("garbage", answer=b"\x15\x03\x01\x00\x02\x02F\r\n"),
    *BREAKS,
)
"""The faults of one Postgres."""


class ZooKeeper(Dialect):
    """ZooKeeper; a label is the name of the operation, and "connect" for the first request."""

    def __init__(self) -> None:
        self._connects = self._connected = True

    def requests(self, buffer: bytearray) -> Iterator[Part]:
        while (data := _jute(buffer)) is not None:
            label = "connect" if self._connects else self._name(data)
            self._connects = False
            yield Part(label, data)

    def answers(self, buffer: bytearray) -> Iterator[Part]:
        while (data := _jute(buffer)) is not None:
            news = not self._connected and data[4:8] == b"\xff\xff\xff\xff"
            self._connected = False
            yield Part("" if news else "answer", data)

    def _name(self, data: bytes) -> str:
        return _OPERATIONS.get(int.from_bytes(data[8:12], signed=True), "another")

    def answer(self, request: bytes, fault: bytes) -> bytes:
        body = request[4:8] + bytes(8) + fault
        return len(body).to_bytes(4) + body


_OPERATIONS = {2: "delete", 4: "data", 8: "children", 9: "sync", 15: "create", 19: "container", -11: "close"}


def _jute(buffer: bytearray) -> bytes | None:
    end = 4 + int.from_bytes(buffer[:4])
    if len(buffer) < 4 or len(buffer) < end:
        return None
    data = bytes(buffer[:end])
    del buffer[:end]
    return data


ZOOKEEPER = (
    *(
        Fault(f"refused-{name}", asked=False, answer=code.to_bytes(4, signed=True))
        for name, code in {"system": -1, "noauth": -102, "expired": -112, "unimplemented": -6}.items()
    ),
    *wrong({"empty": bytes(4), "text": bytes(4) + b"OK"}),
    *(each for each in BREAKS if each is not LATE),
)
"""The faults of one ZooKeeper. It may be silent for two thirds of a session's timeout, which is long here."""


class Grpc(Dialect):
    """gRPC, as far as frames of HTTP/2 tell: a label is a call's number on its connection.

    A call's answer is its first frame. Headers are compressed by those before them, so none is left out or changed.
    """

    def __init__(self) -> None:
        self._greets = True
        self._calls = 0
        self._begun: set[int] = set()

    def requests(self, buffer: bytearray) -> Iterator[Part]:
        if self._greets and len(buffer) >= 24:
            self._greets = False
            yield Part("", bytes(buffer[:24]))
            del buffer[:24]
        while not self._greets and (data := _frame(buffer)) is not None:
            self._calls += data[3] == 1
            yield Part(f"call {self._calls}", data, _stream(data)) if data[3] == 1 else Part("", data)

    def answers(self, buffer: bytearray) -> Iterator[Part]:
        while (data := _frame(buffer)) is not None:
            stream = _stream(data)
            first = data[3] in (0, 1) and stream not in self._begun
            self._begun.add(stream)
            yield Part("answer", data, stream) if first else Part("", data)


def _frame(buffer: bytearray) -> bytes | None:
    """Take a frame of HTTP/2 that is whole out of the buffer."""
    end = 9 + int.from_bytes(buffer[:3])
    if len(buffer) < 9 or len(buffer) < end:
        return None
    data = bytes(buffer[:end])
    del buffer[:end]
    return data


def _stream(frame: bytes) -> int:
    return int.from_bytes(frame[5:9]) & 0x7FFFFFFF


class GrpcScripted(Plan):
    """A proxy that speaks gRPC, so that it can refuse a call, or answer it with another message.

    A label is the method's name, and the operations of a transaction: "Txn put range"; "Txns" for one that is
    made of others. A stream's answer is its first.
    """

    def __init__(self, target: int) -> None:
        super().__init__()
        self._calls: set[int] = set()
        self._channel: Any = grpc.insecure_channel(f"{HOST}:{target}")
        self._server = grpc.server(ThreadPoolExecutor(8), handlers=[self._Handler(self)])
        self.address = f"{HOST}:{self._server.add_insecure_port(f'{HOST}:0')}"

    class _Handler(grpc.GenericRpcHandler):
        def __init__(self, proxy: GrpcScripted) -> None:
            self._proxy = proxy

        def service(self, details: grpc.HandlerCallDetails) -> Any:
            path = str(details.method)
            if path.endswith(("/Watch", "/LeaseKeepAlive")):
                return grpc.stream_stream_rpc_method_handler(partial(self._proxy.stream, path))
            return grpc.unary_unary_rpc_method_handler(partial(self._proxy.once, path))

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()
        self._channel.close()

    def let_go(self) -> None:
        """Nothing is ever held back."""

    @property
    def clients(self) -> int:
        """How many calls are under way."""
        return len(self._calls)

    def once(self, path: str, request: bytes, context: Any) -> bytes:
        fault = self._begin(_method(path, request), context)
        answer = b""
        if fault is None or fault.asked:
            forwarded = self._channel.unary_unary(path)
            try:
                answer = forwarded(request, timeout=context.time_remaining(), metadata=_metadata(context))
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
        return answer if fault is None else _spoil(fault, context)

    def stream(self, path: str, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        fault = self._begin(_method(path), context)
        if fault is not None and not fault.asked:
            next(requests)
            yield _spoil(fault, context)
            return
        answers = self._channel.stream_stream(path)(requests, metadata=_metadata(context))
        if not context.add_callback(answers.cancel):
            answers.cancel()
        try:
            for answer in answers:
                yield answer if fault is None else _spoil(fault, context)
                fault = None
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())

    def _begin(self, label: str, context: Any) -> Fault | None:
        self._calls.add(id(context))
        if not context.add_callback(lambda: self._calls.discard(id(context))):
            self._calls.discard(id(context))  # its client is gone already
        return self.due(label)


def _method(path: str, request: bytes = b"") -> str:
    name = path.rpartition("/")[2]
    if name != "Txn":
        return name
    operations = [str(each.WhichOneof("request")) for each in etcd_pb2.TxnRequest.FromString(request).success]
    if set(operations) == {"None"}:
        return "Txns"
    return " ".join([name, *(each.removeprefix("request_") for each in operations)])


def _metadata(context: Any) -> list[tuple[str, str]]:
    return [(key, value) for key, value in context.invocation_metadata() if key in ("hasleader", "token")]


def _spoil(fault: Fault, context: Any) -> bytes:
    if fault.refusal is not None:
        context.abort(grpc.StatusCode[fault.refusal[0]], fault.refusal[1])
    assert fault.answer is not None
    return fault.answer


_LOST = {"timed-out": ("UNAVAILABLE", "etcdserver: request timed out"), "internal": ("INTERNAL", "whatever")}
_ETCD_REFUSED = {
    **_LOST,
    "no-leader": ("UNAVAILABLE", "etcdserver: no leader"),
    "busy": ("RESOURCE_EXHAUSTED", "etcdserver: too many requests"),
    "full": ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded"),
    "denied": ("PERMISSION_DENIED", "etcdserver: permission denied"),
    "login": ("UNAUTHENTICATED", "etcdserver: invalid auth token"),
    "nobody": ("INVALID_ARGUMENT", "etcdserver: user name is empty"),
    "compacted": ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted"),
    "unknown": ("UNIMPLEMENTED", "unknown service"),
}
_HEADER = etcd_pb2.TxnResponse(header=etcd_pb2.ResponseHeader(revision=7)).SerializeToString()
ETCD = (
    *(Fault(f"refused-{name}", asked=False, refusal=refusal) for name, refusal in _ETCD_REFUSED.items()),
    *(Fault(f"done-{name}", refusal=_ETCD_REFUSED[name]) for name in (*_LOST, "full")),
    *wrong({"empty": b"", "header": _HEADER, "text": b"<html>", "garbage": b"\xff" * 16}),
)
"""The faults of one etcd that only a proxy which speaks gRPC can make; the others are those of its connections."""
