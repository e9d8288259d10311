"""The leases held around the running code, so that a guard finds its own without being handed one."""

from contextvars import ContextVar

from fencepost.lease import BaseLease

_held: ContextVar[tuple[BaseLease, ...]] = ContextVar("fencepost_held", default=())


def push(lease: BaseLease) -> None:
    """Note that a block that holds ``lease`` begins, in this thread or task and those that inherit its context."""
    _held.set((*_held.get(), lease))


def pop(lease: BaseLease) -> None:
    """Note that the block ends."""
    # Not ContextVar.reset: a generator may leave its block in another context than it entered it.
    held = list(_held.get())
    for index in reversed(range(len(held))):
        if held[index] is lease:
            del held[index]  # this block only: one around it may hold the same lease
            break
    _held.set(tuple(held))


def blocks() -> tuple[BaseLease, ...]:
    """The leases of the enclosing blocks, the innermost last; also those that are over, and shares."""
    return _held.get()


def held() -> tuple[BaseLease, ...]:
    """The same without shares, which a guard must not accept in place of the lock."""
    return tuple(lease for lease in _held.get() if not lease.shared)


def find(resource: str) -> BaseLease | None:
    """The lease that covers ``resource``: its lock's name is the resource's, or a path above it.

    Leases of other locks do not count, because tokens of two locks cannot be compared. A lease that is over counts: the
    guard, not the deadline, decides what a zombie may do. A lease of the process that this one was forked from is
    returned only if there is no other, and is refused when it is used.
    """
    best: BaseLease | None = None
    for lease in held():
        covers = resource == lease.name or resource.startswith(lease.name.rstrip("/") + "/")
        if covers and (best is None or _rank(lease) >= _rank(best)):
            best = lease
    return best


def _rank(lease: BaseLease) -> tuple[bool, int]:
    return not lease._inherited, len(lease.name)
