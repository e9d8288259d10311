"""A small slice of ``make fuzz``, always the same one, and what its first runs found."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

import fencepost
from fencepost import registry
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError, ConfigError
from fencepost_lab.history.checks import check
from fencepost_lab.history.format import Line
from tests.fuzz.__main__ import TARGETS
from tests.fuzz.redis import HELLO, Liar
from tests.harness.waiting import PATIENCE, until
from tests.lab.test_checks import GOOD, RUN, acquired, granted, wrote

CASES = {"urls": 150, "tokens": 300, "redis": 100, "history": 100}
"""The first cases; etcd's have tests of their own, the service's are in tests/resource/test_hostile.py."""


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_found_in_the_first_cases(name: str) -> None:
    case = TARGETS[name].case
    assert case is not None
    assert len({case(seed) for seed in range(CASES[name])}) > 1, "they do not all end in the same way"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///tmp/a%00b.db", "%00"),
        ("redis+sentinel://h/mast\udce7er/0", "Unicode"),
        ("redis://[]/\0", "database"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        registry.connect(url, Blocking())


def test_an_empty_address_in_brackets_is_the_usual_host() -> None:
    assert registry.connect("redis://[]:6379", Blocking()).address.hosts == (("", 6379),)


class Scripted(Liar):
    """Says one thing to every script but those that give a lock back."""

    said = b""
    left = b":1\r\n"

    def _answer(self, rng: random.Random, request: list[bytes]) -> bytes:
        if request[0] == b"EVALSHA" and self._names.get(request[1].decode()) in ("take", "share"):
            return self.said
        return {b"HELLO": HELLO, b"SCRIPT": b"$1\r\nx\r\n"}.get(request[0], self.left)


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    with Scripted() as server:
        yield server


@pytest.mark.parametrize(
    "said",
    [
        b":-1\r\n",  # the queue is full, for one who did not want to join it
        b"*3\r\n:1\r\n:0\r\n:0\r\n",  # it stands in the queue
        b"$1\r\n0\r\n",
        b"$19\r\n9223372036854775808\r\n",
    ],
)
def test_an_answer_that_answers_something_else_is_no_grant_and_no_crash(server: Scripted, said: bytes) -> None:
    server.said, server.left = said, b":1\r\n"
    with (
        fencepost.connect(f"redis://127.0.0.1:{server.port}?timeout={PATIENCE:g}s", ttl=5) as locks,
        pytest.raises(BackendError, match="answers no request") as caught,
    ):
        locks.try_acquire("a")
    assert caught.value.ambiguous


def test_a_server_that_sends_us_elsewhere_ends_no_thread_with_an_error(
    server: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception that no thread catches fails the test: pytest makes an error of its warning."""
    server.said, server.left = b"$1\r\n0\r\n", b"-MOVED 1 127.0.0.1:1\r\n"
    with fencepost.connect(f"redis://127.0.0.1:{server.port}?timeout=2s", ttl=5) as locks:
        with pytest.raises(BackendError):
            locks.try_acquire("a")
        until(lambda: "redis+cluster://" in caplog.text, "it is told what to write")


def lines(*changed: Line) -> list[Line]:
    return [RUN, *changed]


@pytest.mark.parametrize(
    ("history", "says"),
    [
        (lines(acquired(1, "A", 1), wrote(2, "A", 1, 1, 1, base="x")), "base is a whole number"),
        (lines(acquired(1, "A", 1, until="soon")), "until is a number"),
        (lines(acquired(1, "A", 1, asked=5)), "asked is 5, after t"),
        (lines(acquired(1, "A", 1, asked=10**400)), "asked is a number"),
        (lines(acquired(1, "A", "9" * 40)), "token is a whole number"),
        (lines(acquired(1, "A", 1, holder=None)), "holder is null"),
        (lines(acquired(1, "A", 1) | {"who": []}), "who is a text"),
        (lines({name: value for name, value in granted(1, "A", 1, 5).items() if name != "token"}), "token"),
        ([RUN | {"promises": [["data"]]}, *GOOD[1:]], "promises is a list of texts"),
        ([RUN | {"service": [{}]}, *GOOD[1:]], "service is a list of texts"),
    ],
)
def test_a_field_of_another_kind_is_named(history: list[Line], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check(history)


def test_odd_values_are_violations_and_not_crashes() -> None:
    """A gap that no writes can fill takes no time, and a counter that is no number is a wrong value."""
    run = RUN | {"promises": ["data"], "journal": False}
    far = check([run, acquired(1, "A", 1), wrote(2, "A", 1, 1, 1), wrote(3, "A", 1, 2, 10**15)])
    assert "unwritten-read" in {each.kind for each in far.violations}
    made = [line | {"value": "x"} if line.get("ev") in ("access", "wrote") else line for line in GOOD[1:]]
    odd = check([RUN | {"promises": ["data"], "counter": True}, *made])
    assert "wrong-value" in {each.kind for each in odd.violations}
    assert json.dumps(odd.data())
    unmade = [line | {"version": None} if "version" in line else line for line in GOOD]
    assert not check(unmade).ok, "what was acknowledged was not made"
