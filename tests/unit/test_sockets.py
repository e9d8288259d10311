"""Waiting for sockets where there is no ``select.poll``: it does what ``select.poll`` does."""

import select
import socket
from collections.abc import Iterator

import pytest

from fencepost.driver.sockets import READABLE, WRITABLE, Poller, poller


@pytest.fixture(params=["poll", "select"])
def waits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Poller:
    if request.param == "select":
        monkeypatch.delattr(select, "poll")
    return poller()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_it_tells_which_socket_is_ready_and_for_what(waits: Poller, pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    waits.register(here, READABLE)
    assert waits.poll(0) == []
    assert waits.poll(1) == []
    there.send(b"x")
    assert waits.poll() == [(here.fileno(), READABLE)]
    waits.register(here, READABLE | WRITABLE)
    assert waits.poll(1000) == [(here.fileno(), READABLE | WRITABLE)]
    waits.unregister(here.fileno())
    assert waits.poll(0) == []


def test_one_that_was_closed_meanwhile_is_ready(waits: Poller, pair: tuple[socket.socket, socket.socket]) -> None:
    here, _ = pair
    waits.register(here, READABLE)
    number = here.fileno()
    here.close()
    assert [found for found, _ in waits.poll(1000)] == [number]


def test_what_another_wait_asked_for_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket]
) -> None:
    monkeypatch.delattr(select, "poll")
    here, there = pair
    waits = poller()
    waits.register(here, READABLE)
    there.send(b"x")
    answers: Iterator[tuple[list[int], ...]] = iter([([there.fileno()], [], []), ([], [], [])])
    real = select.select
    monkeypatch.setattr(select, "select", lambda *asked: next(answers, None) or real(*asked))
    assert waits.poll(60_000) == [(here.fileno(), READABLE)]
    assert next(answers, None) is None, "both were seen"
