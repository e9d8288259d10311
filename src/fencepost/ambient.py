"""The leases held around the running code, so that a guard finds its own without being handed one."""

from contextvars import ContextVar

from fencepost.lease import BaseLease

_held: ContextVar[tuple[BaseLease, ...]] = ContextVar("fencepost_held", default=())


def push(lease: BaseLease) -> None:
    """A block that holds ``lease`` begins, in this thread or task and those that inherit its context."""
    _held.set((*_held.get(), lease))


def pop(lease: BaseLease) -> None:
    """The block ends."""
    # Not ContextVar.reset: a generator may leave its block in another context than it entered it.
    held = list(_held.get())
    for index in reversed(range(len(held))):
        if held[index] is lease:
            del held[index]  # this block only: one around it may hold the same lease
            break
    _held.set(tuple(held))


def blocks() -> tuple[BaseLease, ...]:
    """The leases of the blocks around here, the innermost last; also those that are over, and shares."""
    return _held.get()


def held() -> tuple[BaseLease, ...]:
    """The same without shares, which a guard must not take for the lock."""
    return tuple(lease for lease in _held.get() if not lease.shared)


def find(resource: str) -> BaseLease | None:
    """The lease that speaks for ``resource``: its lock's name is the resource's, or a path above it.

    A lease of any other lock is not taken, for tokens of two locks cannot be compared. One that is over
    is: the guard, not its deadline, decides what becomes of a zombie. One of the process that this one was forked from
    is taken if there is no other, and then refused.
    """
    best: BaseLease | None = None
    for lease in held():
        covers = resource == lease.name or resource.startswith(lease.name.rstrip("/") + "/")
        if covers and (best is None or _rank(lease) >= _rank(best)):
            best = lease
    return best


def _rank(lease: BaseLease) -> tuple[bool, int]:
    return not lease._inherited, len(lease.name)
