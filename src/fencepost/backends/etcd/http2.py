"""HTTP/2 as a client of gRPC needs it, without any I/O: it is given the bytes received, and returns the bytes to send.

::

    connection = Connection()
    call = connection.start(head, framed(message))
    ... until call.over: send connection.take(), and pass the bytes received to connection.receive() ...
    call.result()

The headers of requests are encoded in advance (``block``) and do not use HPACK's table. The headers of answers are
decoded by ``hpack``. A server that repeats its headers sends one byte for each field; such a block is decoded once.

If the server violates the protocol on any stream, the whole connection ends and each call fails: from then on it is not
certain which answer belongs to which request.
"""

import struct
from collections import deque
from typing import Any
from urllib.parse import unquote_to_bytes

from hpack import Decoder, HPACKError

from fencepost.backends.etcd.status import Code, Failure

_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PROMISE, _PING, _GOAWAY, _WINDOW, _CONTINUATION = range(10)
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITISED = 0x1, 0x1, 0x4, 0x8, 0x20
_INITIAL_WINDOW, _MAX_STREAMS, _MAX_FRAME = 4, 3, 5  # settings
_REFUSED_STREAM, _CANCEL = 7, 8
_ERRORS = (
    *("no error", "protocol error", "internal error", "flow control error", "settings timeout", "stream closed"),
    *("frame size error", "refused stream", "cancel", "compression error", "connect error", "enhance your calm"),
    *("inadequate security", "HTTP/1.1 required"),
)
_RESETS = {7: Code.UNAVAILABLE, 8: Code.CANCELLED, 11: Code.RESOURCE_EXHAUSTED, 12: Code.PERMISSION_DENIED}
_HTTP = {
    b"400": Code.INTERNAL,
    b"401": Code.UNAUTHENTICATED,
    b"403": Code.PERMISSION_DENIED,
    b"404": Code.UNIMPLEMENTED,
    **dict.fromkeys((b"429", b"502", b"503", b"504"), Code.UNAVAILABLE),
}

_FRAME = 16384  # the most bytes of a frame, unless the server accepts more; we never accept more
_DEFAULT_WINDOW = 65535
_STREAM_WINDOW = 1 << 20  # bytes that a server may send before we open the window again: on a stream, and (next) on all
_CONNECTION_WINDOW = 1 << 24
_MOST_WINDOW = (1 << 31) - 1
_MOST_NUMBER = 1 << 30
_MOST_HEADERS = 1 << 16
_MOST_WORDS = 1000  # the most characters of a server's message that an error repeats
_REMEMBERED = 1000  # streams that we cancelled, and on which frames may still arrive

_head = struct.Struct(">BHBBL")
_unpack = _head.unpack_from
_setting = struct.Struct(">HL")


def _frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    return _head.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, number) + payload


_GREETING = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + _frame(
        _SETTINGS,
        0,
        0,
        # No pushed streams, the window of each stream, and the largest list of headers.
        _setting.pack(2, 0) + _setting.pack(_INITIAL_WINDOW, _STREAM_WINDOW) + _setting.pack(6, _MOST_HEADERS),
    )
    + _frame(_WINDOW, 0, 0, (_CONNECTION_WINDOW - _DEFAULT_WINDOW).to_bytes(4))
)
_SETTINGS_ACK = _frame(_SETTINGS, _ACK, 0)
_OUR_PING = b"fencepst"


def block(*fields: tuple[bytes, bytes], secret: bool = False) -> bytes:
    """Header fields in HPACK, each spelled in full: the bytes mean the same on every connection."""
    kind = b"\x10" if secret else b"\x00"
    return b"".join(kind + _string(name) + _string(value) for name, value in fields)


def _string(text: bytes) -> bytes:
    size = len(text)
    if size < 127:
        return bytes([size]) + text
    size -= 127
    out = bytearray(b"\x7f")
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out) + text


def framed(message: bytes) -> bytes:
    """A message with the prefix that gRPC puts before it on a stream."""
    return b"\0" + len(message).to_bytes(4) + message


class _Broken(Exception):
    """The server violated HTTP/2."""


class Call:
    """One stream: a request with its answer, or messages in both directions."""

    __slots__ = (
        *("_body", "_buffer", "_credit", "_ends", "_head", "_heard", "_number", "_taken"),
        *("failure", "messages", "over", "owner", "until"),
    )

    def __init__(self, head: bytes, body: bytes, ends: bool) -> None:
        self._head = head
        self._body = body  # what is still to be sent
        self._ends = ends
        self._number = 0  # the stream's number; 0 while the call waits for its turn
        self._credit = 0  # bytes that we may send on it
        self._taken = 0  # bytes received since we last opened the server's window
        self._heard = False  # whether the headers of the answer have arrived
        self._buffer: bytearray | None = None  # the beginning of an incomplete message
        self.messages: list[bytes] = []
        """Messages that have arrived and were not taken yet."""
        self.over = False
        self.failure: Failure | None = None
        """Why the call failed; None if the server reported success."""
        self.owner: Any = None
        """The object that waits for the call."""
        self.until = 0.0
        """When its owner stops waiting."""

    def result(self) -> bytes:
        """The one message of the answer, once the call is over; Failure if the call failed."""
        if self.failure is not None:
            raise self.failure
        if len(self.messages) != 1:
            raise Failure(Code.INTERNAL, f"the answer has {len(self.messages)} messages, and one was expected")
        return self.messages[0]


class Connection:
    """One connection. ``out`` has the bytes to be sent at once.

    ``acks``, the answers to pings, may wait for a second. A gRPC server sends a ping after a request to measure the
    connection's speed, unless its last ping is still unanswered. Each such ping would wake us before the answer comes.
    """

    def __init__(self) -> None:
        self.out = bytearray(_GREETING)
        self.acks = bytearray()
        self.calls: dict[int, Call] = {}
        """The streams that are open, by their numbers."""
        self.failure: Failure | None = None
        """Why the connection is of no more use."""
        self.draining = False
        """The server accepts no more calls on this connection; calls in flight may still end normally."""
        self.greeted = False
        """Whether the server has sent its settings: it speaks HTTP/2."""
        self.pinged = False
        """Whether a ping of ours was not answered yet."""
        self.waiting: deque[Call] = deque()
        """Calls that wait for their turn."""
        self._cancelled: dict[int, None] = {}
        self._forgotten = 0  # cancelled streams up to this number may have been removed from _cancelled
        self._decode = Decoder(_MOST_HEADERS).decode
        self._decoded: dict[bytes, dict[bytes, bytes]] = {}
        self._next = 1
        self._rest = b""
        self._block: bytearray | None = None  # headers that continue in the next frame
        self._blocked = (0, False)
        self._credit = _DEFAULT_WINDOW
        self._initial = _DEFAULT_WINDOW
        self._frame = _FRAME
        self._most = _MOST_WINDOW
        self._taken = 0
        self._news: list[Call] = []

    @property
    def usable(self) -> bool:
        """Whether another call may be started."""
        return self.failure is None and not self.draining

    @property
    def idle(self) -> bool:
        """Whether no call is under way."""
        return not self.calls and not self.waiting

    def take(self, *, acks: bool = True) -> bytes:
        """Take the bytes to be sent, with or without the answers to pings."""
        out = self.out
        if acks and self.acks:
            out += self.acks
            self.acks.clear()
        taken = bytes(out)
        out.clear()
        return taken

    # Requests

    def start(self, head: bytes, body: bytes, *, ends: bool = True) -> Call:
        """Begin a call; unless it ``ends`` with this body, more may be sent. Failure if the connection is not usable.

        If the server's limit of concurrent calls is reached, the call waits for its turn.
        """
        if self.failure is not None or self.draining:
            raise Failure(Code.UNAVAILABLE, "the connection was closed", unsent=True)
        call = Call(head, body, ends)
        if len(self.calls) < self._most and not self.waiting:
            self._open(call)
        else:
            self.waiting.append(call)
        return call

    def _open(self, call: Call) -> None:
        call._number = number = self._next
        self._next += 2
        if self._next > _MOST_NUMBER:
            self.draining = True
        self.calls[number] = call
        call._credit = self._initial
        head, body, out = call._head, call._body, self.out
        call._head = b""
        size = len(body)
        if call._ends and len(head) <= _FRAME and size <= self._credit and size <= self._initial and size <= _FRAME:
            out += _head.pack(0, len(head), _HEADERS, _END_HEADERS, number)
            out += head
            out += _head.pack(0, size, _DATA, _END_STREAM, number)
            out += body
            self._credit -= size
            call._credit -= size
            call._body = b""
            return
        kind = _HEADERS
        while head:
            part, head = head[:_FRAME], head[_FRAME:]
            out += _frame(kind, 0 if head else _END_HEADERS, number, part)
            kind = _CONTINUATION
        self._push(call)

    def send(self, call: Call, body: bytes) -> None:
        """Send more on a stream; do nothing if it is over."""
        if not call.over:
            call._body += body
            if call._number:
                self._push(call)

    def _push(self, call: Call) -> None:
        """Send as much of a call's body as the server's windows allow now."""
        body = call._body
        while body:
            size = min(len(body), self._frame, self._credit, call._credit)
            if size <= 0:
                break
            last = size == len(body) and call._ends
            self.out += _frame(_DATA, _END_STREAM if last else 0, call._number, body[:size])
            body = body[size:]
            self._credit -= size
            call._credit -= size
        call._body = body

    def _push_all(self) -> None:
        for call in self.calls.values():
            if self._credit <= 0:
                break
            if call._body:
                self._push(call)

    def cancel(self, call: Call, code: Code = Code.CANCELLED, words: str = "cancelled") -> None:
        """End a call whose answer is no longer needed."""
        if call.over:
            return
        if call._number:
            self._reset(call, _CANCEL)
        else:
            self.waiting.remove(call)
        call.over = True
        call.failure = Failure(code, words, unsent=not call._number)
        self._admit()

    def _reset(self, call: Call, code: int) -> None:
        number = call._number
        if self.calls.pop(number, None) is None:
            return
        self._cancelled[number] = None
        if len(self._cancelled) > _REMEMBERED:
            first = next(iter(self._cancelled))
            del self._cancelled[first]
            self._forgotten = max(self._forgotten, first)
        self.out += _frame(_RESET, 0, number, code.to_bytes(4))

    def _admit(self) -> None:
        while self.waiting and len(self.calls) < self._most and self.failure is None and not self.draining:
            self._open(self.waiting.popleft())

    def _refuse(self) -> None:
        """Fail the calls that wait for their turn; they are not sent."""
        waiting, self.waiting = self.waiting, deque()
        for call in waiting:
            self._finish(call, Failure(Code.UNAVAILABLE, "the server closes the connection", unsent=True))

    def ping(self) -> None:
        """Ask whether the server is still there; ``pinged`` until it answers."""
        self.pinged = True
        self.out += _frame(_PING, 0, 0, _OUR_PING)

    # Answers

    def receive(self, data: bytes) -> list[Call]:
        """Process bytes received; return the calls that are over now, and the streams that have new messages."""
        self._news = news = list[Call]()
        if self.failure is not None:
            return news
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        try:
            while end - at >= 9:
                high, low, kind, flags, number = _unpack(data, at)
                if high << 16 | low > _FRAME or (not self.greeted and (kind != _SETTINGS or flags & _ACK)):
                    raise _Broken(
                        "a frame is too long"
                        if self.greeted
                        else "this is no HTTP/2; does the URL name an etcd, and is TLS asked for on both sides?"
                    )
                start, stop = at + 9, at + 9 + (high << 16 | low)
                if stop > end:
                    break
                number &= 0x7FFFFFFF
                if self._block is not None and kind != _CONTINUATION:
                    raise _Broken("headers do not go on")
                if kind == _DATA:
                    self._on_data(data, start, stop, flags, number)
                elif kind == _HEADERS and flags & ~_END_STREAM == _END_HEADERS:
                    self._on_block(data[start:stop], number, bool(flags & _END_STREAM))
                elif kind == _HEADERS:
                    self._on_headers(data, start, stop, flags, number)
                elif kind <= _CONTINUATION:
                    self._on_other(kind, data[start:stop], flags, number)
                at = stop
        except _Broken as error:
            self._rest = b""
            self._fail(str(error))
            return news
        self._rest = data[at:]
        if self.draining and self.waiting:
            self._refuse()
        return news

    def lost(self, why: str) -> list[Call]:
        """Fail all calls in flight, because the connection has ended; return them."""
        self._news = news = list[Call]()
        self._fail(why)
        return news

    def _fail(self, why: str) -> None:
        if self.failure is None:
            self.failure = Failure(Code.UNAVAILABLE, why)
            calls, self.calls = self.calls, {}
            for call in calls.values():
                self._finish(call, self.failure.again())
            self._refuse()

    def _finish(self, call: Call, failure: Failure | None) -> None:
        call.over = True
        call.failure = failure
        call._body = b""
        self._news.append(call)

    def _end(self, call: Call, failure: Failure | None) -> None:
        """The server ended a stream."""
        if call._body or not call._ends:
            self._reset(call, _CANCEL)  # the server would not read the rest of our request
        else:
            del self.calls[call._number]
        if failure is None and call._buffer:
            failure = Failure(Code.INTERNAL, "a message ends too early")
        self._finish(call, failure)
        if self.waiting:
            self._admit()

    def _find(self, number: int) -> Call | None:
        """The call that a frame belongs to; None if we cancelled it."""
        call = self.calls.get(number)
        if call is None and number not in self._cancelled and not (number <= self._forgotten and number % 2):
            raise _Broken("an answer came to no request")
        return call

    def _on_data(self, data: bytes, start: int, stop: int, flags: int, number: int) -> None:
        size = stop - start
        self._taken += size
        if self._taken > _CONNECTION_WINDOW // 2:
            self.out += _frame(_WINDOW, 0, 0, self._taken.to_bytes(4))
            self._taken = 0
        if flags & _PADDED:
            start, stop = _unpadded(data, start, stop)
        call = self.calls.get(number) or self._find(number)
        if call is None:
            return
        if not call._heard:
            raise _Broken("an answer has no headers")
        if not call._buffer and stop - start > 5 and int.from_bytes(data[start : start + 5]) == stop - start - 5:
            call.messages.append(data[start + 5 : stop])
            if not call._ends:
                self._news.append(call)
        elif self._split(call, data[start:stop]):
            return
        if flags & _END_STREAM:
            self._end(call, Failure(Code.UNKNOWN, "the answer ends without a status"))
            return
        call._taken += size
        if call._taken > _STREAM_WINDOW // 2:
            self.out += _frame(_WINDOW, 0, number, call._taken.to_bytes(4))
            call._taken = 0

    def _split(self, call: Call, data: bytes) -> bool:
        """Take the complete messages out of the bytes received; return whether the call failed."""
        if call._buffer is None:
            call._buffer = bytearray()
        buffer, at = call._buffer, 0
        buffer += data
        while len(buffer) - at >= 5:
            if buffer[at]:
                self._reset(call, _CANCEL)
                words = "the server sent a compressed message, although it was not told that we could read one"
                self._finish(call, Failure(Code.INTERNAL, words))
                self._admit()
                return True
            stop = at + 5 + int.from_bytes(buffer[at + 1 : at + 5])
            if stop > len(buffer):
                break
            call.messages.append(bytes(buffer[at + 5 : stop]))
            at = stop
        del buffer[:at]
        if at and not call._ends:
            self._news.append(call)
        return False

    def _on_headers(self, data: bytes, start: int, stop: int, flags: int, number: int) -> None:
        if flags & _PADDED:
            start, stop = _unpadded(data, start, stop)
        if flags & _PRIORITISED:
            start += 5
            if start > stop:
                raise _Broken("headers are too short")
        if flags & _END_HEADERS:
            self._on_block(data[start:stop], number, bool(flags & _END_STREAM))
        else:
            self._block, self._blocked = bytearray(data[start:stop]), (number, bool(flags & _END_STREAM))

    def _on_block(self, encoded: bytes, number: int, ends: bool) -> None:
        # Decode it for a cancelled call, too: it may change HPACK's table.
        fields = self._decoded.get(encoded) or self._fields(encoded)
        call = self.calls.get(number) or self._find(number)
        if call is None:
            if ends:
                self._cancelled.pop(number, None)
            return
        if call._heard:
            if not ends:
                raise _Broken("an answer has headers twice")
            self._end(call, _status(fields))
            return
        status = fields.get(b":status", b"")
        if status[:1] == b"1" and len(status) == 3 and not ends:
            return  # an interim answer: the headers follow
        call._heard = True
        failure: Failure | None = None
        if b"grpc-status" in fields and ends:
            failure = _status(fields) or Failure(Code.INTERNAL, "the answer has no message")
        elif status != b"200":
            said = status.decode(errors="replace")
            failure = Failure(_HTTP.get(status, Code.UNKNOWN), f"the server answers with the status {said} of HTTP")
        elif not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            failure = Failure(Code.UNKNOWN, "the server does not speak gRPC; does the URL name an etcd?")
        elif ends:
            failure = Failure(Code.UNKNOWN, "the answer ends without a status")
        if failure is None:
            return
        if not ends:
            self._reset(call, _CANCEL)
            self._finish(call, failure)
            self._admit()
        else:
            self._end(call, failure)

    def _fields(self, encoded: bytes) -> dict[bytes, bytes]:
        try:
            fields = {bytes(name): bytes(value) for name, value in self._decode(encoded, raw=True)}
        except (HPACKError, ValueError, IndexError) as error:
            raise _Broken(f"headers cannot be decoded: {error}") from None
        if encoded and min(encoded) > 0x80 and max(encoded) < 0xFF:  # only indexed fields: the table did not change
            self._decoded[encoded] = fields
        else:
            self._decoded.clear()
        return fields

    def _on_other(self, kind: int, payload: bytes, flags: int, number: int) -> None:
        if kind == _CONTINUATION:
            if self._block is None or self._blocked[0] != number:
                raise _Broken("headers do not go on")
            self._block += payload
            if len(self._block) > _MOST_HEADERS:
                raise _Broken("headers are too long")
            if flags & _END_HEADERS:
                encoded, self._block = bytes(self._block), None
                self._on_block(encoded, *self._blocked)
        elif kind == _WINDOW:
            self._on_window(payload, number)
        elif kind == _PING:
            if number or len(payload) != 8:
                raise _Broken("a ping has no 8 bytes")
            if not flags & _ACK:
                self.acks += _frame(_PING, _ACK, 0, payload)
            elif payload == _OUR_PING:
                self.pinged = False
        elif kind == _SETTINGS:
            self._on_settings(payload, flags, number)
        elif kind == _RESET:
            self._on_reset(payload, number)
        elif kind == _GOAWAY:
            self._on_goaway(payload, number)
        elif kind == _PROMISE:
            raise _Broken("the server pushes, although it was told not to")

    def _on_window(self, payload: bytes, number: int) -> None:
        more = int.from_bytes(payload) & 0x7FFFFFFF
        if len(payload) != 4 or not more:
            raise _Broken("a window is opened by nothing")
        if number == 0:
            self._credit += more
            if self._credit > _MOST_WINDOW:
                raise _Broken("a window is too wide")
            self._push_all()
            return
        call = self.calls.get(number)
        if call is not None:
            call._credit += more
            if call._credit > _MOST_WINDOW:
                raise _Broken("a window is too wide")
            if call._body:
                self._push(call)
        else:
            self._check_opened(number)

    def _check_opened(self, number: int) -> None:
        """Check that we opened this stream at some time; a server may still send frames for one that has just ended."""
        if number >= self._next or number % 2 == 0:
            raise _Broken("an answer came to no request")

    def _on_settings(self, payload: bytes, flags: int, number: int) -> None:
        if number or len(payload) % 6 or (flags & _ACK and payload):
            raise _Broken("settings cannot be read")
        if flags & _ACK:
            return
        self.greeted = True
        for key, value in _setting.iter_unpack(payload):
            if key == _INITIAL_WINDOW:
                if value > _MOST_WINDOW:
                    raise _Broken("a window is too wide")
                for call in self.calls.values():
                    call._credit += value - self._initial
                    if call._credit > _MOST_WINDOW:
                        raise _Broken("a window is too wide")
                self._initial = value
            elif key == _MAX_FRAME:
                if not _FRAME <= value < 1 << 24:
                    raise _Broken("frames are too long")
                self._frame = value
            elif key == _MAX_STREAMS:
                self._most = value
        self.out += _SETTINGS_ACK
        self._push_all()
        self._admit()

    def _on_reset(self, payload: bytes, number: int) -> None:
        if len(payload) != 4:
            raise _Broken("a reset has no 4 bytes")
        self._check_opened(number)
        self._cancelled.pop(number, None)
        call = self.calls.pop(number, None)
        if call is not None:
            code = int.from_bytes(payload)
            words = f"the server reset the stream: {_ERRORS[code] if code < len(_ERRORS) else code}"
            unsent = code == _REFUSED_STREAM
            self._finish(call, Failure(_RESETS.get(code, Code.INTERNAL), words, unsent=unsent))
            self._admit()

    def _on_goaway(self, payload: bytes, number: int) -> None:
        if number or len(payload) < 8:
            raise _Broken("a goodbye cannot be read")
        last, code = int.from_bytes(payload[:4]) & 0x7FFFFFFF, int.from_bytes(payload[4:8])
        words = "the server closes the connection"
        if code:
            why = payload[8:].decode(errors="replace")[:_MOST_WORDS]
            words += f": {_ERRORS[code] if code < len(_ERRORS) else code}{f', {why}' if why else ''}"
        self.draining = True
        for call in [each for each in self.calls.values() if each._number > last]:
            del self.calls[call._number]
            self._finish(call, Failure(Code.UNAVAILABLE, words, unsent=True))
        self._refuse()


def _unpadded(data: bytes, start: int, stop: int) -> tuple[int, int]:
    if start >= stop or start + 1 + data[start] > stop:
        raise _Broken("a frame has more padding than bytes")
    return start + 1, stop - data[start]


def _status(fields: dict[bytes, bytes]) -> Failure | None:
    """The failure that the server reports at the end of a call; None for success."""
    said = fields.get(b"grpc-status")
    if said == b"0":
        return None
    words = unquote_to_bytes(fields.get(b"grpc-message", b"")).decode(errors="replace")[:_MOST_WORDS]
    if said is None:
        return Failure(Code.UNKNOWN, "the answer ends without a status")
    try:
        code = Code(int(said))
    except ValueError:
        code = Code.UNKNOWN
    return Failure(Code.UNKNOWN if code is Code.OK else code, words)
