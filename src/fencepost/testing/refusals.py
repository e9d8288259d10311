"""The proof that the resource refuses a write of a stale holder, whatever guard is in front of it."""

from collections.abc import Iterator
from typing import overload

from fencepost.errors import LeaseLost, Refused, StaleToken
from fencepost.rule import Verdict

_STALE = ("stale fencing token", "carries no newer fencing token")
"""The messages of guards that are not written in Python: a trigger in the database, or a service behind HTTP."""

_NOT_REFUSED = (
    "the write of a stale holder was not refused. Is there a guard in its path? Did the holder that took over write, "
    "or enter, before? A guard refuses what is older than what it has seen"
)
_NOTICED = (
    "no guard refused the write: the holder itself noticed that its lease is lost, by a check, or at the end of its "
    "block, when the write was made already. A holder that is paused just before its write notices nothing: put a "
    "guard in front of what it writes"
)
_UNTOLD = (
    "the response has status 409, and no header X-Fence-Verdict: any conflict is answered so, also where no guard is. "
    "If a handler of yours turns StaleToken into this answer, let it set the header to error.verdict.value"
)


class Refusal:
    """What the resource answered; ``error`` is set once the block has ended."""

    error: BaseException | None = None

    @property
    def token(self) -> int | None:
        """The token that was refused, if the answer tells."""
        return self.error.token if isinstance(self.error, Refused) else None

    @property
    def seen(self) -> int | None:
        """The larger one that the resource has seen, if the answer tells."""
        return self.error.seen if isinstance(self.error, Refused) else None


@overload
def assert_refused() -> "_Block": ...
@overload
def assert_refused(response: object, /) -> None: ...
def assert_refused(*response: object) -> "_Block | None":
    """Fail unless the write is refused as stale: ``with assert_refused():``, or ``assert_refused(response)`` for HTTP.

    In the block, every guard's StaleToken counts, what a trigger in the database raises, and the error of an HTTP
    client for a response that counts; also in a group, or as the cause of another error. A response counts if its
    status is 409 and its header X-Fence-Verdict says "stale": a 409 alone may be any conflict, and no guard may have
    refused anything. AssertionError says what happened instead; other errors go through.
    """
    __tracebackhide__ = True
    if not response:
        return _Block()
    _check_response(*response)
    return None


class _Block:
    def __init__(self) -> None:
        self._refusal = Refusal()

    def __enter__(self) -> Refusal:
        return self._refusal

    def __exit__(self, kind: object, error: BaseException | None, trace: object, /) -> bool:
        __tracebackhide__ = True
        if error is None:
            raise AssertionError(_NOT_REFUSED)
        leaves = list(_leaves(error))
        stale = [found for each in leaves if (found := _stale(each)) is not None]
        if stale and len(stale) == len(leaves):
            self._refusal.error = stale[0]
            return True
        for each in leaves:
            if isinstance(each, Refused) and not isinstance(each, StaleToken):
                raise AssertionError(f"it was refused as {each.verdict.value}, and not as stale: {each}") from error
            if isinstance(each, LeaseLost):
                raise AssertionError(f"{_NOTICED} ({each})") from error
            if _status(_answer(each)) == 409 and _verdict(_answer(each)) is None:
                raise AssertionError(_UNTOLD) from error
        return False


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group, of groups in it too; or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _stale(error: BaseException) -> BaseException | None:
    """The refusal that an error is, or was caused by."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if isinstance(each, StaleToken):
            return each
        if isinstance(each, Refused | LeaseLost):
            return None
        if any(text in str(each) for text in _STALE) or _conflict(each):
            return each
        # Only the cause counts, not the context: an error may be raised while an unrelated one is handled.
        each = each.__cause__
    return None


def _conflict(error: BaseException) -> bool:
    """Whether an HTTP client raised this for a guard's answer that a token is stale."""
    answer = _answer(error)
    return _status(answer) == 409 and _verdict(answer) == Verdict.STALE.value


def _answer(error: BaseException) -> object:
    """What has the status and the headers: the response that an HTTP client's error carries, or the error itself."""
    response = getattr(error, "response", None)
    return error if response is None else response


def _check_response(response: object) -> None:
    __tracebackhide__ = True
    status = _status(response)
    if status is None:
        raise TypeError(f"{response!r} is no HTTP response: it has neither status_code nor status")
    if status != 409:
        raise AssertionError(f"{_NOT_REFUSED}. The response has status {status}, not 409")
    verdict = _verdict(response)
    if verdict is None:
        raise AssertionError(_UNTOLD)
    if verdict != Verdict.STALE.value:
        raise AssertionError(f"it was refused as {verdict}, and not as stale")


def _status(answer: object) -> int | None:
    """The status of a response, or of an error that carries one, of whatever client."""
    for name in ("status_code", "status", "code"):
        status = getattr(answer, name, None)
        if isinstance(status, str) and status[:3].isdecimal():  # WSGI's "409 Conflict"
            return int(status[:3])
        if isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599:
            return status
    return None


def _verdict(answer: object) -> str | None:
    """The verdict in a response of our guards; None if it has none."""
    headers = getattr(answer, "headers", None)
    try:
        told = {str(name).lower(): str(value) for name, value in headers.items()}  # type: ignore[union-attr]
    except (AttributeError, TypeError, ValueError):
        return None
    return told.get("x-fence-verdict")
