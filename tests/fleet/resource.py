"""The thing that the fleet's workers write to: one guarded counter per partition, which keeps a history.

It listens on a loopback port and takes one JSON object, an access, per line.
"""

import asyncio
import json
import socket
from types import TracebackType
from typing import Any

from fencepost.driver import boottime
from fencepost_lab.history.format import Line
from fencepost_lab.sim.counters import Counters


class Resource:
    """Counters by key; ``address`` is where it listens inside the block."""

    def __init__(self, history: list[Line]) -> None:
        self._counters = Counters(lambda ev, **facts: history.append({"t": boottime(), "ev": ev, **facts}))

    async def __aenter__(self) -> "Resource":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(self._counters.judge(json.loads(line))).encode() + b"\n")
        except (ConnectionError, ValueError):
            pass  # its client was killed
        finally:
            writer.close()


class Client:
    """A connection of blocking code."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._file = self._socket.makefile("rwb")

    def ask(self, access: dict[str, Any]) -> dict[str, Any]:
        self._file.write(json.dumps(access).encode() + b"\n")
        self._file.flush()
        answer: dict[str, Any] = json.loads(self._file.readline())
        return answer

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class AsyncClient:
    """A connection of asyncio code."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, address: str) -> "AsyncClient":
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, access: dict[str, Any]) -> dict[str, Any]:
        self._writer.write(json.dumps(access).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self._reader.readline())
        return answer

    def close(self) -> None:
        self._writer.close()
