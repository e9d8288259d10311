"""HTTP/2 without I/O: what a server may do, what it must not, and 2,000 sequences of frames that were spoilt."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from hpack import Encoder

from fencepost.backends.etcd.http2 import Call, Connection, block, framed
from fencepost.backends.etcd.status import Code, Failure
from tests import FUZZ

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PROMISE, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM = ACK = 1
END_HEADERS, PADDED = 4, 8
HEAD = block((b":method", b"POST"), (b":path", b"/a"))
OK = [(b":status", b"200"), (b"content-type", b"application/grpc")]
DONE = [(b"grpc-status", b"0"), (b"grpc-message", b"")]


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    number: int
    payload: bytes = b""
    claimed: int | None = None
    """The length that it tells, if that is not its own."""

    def encode(self) -> bytes:
        size = len(self.payload) if self.claimed is None else self.claimed
        return size.to_bytes(3) + bytes([self.kind, self.flags]) + self.number.to_bytes(4) + self.payload


def parse(data: bytes) -> list[Frame]:
    """The frames that a client has sent."""
    found = []
    while data:
        end = 9 + int.from_bytes(data[:3])
        found.append(Frame(data[3], data[4], int.from_bytes(data[5:9]), data[9:end]))
        data = data[end:]
    return found


class Peer:
    """A client's connection, and the server that it talks to."""

    def __init__(self, settings: bytes = b"") -> None:
        self.connection = Connection()
        greeting = self.connection.take()
        assert greeting.startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert [frame.kind for frame in parse(greeting[24:])] == [SETTINGS, WINDOW]
        self.encode = Encoder().encode
        self.say(Frame(SETTINGS, 0, 0, settings))
        assert self.sent() == [Frame(SETTINGS, ACK, 0)]

    def sent(self) -> list[Frame]:
        return parse(self.connection.take())

    def say(self, *frames: Frame) -> list[Call]:
        return self.connection.receive(b"".join(frame.encode() for frame in frames))

    def start(self, message: bytes = b"question", *, ends: bool = True) -> Call:
        return self.connection.start(HEAD, framed(message), ends=ends)

    def headers(self, number: int, *, fields: Sequence[tuple[bytes, bytes]] = OK, ends: bool = False) -> Frame:
        return Frame(HEADERS, END_HEADERS | (END_STREAM if ends else 0), number, self.encode(fields))

    def answer(self, number: int, message: bytes = b"answer") -> list[Frame]:
        return [
            self.headers(number),
            Frame(DATA, 0, number, framed(message)),
            self.headers(number, fields=DONE, ends=True),
        ]


def failure(call: Call) -> Failure:
    assert call.over
    with pytest.raises(Failure) as raised:
        call.result()
    return raised.value


def test_a_call_is_two_frames_and_its_answer_three() -> None:
    peer = Peer()
    call = peer.start()
    assert peer.sent() == [
        Frame(HEADERS, END_HEADERS, 1, HEAD),
        Frame(DATA, END_STREAM, 1, framed(b"question")),
    ]
    *first, last = peer.answer(1)
    assert peer.say(*first) == []
    assert peer.say(last) == [call]
    assert call.result() == b"answer"
    assert peer.connection.idle
    assert peer.sent() == []


def test_answers_come_in_any_order_and_in_any_pieces() -> None:
    peer = Peer()
    calls = [peer.start() for _ in range(3)]
    frames = b"".join(frame.encode() for number in (5, 1, 3) for frame in peer.answer(number, b"to %d" % number))
    over = [call for at in range(len(frames)) for call in peer.connection.receive(frames[at : at + 1])]
    assert over == [calls[2], calls[0], calls[1]]
    assert [call.result() for call in calls] == [b"to 1", b"to 3", b"to 5"]


def test_a_long_answer_comes_in_many_frames_and_opens_the_windows_again() -> None:
    peer = Peer()
    call = peer.start()
    peer.sent()
    message = random.Random(1).randbytes(20_000_000)
    data, first = framed(message), peer.headers(1)
    peer.say(first)
    for at in range(0, len(data), 16384):
        assert peer.say(Frame(DATA, 0, 1, data[at : at + 16384])) == []
    opened = [frame for frame in peer.sent() if frame.kind == WINDOW]
    for number, window in ((1, 1 << 20), (0, 1 << 24)):
        given = sum(int.from_bytes(frame.payload) for frame in opened if frame.number == number)
        assert 0 <= len(data) - given <= window // 2 + 16384
    assert peer.say(peer.headers(1, fields=DONE, ends=True)) == [call]
    assert call.result() == message


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ([*OK, (b"grpc-status", b"5"), (b"grpc-message", b"lease%20not%20found")], Code.NOT_FOUND, "lease not found"),
        (
            [*OK, (b"grpc-status", b"16"), (b"grpc-message", b"\xe2\x82\xac%E2%82%AC%ff")],
            Code.UNAUTHENTICATED,
            "€€\ufffd",
        ),
        ([*OK, (b"grpc-status", b"99")], Code.UNKNOWN, ""),
        ([*OK, (b"grpc-status", b"none")], Code.UNKNOWN, ""),
        ([*OK, (b"grpc-status", b"0")], Code.INTERNAL, "the answer has no message"),
        (OK, Code.UNKNOWN, "the answer ends without a status"),
        ([(b":status", b"503")], Code.UNAVAILABLE, "the server answers with the status 503 of HTTP"),
        ([(b":status", b"200"), (b"content-type", b"text/html")], Code.UNKNOWN, "the server does not speak gRPC"),
    ],
)
def test_an_answer_may_be_headers_alone(fields: list[tuple[bytes, bytes]], code: Code, words: str) -> None:
    peer = Peer()
    call = peer.start()
    assert peer.say(peer.headers(1, fields=fields, ends=True)) == [call]
    failed = failure(call)
    assert failed.code is code
    assert failed.words.startswith(words)
    assert not failed.unsent
    assert peer.connection.usable


@pytest.mark.parametrize("fields", [[(b":status", b"502")], [(b":status", b"200"), (b"content-type", b"text/html")]])
def test_what_is_no_grpc_is_cancelled_and_what_still_comes_is_ignored(fields: list[tuple[bytes, bytes]]) -> None:
    peer = Peer()
    call = peer.start()
    peer.sent()
    assert peer.say(peer.headers(1, fields=fields), Frame(DATA, END_STREAM, 1, b"<html>")) == [call]
    failure(call)
    assert peer.sent() == [Frame(RESET, 0, 1, bytes([0, 0, 0, 8]))]
    another = peer.start()
    peer.say(*peer.answer(3))
    assert another.result() == b"answer"


def test_trailers_say_how_it_ended() -> None:
    peer = Peer()
    call = peer.start()
    refused = [(b"grpc-status", b"8"), (b"grpc-message", b"etcdserver: too many requests")]
    peer.say(peer.headers(1), Frame(DATA, 0, 1, framed(b"answer")), peer.headers(1, fields=refused, ends=True))
    assert (failure(call).code, failure(call).words) == (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 messages"),
        (framed(b"a") + framed(b"b"), "2 messages"),
        (framed(b"abc")[:-1], "ends too early"),
        (b"\1" + framed(b"abc")[1:], "compressed"),
    ],
)
def test_an_answer_is_one_whole_message_that_is_not_compressed(data: bytes, words: str) -> None:
    peer = Peer()
    call = peer.start()
    peer.say(peer.headers(1), Frame(DATA, 0, 1, data), peer.headers(1, fields=DONE, ends=True))
    assert words in failure(call).words
    assert failure(call).code is Code.INTERNAL
    another = peer.start()
    peer.say(*peer.answer(3))
    assert another.result() == b"answer", "it cost nobody else anything"


def test_an_interim_answer_is_not_the_answer() -> None:
    peer = Peer()
    call = peer.start()
    peer.say(peer.headers(1, fields=[(b":status", b"103")]), *peer.answer(1))
    assert call.result() == b"answer"


def test_padding_priorities_and_frames_nobody_knows_are_ignored() -> None:
    peer = Peer()
    call = peer.start()
    head = Frame(HEADERS, END_HEADERS | PADDED | 0x20, 1, b"\2" + bytes(5) + peer.encode(OK) + bytes(2))
    data = Frame(DATA, PADDED, 1, b"\3" + framed(b"answer") + bytes(3))
    peer.say(Frame(PRIORITY, 0, 1, bytes(5)), head, Frame(99, 7, 1, b"?"), data)
    trailers = peer.encode(DONE)
    parts = [Frame(HEADERS, END_STREAM, 1, trailers[:1]), Frame(CONTINUATION, END_HEADERS, 1, trailers[1:])]
    assert peer.say(*parts) == [call]
    assert call.result() == b"answer"


def test_no_more_is_sent_than_the_server_takes() -> None:
    peer = Peer()
    call = peer.start(bytes(100_000))
    body = [frame for frame in peer.sent() if frame.kind == DATA]
    assert [len(frame.payload) for frame in body] == [16384, 16384, 16384, 16383]
    other = peer.start(b"small")
    assert [frame.kind for frame in peer.sent()] == [HEADERS], "the connection's window is used up"
    peer.say(Frame(WINDOW, 0, 0, (40_000).to_bytes(4)))
    assert [(frame.number, len(frame.payload)) for frame in peer.sent()] == [(3, 10)], "the first one's own is too"
    peer.say(Frame(WINDOW, 0, 1, (40_000).to_bytes(4)))
    sent = peer.sent()
    assert sum(len(frame.payload) for frame in sent) == 100_005 - 65535
    assert [frame.flags for frame in sent] == [0, 0, END_STREAM]
    for number in (3, 1):
        peer.say(*peer.answer(number))
    assert call.result() == other.result() == b"answer"


def test_settings_change_the_windows_of_calls_that_are_under_way() -> None:
    peer = Peer((4).to_bytes(2) + (10).to_bytes(4))
    peer.start(b"more than ten bytes")
    assert [len(frame.payload) for frame in peer.sent() if frame.kind == DATA] == [10]
    peer.say(Frame(SETTINGS, 0, 0, (4).to_bytes(2) + (5).to_bytes(4)))
    assert peer.sent() == [Frame(SETTINGS, ACK, 0)], "it is below zero now"
    peer.say(Frame(SETTINGS, 0, 0, (4).to_bytes(2) + (100).to_bytes(4)))
    assert [len(frame.payload) for frame in peer.sent() if frame.kind == DATA] == [14]


def test_a_long_login_goes_into_several_frames() -> None:
    peer = Peer()
    head = HEAD + block((b"token", b"x" * 40_000), secret=True)
    peer.connection.start(head, framed(b"question"))
    sent = peer.sent()
    assert [frame.kind for frame in sent] == [HEADERS, CONTINUATION, CONTINUATION, DATA]
    assert [frame.flags for frame in sent] == [0, 0, END_HEADERS, END_STREAM]
    assert b"".join(frame.payload for frame in sent[:3]) == head


def test_calls_wait_for_their_turn_where_the_server_takes_few_at_a_time() -> None:
    peer = Peer((3).to_bytes(2) + (2).to_bytes(4))
    calls = [peer.start() for _ in range(4)]
    assert {frame.number for frame in peer.sent()} == {1, 3}
    peer.say(*peer.answer(1))
    assert {frame.number for frame in peer.sent()} == {5}
    peer.connection.cancel(calls[1])
    assert [frame.number for frame in peer.sent()] == [3, 7, 7]
    peer.connection.cancel(calls[3])
    peer.say(*peer.answer(5), Frame(GOAWAY, 0, 0, (7).to_bytes(4) + bytes(4)))
    assert calls[0].result() == calls[2].result() == b"answer"
    assert not failure(calls[3]).unsent


def test_what_still_waits_when_the_server_says_goodbye_was_never_sent() -> None:
    peer = Peer((3).to_bytes(2) + (1).to_bytes(4))
    first, waits, given_up = peer.start(), peer.start(), peer.start()
    peer.connection.cancel(given_up)
    assert failure(given_up).unsent
    assert peer.say(Frame(GOAWAY, 0, 0, (1).to_bytes(4) + bytes(4))) == [waits]
    assert failure(waits).unsent
    with pytest.raises(Failure) as raised:
        peer.start()
    assert raised.value.unsent
    assert not peer.connection.idle
    peer.say(*peer.answer(1))
    assert first.result() == b"answer"
    assert peer.connection.idle
    assert not peer.connection.usable


def test_a_goodbye_says_which_calls_were_not_begun_and_why() -> None:
    peer = Peer()
    begun, not_begun = peer.start(), peer.start()
    calm = (1).to_bytes(4) + (11).to_bytes(4) + b"too_many_pings"
    assert peer.say(Frame(GOAWAY, 0, 0, calm)) == [not_begun]
    assert failure(not_begun).unsent
    assert "enhance your calm, too_many_pings" in failure(not_begun).words
    assert peer.connection.lost("the server closed the connection") == [begun]
    assert not failure(begun).unsent


@pytest.mark.parametrize(
    ("code", "meaning", "unsent"),
    [(7, Code.UNAVAILABLE, True), (8, Code.CANCELLED, False), (2, Code.INTERNAL, False), (99, Code.INTERNAL, False)],
)
def test_a_stream_that_is_reset(code: int, meaning: Code, unsent: bool) -> None:
    peer = Peer()
    call, other = peer.start(), peer.start()
    assert peer.say(Frame(RESET, 0, 1, code.to_bytes(4))) == [call]
    assert (failure(call).code, failure(call).unsent) == (meaning, unsent)
    peer.say(Frame(WINDOW, 0, 1, bytes([0, 0, 0, 1])), Frame(RESET, 0, 1, bytes(4)), *peer.answer(3))
    assert other.result() == b"answer", "what comes late for a stream that is over costs nothing"


def test_pings_are_answered_and_ours_are_noticed() -> None:
    peer = Peer()
    peer.say(Frame(PING, 0, 0, b"12345678"))
    assert peer.sent() == [Frame(PING, ACK, 0, b"12345678")]
    peer.connection.ping()
    (ping,) = peer.sent()
    peer.say(Frame(PING, ACK, 0, b"another!"))
    assert peer.connection.pinged
    peer.say(replace(ping, flags=ACK))
    assert not peer.connection.pinged


def test_messages_go_both_ways_on_a_stream() -> None:
    peer = Peer()
    call = peer.start(b"first", ends=False)
    assert [frame.flags for frame in peer.sent()] == [END_HEADERS, 0]
    assert peer.say(peer.headers(1), Frame(DATA, 0, 1, framed(b"one"))) == [call]
    peer.connection.send(call, framed(b"second"))
    assert peer.sent() == [Frame(DATA, 0, 1, framed(b"second"))]
    two = framed(b"two") + framed(b"three")
    assert peer.say(Frame(DATA, 0, 1, two[:4])) == []
    assert peer.say(Frame(DATA, 0, 1, two[4:])) == [call]
    assert call.messages == [b"one", b"two", b"three"]
    assert peer.say(peer.headers(1, fields=[(b"grpc-status", b"14")], ends=True)) == [call]
    assert call.failure is not None
    assert call.failure.code is Code.UNAVAILABLE
    assert peer.sent() == [Frame(RESET, 0, 1, bytes([0, 0, 0, 8]))], "we had not ended it"
    peer.connection.send(call, framed(b"late"))
    assert peer.sent() == []


def test_the_answer_to_a_cancelled_call_changes_the_table_of_headers_all_the_same() -> None:
    peer = Peer()
    cancelled = peer.start()
    peer.connection.cancel(cancelled)
    for frame in peer.answer(1):
        assert peer.say(frame) == []
    call = peer.start()
    peer.say(*peer.answer(3))
    assert call.result() == b"answer"


def test_answers_to_more_calls_than_are_remembered_cost_the_others_nothing() -> None:
    """As after a server stood still, and all who had asked it gave up."""
    peer = Peer()
    given_up = [peer.start() for _ in range(3000)]
    call = peer.start()
    for each in given_up:
        peer.connection.cancel(each)
    for number in (1, 3, 5999, 6001):
        peer.say(*peer.answer(number))
    assert call.result() == b"answer"
    assert len(peer.connection._cancelled) <= 1000
    other = peer.start()
    assert peer.say(peer.headers(6002)) == [other], "no stream of ours ever had that number"


def wrong(peer: Peer) -> Iterator[tuple[str, list[Frame]]]:
    """What no server may send, while call 1 is under way."""
    headers, data = peer.headers(1), Frame(DATA, 0, 1, framed(b"answer"))
    yield "headers twice", [headers, headers]
    yield "data first", [data]
    yield "a stream that was never opened", [replace(headers, number=3)]
    yield "a stream of its own", [replace(headers, number=2)]
    yield "no stream", [replace(headers, number=0)]
    yield "data on no stream", [headers, replace(data, number=0)]
    yield "headers that cannot be decoded", [replace(headers, payload=b"\xff\xff\xff\xff\xff")]
    yield "an index that is not there", [replace(headers, payload=b"\xfe")]
    yield "a broken Huffman code", [replace(headers, payload=b"\x40\x84\xff\xff\xff\xff\x00")]
    yield "headers that do not go on", [replace(headers, flags=0), data]
    yield "headers that another stream goes on with", [replace(headers, flags=0), Frame(CONTINUATION, 4, 3)]
    yield "headers that go on by themselves", [Frame(CONTINUATION, 4, 1, headers.payload)]
    yield "headers without an end", [replace(headers, flags=0), *[Frame(CONTINUATION, 0, 1, bytes(16384))] * 5]
    yield "too much padding", [headers, replace(data, flags=PADDED, payload=b"\x09abc")]
    yield "a frame that is too long", [Frame(DATA, 0, 1, bytes(16385))]
    yield "a pushed stream", [Frame(PROMISE, END_HEADERS, 1, bytes(4) + headers.payload)]
    yield "a ping that is too short", [Frame(PING, 0, 0, b"1")]
    yield "a window opened by nothing", [Frame(WINDOW, 0, 0, bytes(4))]
    yield "a window that is too wide", [Frame(WINDOW, 0, 1, b"\x7f\xff\xff\xff")]
    yield "a connection's window that is too wide", [Frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff")]
    yield "a window of a stream that is to come", [Frame(WINDOW, 0, 3, bytes([0, 0, 0, 1]))]
    yield "a reset of a stream that is to come", [Frame(RESET, 0, 3, bytes(4))]
    yield "settings that are too short", [Frame(SETTINGS, 0, 0, b"12345")]
    yield "settings of a stream", [Frame(SETTINGS, 0, 1)]
    yield "an initial window that is too wide", [Frame(SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff")]
    yield "frames that are too long to come", [Frame(SETTINGS, 0, 0, b"\0\5\0\0\0\1")]
    yield "a goodbye that is too short", [Frame(GOAWAY, 0, 0, b"1234")]


WRONG = [name for name, _ in wrong(Peer())]


@pytest.mark.parametrize("which", range(len(WRONG)), ids=WRONG)
def test_a_server_that_breaks_the_rules_ends_the_connection(which: int) -> None:
    peer = Peer()
    call = peer.start()
    frames = [frames for _, frames in wrong(peer)][which]
    assert peer.say(*frames) == [call]
    assert not peer.connection.usable
    assert peer.connection.idle
    assert failure(call).code is Code.UNAVAILABLE
    assert not failure(call).unsent
    assert peer.say(Frame(PING, 0, 0, bytes(8))) == []


def test_a_second_answer_ends_the_connection_and_the_first_one_counts() -> None:
    peer = Peer()
    call, other = peer.start(), peer.start()
    assert peer.say(*peer.answer(1), *peer.answer(1)) == [call, other]
    assert call.result() == b"answer"
    assert failure(other).code is Code.UNAVAILABLE


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02\x02F\r\n\r\n"])
def test_what_is_no_http2_is_said_to_be_none(said: bytes) -> None:
    connection = Connection()
    call = connection.start(HEAD, framed(b"question"))
    assert connection.receive(said) == [call]
    assert "no HTTP/2" in failure(call).words


# Sequences of frames that were spoilt


def script(rng: random.Random, peer: Peer, numbers: list[int]) -> list[Frame]:
    """A server's answers to all calls, mixed with each other and with what else it may say."""
    answers = []
    for number in numbers:
        data = framed(expected(number))
        cut = sorted(rng.sample(range(1, len(data)), rng.randrange(3)))
        parts = [data[start:stop] for start, stop in zip([0, *cut], [*cut, len(data)], strict=True)]
        frames = [Frame(HEADERS, 0, number), *(Frame(DATA, 0, number, part) for part in parts)]
        answers.append([*frames, Frame(HEADERS, END_STREAM, number)])
    mixed = []
    while answers:
        turn = rng.choice(answers)
        frame = turn.pop(0)
        if frame.kind == HEADERS:  # in the order in which they go out
            fields = DONE if frame.flags & END_STREAM else OK
            encoded = peer.encode(fields)
            if rng.random() < 0.2:
                mixed.append(replace(frame, payload=encoded[:1]))
                frame = Frame(CONTINUATION, END_HEADERS, frame.number, encoded[1:])
            else:
                frame = replace(frame, flags=frame.flags | END_HEADERS, payload=encoded)
        mixed.append(frame)
        if frame.flags & END_HEADERS or frame.kind == DATA:
            mixed += [noise(rng)] if rng.random() < 0.1 else []
        if not turn:
            answers.remove(turn)
    return mixed


def expected(number: int) -> bytes:
    return b"the answer to %d: " % number + bytes([number]) * (number * 7 % 40)


def noise(rng: random.Random) -> Frame:
    """What a server may say at any time between two answers."""
    return rng.choice(
        [
            Frame(PING, 0, 0, rng.randbytes(8)),
            Frame(WINDOW, 0, 0, bytes([0, 0, 1, 0])),
            Frame(SETTINGS, 0, 0, (4).to_bytes(2) + (70_000).to_bytes(4)),
            Frame(SETTINGS, ACK, 0),
            Frame(rng.randrange(10, 256), rng.randrange(256), rng.randrange(20), rng.randbytes(5)),
        ]
    )


def disturb(rng: random.Random, frames: list[Frame]) -> None:
    """Lose a frame, repeat one, or cut the connection: nothing says that another call's answer is this one's."""
    at = rng.randrange(len(frames))
    way = rng.randrange(5)
    if way == 0:
        del frames[at]
    elif way == 1:
        frames.insert(at, frames[at])
    elif way == 2:
        del frames[at:]
    elif way == 3:
        frames.insert(at, Frame(RESET, 0, rng.choice([1, 3, 5, 7]), rng.randrange(14).to_bytes(4)))
    else:
        frames.insert(at, Frame(GOAWAY, 0, 0, rng.choice([0, 1, 5, 99]).to_bytes(4) + rng.randrange(3).to_bytes(4)))


def spoil(rng: random.Random, frames: list[Frame]) -> None:
    """Change anything in a frame."""
    at = rng.randrange(len(frames))
    frame = frames[at]
    payload = bytearray(frame.payload)
    for _ in range(rng.randrange(1, 4)):
        if payload:
            payload[rng.randrange(len(payload))] = rng.randrange(256)
    frames[at] = rng.choice(
        [
            replace(frame, kind=rng.randrange(12)),
            replace(frame, flags=frame.flags ^ 1 << rng.randrange(8)),
            replace(frame, number=rng.choice([0, 1, 2, 3, 5, 7, 2**31 - 1, 2**31 + 1])),
            replace(frame, payload=bytes(payload)),
            replace(frame, payload=frame.payload[: rng.randrange(len(frame.payload) + 1)]),
            replace(frame, payload=frame.payload + rng.randbytes(rng.randrange(1, 20))),
            replace(frame, claimed=rng.choice([0, 1, len(frame.payload) + 1, 16384, 16385, 2**24 - 1])),
            Frame(rng.randrange(12), rng.randrange(256), rng.randrange(9), rng.randbytes(rng.randrange(20))),
        ]
    )


def play(rng: random.Random, peer: Peer, calls: list[Call], frames: list[Frame]) -> None:
    """Give it all in pieces; each call is over at the end, and was said to be so once."""
    data, over = b"".join(frame.encode() for frame in frames), list[Call]()
    while data:
        size = rng.choice([1, 3, 9, 20, 100, len(data)])
        over += peer.connection.receive(data[:size])
        data = data[size:]
        if rng.random() < 0.05:
            peer.connection.cancel(rng.choice(calls))
        parse(peer.connection.take())
    over += peer.connection.lost("the end")
    assert len(over) == len({id(call) for call in over})
    assert all(call.over for call in calls)
    assert peer.connection.idle


def spelt(frames: list[Frame], number: int) -> bytes:
    """All bytes that these frames say on a stream."""
    return b"".join(frame.payload for frame in frames if frame.kind == DATA and frame.number & 0x7FFFFFFF == number)


SEQUENCES = 100_000 if FUZZ else 2_000


def sequence(seed: int) -> tuple[int, int]:
    """Play one spoilt sequence of frames; how many calls were answered, and how many failed."""
    answered = failed = 0
    rng = random.Random(seed)
    settings = (3).to_bytes(2) + (2).to_bytes(4) if rng.random() < 0.1 else b""
    peer = Peer(settings)
    calls = [peer.start(b"%d" % each) for each in range(1 if settings else rng.randrange(1, 5))]
    numbers = [2 * each + 1 for each in range(len(calls))]
    frames = script(rng, peer, numbers)
    gentle = rng.random() < 0.5
    for _ in range(1 if gentle else rng.randrange(1, 5)):
        (disturb if gentle or rng.random() < 0.3 else spoil)(rng, frames)
        if not frames:
            break
    try:
        play(rng, peer, calls, frames)
        for number, call in zip(numbers, calls, strict=True):
            if call.failure is not None or len(call.messages) != 1:
                failed += 1
            elif gentle:
                answered += 1
                assert call.result() == expected(number)
            else:
                answered += 1
                padded = any(frame.flags & PADDED or frame.claimed is not None for frame in frames)
                assert padded or framed(call.result()) in spelt(frames, number)
    except BaseException as error:
        error.add_note(f"seed {seed}, frames {frames}")
        raise
    return answered, failed


@pytest.mark.slow
def test_spoilt_frames_never_make_a_wrong_answer_and_never_leave_a_call_without_an_end() -> None:
    counts = [sequence(seed) for seed in range(SEQUENCES)]
    assert min(sum(answered for answered, _ in counts), sum(failed for _, failed in counts)) > SEQUENCES // 10
