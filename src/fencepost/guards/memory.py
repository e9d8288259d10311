"""A guarded dict inside one process: the reference every other guard is held to."""

import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from fencepost.driver.fork import in_child
from fencepost.events import Action, Hook
from fencepost.guards.judgement import Decision, Judgement
from fencepost.guards.policy import Policy
from fencepost.lease import AMBIENT, FenceOrAmbient
from fencepost.rule import Stamp

__all__ = ["MemoryGuard"]

V = TypeVar("V")


class MemoryGuard(Generic[V]):
    """Values by resource, each behind its mark; any thread may call.

    Every method raises the Refused of the verdict, and then nothing was changed; ConfigError for an
    invalid name or lease. Inside ``with lock:`` the lease need not be passed.

        guard = MemoryGuard[bytes]()
        before = guard.read("account/42", lease)
        guard.write("account/42", b"after", lease)
    """

    def __init__(self, hooks: Iterable[Hook] = (), policy: Policy | None = None) -> None:
        self._hooks = tuple(hooks)
        self._policy = policy
        self._lock = threading.RLock()
        self._marks: dict[str, Stamp] = {}
        self._values: dict[str, V] = {}
        self._written: dict[str, Stamp] = {}
        """The stamp of the write that set the value: a replay is that write only if the mark is still this stamp."""
        in_child(self, MemoryGuard._forked)

    def write(self, resource: str, value: V, lease: FenceOrAmbient = AMBIENT) -> bool:
        """Keep ``value``. True if this call did it, False if it is a replay of the write that did."""
        return self._write(resource, lambda _: value, lease)

    def update(self, resource: str, change: Callable[[V | None], V], lease: FenceOrAmbient = AMBIENT) -> bool:
        """Read, change and write as one access: what ``change`` returns replaces the value that it was given."""
        return self._write(resource, change, lease)

    def read(self, resource: str, lease: FenceOrAmbient = AMBIENT) -> V | None:
        """Enter, then return the value; None if there is none."""
        access = self._access(resource, lease, "enter")
        with self._lock:
            self._decide(access, resource, None)
            return self._values.get(resource)

    def enter(self, resource: str, lease: FenceOrAmbient = AMBIENT) -> None:
        """Raise the mark without writing: from here on every older holder is refused."""
        self.read(resource, lease)

    def mark(self, resource: str) -> Stamp | None:
        """The largest stamp admitted so far."""
        with self._lock:
            return self._marks.get(resource)

    def _forked(self) -> None:
        self._lock = threading.RLock()  # a thread of the parent may have held it

    def _access(self, resource: str, lease: FenceOrAmbient, action: Action) -> Judgement:
        return Judgement("memory", resource, lease, action, self._hooks, self._policy)

    def _write(self, resource: str, change: Callable[[V | None], V], lease: FenceOrAmbient) -> bool:
        access = self._access(resource, lease, "write")
        with self._lock:
            value = change(self._values.get(resource))
            decision = self._decide(access, resource, value)
            if decision.fresh:
                self._values[resource] = value
                if decision.mark is not None:
                    self._written[resource] = decision.mark
            return decision.fresh

    def _decide(self, access: Judgement, resource: str, value: V | None) -> Decision:
        mark = self._marks.get(resource)
        if not access.judged:
            return Decision(True, mark)
        # Take the stamp under the lock, so that threads that share a lease are judged in the order of their stamps.
        same = lambda: self._written.get(resource) == mark and self._values.get(resource) == value  # noqa: E731
        decision = access.decide(mark, access.take(mark), same=same)
        if decision.mark is not None:
            self._marks[resource] = decision.mark
        return decision
