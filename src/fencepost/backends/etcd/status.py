"""How a gRPC call ends."""

from enum import IntEnum


class Code(IntEnum):
    """gRPC's status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Failure(Exception):
    """A call failed: the server reported it, or no answer can arrive any more."""

    def __init__(self, code: Code, words: str, *, unsent: bool = False, late: bool = False) -> None:
        super().__init__(code, words)
        self.code = code
        self.words = words
        self.unsent = unsent
        """Whether the server certainly did not execute the request, and will not."""
        self.late = late
        """Whether the timeout was over before there was a connection."""

    def again(self) -> "Failure":
        """A copy for another caller: raising the same object again would add to its traceback."""
        return Failure(self.code, self.words, unsent=self.unsent, late=self.late)


def deadline_exceeded() -> Failure:
    """The server did not answer in time."""
    return Failure(Code.DEADLINE_EXCEEDED, "no answer in time")


def cannot_connect(why: object) -> Failure:
    """There is no connection, so nothing was sent; ``why`` is the error, or its words."""
    words = str(why) or "no answer in time"
    return Failure(Code.UNAVAILABLE, f"cannot connect: {words}", unsent=True, late=isinstance(why, TimeoutError))


def hung_up() -> Failure:
    """The connection was closed under a call that was about to be sent."""
    return Failure(Code.UNAVAILABLE, "the connection was closed", unsent=True)
