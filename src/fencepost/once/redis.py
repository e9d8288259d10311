"""Runs remembered in Redis, in the script that carries out their commands."""

from datetime import timedelta
from typing import Any

from fencepost import check
from fencepost.errors import BackendError, ConfigError
from fencepost.guards.redis import BaseRedisGuard
from fencepost.guards.redis_client import Part, text
from fencepost.guards.redis_client import Script as _Source
from fencepost.once.run import Attempt, Run

_ONCE = _Source("fencepost.once", "once.lua")
_PREFIX = "fencepost:run:"
_PARTS = 7000  # a script that passes on 8000 fails with a full Lua stack; the commands before would stay done


class Commands(Run):
    """A run of commands, which Redis carries out all at once as the block ends.

    For example::

        with once(guard, "billing/42/2026-11") as run:
            run.execute("INCRBY", "balance:42", "-10")
    """

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.replies: list[Any] = []
        """What Redis replied to the commands, after the block, if this attempt made the run."""
        self._commands: list[tuple[Part, ...]] = []

    def execute(self, *command: Part) -> None:
        """Add a command. On a Cluster its keys share the run id's slot: give both one hash tag."""
        if self.done:
            raise ConfigError(f"run {self.id!r} was made before; look at run.done first")
        if len(command) > _PARTS:
            raise ConfigError(f"a command of a run has at most {_PARTS} parts, not {len(command)}; make several of it")
        self._commands.append(command)


class Script(Attempt[Commands]):
    """A block whose commands are carried out as it ends. If another attempt was faster, the run is ``done`` instead.

    A block that raises sends nothing. If a later command of several fails, Redis cannot take back those before it: the
    run is remembered as broken off, and this attempt and all later ones raise BackendError.
    """

    def __init__(self, guard: BaseRedisGuard, id: str, keep: float | timedelta | None) -> None:
        self._link = guard.link
        self.is_async = self._link.is_async
        self.run = Commands(id)
        self._key = self._link.key(_PREFIX, id)
        self._keep = "" if keep is None else round(_kept(keep) * 1000) or 1

    async def begin(self) -> None:
        result, error = await self._link.ask("HMGET", self._key, "result", "error")
        self._known(result, error)

    async def end(self, cause: tuple[Any, Any, Any]) -> None:
        if cause[0] is not None or self.run.done:
            return
        keys: list[Part] = []
        args: list[Part] = [self.run._told(), self._keep]
        for command in self.run._commands:
            keys += (await self._link.keys(command))[0]
            args += [len(command), *command]
        self._link.same_slot(self._key, keys)
        try:
            made, result, error, replies = await self._link.script(_ONCE, [self._key, *keys], args)
        except BackendError as failure:
            raise BackendError(
                f"Redis did not answer: run {self.run.id!r} may have been made, or not; try it again under this id",
                backend="redis",
                ambiguous=True,
            ) from failure
        if made:
            self.run.replies = replies
        else:
            self._known(result, error)

    def _known(self, result: Any, error: Any) -> None:
        if error is not None:
            raise BackendError(
                f"run {self.run.id!r} broke off: {text(error)}; what came before is done: put the rest right by hand, "
                f"then delete the key {self._key!r}",
                backend="redis",
                ambiguous=True,
            )
        if result is not None:
            self.run._recall(text(result))


def _kept(keep: float | timedelta) -> float:
    kept = check.seconds(keep, "keep")
    if not kept:
        raise ConfigError("keep must be greater than 0 seconds: a run that is forgotten at once happens again")
    return kept
