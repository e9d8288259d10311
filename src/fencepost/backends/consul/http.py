"""Requests to Consul over connections that stay open: blocking and asyncio sockets behind one client.

Half of what a general HTTP client spends on a lock is its own overhead; this one sends bytes made
once and reads the two headers that matter.
"""

import asyncio
import binascii
import contextlib
import json
import secrets
import socket
import ssl
from collections.abc import Sequence
from time import monotonic
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from fencepost.backends.consul.address import Settings
from fencepost.backends.fork import sever
from fencepost.driver import Driver
from fencepost.driver.interrupts import interruptible
from fencepost.driver.scope import patience, woken
from fencepost.driver.sockets import connect, silent
from fencepost.errors import BackendError

T = TypeVar("T")

_CHUNK = 65536
LONGEST_WAIT = 60.0
"""Seconds that one blocking query waits at most."""
BATCH = 64
"""How many requests are under way at once on a connection, and how many operations a transaction takes."""


class Answer(NamedTuple):
    """What came back; ``at`` is the X-Consul-Index, for blocking queries."""

    status: int
    at: int
    body: bytes
    link: "_Link"
    """The connection that it came over."""

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:  # such as the page of a proxy in between
            raise self.astray() from None

    def part(self, kind: type[T], *path: str | int) -> T:
        """The value at a path in the JSON; BackendError if it is missing, or of another type."""
        found = self.json
        try:
            for step in path:
                found = found[step]
        except (KeyError, IndexError, TypeError):
            found = None
        if not isinstance(found, kind):
            raise self.astray()
        return found

    def parts(self, kind: type[T], *path: str | int) -> list[T]:
        """The list at a path in the JSON; BackendError if it is missing, or an element is of another type."""
        found = self.part(list, *path)
        if not all(isinstance(each, kind) for each in found):
            raise self.astray()
        return found

    @property
    def there(self) -> bool:
        """Whether Consul has what was asked for."""
        if self.status not in (200, 404):
            raise self.astray()
        return self.status == 200

    def pairs(self) -> list[dict[str, Any]]:
        """The keys that were asked for; none if there are none."""
        return self.checked(self.parts(dict)) if self.there else []

    def checked(self, pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same pairs; BackendError if there are none, or one of them is incomplete."""
        if not pairs or not all(map(_whole, pairs)):
            raise self.astray()
        return pairs

    def astray(self) -> BackendError:
        """The error for an answer that does not belong to its request; closes the connection, which is out of step."""
        self.link.hang_up()
        return BackendError(f"this is no Consul's answer: {self.body[:80]!r}", backend="consul", ambiguous=True)


class Outcome(NamedTuple):
    """The result of a transaction."""

    pairs: list[dict[str, Any]]
    """The keys that its operations returned, in their order; none if it was not carried out."""
    failed: frozenset[int]
    """The numbers of the operations that kept it from being carried out."""
    why: bytes


def _whole(pair: dict[str, Any]) -> bool:
    key, index, value, session = (pair.get(part) for part in ("Key", "ModifyIndex", "Value", "Session"))
    try:
        binascii.a2b_base64(value or "")
    except (ValueError, TypeError):
        return False
    return isinstance(key, str) and type(index) is int and isinstance(session, str | None)


def _header(head: bytes, name: bytes) -> bytes:
    start = head.find(b"\r\n%b:" % name)
    return head[start + len(name) + 3 : head.find(b"\r\n", start + 2)].strip() if start >= 0 else b""


def taken(pool: list[T]) -> T | None:
    """The last of a pool that several threads take from; None if it is empty."""
    try:
        return pool.pop()
    except IndexError:
        return None


class Forbidden(BackendError):
    """Refused permanently: a retry will not help."""


class _Link:
    """One connection of blocking code. Its methods never suspend."""

    token = b""
    """The header with the ACL token of this connection, if tokens may change."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._late = 0.0

    @classmethod
    async def connect(cls, host: str, port: int, tls: ssl.SSLContext | None, timeout: float) -> "_Link":
        sock = connect(host, port, timeout)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return cls(tls.wrap_socket(sock, server_hostname=host) if tls else sock)
        except BaseException:
            sock.close()
            raise

    def fresh(self) -> bool:
        """Whether it can be used again."""
        return silent(self._sock)

    async def exchange(self, requests: bytes, count: int, timeout: float) -> list[Answer]:
        self._late = monotonic() + timeout
        self._sock.settimeout(max(timeout, 0.001))
        self._sock.sendall(requests)
        return await self._answers(count)

    async def _answers(self, count: int) -> list[Answer]:
        buffer = bytearray()
        answers = [await self._answer(buffer) for _ in range(count)]
        if buffer:
            raise ValueError("the server sent an answer to no request")
        return answers

    async def _read(self) -> bytes:
        # One deadline for all answers: the server may send them bit by bit.
        self._sock.settimeout(max(self._late - monotonic(), 0.001))
        return interruptible(self._sock.recv, _CHUNK)

    async def _answer(self, buffer: bytearray) -> Answer:
        while True:
            end = await self._until(buffer, b"\r\n\r\n", 0)
            head = bytes(buffer[: end + 2]).lower()
            del buffer[: end + 4]
            if not head.partition(b" ")[2].startswith(b"1"):  # such as 100 Continue, from a proxy
                break
        if _header(head, b"transfer-encoding") == b"chunked":
            body = await self._chunked(buffer)
        else:
            size = int(_header(head, b"content-length") or 0)
            await self._fill(buffer, size)
            body = bytes(buffer[:size])
            del buffer[:size]
        return Answer(int(head.partition(b" ")[2][:3]), int(_header(head, b"x-consul-index") or 0), body, self)

    async def _chunked(self, buffer: bytearray) -> bytes:
        body = bytearray()
        while True:
            end = await self._until(buffer, b"\r\n", 0)
            size = int(buffer[:end].split(b";")[0], 16)
            if not size:
                break
            await self._fill(buffer, end + 2 + size + 2)
            body += buffer[end + 2 : end + 2 + size]
            del buffer[: end + 2 + size + 2]
        while end:  # trailers, up to an empty line
            del buffer[: end + 2]
            end = await self._until(buffer, b"\r\n", 0)
        del buffer[:2]
        return bytes(body)

    async def _until(self, buffer: bytearray, mark: bytes, start: int) -> int:
        while (end := buffer.find(mark, start)) < 0:
            start = max(0, len(buffer) - len(mark))
            await self._fill(buffer, len(buffer) + 1)
        return end

    async def _fill(self, buffer: bytearray, size: int) -> None:
        while len(buffer) < size:
            data = await self._read()
            if not data:
                raise ConnectionResetError("the server closed the connection")
            buffer += data

    def hang_up(self) -> None:
        """Shut the connection down, from any thread: a thread that waits for an answer then finds it closed."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()

    def forked(self) -> None:
        sever(self._sock)


class _Reader(asyncio.StreamReader):
    """Counts the bytes that have arrived and were not read."""

    unread = 0

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]  # no transport brings anything else
        self.unread += len(data)
        super().feed_data(data)


class _TaskLink(_Link):
    """One connection of asyncio code."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, host: str, port: int, tls: ssl.SSLContext | None, timeout: float) -> "_TaskLink":
        loop = asyncio.get_running_loop()
        reader = _Reader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        async with asyncio.timeout(timeout):
            transport, _ = await loop.create_connection(lambda: protocol, host, port, ssl=tls)
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    def fresh(self) -> bool:
        return self._loop is asyncio.get_running_loop() and not (
            self._reader.unread or self._reader.at_eof() or self._writer.transport.is_closing()
        )

    async def exchange(self, requests: bytes, count: int, timeout: float) -> list[Answer]:
        async with asyncio.timeout(timeout):
            self._writer.write(requests)
            await self._writer.drain()
            return await self._answers(count)

    async def _read(self) -> bytes:
        data = await self._reader.read(_CHUNK)
        self._reader.unread -= len(data)
        return data

    def hang_up(self) -> None:
        self._loop.call_soon_threadsafe(self.close)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._writer.transport.abort()

    def forked(self) -> None:
        sever(self._writer.get_extra_info("socket"))


class Http:
    """A client of one Consul agent, or of the first of several that can be reached."""

    def __init__(self, settings: Settings, driver: Driver) -> None:
        self._settings = settings
        self._hosts = settings.hosts
        self._kind = _Link if driver.blocking else _TaskLink
        token = f"X-Consul-Token: {settings.token}\r\n" if settings.token else ""
        if settings.login is not None:  # `ask` replaces this placeholder by the token of the connection
            token = f"X-Consul-Token: {secrets.token_hex(16)}\r\n"
        self._blank = token.encode()
        self._head = f"Host: {self._hosts[0][0]}\r\n{token}"
        self.servers = ",".join(f"{host}:{port}" for host, port in self._hosts)
        self._closed = False
        self._links: set[_Link] = set()
        self._idle: list[_Link] = []

    def request(self, method: str, path: str, body: Any = None, **query: object) -> bytes:
        """A request's bytes; ``path`` below /v1/, not yet quoted."""
        params = urlencode({**self._settings.query, **query})
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        line = f"{method} /v1/{quote(path)}{'?' + params if params else ''} HTTP/1.1\r\n"
        return f"{line}{self._head}Content-Length: {len(data)}\r\n\r\n".encode() + data

    async def ask(
        self, *requests: bytes, delay: float = 0.0, keys: Sequence[str] = (), spare: bool = False
    ) -> list[Answer]:
        """Send the requests together on one connection; BackendError if an answer is not one of Consul's.

        ``delay`` is how long a blocking query may wait at the server; ``keys`` are the keys that the requests ask for,
        if they do; ``spare`` is for ``_link``.
        """
        if self._closed:
            raise Forbidden("these locks are closed; connect again", backend="consul", ambiguous=False)
        link, new = await self._link(spare=spare)
        answers = []
        try:
            for start in range(0, len(requests), BATCH):
                batch = requests[start : start + BATCH]
                data = b"".join(batch)
                if link.token:
                    data = data.replace(self._blank, link.token)
                with woken(link.hang_up):
                    limit = patience(self._settings.timeout + delay)
                    answers += await link.exchange(data, len(batch), limit)
            for answer, key in zip(answers, keys, strict=False):
                if answer.status == 200 and any(pair["Key"] != key for pair in answer.pairs()):
                    raise answer.astray()  # the other answers may be wrong too: the connection is of no more use
        except (OSError, ValueError) as error:  # TimeoutError is an OSError; ValueError: that was no HTTP
            self._drop(link)
            self._drop_idle()  # the idle connections may be broken for the same reason
            raise self._failure(str(error) or "no answer in time", ambiguous=True) from error
        except BaseException:
            self._drop(link)
            raise
        self._idle.append(link)
        if self._closed:  # looked at afterwards: close() may come at any moment
            self._drop_idle()
        for answer in answers:
            if answer.status == 403:
                if link.token and not new and all(each.status == 403 for each in answers):
                    self._drop_idle()  # the token may have been replaced since these connections were opened
                    return await self.ask(*requests, delay=delay, keys=keys, spare=spare)
                raise self._forbidden()
            if answer.status not in (200, 404, 409):
                what = answer.body.decode(errors="replace").strip()[:200]
                raise self._failure(what or f"HTTP status {answer.status}", ambiguous=answer.status >= 500)
        return answers

    def _forbidden(self) -> BackendError:
        if self._settings.login is not None:  # not Forbidden: a waiter tries again, since the next token may be valid
            return self._failure("its ACL refuses this; check what credentials= returned", ambiguous=False)
        return Forbidden(
            f"Consul at {self.servers}: its ACL refuses this; give a token: consul://:TOKEN@host",
            backend="consul",
            ambiguous=False,
        )

    async def one(self, method: str, path: str, body: Any = None, **query: object) -> Answer:
        return (await self.ask(self.request(method, path, body, **query)))[0]

    async def transact(self, *operations: dict[str, Any], **query: object) -> Outcome:
        """Carry out all of these operations on keys, or none."""
        answer = await self.one("PUT", "txn", [{"KV": each} for each in operations], **query)
        if answer.status != 200:
            errors = answer.parts(dict, "Errors")
            if not errors or not all(type(each.get("OpIndex")) is int for each in errors):
                raise answer.astray()
            if any("Permission denied" in str(each.get("What")) for each in errors):
                raise self._forbidden()  # Consul sends it with status 409, as for a transaction that lost a race
            return Outcome([], frozenset(each["OpIndex"] for each in errors), answer.body)
        pairs = [result.get("KV") or {} for result in answer.parts(dict, "Results")]
        if answer.checked(pairs)[0]["Key"] != operations[0]["Key"]:
            raise answer.astray()
        return Outcome(pairs, frozenset(), b"")

    async def look(self, path: str, index: int, wait: float) -> Answer:
        """Read a path; with an ``index``, wait until it has changed since then, or ``wait`` seconds have passed."""
        query: dict[str, object] = {"index": index, "wait": f"{max(int(wait * 1000), 1)}ms"} if index else {}
        request = self.request("GET", path, **query)
        keys = [path.removeprefix("kv/")] if path.startswith("kv/") else []
        # Short, and a waiter that cannot open a connection has to ask: only then may it take the last one.
        short = not index and bool(keys)
        return (await self.ask(request, delay=wait * 17 / 16 if index else 0.0, keys=keys, spare=not short))[0]

    async def _token(self) -> bytes:
        """The header with the token for a new connection; empty if all connections use the same token."""
        login = self._settings.login
        if login is None:
            return b""
        user, token = await login.get()
        if user is not None:
            login.fail("returned a user, and Consul has none; return the ACL token alone")
        if not (token.isascii() and token.isprintable()):
            login.fail("returned a token that no HTTP header can carry")
        return f"X-Consul-Token: {token}\r\n".encode()

    async def _link(self, *, spare: bool) -> tuple[_Link, bool]:
        """An idle connection, or a new one, and whether it is new; ``spare`` leaves one idle connection for others.

        A blocking query must not take the only connection, nor any query of the watch: if the process cannot open
        another one, no lease would be renewed in the meantime.
        """
        while len(self._idle) > spare and (link := taken(self._idle)) is not None:
            try:
                if link.fresh():
                    return link, False
            except BaseException:  # such as MemoryError: the connection would stay open
                self._drop(link)
                raise
            self._drop(link)
        last: OSError | None = None
        token = await self._token()
        for host, port in self._hosts:
            try:
                limit = patience(self._settings.connect_timeout)
                link = await self._kind.connect(host, port, self._settings.tls, limit)
                link.token = token
                self._links.add(link)
                return link, True
            except OSError as error:
                last = error
        raise self._failure(f"cannot connect: {last or 'no answer in time'}", ambiguous=False) from last

    def _failure(self, why: str, *, ambiguous: bool) -> BackendError:
        return BackendError(f"Consul at {self.servers}: {why}", backend="consul", ambiguous=ambiguous)

    def _drop(self, link: _Link) -> None:
        self._links.discard(link)
        link.close()

    def close(self) -> None:
        """Close every connection: the idle ones now, the others when they have their answers."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        while (link := taken(self._idle)) is not None:
            self._drop(link)

    def forked(self) -> None:
        parents = self._links
        self._links, self._idle = set(), []
        for link in parents:
            link.forked()
