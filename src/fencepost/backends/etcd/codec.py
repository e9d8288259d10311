"""The wire format of protobuf, as far as etcd's messages need it.

::

    class KeyValue(Message):
        key: Annotated[bytes, 1] = b""
        create_revision: Annotated[int, 2] = 0

A field has its number, its type and its default. As in protobuf, a field that has its default is not sent, and one that
is not declared is skipped. A missing inner message reads as an empty one, which must not be changed. Fields that may be
None are alternatives: at most one of them is set.
"""

from collections.abc import Callable, Sequence
from types import UnionType
from typing import Any, Final, TypeVar, dataclass_transform, get_args, get_origin

M = TypeVar("M", bound="Message")

_NUMBER, _FLAG, _RAW, _TEXT, _PART = range(5)
UNSIGNED: Final = 5
"""Written after a field's number: its value is never negative."""
ENUM: Final = 6
"""Written after a field's number: its value is an enum."""
_LIMIT = 1 << 64
_MASK = _LIMIT - 1
_BYTE = [bytes([each]) for each in range(128)]


class DecodeError(ValueError):
    """The bytes are not a message of the expected type."""


class _Short(DecodeError):
    def __init__(self) -> None:
        super().__init__("the message ends too early")


@dataclass_transform(kw_only_default=True, eq_default=False)
class Message:
    """A protobuf message. The class has the defaults: an instance has only the fields that were given to it."""

    def __init__(self, **given: Any) -> None:
        self.__dict__ = given

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    def encode(self) -> bytes:
        """Its bytes."""
        return (_writers.get(self.__class__) or _writer(self.__class__))(self)

    @classmethod
    def decode(cls: type[M], data: bytes) -> M:
        """The message in these bytes; DecodeError if they are not one."""
        message = cls.__new__(cls)
        try:
            (_readers.get(cls) or _reader(cls))(message, data, 0, len(data))
        except IndexError:
            raise _Short from None
        return message


class _Place:
    """One field: its name, its type, and its key on the wire."""

    __slots__ = ("choice", "key", "kind", "name", "repeated", "sub")

    def __init__(self, message: type[Message], name: str, declared: Any) -> None:
        kind, *numbers = get_args(declared)  # of Annotated
        self.name = name
        self.choice = getattr(message, name) is None
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
_Write = Callable[[Message], bytes]
_Read = Callable[[Message, bytes, int, int], None]
_writers: dict[type[Message], _Write] = {}
_readers: dict[type[Message], _Read] = {}


def _places(kind: type[Message]) -> list[_Place]:
    """The fields of a message, in the order of their numbers."""
    return sorted((_Place(kind, *each) for each in kind.__annotations__.items()), key=lambda place: place.key)


def _compile(lines: list[str], names: dict[str, Any]) -> Any:
    """The function with this source. Code generated for each message takes a third of the time of a loop."""
    exec("\n".join(lines), names)
    return names["made"]


def _writer(kind: type[Message]) -> _Write:
    names: dict[str, Any] = {"varint": varint, "byte": _BYTE}
    lines = ["def made(message):", " given, out = message.__dict__, b''"]
    for index, place in enumerate(_places(kind)):
        key, long, head = varint(place.key), f"long{index}", f"head{index}"
        sized = f"({head}[len(data)] if len(data) < 128 else {long} + varint(len(data))) + data"
        names[long], names[head] = key, [key + each for each in _BYTE]
        if place.kind == _PART:
            names[f"write{index}"] = _writers.get(place.sub) or _writer(place.sub)
        data = {_PART: f"write{index}(value)", _TEXT: "value.encode()"}.get(place.kind, "value")
        name, given = repr(place.name), f"given.get({place.name!r})"
        if place.repeated and place.kind == ENUM:
            lines += [f" data = b''.join(map(varint, given.get({name}, ())))", f" if data: out += {sized}"]
        elif place.repeated:
            lines += [f" for value in given.get({name}, ()):", f"  data = {data}", f"  out += {sized}"]
        else:
            there = "value is not None" if place.choice or place.kind == _PART else "value"
            lines += [f" value = {given}", f" if {there}:"]
            if place.kind in (_RAW, _TEXT, _PART):
                lines += [f"  data = {data}", f"  out += {sized}"]
            else:
                lines += [f"  out += {head}[value] if 0 <= value < 128 else {long} + varint(value)"]
    made: _Write = _compile([*lines, " return out"], names)
    _writers[kind] = made
    return made


def _reader(kind: type[Message]) -> _Read:
    names: dict[str, Any] = {
        "long": _long,
        "skip": _skip,
        "text": _text,
        "packed": _packed,
        "int32": _int32,
        "new": object.__new__,
        "limit": _LIMIT,
        "short": _Short,
    }
    lines = [
        "def made(message, data, at, end):",
        " into = message.__dict__",
        " while at < end:",
        "  key = data[at]",
        "  at += 1",
        "  if key > 127: key, at = long(data, at, key)",
    ]
    places = _places(kind)
    choices = [place.name for place in places if place.choice]
    for index, place in enumerate(places):
        name = repr(place.name)
        keep = f"into[{name}] = "
        if place.repeated:
            keep = f"into.setdefault({name}, []).append"
        lines += [
            f"  {'if' if index == 0 else 'elif'} key == {place.key}:",
            "   value = data[at]",
            "   at += 1",
            "   if value > 127: value, at = long(data, at, value)",
        ]
        if place.choice:
            lines += [f"   if into: into.pop({other!r}, None)" for other in choices if other != place.name]
        if place.key & 7 == 0:
            lines += {
                _NUMBER: ["   if value >> 63: value -= limit"],
                _FLAG: ["   value = value != 0"],
                ENUM: ["   value = int32(value)"],
            }.get(place.kind, [])
            lines += [f"   {keep}(value)"]
            continue
        lines += ["   stop = at + value", "   if stop > end: raise short"]
        if place.kind == _PART:
            names[f"sub{index}"], names[f"read{index}"] = place.sub, _readers.get(place.sub) or _reader(place.sub)
            if place.repeated:
                lines += [f"   inner = new(sub{index})", f"   {keep}(inner)"]
            else:  # a message that comes in two parts is merged, as protobuf demands
                lines += [f"   inner = into.get({name})", f"   if inner is None: inner = {keep}new(sub{index})"]
            lines += [f"   read{index}(inner, data, at, stop)"]
        elif place.kind == ENUM:
            lines += [f"   into.setdefault({name}, []).extend(packed(data, at, stop))"]
        else:
            lines += [f"   {keep}({'data[at:stop]' if place.kind == _RAW else 'text(data[at:stop])'})"]
        lines += ["   at = stop"]
        if place.kind == ENUM:  # the values may also come one by one, not packed
            lines += [
                f"  elif key == {place.key & ~7}:",
                "   value = data[at]",
                "   at += 1",
                "   if value > 127: value, at = long(data, at, value)",
                f"   {keep}(int32(value))",
            ]
    # Most fields that are skipped are short and have their size in front.
    lines += [
        f"  {'elif' if places else 'if'} key & 7 == 2 and 7 < key < 128 and data[at] < 128: at += 1 + data[at]",
        "  else: at = skip(data, at, end, key)",
    ]
    made: _Read = _compile([*lines, " if at > end: raise short"], names)
    _readers[kind] = made
    return made


def sized(key: bytes, data: bytes) -> bytes:
    """A field of bytes, or a message inside another one."""
    return key + (_BYTE[len(data)] if len(data) < 128 else varint(len(data))) + data


def varint(value: int) -> bytes:
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
        raise _Short
    return found


def _skip(data: bytes, at: int, end: int, key: int) -> int:
    """The position after a field that is not declared."""
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
        raise _Short
    return at
