"""A guarded dict inside one process: the reference every other guard is held to."""

import threading
from collections.abc import Iterable
from typing import Generic, TypeVar

from fencepost import check
from fencepost.events import Action, Hook
from fencepost.guards.decision import decide
from fencepost.lease import Offer, entry, stamp
from fencepost.rule import Stamp, raised

V = TypeVar("V")


class Guard(Generic[V]):
    """Values by resource, each behind its mark; any thread may call.

    Every method raises the Refused of the verdict, and then nothing was changed; ConfigError for a
    name or an offer that cannot be one.

        guard = Guard[bytes]()
        before = guard.read("account/42", lease)
        guard.write("account/42", b"after", lease)
    """

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks = tuple(hooks)
        self._lock = threading.Lock()
        self._marks: dict[str, Stamp] = {}
        self._values: dict[str, V] = {}

    def write(self, resource: str, value: V, offer: Offer) -> bool:
        """Keep ``value``. True if this call did it, False if it is a replay of the write that did."""
        check.name(resource, "resource")
        with self._lock:
            # The stamp is taken under the lock, so that threads that share a lease arrive in its order.
            if applied := self._decide(resource, stamp(offer), "write", value):
                self._values[resource] = value
            return applied

    def read(self, resource: str, offer: Offer) -> V | None:
        """Enter, then return the value; None if there is none."""
        check.name(resource, "resource")
        with self._lock:
            self._decide(resource, entry(offer), "enter", None)
            return self._values.get(resource)

    def enter(self, resource: str, offer: Offer) -> None:
        """Raise the mark without writing: from here on every older holder is refused."""
        self.read(resource, offer)

    def mark(self, resource: str) -> Stamp | None:
        """The largest stamp admitted so far."""
        with self._lock:
            return self._marks.get(resource)

    def _decide(self, resource: str, offer: Stamp, action: Action, value: V | None) -> bool:
        mark = self._marks.get(resource)
        # A mark with a seq was set by the write that also set the value, so the value is its payload.
        applied = decide(
            resource,
            mark,
            offer,
            source="memory",
            action=action,
            same=lambda: self._values.get(resource) == value,
            hooks=self._hooks,
        )
        if applied:
            self._marks[resource] = raised(mark, offer)
        return applied
