"""The form of the answer to each request. A reply with another form is not the answer to our request."""

from collections.abc import Callable, Mapping
from typing import Any

from hiredis import PushNotification

from fencepost.address import is_host
from fencepost.rule import MAX_TOKEN

Fits = Callable[[Any], bool]
"""Whether a reply that is not an error can be the answer."""


def _number(reply: Any) -> bool:
    return reply.__class__ is int


def _bit(reply: Any) -> bool:
    return reply.__class__ is int and 0 <= reply <= 1


def _text(reply: Any) -> bool:
    return reply.__class__ is bytes


def _texts(reply: Any) -> bool:
    return reply.__class__ is list and all(map(_text, reply))


def _digits(reply: Any) -> bool:
    return reply.__class__ is bytes and reply.isdigit() and len(reply) <= 20  # 2^64 has 20 digits


def _token(reply: Any) -> bool:
    return _digits(reply) and 0 < int(reply) <= MAX_TOKEN


def _stamped(reply: Any) -> bool:
    """A token, and a time."""
    return reply.__class__ is list and len(reply) == 2 and _token(reply[0]) and _number(reply[1])


def _counted(reply: Any) -> bool:
    """The last token, 0 if there was none, and a time."""
    return reply.__class__ is list and len(reply) == 2 and _digits(reply[0]) and _number(reply[1])


def _taken(reply: Any) -> bool:
    if reply.__class__ is list:
        return _stamped(reply) or (len(reply) == 3 and all(map(_number, reply)))
    return _token(reply) or (reply.__class__ is int and -2 <= reply <= 0)


def _released(reply: Any) -> bool:
    if reply.__class__ is not list:
        return _bit(reply)
    return bool(reply) and len(reply) % 2 == 0 and all(map(_text, reply)) and all(map(_digits, reply[1::2]))


def _left(reply: Any) -> bool:
    return _bit(reply) or _text(reply)


def answers_for(locks: int, reply: Any) -> bool:
    """For each of ``locks`` locks a bit, or the text of the server's error."""
    return reply.__class__ is list and len(reply) == locks and all(_bit(each) or _text(each) for each in reply)


def _seen(reply: Any) -> bool:
    if reply is None:
        return True
    if reply.__class__ is not list or len(reply) not in (3, 4):
        return False
    return _text(reply[0]) and _number(reply[1]) and all(map(_texts, reply[2:]))


SCRIPTS: Mapping[str, Fits] = {
    "take": _taken,
    "share": _taken,
    "claim": lambda reply: _stamped(reply) or (_number(reply) and reply == 0),
    "release": _released,
    "renew": _bit,
    "renew_all": lambda reply: reply.__class__ is list,  # how many answers it has depends on the request
    "leave": _left,
    "break_lock": _seen,
    "status": _seen,
    "bump": _bit,
    "prune": _number,
    "plain_take": lambda reply: _token(reply) or (_number(reply) and reply == 0),
    "redlock_take": lambda reply: _counted(reply) or _number(reply),
    "redlock_keep": _bit,
    "redlock_leave": _bit,
}
"""By the name of the script."""

number, text, texts = _number, _text, _texts


def anything(reply: Any) -> bool:
    return True


def ok(reply: Any) -> bool:
    return bool(reply == b"OK")


def pong(reply: Any) -> bool:
    return bool(reply == b"PONG")


def table(reply: Any) -> bool:
    """The answer to HELLO or CONFIG GET."""
    return reply.__class__ is dict


def subscribed(reply: Any) -> bool:
    return reply.__class__ is PushNotification and reply[:1] == [b"subscribe"]


def scanned(reply: Any) -> bool:
    return reply.__class__ is list and len(reply) == 2 and _digits(reply[0]) and _texts(reply[1])


def role(reply: Any) -> bool:
    return reply.__class__ is list and len(reply) > 0 and _text(reply[0])


def address(reply: Any) -> bool:
    """Sentinel's answer: host and port, or nothing."""
    if reply is None:
        return True
    if not _texts(reply) or len(reply) != 2 or not _digits(reply[1]):
        return False
    return _host(reply[0]) and 0 < int(reply[1]) < 65536


def _host(text: bytes) -> bool:
    return is_host(text.decode(errors="replace"))


def slots(reply: Any) -> bool:
    """The ranges of a cluster's slots: first, last, and the nodes that have them, the master first."""
    return reply.__class__ is list and all(map(_range, reply))


def _range(part: Any) -> bool:
    if part.__class__ is not list or len(part) < 3 or not all(map(_number, part[:2])):
        return False
    if not 0 <= part[0] <= part[1] < 16384:
        return False
    return all(
        each.__class__ is list
        and len(each) > 1
        and (each[0] is None or (_text(each[0]) and _host(each[0])))
        and (_number(each[1]) and 0 <= each[1] < 65536)
        for each in part[2:]
    )
