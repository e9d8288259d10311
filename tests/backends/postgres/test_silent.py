"""A Postgres that accepts connections and says nothing: a blocking acquire is over soon after its timeout."""

import socket
from collections.abc import Iterator
from urllib.parse import quote

import pytest

import fencepost
from fencepost.errors import BackendError
from fencepost_lab.servers import HOST
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import GIVES_UP, PATIENCE, until

pytestmark = pytest.mark.silence

OWN = f"{PATIENCE * 10:g}s"
"""The store's own time-out: a request that waits for it has not ended in time."""


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as listening:
        yield listening


def url(server: socket.socket) -> str:
    return f"postgresql://somebody@{HOST}:{server.getsockname()[1]}/x"


@pytest.mark.parametrize("hosts", [1, 3])
def test_while_it_connects(silent: socket.socket, hosts: int) -> None:
    address = f"{HOST}:{silent.getsockname()[1]}"
    many = ",".join([address] * hosts)
    with fencepost.connect(f"postgresql://somebody@{many}/x?timeout={OWN}") as locks:
        asking = background(lambda: locks.acquire("a", timeout=0.1))
        with pytest.raises(BackendError, match="no answer") as raised:
            asking.result()
        assert not raised.value.ambiguous


def test_while_others_have_every_connection(silent: socket.socket) -> None:
    with fencepost.connect(f"{url(silent)}?timeout={OWN}&pool=1") as locks:
        links = locks._core.backend._links  # type: ignore[attr-defined]
        first = background(lambda: locks.acquire("a"))
        until(lambda: links._open == 1, "it has the only connection", watching=[first])
        asking = background(lambda: locks.acquire("b", timeout=0.1))
        with pytest.raises(BackendError, match="pool=") as raised:
            asking.result()
        assert not raised.value.ambiguous
        assert not first.done
        assert not links._queue, "nobody waits for a connection any more"
        silent.close()
        with pytest.raises(BackendError):
            first.result()


def test_while_there_is_no_session_to_listen_on(silent: socket.socket, postgres_server: Endpoint) -> None:
    way = quote(url(silent), safe="")
    with (
        fencepost.connect(postgres_server.url, ttl=PATIENCE * 10) as others,
        fencepost.connect(f"{postgres_server.url}?timeout={OWN}&listen={way}") as locks,
        others.lock("test_silent"),
    ):
        assert locks.status("test_silent"), "it is connected"
        asking = background(lambda: locks.acquire("test_silent", timeout=GIVES_UP))
        with pytest.raises(BackendError, match="no session to listen on"):
            asking.result()
        status = others.status("test_silent")
        assert status is not None
        assert not status.waiters
        silent.close()
