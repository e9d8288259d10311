"""The HTTP service, over raw connections: every whole request gets its own answer, and nothing else is touched."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from urllib.parse import quote_from_bytes

from fencepost_lab.servers.processes import HOST
from tests.fuzz.spoil import pieces, spoil

WORDS = [
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b": ", b"\0", b" ", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9",
    b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n",
    b"X-Fence-Token: 5\r\n", b"X-Fence-Seq: 0\r\n", b"X-Fence-Holder: \xff\r\n", b"Host: evil\r\n", b"Origin: http://evil\r\n",
    b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"PUT /r/stolen HTTP/1.1\r\n\r\n", b"/r/../", b"%2F",
    b"#", b"?", b"PRI * HTTP/2.0\r\n\r\nSM",
    b"\x16\x03\x01\x02\x00", b"OPTIONS * HTTP/1.1\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    b"Authorization: Bearer x\r\n",
]  # fmt: skip
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")


@dataclass(frozen=True)
class Asked:
    """A request, and what answers it."""

    data: bytes
    status: int
    body: bytes | None
    """What comes back; None: whatever it is."""


def requests(rng: Random, key: bytes, first: int) -> list[Asked]:
    """Some requests for a key of our own, in many shapes; each answer can be told from all others."""
    found: list[Asked] = []
    value, token = None, first
    path = b"/r/" + quote_from_bytes(key, safe="").encode()
    for number in range(rng.randrange(1, 6)):
        host = b"Host: localhost\r\n"
        way = rng.randrange(6)
        if way <= 1:
            token += 1
            value = b"%b %d %d" % (key, token, number) + b"." * rng.choice([0, 1, 300, 5000])
            head = b"PUT %b HTTP/1.1\r\n%bX-Fence-Token: %d\r\n" % (path, host, token)
            found.append(
                Asked(head + _body(rng, value), 200, b'{"written":true,"replay":false,"max_fence":%d}' % token)
            )
        elif way == 2 and value is not None:
            found.append(Asked(b"GET %b HTTP/1.1\r\n%b\r\n" % (path, host), 200, value))
        elif way == 3 and value is not None:
            head = b"PUT %b HTTP/1.1\r\n%bX-Fence-Token: 1\r\n" % (path, host)
            said = b'{"error":"stale fencing token","seen":%d,"got":1}' % token
            found.append(Asked(head + _body(rng, b"stale"), 409, said))
        elif way == 4:
            found.append(Asked(b"GET %b-none-%d HTTP/1.1\r\n%b\r\n" % (path, number, host), 404, None))
        else:
            found.append(Asked(b"PUT %b HTTP/1.1\r\n%b" % (path, host) + _body(rng, b"no token"), 428, None))
    return found


def _body(rng: Random, value: bytes) -> bytes:
    """The rest of the head and the body: with its length, or in chunks."""
    if rng.random() < 0.5:
        return b"Content-Length: %d\r\n\r\n" % len(value) + value
    chunks = b"".join(b"%x;a=b\r\n%b\r\n" % (len(piece), piece) for piece in pieces(rng, value))
    trailer = rng.choice([b"", b"X-Fence-Token: 9\r\n"])
    return b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailer + b"\r\n"


def answers(said: bytes) -> list[tuple[int, bytes]]:
    """The whole answers in what a server said; AssertionError for what is none."""
    found = []
    while said:
        match = _STATUS.match(said)
        assert match, f"this is no answer: {said[:200]!r}"
        head, end, rest = said.partition(b"\r\n\r\n")
        if not end:
            break
        status = int(match[1])
        if status == 100:
            said = rest
            continue
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        if length is None:
            assert b"\r\nconnection: close" in head.lower(), head
            found.append((status, rest))
            break
        size = int(length[1])
        if len(rest) < size:
            break
        found.append((status, rest[:size]))
        said = rest[size:]
    return found


def converse(port: int, data: list[bytes], expected: int = 1) -> tuple[bytes, bool]:
    """Send it all, read so many answers, then close our side and read the rest; TimeoutError if it does not end.

    A service may give up the request of a client that has closed its side, so that waits until all due answers came.
    Also returns whether the service closed the connection before it had read all: the last answers may be lost then.
    """
    said, broken = b"", False
    with socket.create_connection((HOST, port), 20) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in data:
                client.sendall(piece)
        except ConnectionError:
            broken = True
        try:
            while len(answers(said)) < expected and (chunk := client.recv(65536)):
                said += chunk
            if not broken:
                client.shutdown(socket.SHUT_WR)
            while chunk := client.recv(65536):
                said += chunk
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            broken = True
    return said, broken


def case(port: int, seed: int) -> str:
    """Whole requests before the first spoilt byte get their own answers, in order; no answer is a failure of ours."""
    rng = Random(seed)
    key = b"k%d/\xc3\xa9" % seed
    asked = requests(rng, key, 10 * (seed + 1))
    whole = b"".join(each.data for each in asked)
    sent = spoil(rng, whole, WORDS) if rng.random() < 0.8 else whole
    differ = (at for at, (one, other) in enumerate(zip(sent, whole, strict=False)) if one != other)
    same = len(whole) if sent == whole else next(differ, min(len(sent), len(whole))) - 2
    due = 0  # requests that came as they were; the parser looks ahead at what follows a body
    while due < len(asked) and sum(len(each.data) for each in asked[: due + 1]) <= same:
        due += 1
    said, broken = converse(port, pieces(rng, sent) if rng.random() < 0.2 else [sent], due)
    found = answers(said)
    assert all(status < 500 or status == 503 for status, _ in found), found
    assert not broken or sent != whole, sent
    for number, each in enumerate(asked[: min(due, len(found)) if broken else due]):
        assert number < len(found), f"{len(found)} answers, and request {number} was whole: {sent!r}"
        assert found[number][0] == each.status, (each, found[number])
        assert each.body is None or found[number][1] == each.body, (each, found[number])
    assert sent != whole or len(found) == len(asked), (sent, found)
    return " ".join(str(status) for status, _ in found) or "closed"


def untouched(port: int) -> Callable[[], None]:
    """Write a key that no case names; returns what asserts that it is still as it was."""
    data = b"PUT /r/honest HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 3\r\nContent-Length: 6\r\n\r\nhonest"
    assert answers(converse(port, [data])[0])[0][0] in (200, 409)

    def look() -> None:
        found = answers(converse(port, [b"GET /r/honest HTTP/1.1\r\nHost: localhost\r\n\r\n"])[0])
        assert found == [(200, b"honest")], found

    return look
