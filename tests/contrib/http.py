"""Requests to a server of a test, and the worker that is frozen in the middle of one."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from fencepost_lab.servers.processes import freeze_all, thaw_all
from tests.harness.waiting import PATIENCE


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(port: int, method: str, path: str, headers: Mapping[str, str] | None = None) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        found = connection.getresponse()
        return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read().decode())
    finally:
        connection.close()


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop a process for the block."""
    assert freeze_all(pid) == [pid]
    try:
        yield
    finally:
        thaw_all(pid)
