"""A Redis server that says anything: to both transports, byte for byte, and to whole locks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import threading
import time
from typing import Any, Self

from hiredis import PushNotification, Reader

import fencepost
from fencepost.backends.redis import answers, pool
from fencepost.backends.redis.connection import GARBAGE, NOTHING, Dial, fitting
from fencepost.backends.redis.scripts import scripts
from fencepost.backends.redis.stream import Stream
from fencepost.errors import BackendError, FencepostError
from fencepost.rule import MAX_TOKEN
from tests.fuzz.spoil import pieces, spoil

HELLO = b"%1\r\n+proto\r\n:3\r\n"
PUSH = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\nhey\r\n"
REFUSED = [b"-NOSCRIPT no\r\n", b"-MOVED 1 h:1\r\n", b"-OOM full\r\n", b"-BUSY x\r\n", b"-LOADING\r\n", b"-ERR x\r\n"]
WORDS = [
    b"\r\n", b"+", b"-", b":", b"$", b"*", b"%", b"~", b">", b"#t\r\n", b",nan\r\n", b"_\r\n", b"(123\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"$99999999999\r\n", b"*99999999999\r\n", b":9223372036854775808\r\n", b"|1\r\n",
    b"%1\r\n*0\r\n:1\r\n", b"~1\r\n*0\r\n", b"*1\r\n" * 12, b"!5\r\nERR x\r\n", PUSH, *REFUSED,
    b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02\x02F",
]  # fmt: skip


def reply(number: int) -> bytes:
    """The answer to one request, which no other request has."""
    text = b"the answer to %d" % number
    return b"$%d\r\n%b\r\n" % (len(text), text)


def _is_text(found: Any) -> bool:
    return found.__class__ is bytes


def dialogue(rng: random.Random, count: int) -> list[bytes]:
    """What a server says to so many requests, in order: answers, refusals, and messages between them."""
    said = []
    for number in range(count):
        while rng.random() < 0.2:
            said.append(PUSH)
        said.append(rng.choice(REFUSED) if rng.random() < 0.15 else reply(number))
    return said


def parsed(data: bytes, fits: Any) -> tuple[list[Any], bool]:
    """What each request must get, by hiredis alone: replies in order, up to the first that answers none."""
    found: list[Any] = []
    reader = Reader(notEnoughData=NOTHING)
    reader.feed(data)
    try:
        while (each := reader.gets()) is not NOTHING:
            if each.__class__ is PushNotification and not answers.subscribed(each):
                continue
            if not fitting(each, fits):
                return found, False
            found.append(each)
    except GARBAGE:
        return found, False
    return found, True


class _Line(asyncio.Transport):
    """A transport without a socket."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream
        self.aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _Unix

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


class _Unix:
    family = socket.AF_UNIX


def dial(timeout: float = 3.0) -> Dial:
    return Dial("redis", None, None, 0, None, 2.0, timeout)


def stream(data: bytes, rng: random.Random | None = None) -> str:
    """Requests of several tasks on one connection: each gets the reply of its place, or an error; each is over."""
    return asyncio.run(_stream(data, rng or random.Random(len(data))))


async def _stream(data: bytes, rng: random.Random) -> str:
    heard: list[Any] = []
    lost: list[Stream] = []
    each = Stream(dial(), ("fuzz", None), heard.append, lost.append)
    line = _Line(each)
    each.connection_made(line)
    calls = [each.call(b"", _is_text) for _ in range(4)]
    for piece in pieces(rng, data):
        if not line.aborted:  # an event loop brings nothing after abort()
            each.get_buffer(-1)[: len(piece)] = piece
            each.buffer_updated(len(piece))
    done = [call.result() for call in calls if call.done()]
    expected, sound = parsed(data, _is_text)
    assert list(map(str, done)) == list(map(str, expected[: len(calls)])), (data, done, expected)
    assert line.aborted == (not sound or len(expected) > len(calls)), data
    each.connection_lost(None)
    assert lost == [each]
    assert all(call.done() for call in calls)
    for call in calls[len(done) :]:
        error = call.exception()
        assert isinstance(error, BackendError)
        assert error.ambiguous
    return "lost" if line.aborted else f"{len(done)} answered"


class _Paired(Dial):
    """Connects to a socket of this process."""

    def socket(self, endpoint: Any) -> socket.socket:
        near: socket.socket = endpoint[0]
        near.settimeout(self.timeout)
        return near


def blocking(rng: random.Random, said: list[bytes]) -> str:
    """One request after the other on a blocking connection: each gets the reply that came after it, or an error."""
    near, far = socket.socketpair()
    with contextlib.closing(near), contextlib.closing(far):
        far.sendall(HELLO)
        connection = pool.Socket(_Paired("redis", None, None, 0, None, 2.0, 0.01), (near, None))  # type: ignore[arg-type]
        for number, data in enumerate(said):
            if not connection.fresh():
                return f"{number} answered"
            far.sendall(data)
            if rng.random() < 0.3 or number == len(said) - 1:
                far.shutdown(socket.SHUT_WR)
            reader = Reader(notEnoughData=NOTHING)
            reader.feed(data)
            try:
                found = connection.call(b"x", _is_text)
            except OSError:
                return f"{number} answered"
            assert str(found) == str(reader.gets()), (data, found)
            assert reader.gets() is NOTHING, data
            with contextlib.suppress(BlockingIOError):
                far.recv(65536, socket.MSG_DONTWAIT)
    return f"{len(said)} answered"


def wire_case(seed: int) -> str:
    rng = random.Random(seed)
    if seed % 4:
        said = b"".join(dialogue(rng, rng.randrange(1, 6)))
        return stream(spoil(rng, said, WORDS) if rng.random() < 0.9 else said, rng)
    said_each = [each for each in dialogue(rng, rng.randrange(1, 5)) if each is not PUSH]
    at = rng.randrange(len(said_each))
    said_each[at] = spoil(rng, said_each[at], WORDS)
    return blocking(rng, said_each)


# A server that lies: what it says can be parsed, and is not what was asked for.

RIGHT: dict[str, list[bytes]] = {
    "take": [
        b"*2\r\n$16\r\n1800000000000000\r\n:1800000000000\r\n",
        b"$16\r\n1800000000000001\r\n",
        b":0\r\n",
        b":-1\r\n",
    ],
    "claim": [b"*2\r\n$16\r\n1800000000000002\r\n:1800000000000\r\n", b":0\r\n"],
    "release": [b":1\r\n", b":0\r\n", b"*2\r\n$1\r\nc\r\n$1\r\n7\r\n"],
    "leave": [b":1\r\n", b":0\r\n", b"$1\r\nc\r\n"],
    "renew": [b":1\r\n", b":0\r\n"],
    "status": [b"_\r\n", b"*3\r\n$3\r\nann\r\n:5000\r\n*1\r\n$3\r\nbob\r\n"],
}


def lie(rng: random.Random, depth: int = 0) -> bytes:
    """Any value that RESP3 can say."""
    kind = rng.randrange(9 if depth < 2 else 6)
    if kind == 0:
        return b":%d\r\n" % rng.choice([0, 1, -1, -2, 2, 10**12, 2**63 - 1, -(2**63)])
    if kind == 1:
        digits = rng.choice([b"1", b"0", b"9223372036854775807", b"9223372036854775808", b"99999999999999999999"])
        return b"$%d\r\n%b\r\n" % (len(digits), digits)
    if kind == 2:
        text = rng.choice([b"", b"x", b"OK", b"-1", b"1.5", b"\xff", b"\xd9\xa1", b"a" * 3000])
        return b"$%d\r\n%b\r\n" % (len(text), text)
    if kind == 3:
        return rng.choice([b"_\r\n", b"#t\r\n", b",1.5\r\n", b"(1\r\n", b"+OK\r\n", b"$-1\r\n"])
    if kind == 4:
        return rng.choice(REFUSED)
    if kind == 5:
        return PUSH
    count = rng.randrange(4)
    if kind == 6:
        return b"*%d\r\n" % count + b"".join(lie(rng, depth + 1) for _ in range(count))
    if kind == 7:
        return b"%%%d\r\n" % count + b"".join(b"$1\r\n%d\r\n" % each + lie(rng, depth + 1) for each in range(count))
    return b"~%d\r\n" % count + b"".join(lie(rng, depth + 1) for _ in range(count))


class Liar:
    """Listens on a port of its own, and answers as the dice say; ``honest`` is how often it says what fits."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._names = {each.sha: each.name for each in scripts("clock", 0.0)}
        self._open: list[socket.socket] = []
        self.rng = random.Random(0)
        self.honest = 0.5
        threading.Thread(target=self._accept, daemon=True).start()

    def begin(self, rng: random.Random) -> None:
        """Forget the connections of the case before."""
        for each in self._open:
            each.close()
        self._open = []
        self.rng, self.honest = rng, rng.choice([0.3, 0.7, 0.9])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.begin(self.rng)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._open.append(client)
                threading.Thread(target=self._serve, args=(client, self.rng), daemon=True).start()

    def _serve(self, client: socket.socket, rng: random.Random) -> None:
        reader = Reader(notEnoughData=NOTHING)
        with contextlib.suppress(OSError), client:
            while data := client.recv(65536):
                reader.feed(data)
                said = b""
                while (request := reader.gets()) is not NOTHING:
                    said += self._answer(rng, request)
                client.sendall(said)

    def _answer(self, rng: random.Random, request: list[bytes]) -> bytes:
        word = request[0].upper()
        if word == b"HELLO":
            return HELLO if rng.random() < 0.95 else lie(rng)
        if word == b"SCRIPT":
            return b"$40\r\n%b\r\n" % (b"a" * 40) if rng.random() < 0.98 else lie(rng)
        if word == b"SUBSCRIBE":
            return b">3\r\n$9\r\nsubscribe\r\n$%d\r\n%b\r\n:1\r\n" % (len(request[1]), request[1])
        if rng.random() > self.honest:
            return lie(rng) if rng.random() < 0.9 else b""
        name = self._names.get(request[1].decode()) if word == b"EVALSHA" else None
        return rng.choice(RIGHT.get(name or "", [b":1\r\n"]))


_LIAR: list[Liar] = []
_UNCAUGHT: list[threading.ExceptHookArgs] = []


def lies_case(seed: int) -> str:
    """Locks of a server that lies end as leases or as errors of fencepost, in time, and no token is out of range."""
    if not _LIAR:
        _LIAR.append(Liar())
        logging.getLogger("fencepost").addHandler(logging.NullHandler())  # it warns of what a lie has spoilt
        threading.excepthook = _UNCAUGHT.append
    rng = random.Random(seed)
    liar = _LIAR[0]
    liar.begin(rng)
    start = time.monotonic()
    outcome = "lease"
    with fencepost.connect(f"redis://127.0.0.1:{liar.port}?timeout=50ms&connect_timeout=1s", ttl=5) as locks:
        try:
            if rng.random() < 0.2:
                locks.status("a")
            lease = locks.acquire("a", timeout=rng.choice([0, 0.05]), renew=False)
            assert 1 <= lease.token <= MAX_TOKEN
            if rng.random() < 0.3:
                lease.renew()
            lease.release()
        except FencepostError as error:
            outcome = type(error).__name__
    assert time.monotonic() - start < 15, "it hung"
    if _UNCAUGHT:
        raise AssertionError("a thread ended with an error") from _UNCAUGHT.pop().exc_value
    return outcome
