"""A TCP proxy in front of a loopback port: it cuts, delays, loses and repeats what passes through it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import NamedTuple, Self

from fencepost_lab.faults.record import Faults
from fencepost_lab.servers.processes import HOST

_PARTING = 60.0  # seconds that the answer to a delayed request may take


class _Gates(NamedTuple):
    """Whether bytes pass: what clients send (``up``), and what they are answered (``down``)."""

    up: threading.Event
    down: threading.Event


class _Pair:
    """One client's connection, and ours to the server on its behalf."""

    def __init__(self, near: socket.socket, far: socket.socket, gates: _Gates) -> None:
        self.near, self.far, self.gates = near, far, gates
        self.ends: list[bool] = []
        """The directions that are over."""
        self.forsaken = False
        """The answer to come is to be lost, and the connection with it."""
        self.delayed: threading.Event | None = None
        """While it is not set, what the client has sent waits here; other connections go on."""
        self.answer = b""
        """What a delayed request was answered."""
        self.answered = threading.Event()

    def shut(self) -> None:
        for each in (self.near, self.far):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Carries bytes both ways. What it holds back it delivers in order when it is healed.

    With ``faults`` it records what it did: cut, heal, slow, drop when told to; lose, delay, deliver and repeat when
    they happen. A request is recognised by bytes that it contains; they have to arrive in one piece.
    """

    def __init__(self, target: int, *, host: str = HOST, who: str = "", faults: Faults | None = None) -> None:
        self._target = (host, target)
        self._who = who or f"port {target}"
        self._faults = Faults() if faults is None else faults
        self._gates = _open()
        self._shut: list[_Gates] = []
        self._listener = socket.create_server((HOST, 0))
        self._pairs: list[_Pair] = []
        self._traps: dict[bytes, str] = {}
        self._delayed: list[_Pair] = []
        self._delay = 0.0
        self.port: int = self._listener.getsockname()[1]
        self.held = 0
        """Bytes that were held back by a cut."""
        self._held: list[bytes] = []
        self.slowed = 0
        """Bytes that were delayed."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def cut(self, *, up: bool = True, down: bool = True, newcomers: bool = True) -> None:
        """Hold back what clients send (``up``) and what they are answered (``down``) from now on.

        With ``newcomers`` False, connections made after this are let through.
        """
        for gate, wanted in zip(self._gates, (up, down), strict=True):
            if wanted:
                gate.clear()
        self._shut.append(self._gates)
        if not newcomers:
            self._gates = _open()
        self._faults.note("cut", self._who, up=up, down=down)

    def cut_newcomers(self) -> None:
        """Hold back everything on connections that are made from now on; those there are go on."""
        self._gates = _open()
        self.cut()

    def slow(self, seconds: float) -> None:
        """Deliver everything this much later, in either direction; 0 ends it."""
        self._delay = seconds
        self._faults.note("slow", self._who, by=seconds)

    def lose_answer_to(self, request: bytes) -> None:
        """Let the next request that contains these bytes through, and from then on no answer, on any connection."""
        self._traps[request] = "hold"

    def drop_after(self, request: bytes) -> None:
        """Let the next request that contains these bytes through, and break its connection instead of answering."""
        self._traps[request] = "drop"

    def repeat(self, request: bytes) -> None:
        """Send the next request that contains these bytes once more, on a connection whose answer nobody hears."""
        self._traps[request] = "repeat"

    def delay(self, request: bytes) -> None:
        """Keep the next request that contains these bytes in flight, until ``deliver``; other connections go on.

        Also a client that gives up, or dies, does not call it back.
        """
        self._traps[request] = "delay"

    @property
    def in_flight(self) -> int:
        """How many requests are delayed now."""
        return len(self._delayed)

    def deliver(self, *, timeout: float = 60.0) -> list[bytes]:
        """Let what was delayed arrive, one after the other; what each was answered, also if nobody waits for it.

        TimeoutError if one gets no answer.
        """
        found = []
        while self._delayed:
            pair = self._delayed.pop(0)
            assert pair.delayed is not None
            pair.delayed.set()
            if not pair.answered.wait(timeout):
                raise TimeoutError(f"a delayed request to {self._who} got no answer in {timeout:g} s")
            found.append(pair.answer)
            self._faults.note("deliver", self._who, answer=pair.answer[:80].decode("latin-1"))
        return found

    def holds(self, part: bytes) -> bool:
        """Whether a request or an answer that contains these bytes was held back by a cut."""
        return any(part in data for data in list(self._held))

    def heal(self) -> None:
        """Let go of what was held back."""
        for gates in (*self._shut, self._gates):
            gates.up.set()
            gates.down.set()
        if self._shut:
            self._shut = []
            self._faults.note("heal", self._who, held=self.held)

    def drop(self) -> None:
        """Break every connection there is; new ones are welcome."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.shut()
        if pairs:
            self._faults.note("drop", self._who, connections=len(pairs))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                pair = self._pair(near, far)
                self._pairs.append(pair)
                for up in (True, False):
                    threading.Thread(target=self._carry, args=(pair, up), daemon=True).start()

    def _pair(self, near: socket.socket, far: socket.socket) -> _Pair:
        return _Pair(near, far, self._gates)

    def _carry(self, pair: _Pair, up: bool) -> None:
        source, sink = (pair.near, pair.far) if up else (pair.far, pair.near)
        gate = pair.gates.up if up else pair.gates.down
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if up:
                    self._spring(pair, data)
                    if pair.delayed:
                        pair.delayed.wait()
                elif pair.forsaken:
                    self._faults.note("lose", self._who, bytes=len(data))
                    break
                elif pair.delayed and not pair.answered.is_set():
                    pair.answer = data
                    pair.answered.set()
                if self._delay:
                    self.slowed += len(data)
                    time.sleep(self._delay)
                if not gate.is_set():
                    self.held += len(data)
                    self._held.append(data)
                    gate.wait()
                sink.sendall(data)
        if not up:
            pair.answered.set()
        elif pair.delayed:
            pair.answered.wait(_PARTING)  # the client is gone: the server must not take that for a cancelled request
        self._over(pair, up)

    def _over(self, pair: _Pair, up: bool) -> None:
        """One direction is over: so is the other one."""
        pair.shut()
        pair.ends.append(up)
        if len(pair.ends) == 2:  # nobody reads or writes any more
            pair.near.close()
            pair.far.close()
            with contextlib.suppress(ValueError):
                self._pairs.remove(pair)

    def _spring(self, pair: _Pair, data: bytes) -> None:
        """Do what was asked for when a request like this one comes by, once."""
        for request, how in list(self._traps.items()):
            if request not in data or self._traps.pop(request, None) is None:
                continue
            if how == "hold":
                pair.gates.down.clear()
                self._shut.append(pair.gates)
                self._faults.note("cut", self._who, up=False, down=True)
            elif how == "drop":
                pair.forsaken = True
            elif how == "delay":
                pair.delayed = threading.Event()
                self._faults.note("delay", self._who, bytes=len(data))
                self._delayed.append(pair)
            else:
                threading.Thread(target=self._again, args=(data,), daemon=True).start()

    def _again(self, data: bytes) -> None:
        with contextlib.suppress(OSError), socket.create_connection(self._target) as far:
            far.sendall(data)
            if answer := far.recv(65536):
                self._faults.note("repeat", self._who, bytes=len(data), answer=answer[:80].decode("latin-1"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.heal()
        self.drop()
        for pair in self._delayed:  # never delivered: nobody may wait for it
            assert pair.delayed is not None
            pair.answered.set()
            pair.delayed.set()


def _open() -> _Gates:
    gates = _Gates(threading.Event(), threading.Event())
    for gate in gates:
        gate.set()
    return gates
