"""The resource among hostile clients: slow ones, greedy ones, and those who send anything at all."""

from __future__ import annotations

import base64
import contextlib
import os
import random
import re
import select
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote_from_bytes, unquote_to_bytes

import pytest

from fencepost.resource import auth as clients
from fencepost.rule import MAX_TOKEN
from fencepost_lab.servers.processes import HOST
from tests import FUZZ, ROOT
from tests.fuzz import service as fuzz
from tests.harness.child import Child
from tests.harness.resource import Service
from tests.harness.waiting import PATIENCE, until

HEAD = b"PUT /r/slow HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 5\r\n"
BODY = HEAD + b"Content-Length: 100\r\n\r\nhalf"
SLOW = {"silent": b"", "half a head": HEAD, "half a body": BODY, "bad luck": b"G"}


@contextlib.contextmanager
def half_open(service: Service, count: int, *sent: bytes, receive: int = 0) -> Iterator[list[socket.socket]]:
    """So many connections, each stuck after it has sent so much; the system takes in ``receive`` bytes for each."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for number in range(count):
            client = stack.enter_context(socket.create_connection((HOST, service.port), 30))
            if receive:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
            client.sendall(sent[number % len(sent)])
            sockets.append(client)
        yield sockets


@contextlib.contextmanager
def connected_with(service: Service, sent: bytes, receive: int = 0) -> Iterator[socket.socket]:
    """A connection on which so much has come before a service that is soon out of patience knows of it."""
    with contextlib.ExitStack() as stack:
        with service.paused():
            client = stack.enter_context(socket.create_connection((HOST, service.port), 30))
            if receive:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
            client.sendall(sent)
        yield client


def ended(sockets: list[socket.socket]) -> int:
    """How many of them the service has answered or closed."""
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN)
    return len(poll.poll(0))


def honest(service: Service, rounds: int, first: int = 1, key: str = "honest") -> None:
    """A client that does everything right, each time over a new connection, and is served."""
    for token in range(first, first + rounds):
        assert service.put(key, b"%d" % token, token).status == 200
        assert service.get(key).body == b"%d" % token


def test_500_half_open_clients_do_not_stop_honest_ones() -> None:
    with Service(args=["--timeout", "10m"]) as service, half_open(service, 500, *SLOW.values()) as slow:
        honest(service, 25)
        assert ended(slow) == 0, "all of them were there the whole time"
        assert service.get("slow").status == 404


@pytest.mark.parametrize("kind", SLOW)
def test_when_there_are_too_many_those_that_keep_it_waiting_longest_give_way(narrow: Service, kind: str) -> None:
    with half_open(narrow, 40, SLOW[kind]) as first:
        honest(narrow, 10, key=kind)
        assert ended(first) == 0, "there is room for all of them"
        with half_open(narrow, 160, SLOW[kind]) as others:
            honest(narrow, 10, first=100, key=kind)
            until(lambda: ended(first) == 40, "the first ones give way")
            until(lambda: 80 <= ended(others) < 160, "the others give way, but not all of them")


@pytest.mark.parametrize("kind", SLOW)
def test_a_client_that_takes_too_long_is_given_up(hasty: Service, kind: str) -> None:
    with connected_with(hasty, SLOW[kind]) as client:
        said = read_all(client)
    assert said.startswith(b"HTTP/1.1 408 ") if kind == "half a body" else said == b""


def test_half_a_body_is_answered_also_after_the_service_had_no_cpu_for_longer_than_its_time_outs(
    hasty: Service,
) -> None:
    with connected_with(hasty, BODY) as client:
        until(lambda: taken_in(hasty.port, client.getsockname()[1]), "the service has read it")
        with hasty.paused():
            time.sleep(1.5)
        assert read_all(client).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("start", [HEAD, BODY])
def test_a_trickle_does_not_buy_time(hasty: Service, start: bytes) -> None:
    end = time.monotonic() + PATIENCE
    with connected_with(hasty, start) as client, contextlib.suppress(OSError):
        while not ended([client]):
            assert time.monotonic() < end
            client.sendall(b"x")
            time.sleep(0.05)


def test_a_client_that_does_not_take_its_answer_is_given_up(hasty: Service) -> None:
    with contextlib.closing(sqlite3.connect(hasty.folder / "store.sqlite3", timeout=30)) as conn, conn:
        conn.execute("INSERT INTO value VALUES ('large', zeroblob(1 << 20))")
    asked = b"GET /r/large HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20
    with connected_with(hasty, asked, receive=4096) as client:
        until(lambda: not established(hasty.port, client.getsockname()[1]), "the service gives it up")


def test_a_client_that_does_not_take_its_answer_and_sends_half_a_body_is_given_up(hasty: Service) -> None:
    with contextlib.closing(sqlite3.connect(hasty.folder / "store.sqlite3", timeout=30)) as conn, conn:
        conn.execute("INSERT INTO value VALUES ('huge', zeroblob(8 << 20))")
    asked = b"GET /r/huge HTTP/1.1\r\nHost: localhost\r\n\r\n" + BODY
    with connected_with(hasty, asked, receive=4096) as client:
        until(lambda: not established(hasty.port, client.getsockname()[1]), "the service gives it up")


def test_bodies_beyond_the_limit_get_503_and_those_of_clients_that_left_are_not_kept() -> None:
    args = ["--timeout", "10m", "--max-body", "1000000", "--max-waiting", "3000000"]
    with Service(args=args) as service, contextlib.ExitStack() as stack:
        lock = stack.enter_context(contextlib.closing(sqlite3.connect(service.folder / "store.sqlite3", timeout=30)))
        lock.execute("BEGIN IMMEDIATE")
        clients = {}
        for number in range(5):
            client = stack.enter_context(socket.create_connection((HOST, service.port), 30))
            head = f"PUT /r/k{number} HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 5\r\nContent-Length: 900000\r\n\r\n"
            client.sendall(head.encode() + bytes(900_000))
            clients[number] = client
            if number == 0:
                writer_waits_for_the_lock(service)
        until(lambda: ended(list(clients.values())) == 2, "two of five do not fit")
        full = [number for number, client in clients.items() if ended([client])]
        for number in full:
            said = clients.pop(number).recv(65536)
            assert said.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1" in said.lower()
        # The writer has the first one, which waits for the lock; the others wait for the writer.
        stays, *leaving = clients
        assert (stays, len(leaving)) == (0, 2)
        ports = [clients[number].getsockname()[1] for number in leaving]
        for number in leaving:
            clients[number].close()
        until(lambda: not any(connected(service.port, port) for port in ports), "the service has seen them leave")
        lock.rollback()
        assert clients[stays].recv(65536).startswith(b"HTTP/1.1 200 ")
        assert [service.get(f"k{number}").status for number in leaving] == [404, 404]
        assert service.put("next", bytes(900_000), 5).status == 200


def begun(client: socket.socket) -> bool:
    """Whether a value is on its way to a client, which reads none of it."""
    try:
        return client.recv(12, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"HTTP/1.1 200"
    except BlockingIOError:
        return False


def test_answers_that_nobody_takes_count_as_well() -> None:
    args = ["--timeout", "10m", "--max-body", "8000000", "--max-waiting", "20000000"]
    large = os.urandom(8_000_000)  # far more than the system takes in for a client that does not read
    asked = b"GET /r/large HTTP/1.1\r\nHost: localhost\r\n"
    with Service(args=args) as service:
        assert service.put("large", large, 1).status == 200
        with half_open(service, 2, asked + b"\r\n", asked + b"X-Fence-Token: 2\r\n\r\n", receive=4096) as clients:
            until(lambda: all(map(begun, clients)), "two of them are answered")
            assert service.get("large").status == 503, "the third does not fit"
            assert service.get("large").headers["Retry-After"] == "1"
            assert service.get("large", Accept="application/json", X_Fence_Token="2").status == 503
            assert service.put("other", large, 1).status == 503
            assert (service.put("small", b"x", 1).status, service.get("small").body) == (200, b"x")
        until(lambda: service.get("large").body == large, "the clients that left have made room")
        text = service.get("large", Accept="application/json")
        assert base64.b64decode(text.json["value"]) == large


def test_a_value_larger_than_all_that_may_wait_is_still_read() -> None:
    with Service(args=["--max-body", "0", "--max-waiting", "0"]) as service:
        with contextlib.closing(sqlite3.connect(service.folder / "store.sqlite3")) as conn, conn:
            conn.execute("INSERT INTO value VALUES ('old', zeroblob(1000000))")
        assert [service.get("old").body for _ in range(2)] == [bytes(1_000_000)] * 2


def writer_waits_for_the_lock(service: Service) -> None:
    """Until the writer's thread tries again and again: it has taken what waited, and what comes now waits for it.

    The other threads beside the main one sleep without an end until they are asked.
    """

    def naps() -> dict[str, int]:
        line = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.M)
        tasks = [task for task in Path(f"/proc/{service.pid}/task").iterdir() if task.name != str(service.pid)]
        found = {task.name: line.search((task / "status").read_text()) for task in tasks}
        return {thread: int(count[1]) for thread, count in found.items() if count}

    before = naps()
    until(lambda: any(count > before.get(thread, 0) + 10 for thread, count in naps().items()), "the writer tries often")


def connected(server: int, client: int) -> bool:
    """Whether the server's end of a connection exists, in whatever state."""
    wanted = (f"0100007F:{server:04X}", f"0100007F:{client:04X}")
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(tuple(line.split()[1:3]) == wanted for line in lines)


def test_trailers_are_not_headers(service: Service) -> None:
    head = "PUT /r/trailed HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
    rest = "\r\n1\r\nx\r\n0\r\nX-Fence-Token: 7\r\n\r\n"
    for headers, status in (("", b"428"), ("X-Fence-Token: 5\r\n", b"200")):
        with socket.create_connection((HOST, service.port), 30) as client:
            client.sendall((head + headers + rest).encode())
            assert read_all(client).startswith(b"HTTP/1.1 " + status)
    assert service.get("trailed").headers["X-Fence-Mark"] == "5"


def test_a_head_that_is_too_large_is_refused(service: Service) -> None:
    for header in (b"X-Long: " + b"x" * 100_000, b"\r\n".join(b"X-%d: y" % number for number in range(20_000))):
        with socket.create_connection((HOST, service.port), 30) as client, contextlib.suppress(ConnectionError):
            client.sendall(b"GET /r/x HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n\r\n")
            assert read_all(client)[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 431")
    assert service.get("x").status == 404


def test_a_body_that_is_far_too_large_is_answered_early_and_does_not_go_on_for_ever(hasty: Service) -> None:
    end = time.monotonic() + PATIENCE
    with connected_with(hasty, HEAD + b"Content-Length: %d\r\n\r\n" % (1 << 40)) as client:
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end:
                client.sendall(bytes(1 << 16))
        assert time.monotonic() < end, "it was cut off"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "token", "status"), [(900_000, None, 428), (2_000_000, "5", 413)], ids=["no token", "too large"]
)
def test_a_body_that_was_answered_early_does_not_spoil_the_next_request(
    service: Service, size: int, token: str | None, status: int
) -> None:
    headers = {"X-Fence-Token": token} if token else {}
    with contextlib.closing(service.connection()) as connection:
        for _ in range(5):
            assert service.ask("PUT", "/r/early", bytes(size), headers, over=connection).status == status
            assert service.ask("GET", "/r/early", over=connection).status == 404


def test_what_cannot_be_parsed_is_answered_after_the_requests_before_it(service: Service) -> None:
    """Each request takes the next answer for its own: a 400 that came first would say that a write was refused."""
    put = "PUT /r/first HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: {}\r\nContent-Length: 1\r\n\r\n{}"
    chunked = "PUT /r/first HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nX-Fence-Token: 9\r\n\r\n"
    for token, spoilt in ((1, "GARBAGE\r\n\r\n"), (3, chunked + "zz\r\n"), (5, "GET /r/a#b HTTP/1.1\r\n\r\n")):
        with socket.create_connection((HOST, service.port), 30) as client:
            client.sendall((put.format(token, "a") + put.format(token + 1, "b") + spoilt).encode())
            said = read_all(client)
        assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"200", b"400"], said
        assert service.get("first").headers["X-Fence-Mark"] == str(token + 1)


def test_requests_that_were_spoilt_get_no_500_and_nobody_elses_answer(service: Service) -> None:
    look = fuzz.untouched(service.port)
    assert len({fuzz.case(service.port, seed) for seed in range(60)}) > 10
    look()


def read_all(client: socket.socket) -> bytes:
    """Whatever comes until the service closes."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while chunk := client.recv(65536):
            said += chunk
    return said


def established(server: int, client: int) -> bool:
    """Whether the server's end of a connection is still open."""
    wanted = (f"0100007F:{server:04X}", f"0100007F:{client:04X}", "01")
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(tuple(line.split()[1:4]) == wanted for line in lines)


def taken_in(server: int, client: int) -> bool:
    """Whether the server has read all that has come on a connection, or has closed it."""
    wanted = (f"0100007F:{server:04X}", f"0100007F:{client:04X}", "01")
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return all(line[4].endswith(":00000000") for line in lines if tuple(line[1:4]) == wanted)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


@pytest.fixture(scope="module")
def narrow() -> Iterator[Service]:
    with Service(args=["--timeout", "10m", "--max-connections", "80"]) as service:
        yield service


@pytest.fixture(scope="module")
def hasty() -> Iterator[Service]:
    with Service(args=["--timeout", "500ms"]) as service:
        yield service


@pytest.mark.slow
@pytest.mark.experiment
@pytest.mark.parametrize("secured", [False, True], ids=["open", "secured"])
def test_schemathesis_finds_nothing(tmp_path: Path, secured: bool) -> None:
    token, table = clients.new("tester")
    (tmp_path / "clients.toml").write_text(table)
    with Service(args=["--clients", str(tmp_path / "clients.toml")] if secured else []) as service:
        command = ["-m", "schemathesis.cli", "--config-file", "tests/resource/schemathesis.toml", "run"]
        command += [f"{service.url}/openapi.json", "--checks", "all", "--max-examples", "25", "--no-color"]
        command += [] if FUZZ else ["--seed", "1", "--generation-database", "none"]
        if secured:
            command += ["--header", f"Authorization: Bearer {token}"]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with Child.python(*command, env={"PYTHONPATH": path}) as process:
            said = "\n".join(process.succeed(110))
    cases = re.search(r"(\d+) generated, (\d+) passed", said)
    assert cases is not None, said
    assert int(cases[1]) == int(cases[2]) >= 100


WHOLE = re.compile(rb"HTTP/1\.1 (\d+) .*?content-length: (\d+)\r\n.*?\r\n\r\n(.*)", re.DOTALL | re.IGNORECASE)
SCRAPS = [b"/", b"//", b"..", b".", b"%2F", b"%2e%2e", b"%00", b"%ff", b"%C3%A9", b"e%CC%81", b"%", b"%zz", b"a", b"A"]
SCRAPS += [
    b"%20",
    b"+",
    b";",
    b"?",
    b"#",
    b"&",
    b"=",
    b"%3F",
    b"'",
    b'"',
    b"%0A",
    b"\\",
    b"{}",
    b"%F0%9F%98%80",
    b"%25",
    b"r",
]
TOKENS = [b"1", b"2", b"3", b"9007199254740992", b"9007199254740993", str(MAX_TOKEN).encode()]
TOKENS += [
    str(MAX_TOKEN + 1).encode(),
    b"0",
    b"-1",
    b"+1",
    b"01",
    b"1.0",
    b"1e9",
    b"0x10",
    b" 7 ",
    b"",
    b"7 8",
    b"\xc2\xb2",
]
TOKENS += [b"NaN", b"null", b"9" * 400, b"1_000", b"1,2", b"'1'", b"\xd9\xa1", b"true"]


@pytest.mark.slow
def test_fuzzed_keys_and_tokens_never_get_500_nor_touch_another_key() -> None:
    with Service(args=["--timeout", "10m", "--ceiling", "off"]) as service, ThreadPoolExecutor(8) as pool:
        fuzzers = [Fuzzer(number) for number in range(8)]
        list(pool.map(lambda fuzzer: fuzzer.run(service.port, 500), fuzzers))
        statuses = Counter(status for fuzzer in fuzzers for status in fuzzer.statuses)
        assert statuses.total() == 4_000
        assert set(statuses) == {200, 400, 409}
        assert min(statuses.values()) > 400
        with contextlib.closing(sqlite3.connect(service.folder / "store.sqlite3")) as store:
            values = {name.encode(): data for name, data in store.execute("SELECT resource, data FROM value")}
        model = {name: entry for fuzzer in fuzzers for name, entry in fuzzer.model.items()}
        assert values == {name: body for name, (_, body) in model.items()}
        for name, (token, body) in random.Random(1).sample(sorted(model.items()), 50):
            found = service.ask("GET", "/r/" + quote_from_bytes(name, safe=""))
            assert (found.body, int(found.headers["X-Fence-Mark"])) == (body, token)


class Fuzzer:
    """Sends anything to keys of its own, and knows what each of them must hold: its last admitted token and body."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._dice = random.Random(number)
        self.model: dict[bytes, tuple[int, bytes]] = {}
        self.statuses: list[int] = []

    def run(self, port: int, count: int) -> None:
        dice = self._dice
        with Raw(port) as raw:
            for number in range(count):
                path = b"%d-" % self._number + key(dice)
                token = b"%d" % dice.randrange(1, 10 ** dice.randrange(1, 19))
                if dice.random() < 0.3:
                    token = dice.choice(TOKENS)
                body = b"%d of %d" % (number, self._number)
                status = raw.put(path, token, body)
                self.statuses.append(status)
                meant = unquote_to_bytes(path.partition(b"?")[0])
                above = self.model.get(meant, (0, b""))[0]
                if status == 200:
                    assert token.strip().isdigit()
                    assert above < int(token) <= MAX_TOKEN
                    self.model[meant] = (int(token), body)
                elif status == 409:
                    assert int(token) <= above


def key(dice: random.Random) -> bytes:
    """A path below /r/, of few keys that are often met again, and of many that are nearly the same."""
    roll = dice.random()
    if roll < 0.4:
        return b"key-%d" % dice.randrange(40)
    if roll < 0.8:
        return b"".join(dice.choice(SCRAPS) for _ in range(dice.randrange(1, 5)))
    raw = bytes(dice.randrange(256) for _ in range(dice.randrange(1, 12)))
    return quote_from_bytes(raw, safe="").encode() if roll < 0.95 else bytes(b for b in raw if 33 <= b < 127) or b"x"


class Raw:
    """A client that sends a path and a token as they are, over one connection for as long as it lasts."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.create_connection((HOST, port), 60)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def put(self, path: bytes, token: bytes, body: bytes) -> int:
        """The status of the answer, after which the connection may have to be another one."""
        head = b"PUT /r/%b HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: %b\r\nContent-Length: %d\r\n\r\n"
        self._socket.sendall(head % (path, token, len(body)) + body)
        answer = b""
        while not (match := WHOLE.match(answer)) or len(match[3]) < int(match[2]):
            chunk = self._socket.recv(65536)
            assert chunk, answer
            answer += chunk
        if b"\r\nconnection: close\r\n" in answer.lower():
            self._socket.close()
            self._socket = socket.create_connection((HOST, self._port), 60)
        return int(match[1])
