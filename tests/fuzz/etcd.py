"""An etcd server that says anything: frames of HTTP/2, and messages in them."""

from __future__ import annotations

import random

from fencepost.backends.etcd.codec import Message
from fencepost.backends.etcd.http2 import Connection, framed
from fencepost.backends.etcd.status import Failure
from tests.backends.etcd import test_http2, test_messages
from tests.backends.etcd.test_http2 import HEAD, Peer, script
from tests.fuzz.spoil import pieces


def frames_case(seed: int) -> str:
    answered, _ = test_http2.sequence(seed)
    return f"{answered} answered"


def messages_case(seed: int) -> str:
    kind: type[Message] = test_messages.KINDS[seed % len(test_messages.KINDS)]
    return "refused" if test_messages.spoilt(kind, random.Random(seed)) else "read"


def frames(data: bytes) -> str:
    """Three calls are over at the end, each once, whatever came."""
    connection = Connection()
    connection.take()
    calls = [connection.start(HEAD, framed(b"%d" % number)) for number in range(3)]
    over = [call for piece in pieces(random.Random(len(data)), data) for call in connection.receive(piece)]
    over += connection.lost("the end")
    assert len(over) == len({id(call) for call in over}) == 3
    assert connection.idle
    answered = 0
    for call in calls:
        try:
            call.result()
            answered += 1
        except Failure:
            pass
    return f"{answered} answered"


def corpus() -> list[bytes]:
    """What servers say to three calls, in several orders."""
    found = []
    for seed in range(20):
        said = script(random.Random(seed), Peer(), [1, 3, 5])
        found.append(b"".join(frame.encode() for frame in [test_http2.Frame(test_http2.SETTINGS, 0, 0), *said]))
    return found
