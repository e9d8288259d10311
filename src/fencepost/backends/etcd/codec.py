"""The wire format of protobuf, as far as etcd's messages need it.

::

    class KeyValue(Message):
        key: Annotated[bytes, 1] = b""
        create_revision: Annotated[int, 2] = 0

A field has its number, its type and its default. A field that has its default is not sent, and one that is not declared
is skipped, as protobuf has it. A message inside another one that is not there reads as an empty one, which nobody may
change. Fields that may be None are alternatives: at most one of them is not.
"""

from collections.abc import Sequence
from types import UnionType
from typing import Any, Final, TypeVar, dataclass_transform, get_args, get_origin

M = TypeVar("M", bound="Message")

_NUMBER, _FLAG, _RAW, _TEXT, _PART = range(5)
UNSIGNED: Final = 5
"""Beside a field's number: it is never negative."""
ENUM: Final = 6
"""Beside a field's number: it is one of a few numbers."""
_LIMIT = 1 << 64
_MASK = _LIMIT - 1
_BYTE = [bytes([each]) for each in range(128)]


class DecodeError(ValueError):
    """These bytes are no such message."""


@dataclass_transform(kw_only_default=True, eq_default=False)
class Message:
    """What goes over the wire. The defaults are the class's: a message has only what was given to it."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    def encode(self) -> bytes:
        """Its bytes."""
        return _write(self)

    @classmethod
    def decode(cls: type[M], data: bytes) -> M:
        """The message in these bytes; DecodeError if there is none."""
        message = cls.__new__(cls)
        try:
            _read(message, data, 0, len(data))
        except IndexError:
            raise DecodeError("the message ends too early") from None
        return message


class _Place:
    """One field: its name, what it is, and its key on the wire."""

    __slots__ = ("default", "key", "kind", "name", "others", "repeated", "sub")

    def __init__(self, message: type[Message], name: str, declared: Any) -> None:
        kind, *numbers = get_args(declared)  # of Annotated
        self.name = name
        self.default = getattr(message, name)
        self.others: tuple[str, ...] = ()
        """The other alternatives, if it is one."""
        if get_origin(kind) is UnionType:
            kind = get_args(kind)[0]
        self.repeated = get_origin(kind) is Sequence
        if self.repeated:
            kind = get_args(kind)[0]
        self.sub: type[Message] = kind
        self.kind: int = numbers[1] if numbers[1:] else _KINDS.get(kind, _PART)
        packed = self.repeated and self.kind == ENUM
        self.key = numbers[0] << 3 | (2 if self.kind in (_RAW, _TEXT, _PART) or packed else 0)


_KINDS: dict[Any, int] = {bytes: _RAW, int: _NUMBER, bool: _FLAG, str: _TEXT}


class _Layout:
    """The fields of a message, in the order of their numbers to write, and by their keys to read."""

    __slots__ = ("read", "write")

    def __init__(self, message: type[Message]) -> None:
        places = [_Place(message, *declared) for declared in message.__annotations__.items()]
        places.sort(key=lambda place: place.key)
        choices = [place.name for place in places if place.default is None]
        self.write = [(each.name, each.default, each.kind, _varint(each.key), each.repeated) for each in places]
        self.read = {each.key: each for each in places}
        for each in places:
            if each.default is None:
                each.others = tuple(name for name in choices if name != each.name)
            if each.repeated and each.kind == ENUM:
                self.read[each.key & ~7] = each  # they may also come one by one


_layouts: dict[type[Message], _Layout] = {}


def _layout(kind: type[Message]) -> _Layout:
    found = _layouts[kind] = _Layout(kind)
    return found


def _varint(value: int) -> bytes:
    if 0 <= value < 128:
        return _BYTE[value]
    if value < 0:
        value += _LIMIT
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _write(message: Message) -> bytes:
    kind = message.__class__
    layout = _layouts.get(kind) or _layout(kind)
    given = message.__dict__
    out: list[bytes] = []
    for name, default, what, key, repeated in layout.write:
        if name not in given:
            continue
        value = given[name]
        if repeated:
            if what == ENUM:
                value = b"".join(map(_varint, value))
                out += (key, _varint(len(value)), value) if value else ()
                continue
            for each in value:
                data = _write(each) if what == _PART else each.encode() if what == _TEXT else each
                out += (key, _varint(len(data)), data)
        elif value == default and default is not None:
            continue
        elif what == _PART:
            if value is not None:
                data = _write(value)
                out += (key, _varint(len(data)), data)
        elif what == _RAW:
            if value is not None:
                out += (key, _varint(len(value)), value)
        elif what == _TEXT:
            data = value.encode()
            out += (key, _varint(len(data)), data)
        elif value is not None:
            out += (key, _varint(value))
    return b"".join(out)


def _read(message: Message, data: bytes, at: int, end: int) -> None:
    """Fill a message from a part of these bytes; IndexError or DecodeError if that ends too early, or is none."""
    kind = message.__class__
    places = (_layouts.get(kind) or _layout(kind)).read
    into = message.__dict__
    while at < end:
        key = data[at]
        at += 1
        if key > 127:
            key, at = _long(data, at, key)
        place = places.get(key)
        if place is None:
            at = _skip(data, at, end, key)
            continue
        value = data[at]
        at += 1
        if value > 127:
            value, at = _long(data, at, value)
        what, name = place.kind, place.name
        found: Any = value
        if key & 7 == 0:
            if what == _NUMBER:
                if value >> 63:
                    found = value - _LIMIT
            elif what == _FLAG:
                found = value != 0
            elif what == ENUM:
                found = _int32(value)
        else:
            stop = at + value
            if stop > end:
                raise DecodeError("the message ends too early")
            if what == _PART:
                # One that comes in two parts is both together.
                inner = None if place.repeated else into.get(name)
                if inner is None:
                    inner = place.sub.__new__(place.sub)
                _read(inner, data, at, stop)
                found = inner
            elif what == _RAW:
                found = data[at:stop]
            elif what == _TEXT:
                found = _text(data[at:stop])
            else:
                into.setdefault(name, []).extend(_packed(data, at, stop))
                at = stop
                continue
            at = stop
        if place.repeated:
            if name in into:
                into[name].append(found)
            else:
                into[name] = [found]
            continue
        for other in place.others:
            into.pop(other, None)
        into[name] = found
    if at > end:
        raise DecodeError("the message ends too early")


def _long(data: bytes, at: int, first: int) -> tuple[int, int]:
    """A number of several bytes, and where it ends."""
    value, shift = first & 127, 7
    while (byte := data[at]) > 127:
        value |= (byte & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise DecodeError("a number is too long")
    return (value | byte << shift) & _MASK, at + 1


def _int32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DecodeError("a text is not UTF-8") from None


def _packed(data: bytes, at: int, stop: int) -> list[int]:
    found = []
    while at < stop:
        value, at = _long(data, at + 1, data[at]) if data[at] > 127 else (data[at], at + 1)
        found.append(_int32(value))
    if at > stop:
        raise DecodeError("the message ends too early")
    return found


def _skip(data: bytes, at: int, end: int, key: int) -> int:
    """Where a field ends that nobody asks for."""
    wire = key & 7
    if not 0 < key >> 3 < 1 << 29:
        raise DecodeError("a field has no number")
    if wire == 0:
        first = at
        while data[at] > 127:
            at += 1
        at += 1
        if at - first > 10:
            raise DecodeError("a number is too long")
    elif wire == 2:
        size = data[at]
        at += 1
        if size > 127:
            size, at = _long(data, at, size)
        at += size
    elif wire == 1:
        at += 8
    elif wire == 5:
        at += 4
    else:  # groups, which proto3 does not have
        raise DecodeError("a field has no known kind")
    if at > end:
        raise DecodeError("the message ends too early")
    return at
