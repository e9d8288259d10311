"""Ctrl-C in blocking code: raised where the code waits, never between two steps that belong together.

Python runs signal handlers between any two bytecodes of the main thread, so a KeyboardInterrupt could come after the
store granted a lock and before the client has noted it. ``protected`` holds such handlers back during a call;
``interruptible`` lets them run during one call that waits. If they raise there, the core cleans up as it does after a
cancelled ``await`` in asyncio code. All this concerns the main thread only: no handler ever runs in another one.
"""

import functools
import signal
import threading

# The C functions: the wrappers of the signal module turn every result into an enum, which costs more than the call.
from _signal import getsignal as _getsignal  # type: ignore[import-not-found]  # typeshed leaves it out
from _signal import signal as _setsignal
from _thread import interrupt_main
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar, TypeVarTuple

from fencepost.driver.fork import at_fork

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_NAMES = ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGXCPU", "SIGTERM", "SIGBREAK", "SIGINT")
# The signals whose handlers commonly raise. Others are not held back: to look at each one costs time on every call.
_SIGNALS = tuple(getattr(signal, name).value for name in _NAMES if hasattr(signal, name))
_ident = threading.get_ident
_main: int | None = threading.main_thread().ident
_depth = 0
_open = False
_masks = 0
_beginning = False  # _begin is replacing handlers; its call has not begun yet
_pending: dict[int, FrameType | None] = {}  # as in Python, a signal that comes twice before it is handled counts once
_handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}


class _Raised(BaseException):
    """Carries an error of the program's own handler past code that would mistake it for an error of the store."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _handle(number: int, frame: FrameType | None) -> None:
    try:
        _handlers[number](number, frame)
    except Exception as error:  # such as the TimeoutError of a handler of SIGALRM
        raise _Raised(error) from None


def _defer(number: int, frame: FrameType | None) -> None:
    """The handler that replaces the program's own while protected code runs."""
    if not _depth:
        _handlers[number](number, frame)
    elif _open:
        _handle(number, frame)
    else:
        _pending[number] = frame


def _deliver() -> None:
    while came := _next():
        try:
            _handle(*came)
        except BaseException:
            while came := _next():  # as in Python, the other signals are handled next
                interrupt_main(signal.Signals(came[0]))
            raise


def _next() -> tuple[int, FrameType | None] | None:
    """Take the first pending signal; a handler that runs meanwhile may take it first."""
    for number in list(_pending):
        try:
            return number, _pending.pop(number)
        except KeyError:
            pass
    return None


def protected(call: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Return ``call()``; signal handlers run only where it waits, or after it.

    If a handler raises after ``call`` has returned something other than None, ``undo`` is called with that first.
    """
    global _depth, _open
    if _ident() != _main:
        return call()
    if _depth and not _open:  # inside another protected(), which delivers the signals
        return _deeper(call)
    result: T | None = None
    try:
        if _depth:  # in a handler that interrupted the wait of another protected()
            try:
                result = _deeper(call)
            finally:
                if _pending and not _masks:
                    _deliver()
        else:
            replaced: list[int] = []
            try:
                result = _begin(call, replaced)
            finally:
                _depth, _open = 0, False  # not in a call: if it ran out of memory, no handler would run any more
                _end(replaced)
        return result
    except _Raised as raised:
        _undo(undo, result)
        raise raised.error from None
    except BaseException:
        _undo(undo, result)
        raise


def see_through(leave: Callable[[list[bool]], T]) -> T:
    """As ``protected``, for the end of a block: if an interrupt comes before ``leave`` has begun, leave the block all
    the same, then raise. ``leave`` appends to its argument when it begins."""
    begun: list[bool] = []
    try:
        return protected(functools.partial(leave, begun))
    except BaseException:
        if not begun:
            protected(functools.partial(leave, begun))
        raise


def _undo(undo: Callable[[T], object] | None, result: T | None) -> None:
    if undo is not None and result is not None:
        undo(result)


def _deeper(call: Callable[[], T]) -> T:
    global _depth, _open
    depth, before = _depth, _open
    try:
        _depth, _open = depth + 1, False
        return call()
    finally:
        _depth, _open = depth, before


def _begin(call: Callable[[], T], replaced: list[int]) -> T:
    global _main, _depth, _beginning
    before = _beginning
    try:
        _beginning = True
        for number in _SIGNALS:
            handler = _getsignal(number)
            if callable(handler):
                if handler is not _defer:
                    _handlers[number] = handler
                    try:
                        _setsignal(number, _defer)
                    except ValueError:  # this is not Python's main interpreter, so no handler ever runs here
                        _main = None
                        break
                replaced.append(number)
        _depth = 1
    finally:
        _beginning = before
    return call()


def _end(replaced: list[int]) -> None:
    # If a handler raises before all are restored, the rest stay _defer, which passes signals on, until the next _end.
    if not _beginning:  # else this is inside a handler that interrupted _begin, which needs them replaced
        for number in replaced:
            if _getsignal(number) is _defer:
                _setsignal(number, _handlers[number])
    if _pending:
        _deliver()


def interruptible(call: Callable[[*Ts], T], *args: *Ts) -> T:
    """Return ``call(*args)``, a call that waits: meanwhile, signal handlers run when their signals come."""
    global _open
    if not _depth or _masks or _ident() != _main:
        return call(*args)
    before = _open
    try:
        _open = True
        if _pending:
            _deliver()
        return call(*args)
    finally:
        _open = before


def on_main_thread() -> bool:
    """Whether signal handlers can interrupt the calling thread."""
    return _ident() == _main


def check() -> None:
    """Run the handlers of pending signals; for code that waits in short steps."""
    if _pending and not _masks and _ident() == _main:
        interruptible(_deliver)


class masked:
    """Inside, not even a wait can be interrupted: for a clean-up that must be done, and takes a limited time."""

    _before = 0

    def __enter__(self) -> None:
        global _masks
        if _ident() == _main:
            self._before, _masks = _masks, _masks + 1

    def __exit__(self, *_: object) -> None:
        global _masks
        if _ident() == _main:
            _masks = self._before


class Again:
    """Raises an error once more, in the main thread, as soon as this object is deleted.

    If a signal handler raises while a finalizer runs, Python drops the error. Keep this object in a local variable of
    code that a finalizer may run: the error is then raised in the code that the finalizer interrupted.
    """

    def __init__(self, error: BaseException) -> None:
        # Without its traceback: the frames of the finalizer would keep this object alive.
        again = error.with_traceback(None)
        again.__context__ = None
        before = _getsignal(signal.SIGINT)

        def handle(*_: object) -> None:
            _setsignal(signal.SIGINT, before)
            raise again

        _setsignal(signal.SIGINT, handle)

    __del__ = staticmethod(interrupt_main)  # a C function: as no bytecode runs in it, the handler runs after it


def _after_fork() -> None:
    # The thread that forked is the child's main thread. Ctrl-C must reach it, whatever it was doing. The pending
    # signals were sent to the parent.
    global _main, _depth, _open, _masks, _beginning
    _main, _depth, _open, _masks, _beginning = _ident(), 0, False, 0, False
    _pending.clear()


at_fork(after_in_child=_after_fork)
