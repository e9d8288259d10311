"""A TCP proxy in front of a loopback port, which can fall silent in either direction."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from fencepost.lab.servers.processes import HOST


class Proxy:
    """Carries bytes both ways. What it holds back it delivers in order when it is mended."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = {True: threading.Event(), False: threading.Event()}
        self.mend()
        self._listener = socket.create_server((HOST, 0))
        self._sockets: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self._trap = b""
        self.held = 0
        """Bytes that were held back."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                try:
                    far = socket.create_connection((HOST, self._target))
                except OSError:
                    near.close()
                    continue
                self._sockets.append(far)
                for source, sink, up in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._carry, args=(source, sink, up), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if up and self._trap and self._trap in data:
                    self._trap = b""
                    self._open[False].clear()
                if not self._open[up].is_set():
                    self.held += len(data)
                    self._open[up].wait()
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def silence(self, *, up: bool = True, down: bool = True) -> None:
        """Hold back what clients send (``up``) and what they are answered (``down``) from now on."""
        for direction, wanted in ((True, up), (False, down)):
            if wanted:
                self._open[direction].clear()

    def lose_answer_to(self, request: bytes) -> None:
        """Let the next request that contains these bytes through, and from then on no answer."""
        self._trap = request

    def mend(self) -> None:
        """Let go of what was held back."""
        for gate in self._open.values():
            gate.set()

    def drop(self) -> None:
        """Break every connection there is; new ones are welcome."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.mend()
        self.drop()
