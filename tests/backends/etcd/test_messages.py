"""The codec of etcd's messages against protobuf's own, on random messages and on bytes that are none."""

import inspect
import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError as Refused

from fencepost.backends.etcd import keys, messages
from fencepost.backends.etcd.codec import DecodeError, Message
from tests import FUZZ
from tests.fuzz.spoil import spoil
from tests.harness.proto import etcd_pb2

ROUNDS = 200 if FUZZ else 6
KINDS = [
    each
    for _, each in inspect.getmembers(messages, inspect.isclass)
    if each.__module__ == messages.__name__ and issubclass(each, Message)
]
NUMBERS = [0, 1, -1, 127, 128, 300, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)]


def theirs(kind: type[Message]) -> Any:
    return etcd_pb2.RangeResponse if kind is messages.FoundRange else getattr(etcd_pb2, kind.__name__)


def draw(descriptor: Any, rng: random.Random) -> Any:
    """A random message of protobuf's, also with fields that ours does not have."""
    made = getattr(etcd_pb2, descriptor.name)()
    for each in descriptor.fields:
        if rng.random() < 0.3:
            continue
        if each.message_type is not None:
            if each.is_repeated:
                getattr(made, each.name).extend(draw(each.message_type, rng) for _ in range(rng.randrange(4)))
            else:
                getattr(made, each.name).CopyFrom(draw(each.message_type, rng))
        elif each.is_repeated:
            getattr(made, each.name).extend(scalar(each, rng) for _ in range(rng.randrange(4)))
        else:
            setattr(made, each.name, scalar(each, rng))
    return made


def scalar(field: Any, rng: random.Random) -> Any:
    if field.type == field.TYPE_BYTES:
        return rng.randbytes(rng.choice([0, 1, 5, 127, 128, 400]))
    if field.type == field.TYPE_STRING:
        return rng.choice(["", "a", "Grüße", "x" * 200])
    if field.type == field.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == field.TYPE_ENUM:
        return rng.choice([0, 1, 2, 3])
    return abs(rng.choice(NUMBERS)) if field.type == field.TYPE_UINT64 else rng.choice(NUMBERS)


def agree(ours: Any, other: Any) -> None:
    """Every field that ours has is the same in the other, and as present as there."""
    assert isinstance(ours, Message)
    for name in type(ours).__annotations__:
        value, expected = getattr(ours, name), getattr(other, name)
        if value is None:
            assert not other.HasField(name)
        elif isinstance(value, Message):
            agree(value, expected)
        elif isinstance(value, (list, tuple)):
            assert len(value) == len(expected)
            for one, two in zip(value, expected, strict=True):
                agree(one, two) if isinstance(one, Message) else same(one, two)
        else:
            same(value, expected)


def same(value: object, expected: object) -> None:
    assert (type(value), value) == (type(expected), expected)


def known(ours: Any) -> Any:
    """The same message, made of protobuf's, with only what ours has."""
    made = theirs(type(ours))()
    for name, value in vars(ours).items():
        if isinstance(value, Message):
            getattr(made, name).CopyFrom(known(value))
        elif isinstance(value, list):
            getattr(made, name).extend(known(each) if isinstance(each, Message) else each for each in value)
        elif value is not None:
            setattr(made, name, value)
    return made


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_reads_and_writes_what_protobuf_does(kind: type[Message]) -> None:
    rng = random.Random(kind.__name__)
    for _ in range(10 * ROUNDS):
        made = draw(theirs(kind).DESCRIPTOR, rng)
        read = kind.decode(made.SerializeToString())
        agree(read, made)
        assert read.encode() == known(read).SerializeToString(deterministic=True)


def spoilt(kind: type[Message], rng: random.Random) -> bool:
    """Read one message that was spoilt as protobuf reads it; True if it is refused.

    We refuse groups as well, which no message of etcd has; and do not look into fields that we do not have.
    """
    data = spoil(rng, draw(theirs(kind).DESCRIPTOR, rng).SerializeToString())
    try:
        ours = kind.decode(data)
    except DecodeError:
        return True
    try:
        other = theirs(kind).FromString(data)
    except Refused:  # for a field that ours does not have
        other = theirs(kind).FromString(ours.encode())
    agree(ours, other)
    return False


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_it_reads_from_spoilt_bytes_is_what_protobuf_reads(kind: type[Message]) -> None:
    rng = random.Random(kind.__name__)
    assert sum(spoilt(kind, rng) for _ in range(10 * ROUNDS)), "some of them are no messages"


@pytest.mark.parametrize("data", [b"<html>", b"\xff" * 16, b"\x0a", b"\x0a\x05abc", b"\x10"])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        messages.TxnResponse.decode(data)


@pytest.mark.parametrize("size", [1, 100, 127, 128, 300, 20_000])
@pytest.mark.parametrize("number", [1, 127, 128, 300, 2**63 - 1])
def test_what_is_spelled_in_bytes_is_what_the_messages_say(size: int, number: int) -> None:
    lock, key, value = "ü" * size, b"k" * size, b"v" * size
    joining = messages.TxnRequest(
        compare=[keys.created(key, 0)],
        success=[keys.put(key, value, number), keys.first(lock), keys.base(lock)],
        failure=[keys.own(key)],
    )
    for spelled, meant in (
        (keys.join(lock, key, value, number), joining),
        (keys.release(key, value, number), keys.remove(key, value, number)),
    ):
        assert spelled.encode() == meant.encode()
        assert bool(spelled.compare) == bool(meant.compare)
        for some, others in ((spelled.success, meant.success), (spelled.failure, meant.failure)):
            assert [list(vars(each)) for each in some] == [list(vars(each)) for each in others]
