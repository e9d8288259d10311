"""A step of a saga, what it is given, and how a saga can end badly."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fencepost import check
from fencepost.errors import ConfigError, FencepostError
from fencepost.lease import Access, BaseLease


class Compensated(FencepostError):
    """A step failed, and everything before it was undone: nothing of the saga is left."""

    def __init__(self, saga: str, id: str, error: str) -> None:
        super().__init__(f"saga {saga} {id} was compensated: {error}; begin it again under another id")
        self.saga = saga
        self.id = id
        self.error = error


class Stuck(FencepostError):
    """An undo failed: what is left has to be undone by hand."""

    def __init__(self, saga: str, id: str, error: str) -> None:
        super().__init__(
            f"saga {saga} {id} is stuck: {error}; put the cause right and 'fencepost saga retry', or undo it by hand "
            f"and 'fencepost saga skip'"
        )
        self.saga = saga
        self.id = id
        self.error = error


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a step is given."""

    id: str
    args: Any
    results: Mapping[str, Any]
    """The results of the steps before it; for an undo, its own result too, unless it is unknown whether it happened."""
    key: str
    """The same at every attempt at this step of this saga: use it as the Idempotency-Key for effects elsewhere."""
    conn: Any
    """The connection, inside the transaction that also records the step; None for an external step."""
    lease: BaseLease

    def access(self, resource: str | None = None) -> Access:
        """The lease's next access to ``resource``, by default the saga's lock, with the key of this step.

        A service that verifies signatures does so for the name of its own resource: pass that name. As with
        ``lease.access``, each call is a new access; to retry a request, use the same value again.

            requests.put(url, data=body, headers=task.access("account/42").headers)
        """
        return replace(self.lease.access(resource), key=self.key)

    @cached_property
    def headers(self) -> dict[str, str]:
        """The headers of one access to the saga's lock: the key, and the stamp by which a guard refuses a zombie.

        For services that verify no signature; for the others there is ``access(resource).headers``.
        """
        return self.access().headers


@dataclass(frozen=True)
class Step:
    """One local transaction, and what undoes it.

    ``do`` is given a Task and returns its result, anything that JSON can carry; to fail, it raises. With ``external``
    its effect is not in this database: it is called in no transaction, and may be called again with the same key after
    a crash; its ``undo`` may be called although it never happened.
    """

    name: str
    do: Callable[[Task], Any]
    undo: Callable[[Task], Any] | None = None
    external: bool = False

    def __post_init__(self) -> None:
        if not callable(self.do) or not (self.undo is None or callable(self.undo)):
            raise ConfigError(f"what step {self.name!r} does, and undoes, is a function that takes a Task")


def plain(value: Any, what: str) -> Any:
    """A value as JSON gives it back, so that it is the same before and after a crash."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the {what} cannot be kept as JSON: {error}; keep the plain facts") from error


def word(value: str, what: str) -> str:
    """The name, if it has no slash; ConfigError if it has. Names are joined with slashes, and must stay distinct."""
    if "/" in check.name(value, what):
        raise ConfigError(f"a {what} has no slash: {value!r}")
    return value
