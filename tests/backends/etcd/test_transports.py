"""The connections of both faces: large messages, TLS, few streams at a time, servers that say goodbye or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hpack import Encoder

from fencepost.address import parse
from fencepost.backends.etcd import messages as pb
from fencepost.backends.etcd.channels import Channels
from fencepost.backends.etcd.http2 import framed
from fencepost.backends.etcd.methods import RANGE, TXN
from fencepost.backends.etcd.pool import Socket
from fencepost.backends.etcd.rpc import Rpc
from fencepost.backends.etcd.status import cannot_connect
from fencepost.backends.etcd.watch import Watches
from fencepost.driver import boottime, run
from fencepost.driver.tasks import Asyncio
from fencepost.driver.threads import Blocking, ThreadSignal
from fencepost.errors import BackendError
from fencepost_lab.servers import QUICK_ETCD, Etcd
from fencepost_lab.servers.processes import HOST
from tests.backends.etcd.test_access import SecureEtcd
from tests.backends.etcd.test_http2 import DONE, END_HEADERS, END_STREAM, GOAWAY, OK, RESET, Frame
from tests.conformance.faces import FACES, Client
from tests.harness.certificate import self_signed
from tests.harness.servers import Endpoint
from tests.harness.waiting import GIVES_UP, PATIENCE, until_async


class Fake:
    """A server of HTTP/2 that answers each request as it is told to."""

    def __init__(self, answer: Callable[[Fake, int, int], bytes | None]) -> None:
        self._answer = answer
        self._listener = socket.create_server((HOST, 0))
        self.url = f"etcd://{HOST}:{self._listener.getsockname()[1]}"
        self.frames: list[Frame] = []
        self.connections = 0
        self.closed = 0
        self.encode = Encoder().encode
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client, self.connections), daemon=True).start()

    def _serve(self, client: socket.socket, number: int) -> None:
        with client, client.makefile("rb") as source, contextlib.suppress(OSError):
            source.read(24)
            client.sendall(Frame(4, 0, 0).encode())
            while head := source.read(9):
                frame = Frame(head[3], head[4], int.from_bytes(head[5:]), source.read(int.from_bytes(head[:3])))
                self.frames.append(frame)
                if frame.kind == 0 and frame.flags & END_STREAM:
                    answer = self._answer(self, number, frame.number)
                    if answer is not None:
                        client.sendall(answer)
        self.closed += 1

    def well(self, stream: int, message: bytes) -> bytes:
        """An answer that is one."""
        return b"".join(
            frame.encode()
            for frame in (
                Frame(1, END_HEADERS, stream, Encoder().encode(OK)),
                Frame(0, 0, stream, message),
                Frame(1, END_HEADERS | END_STREAM, stream, Encoder().encode(DONE)),
            )
        )


def found(revision: int) -> bytes:
    return framed(pb.RangeResponse(header=pb.ResponseHeader(revision=revision)).encode())


@contextlib.asynccontextmanager
async def connected(url: str, face: str, clock: Callable[[], float] = boottime) -> Any:
    """Asks for a key: ``await ask()``."""
    driver = Blocking(clock) if face == "blocking" else Asyncio(clock)
    rpc = Rpc(parse(url), driver)

    async def ask(method: Any = RANGE, request: Any = None, timeout: float | None = None) -> Any:
        job = rpc.call(method, request or pb.RangeRequest(key=b"a"), timeout=timeout)
        return await (asyncio.to_thread(run, job) if face == "blocking" else job)

    try:
        yield ask
    finally:
        await rpc.channels.end()


@pytest.mark.parametrize("face", FACES)
async def test_a_connection_on_which_the_server_says_goodbye_is_replaced(face: str) -> None:
    def goodbye(server: Fake, connection: int, stream: int) -> bytes | None:
        last = Frame(GOAWAY, 0, 0, stream.to_bytes(4) + bytes(4)).encode()
        return server.well(stream, found(connection)) + (last if connection == 1 else b"")

    with Fake(goodbye) as server:
        async with connected(server.url, face) as ask:
            assert [(await ask()).header.revision for _ in range(3)] == [1, 2, 2]
            await until_async(lambda: server.closed == 1, "the first one is closed")


@pytest.mark.parametrize("face", FACES)
async def test_what_the_server_says_it_did_not_begin_is_asked_again(face: str) -> None:
    def refuse(server: Fake, connection: int, stream: int) -> bytes | None:
        if connection == 1:
            return Frame(GOAWAY, 0, 0, bytes(8)).encode()
        if stream == 1:
            return Frame(RESET, 0, 1, (7).to_bytes(4)).encode()
        return server.well(stream, found(connection))

    with Fake(refuse) as server:
        async with connected(server.url, face) as ask:
            assert (await ask()).header.revision == 2


@pytest.mark.parametrize("face", FACES)
async def test_a_compressed_answer_is_refused_in_plain_words(face: str) -> None:
    with Fake(lambda server, connection, stream: server.well(stream, b"\1" + found(1)[1:])) as server:
        async with connected(f"{server.url}?timeout={GIVES_UP:g}s", face) as ask:
            with pytest.raises(BackendError, match="compressed message"):
                await ask()


@pytest.mark.parametrize("face", FACES)
async def test_a_call_that_is_not_answered_in_time_is_cancelled(face: str) -> None:
    def once(server: Fake, connection: int, stream: int) -> bytes | None:
        return server.well(stream, found(connection)) if stream == 1 else None

    with Fake(once) as server:
        async with connected(f"{server.url}?timeout={PATIENCE:g}s", face) as ask:
            await ask()  # it is connected: in a call's own short time, that might not be done on a busy machine
            with pytest.raises(BackendError, match="no answer in time") as raised:
                await ask(timeout=0.9)  # after a second it would suspect the connection, and drop it
            assert raised.value.ambiguous
            await until_async(lambda: sum(frame.kind == 1 for frame in server.frames) == 2, "it is asked")
            heads = [frame for frame in server.frames if frame.kind == 1]
            assert all(b"grpc-timeout" in head.payload for head in heads)
            if face == "asyncio":  # a blocking one closes the connection
                await until_async(lambda: any(each.kind == RESET for each in server.frames), "it is reset")
            else:
                await until_async(lambda: server.closed > 0, "it is closed")


async def test_a_cancelled_task_leaves_the_connection_to_the_others() -> None:
    released = threading.Event()

    def late(server: Fake, connection: int, stream: int) -> bytes | None:
        if stream == 1:
            return None
        assert released.wait(PATIENCE)
        return server.well(stream, found(connection))

    with Fake(late) as server:
        async with connected(server.url, "asyncio") as ask:
            first, second = asyncio.create_task(ask()), asyncio.create_task(ask())
            await until_async(lambda: sum(each.kind == 0 for each in server.frames) == 2, "both ask")
            first.cancel()
            released.set()
            assert (await second).header.revision == 1
            with pytest.raises(asyncio.CancelledError):
                await first
            await until_async(lambda: any(each.kind == RESET for each in server.frames), "it is reset")
            assert server.connections == 1


@pytest.mark.parametrize("face", FACES)
async def test_messages_larger_than_every_window_pass(etcd_server: Endpoint, face: str) -> None:
    name = secrets.token_hex(4).encode()
    value = secrets.token_bytes(1_000_000)
    async with connected(etcd_server.url, face) as ask:
        await large(ask, name, value)


async def large(ask: Any, name: bytes, value: bytes) -> None:
    puts = [pb.RequestOp(request_put=pb.PutRequest(key=name + b"%d" % each, value=value)) for each in range(3)]
    await asyncio.gather(*(ask(TXN, pb.TxnRequest(success=[put])) for put in puts))
    everything = pb.RangeRequest(key=name, range_end=name + b"~")
    assert [kv.value for kv in (await ask(RANGE, everything)).kvs] == [value] * 3
    remove = pb.DeleteRangeRequest(key=name, range_end=name + b"~")
    await ask(TXN, pb.TxnRequest(success=[pb.RequestOp(request_delete_range=remove)]))


def test_a_watch_that_cannot_be_opened_is_one_that_was_refused(
    etcd_server: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its waiter makes a pause before it looks and watches again."""

    def none_left(channels: Channels, member: int) -> Socket:
        raise cannot_connect("[Errno 24] Too many open files")

    monkeypatch.setattr(Channels, "socket", none_left)
    watches, signal = Watches(Rpc(parse(etcd_server.url), Blocking())), ThreadSignal()
    watch = watches.add(b"a", 1, signal)
    assert run(signal.wait(PATIENCE))
    assert "Too many open files" in watch.refused


def test_connections_end_with_locks_that_nobody_closed(etcd_server: Endpoint) -> None:
    rpc = Rpc(parse(etcd_server.url), Blocking())
    run(rpc.call(RANGE, pb.RangeRequest(key=b"a")))
    (connection,) = rpc.channels._sockets
    raw = connection.raw
    assert raw.fileno() >= 0
    del rpc, connection
    gc.collect()
    assert raw.fileno() < 0


async def test_more_tasks_than_the_server_takes_streams_take_turns() -> None:
    with Etcd(args=[*QUICK_ETCD, "--max-concurrent-streams", "3"]) as server:
        client = Client("asyncio", server.url, ttl=PATIENCE)

        async def cycle(number: int) -> bool:
            return await (await client.acquire(f"lock-{number}", timeout=PATIENCE)).release()

        assert all(await asyncio.gather(*map(cycle, range(40))))
        await client.close()


@pytest.fixture(scope="module")
def secure() -> Iterator[str]:
    """A URL with a client's certificate for an etcd that asks for one."""
    with SecureEtcd() as server:
        ca, cert, key = (server.folder / each for each in ("ca.pem", "client.pem", "client.key"))
        yield f"{server.url}?ca={ca}&cert={cert}&key={key}&timeout={PATIENCE:g}s"


@pytest.mark.parametrize("face", FACES)
async def test_locks_and_large_messages_go_over_tls(secure: str, face: str) -> None:
    async with connected(secure, face) as ask:
        await large(ask, b"large", secrets.token_bytes(1_000_000))
    locks, others = Client(face, secure, ttl=PATIENCE), Client(face, secure, ttl=PATIENCE)
    held = await locks.acquire("lock")
    waiter = asyncio.create_task(others.acquire("lock", timeout=PATIENCE))
    watches = others.raw._core.backend._watches
    await until_async(lambda: bool(watches._watches), "it watches", watching=[waiter])
    await held.renew()
    assert await held.release()
    assert await (await waiter).release()
    for each in (locks, others):
        await each.close()


@pytest.mark.parametrize("face", FACES)
async def test_a_server_that_does_not_agree_to_http2_is_named(face: str, tmp_path: Path) -> None:
    """The first attempt finds it out; the next ones get no answer in the little time that is left."""
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    jump = 0.0  # what the clock of the client's deadline is ahead: the deadlines of single attempts do not follow it

    def serve(listener: socket.socket) -> None:
        nonlocal jump
        with contextlib.suppress(OSError), contextlib.ExitStack() as silent:
            client, _ = listener.accept()
            jump = PATIENCE - 0.4
            with contextlib.suppress(OSError), context.wrap_socket(client, server_side=True) as secured:
                secured.recv(1)
            while True:
                silent.enter_context(listener.accept()[0])

    with socket.create_server((HOST, 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        url = f"etcd://{HOST}:{listener.getsockname()[1]}?ca={certificate}&timeout={PATIENCE:g}s"
        async with connected(url, face, clock=lambda: boottime() + jump) as ask:
            with pytest.raises(BackendError, match="does not speak HTTP/2") as raised:
                await ask()
            assert not raised.value.ambiguous
        listener.shutdown(socket.SHUT_RDWR)
