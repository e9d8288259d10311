"""What a server refuses: the lock that it was asked for fails with the reason, and nothing else does."""

import asyncio
import contextlib
import gc
import re
import select
import socket
import threading
from collections.abc import Callable

import pytest
import redis
from hiredis import ReplyError

import fencepost
from fencepost import aio
from fencepost.address import parse
from fencepost.backends.redis import waiters
from fencepost.backends.redis.address import dial as connect_to
from fencepost.backends.redis.address import options
from fencepost.backends.redis.connection import Denied, refusal
from fencepost.backends.redis.scripts import build
from fencepost.credentials import Secret
from fencepost.driver import run as driver_run
from fencepost.errors import BackendError
from fencepost_lab.servers import HOST, Redis
from tests.backends.conftest import Own
from tests.conformance.faces import FACES, Client
from tests.harness.scripted import TWICE, Fault, Resp, Scripted
from tests.harness.servers import running
from tests.harness.threads import background, known_to_wait
from tests.harness.waiting import GIVES_UP, PATIENCE, run, until, until_async


def without_channels(own: Own) -> str:
    """The URL of a user who may do everything but subscribe."""
    own.client.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "resetchannels")
    return own.url.replace("//", "//app:pw@")


async def test_a_refused_subscribe_is_nobody_elses_answer(own_redis: Own) -> None:
    with fencepost.connect(own_redis.url) as others:
        held = others.acquire("y", ttl=300)
        async with aio.connect(without_channels(own_redis)) as locks:
            x, y = await asyncio.gather(
                locks.acquire("x", timeout=PATIENCE), locks.acquire("y", timeout=PATIENCE), return_exceptions=True
            )
            assert isinstance(x, aio.Lease), "a free lock needs no messages"
            assert x.name == "x"
            assert isinstance(y, BackendError)
            assert "cannot listen" in str(y)
            assert "NOPERM" in str(y)
            status = others.status("y")
            assert status is not None
            assert (status.holder, status.waiters) == (held.holder, ())
            assert await x.release()
            for _ in range(3):  # on the connection that knows of the refusal
                assert await (await locks.acquire("x", timeout=PATIENCE)).release()
                with pytest.raises(BackendError, match=r"cannot listen.*NOPERM"):
                    await locks.acquire("y", timeout=PATIENCE)
            own_redis.client.execute_command("ACL", "SETUSER", "app", "allchannels")
            waiting = asyncio.create_task(locks.acquire("y", timeout=PATIENCE))
            await until_async(
                lambda: own_redis.client.zcard("fencepost:lock:y\x1fqueue") == 1, "it waits", watching=[waiting]
            )
            assert held.release()
            assert await (await waiting).release()
    assert own_redis.keys() <= {"fencepost:lock:y\x1fgone"}


async def test_rights_that_are_taken_away_from_a_process_that_listens(
    own_redis: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis ends its connection, and refuses to let the next one subscribe, under traffic."""
    monkeypatch.setattr(waiters, "_PATIENCE", PATIENCE)  # longer than the traffic takes
    url = without_channels(own_redis)
    own_redis.client.execute_command("ACL", "SETUSER", "app", "allchannels")
    async with aio.connect(own_redis.url) as others, aio.connect(url) as locks:
        await (await locks.acquire("warm")).release()
        held = await others.acquire("y", ttl=300)
        waiting = asyncio.create_task(locks.acquire("y", ttl=300))
        await until_async(lambda: known_to_wait(locks) == 1, "it waits", watching=[waiting])
        wrong: list[object] = []
        refused = 0

        async def busy(number: int) -> None:
            nonlocal refused
            for _ in range(50):
                try:
                    lease = await locks.acquire(f"n{number}", timeout=PATIENCE)
                except BackendError:
                    refused += 1
                    continue
                if lease.name != f"n{number}":
                    wrong.append(lease)
                await lease.release()

        tasks = [asyncio.create_task(busy(number)) for number in range(20)]
        own_redis.client.execute_command("ACL", "SETUSER", "app", "resetchannels")
        await asyncio.gather(*tasks)
        assert not wrong
        assert refused, "its connection was to be ended"
        assert not waiting.done()
        monkeypatch.setattr(waiters, "_PATIENCE", 0.0)
        with pytest.raises(BackendError, match="cannot listen"):
            await asyncio.wait_for(waiting, PATIENCE)
        assert await held.release()


@pytest.mark.parametrize("extra", [b"+OK\r\n", b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n"])
def test_a_reply_that_answers_no_request_ends_the_connection(
    own_redis: Own, extra: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Or the next request would get it as its own."""
    gc.collect()  # what another test left behind is told now
    caplog.clear()
    said = Meddler(own_redis.server.port)

    async def scenario() -> None:
        async with aio.connect(f"redis://{HOST}:{said.port}") as locks:
            await (await locks.acquire("a")).release()
            assert said.clients == 1
            said.say(extra)
            await until_async(lambda: said.clients == 0, "it gives that connection up")
            lease = await locks.acquire("b", ttl=300)
            assert lease.token == int(own_redis.client.get("fencepost:lock:b").rpartition(":")[2])
            assert await lease.release()

    with said:
        run(scenario())
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_each_request_on_a_connection_that_broke_has_an_error_of_its_own(own_redis: Own) -> None:
    """What is raised in several tasks would gather the tracebacks of all of them."""
    async with aio.connect(own_redis.url) as locks:
        assert await locks.status("a") is None
        own_redis.server.pause()
        asked = [asyncio.create_task(locks.status("a")) for _ in range(5)]
        stream = locks._core.backend._nodes.only.at_hand()  # type: ignore[attr-defined]  # Redis' own
        await until_async(lambda: len(stream._pending) == 5, "all are on their way", watching=asked)
        own_redis.server.kill()
        errors = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(error) for error in errors] == [BackendError] * 5
    assert len({id(error) for error in errors}) == 5


async def test_each_waiter_that_is_denied_has_an_error_of_its_own(
    own_redis: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "_PATIENCE", 0.0)
    own_redis.client.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "allchannels")
    # A waiter looks after a holder that is none of ours from time to time.
    own_redis.client.set("fencepost:lock:a", "somebody else")
    async with aio.connect(own_redis.url.replace("//", "//app:pw@")) as locks:
        waiting = [asyncio.create_task(locks.acquire("a", ttl=300)) for _ in range(3)]
        await until_async(lambda: known_to_wait(locks) == 3, "they wait", watching=waiting)
        own_redis.client.execute_command("ACL", "SETUSER", "app", "-eval", "-evalsha")
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        own_redis.client.execute_command("ACL", "SETUSER", "app", "+eval", "+evalsha")
    assert [type(error) for error in errors] == [Denied] * 3
    assert len({id(error) for error in errors}) == 3


@pytest.mark.parametrize("label", ["HELLO", "take"])
def test_an_extra_reply_is_not_the_next_requests_answer(own_redis: Own, label: str) -> None:
    with Scripted(own_redis.server.port, Resp) as proxy, fencepost.connect(f"redis://{proxy.address}") as locks:
        proxy.plan(TWICE, label, 1)
        with pytest.raises(BackendError, match="answers no request"):
            locks.acquire("a")
        assert proxy.happened
        lease = locks.acquire("b", ttl=300)
        assert lease.token == int(own_redis.client.get("fencepost:lock:b").rpartition(":")[2])
        assert lease.release()


HELLO_IN_RESP2 = b"*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:2\r\n"


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    "answer",
    [HELLO_IN_RESP2, b"+OK\r\n", b"$3\r\n999\r\n", b":1\r\n", b"$-1\r\n", b"*0\r\n"],
    ids=["array", "status", "text", "number", "nothing", "empty"],
)
def test_a_server_that_does_not_take_up_resp3_is_named(own_redis: Own, face: str, answer: bytes) -> None:
    async def scenario() -> None:
        client = Client(face, f"redis://{proxy.address}?timeout={PATIENCE}s&connect_timeout={PATIENCE}s", ttl=300)
        for asked in (True, False):
            proxy.plan(Fault("resp2", asked=asked, answer=answer), "HELLO", 1)
            with pytest.raises(BackendError, match="does not speak RESP3") as refused:
                await client.acquire("a", timeout=PATIENCE)
            assert proxy.happened
            assert not refused.value.ambiguous, "nothing was asked for yet"
        lease = await client.acquire("b")
        assert lease.token == int(own_redis.client.get("fencepost:lock:b").rpartition(":")[2])
        assert await lease.release()
        await client.close()

    with Scripted(own_redis.server.port, Resp) as proxy:
        run(scenario())


@pytest.mark.redis
@pytest.mark.parametrize("face", FACES)
async def test_a_server_that_repeats_the_greeting_does_not_get_the_password_into_a_message(face: str) -> None:
    with running(Redis(args=["--save", "", "--rename-command", "HELLO", ""])) as old:  # as before version 6
        client = Client(face, old.url.replace("//", "//app:s3cret@"))
        with pytest.raises(BackendError, match=r"unknown command 'HELLO'; fencepost needs Redis 6") as refused:
            await client.acquire("a", timeout=PATIENCE)
        assert "s3cret" not in str(refused.value)
        await client.close()


@pytest.mark.parametrize("reply", [ReplyError("ERR no: HELLO 3 AUTH app s3cret-wi"), [b"HELLO", b"s3cret-without"]])
def test_no_server_gets_the_password_into_a_message_in_its_own_words(reply: object) -> None:
    address = parse("redis://app:s3cret-without-end@h")
    dial = connect_to(address, options(address), ())
    with pytest.raises(BackendError, match=r"(ERR no: HELLO 3 AUTH app |\[b'HELLO', b')\*\*\*$"):
        dial.welcomed(("h", 1), [reply], Secret("app", "s3cret-without-end"))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    "answer", [b"%1\r\n*1\r\n:1\r\n:2\r\n", b"$5000\r\n" + b"9" * 5000 + b"\r\n"], ids=["map", "digits"]
)
def test_a_reply_that_python_itself_chokes_on_is_an_error_of_ours(
    own_redis: Own, face: str, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what another test left behind is told now
    caplog.clear()

    async def scenario() -> None:
        client = Client(face, f"redis://{proxy.address}?timeout={PATIENCE}s&connect_timeout={PATIENCE}s", ttl=300)
        proxy.plan(Fault("wild", answer=answer), "take", 1)
        with pytest.raises(BackendError) as failed:
            await client.acquire("a", timeout=PATIENCE)
        assert proxy.happened
        assert failed.value.ambiguous
        lease = await client.acquire("a", timeout=PATIENCE)
        assert await lease.release()
        await client.close()

    with Scripted(own_redis.server.port, Resp) as proxy:
        run(scenario())
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_an_extra_reply_that_comes_after_the_last_one_is_not_the_next_requests_answer(own_redis: Own) -> None:
    with Meddler(own_redis.server.port) as said, fencepost.connect(f"redis://{HOST}:{said.port}") as locks:
        assert locks.acquire("a").release()
        (idle,) = locks._core.backend._nodes.only.at_hand()._idle  # type: ignore[attr-defined]  # Redis' own
        said.say(b"$3\r\n999\r\n")  # a token, as far as anybody can tell
        assert select.select([idle.raw], [], [], PATIENCE)[0], "it has come"
        lease = locks.acquire("b", ttl=300)
        assert lease.token == int(own_redis.client.get("fencepost:lock:b").rpartition(":")[2])
        assert lease.release()


def test_a_script_that_is_unknown_with_its_text_as_well_is_refused(own_redis: Own) -> None:
    """And not sent again and again."""
    odd = build("odd", {}, 'return redis.error_reply("NOSCRIPT whatever you send")')
    with fencepost.connect(own_redis.url) as locks:
        calls = locks._core.backend._calls  # type: ignore[attr-defined]  # Redis' own
        asked = background(lambda: driver_run(calls.run(odd, ("fencepost:lock:a",))))
        with pytest.raises(BackendError, match="NOSCRIPT"):
            asked.result()


@pytest.mark.parametrize("where", ["thread", "main"])
def test_an_answer_that_comes_bit_by_bit_is_given_up_in_time(own_redis: Own, where: str) -> None:
    patient = f"timeout=3s&connect_timeout={PATIENCE}s"  # a busy machine takes a while to connect
    with Meddler(own_redis.server.port) as said, fencepost.connect(f"redis://{HOST}:{said.port}?{patient}") as locks:
        assert locks.acquire("a").release()
        said.drip = True
        for _ in range(2):  # the first one may find its connection closed, and look at that only

            def ask() -> None:
                with pytest.raises(BackendError, match="no answer"):
                    locks.status("a")

            if where == "main":
                ask()
            else:
                background(ask).result()
        assert said.dripped


def test_a_server_that_is_busy_with_a_script_is_asked_again(own_redis: Own) -> None:
    own_redis.client.config_set("busy-reply-threshold", 50)

    def spin() -> None:
        with redis.Redis(port=own_redis.server.port, socket_timeout=PATIENCE) as client, contextlib.suppress(Exception):
            client.eval("while true do end", 0)

    def busy() -> bool:
        try:
            own_redis.client.ping()
        except redis.exceptions.RedisError:
            return True
        return False

    with fencepost.connect(f"{own_redis.url}?timeout={GIVES_UP:g}s") as locks:
        assert locks.acquire("a").release()
        spinning = background(spin)
        until(busy, "it is busy", watching=[spinning])
        before = threading.active_count()
        for _ in range(2):
            with pytest.raises(BackendError, match="BUSY") as refused:
                locks.acquire("a", timeout=1)
            assert not refused.value.ambiguous, "nothing was executed"
        assert threading.active_count() <= before, "nothing is left to clean up"
        own_redis.client.script_kill()
        spinning.result()
        assert locks.acquire("a", timeout=PATIENCE).release()


def as_redis_6_says_it(data: bytes) -> bytes:
    return re.sub(rb"-(READONLY [^\r]*?)(?: script: \w+, on @user_script:\d+\.)?\r", WRAPPED + rb"-\1\r", data)


WRAPPED = b"-ERR Error running script (call to f_0123456789abcdef): @user_script:12: @user_script: 12: "


def test_a_master_that_became_a_replica_is_recognised_by_what_redis_6_says(own_redis: Own) -> None:
    """It wraps the refusal of a command inside a script, and the client would stay with the demoted master."""
    with (
        Meddler(own_redis.server.port, as_redis_6_says_it) as six,
        fencepost.connect(f"redis://{HOST}:{six.port}?timeout={GIVES_UP:g}s") as locks,
    ):
        assert locks.acquire("a").release()
        own_redis.client.replicaof(HOST, 1)
        with pytest.raises(BackendError, match="READONLY") as refused:
            locks.acquire("a", timeout=1)
        assert six.changed, "it was to be wrapped"
        assert not refused.value.ambiguous
        clients = six.accepted
        waiting = background(lambda: locks.acquire("a", timeout=5).release())
        until(lambda: six.accepted > clients, "it connects again", watching=[waiting])
        own_redis.client.replicaof("NO", "ONE")
        with contextlib.suppress(BackendError):
            waiting.result()
        assert locks.acquire("a", timeout=PATIENCE).release()


@pytest.mark.parametrize(
    ("said", "ambiguous"),
    [
        ("ERR Error running script (call to f_0a): @user_script:12: @user_script: 12: -READONLY You can't", False),
        ("ERR Error running script (call to f_0a): @user_script: 3: -OOM command not allowed", False),
        ("ERR Error running script (call to f_0a): @user_script:5: attempt to index a nil value", True),
        ("READONLY You can't write against a read only replica. script: 0a, on @user_script:3.", False),
        ("BUSY Redis is busy running a script.", False),
        ("MOVED 1 127.0.0.1:1", False),
        ("ERR whatever", True),
    ],
)
def test_what_a_refusal_means(said: str, ambiguous: bool) -> None:
    assert refusal(said, "redis").ambiguous is ambiguous


def test_a_user_who_may_not_load_scripts_sends_them_along(own_redis: Own) -> None:
    own_redis.client.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-script")
    url = own_redis.url.replace("//", "//app:pw@")

    async def concurrent() -> None:
        async with aio.connect(url) as locks:
            assert await (await locks.acquire("a")).release()

    with fencepost.connect(url) as locks:
        assert locks.acquire("a").release()
    run(concurrent())


class Meddler:
    """A proxy that has something to say of its own, and may change what the server answers."""

    def __init__(self, target: int, change: Callable[[bytes], bytes] = lambda data: data) -> None:
        self._target = target
        self._change = change
        self._listener = socket.create_server((HOST, 0))
        self._near: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        """How many connections it has carried."""
        self.changed = 0
        """How often it changed what the server said."""
        self.drip = False
        """Whether all but the answer to HELLO comes bit by bit, and does not end."""
        self.dripped = 0
        self._over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def clients(self) -> int:
        return len(self._near)

    def say(self, words: bytes) -> None:
        for each in self._near:
            each.sendall(words)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((HOST, self._target))
                self._near.append(near)
                self.accepted += 1
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()
                threading.Thread(target=self._answer, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with far, contextlib.suppress(OSError):
            while data := near.recv(65536):
                far.sendall(data)
            self._near.remove(near)
            far.shutdown(socket.SHUT_RDWR)

    def _answer(self, near: socket.socket, far: socket.socket) -> None:
        with near, contextlib.suppress(OSError):
            while data := far.recv(65536):
                if self.drip and not data.startswith(b"%"):
                    self._drip(near)
                changed = self._change(data)
                self.changed += changed != data
                near.sendall(changed)
            near.shutdown(socket.SHUT_RDWR)

    def _drip(self, near: socket.socket) -> None:
        """Answer with a text that never ends, until the client hangs up."""
        near.sendall(b"$100000\r\n")
        while not self._over.wait(0.05):
            near.sendall(b"x")
            self.dripped += 1

    def __enter__(self) -> "Meddler":
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
