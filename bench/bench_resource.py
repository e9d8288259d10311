"""The resource service under 64 connections: group commit against one commit per write, and against no storage."""

import re
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.harness import Sides, bench

CONNECTIONS = 64
_ANSWER = re.compile(rb"HTTP/1\.1 200 .*?content-length: (\d+)\r\n.*?\r\n\r\n", re.DOTALL | re.IGNORECASE)
_BODY = b"x" * 100


class Loader:
    """64 clients, each with a key of its own, that write as fast as they are answered; every write must be admitted."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self._sockets = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(CONNECTIONS)
        ]
        self._answers = [b""] * CONNECTIONS
        self._token = 0

    def write(self, each: int) -> None:
        """So many writes over each connection."""
        left = dict.fromkeys(range(CONNECTIONS), each)
        with selectors.DefaultSelector() as selector:
            for number, client in enumerate(self._sockets):
                selector.register(client, selectors.EVENT_READ, number)
                self._send(number)
            while left:
                for ready, _ in selector.select(60):
                    number = ready.data
                    self._answers[number] += self._sockets[number].recv(65536)
                    if not self._is_done(number):
                        continue
                    left[number] -= 1
                    if left[number]:
                        self._send(number)
                    else:
                        del left[number]
                        selector.unregister(self._sockets[number])

    def _send(self, number: int) -> None:
        self._token += 1
        self._answers[number] = b""
        head = f"PUT /r/key-{number} HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: {self._token}\r\n"
        self._sockets[number].sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(_BODY) + _BODY)

    def _is_done(self, number: int) -> bool:
        answer = self._answers[number]
        assert b"HTTP/1.1 200 ".startswith(answer[:13]), answer
        match = _ANSWER.match(answer)
        return match is not None and len(answer) == match.end() + int(match[1])


@contextmanager
def loaded(kind: str) -> Iterator[Loader]:
    """A loader of a service over that kind of store, in a process of its own."""
    command = [sys.executable, "-m", "bench.resource_service", kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as service, ExitStack() as stack:
        try:
            assert service.stdout is not None
            yield Loader(int(service.stdout.readline()), stack)
        finally:
            service.terminate()


@bench("resource: 64 connections, PUT vs the same server without storage", aim=2.0, iterations=1, rounds=20)
def against_nothing() -> Iterator[Sides]:
    """A ratio of 2 is half as many PUT/s."""
    with loaded("batched") as batched, loaded("nowhere") as nowhere:
        yield {"group commit": lambda: batched.write(20), "no storage": lambda: nowhere.write(20)}


@bench(
    "resource: 64 connections, PUT vs one commit per write",
    bound="The service is one process of Python, which keeps one core busy. More than half of its samples are "
    "in the event loop that serves HTTP, which both sides need. Only the commit is shared by a group, and it is about "
    "a fifth.",
    aim=1 / 3,
    iterations=1,
    rounds=20,
)
def against_unbatched() -> Iterator[Sides]:
    """A ratio of a third is three times as many PUT/s."""
    with loaded("batched") as batched, loaded("unbatched") as unbatched:
        yield {"group commit": lambda: batched.write(20), "one by one": lambda: unbatched.write(20)}
