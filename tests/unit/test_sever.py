"""A forked child lets go of its parent's sockets, whatever it lacks for that; a duplicate stands for the parent's."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import trustme

from fencepost.backends.fork import sever
from tests.harness.descriptors import all_descriptors, no_descriptors, open_descriptors
from tests.harness.isolated import isolated
from tests.harness.threads import background

LACKS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "nothing": contextlib.nullcontext,
    "a free descriptor": all_descriptors,
    "any descriptor": no_descriptors,
    "/dev/null": contextlib.nullcontext,
}


def severed(raw: Any, child: socket.socket, lacks: str) -> None:
    """Sever ``raw``, the child's socket or what wraps it, and look what becomes of the connection and the number."""
    parent, number = socket.socket(fileno=os.dup(child.fileno())), child.fileno()
    identity = os.fstat(number).st_ino
    before = open_descriptors()
    devnull = os.devnull
    try:
        if lacks == "/dev/null":
            os.devnull = "/nowhere/null"
        with LACKS[lacks]():
            sever(raw)
    finally:
        os.devnull = devnull
    assert open_descriptors() <= before, "nothing was opened for good"
    assert number not in open_descriptors() or os.fstat(number).st_ino != identity, "the child has let go"
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    child.close()
    sever(raw)
    for each in taken:
        os.close(each)  # OSError, if it was closed under a number that it had before
    assert parent.send(b"on") == 2
    parent.close()


@pytest.mark.parametrize("lacks", LACKS)
@isolated
def test_a_socket_is_let_go_and_its_connection_goes_on(lacks: str) -> None:
    child, peer = socket.socketpair()
    severed(child, child, lacks)
    assert peer.recv(10) == b"on"
    assert peer.recv(10) == b"", "once the parent has closed it, too"
    peer.close()


@pytest.mark.parametrize("lacks", LACKS)
@isolated
async def test_a_socket_of_asyncio_is_let_go_and_its_connection_goes_on(lacks: str) -> None:
    child, peer = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=child)
    severed(transport.get_extra_info("socket"), child, lacks)
    assert peer.recv(10) == b"on"
    assert peer.recv(10) == b""
    peer.close()
    transport.abort()
    await asyncio.sleep(0)


@pytest.mark.parametrize("lacks", LACKS)
@isolated
def test_a_socket_of_tls_is_let_go_without_a_word(lacks: str) -> None:
    authority = trustme.CA()
    serving, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(serving)
    authority.configure_trust(asking)
    near, peer = socket.socketpair()
    accepting = background(lambda: serving.wrap_socket(peer.dup(), server_side=True))
    child = asking.wrap_socket(near, server_hostname="localhost")
    server = accepting.result()
    severed(child, child, lacks)
    assert peer.recv(10) == b"on", "nothing came before what the parent sent"
    server.close()
    peer.close()
