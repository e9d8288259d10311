"""The guard for Redis, for asyncio clients of redis-py; see `fencepost.guards.redis`."""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from fencepost.errors import ConfigError
from fencepost.events import Hook
from fencepost.guards.policy import Policy
from fencepost.guards.redis import BaseRedisGuard, Done
from fencepost.guards.redis_client import Part
from fencepost.lease import AMBIENT, FenceOrAmbient
from fencepost.rule import Stamp

__all__ = ["AsyncioRedis", "Done", "RedisGuard"]


class AsyncioRedis(Protocol):
    """The methods that an asyncio client of redis-py has."""

    def aclose(self) -> Coroutine[Any, Any, None]: ...
    def execute_command(self, *args: Any, **options: Any) -> Any: ...


class RedisGuard(BaseRedisGuard):
    """The guard of one asyncio client of redis-py; everything as `fencepost.guards.RedisGuard`, awaited."""

    def __init__(
        self,
        client: AsyncioRedis,
        *,
        prefix: str = "fencepost:mark:",
        hooks: Iterable[Hook] = (),
        policy: Policy | None = None,
    ) -> None:
        super().__init__(client, prefix=prefix, hooks=hooks, policy=policy)
        if not self.link.is_async:
            raise ConfigError("this client blocks, and is not for asyncio; use fencepost.guards.RedisGuard")

    async def execute(self, *command: Part, lease: FenceOrAmbient = AMBIENT, resource: str | None = None) -> Done:
        """Run a command if its holder has not been replaced: Done(reply, replayed)."""
        return await self._execute(command, lease, resource)

    async def read(self, *command: Part, lease: FenceOrAmbient = AMBIENT, resource: str | None = None) -> Any:
        """Enter, and run a command that only reads, in one step: its reply."""
        return await self._read(command, lease, resource)

    async def enter(self, resource: str, lease: FenceOrAmbient = AMBIENT) -> None:
        """Raise the mark without writing: from here on every older holder is refused."""
        await self._enter(resource, lease)

    async def update(self, key: str, change: Callable[[Any], Part], lease: FenceOrAmbient = AMBIENT) -> Done:
        """Read a string, change it and write it as one access: what ``change`` returns replaces what it was given."""
        return await self._update(key, change, lease)

    async def mark(self, resource: str) -> Stamp | None:
        """The largest stamp admitted so far; None if there is none."""
        return await self._mark(resource)

    async def raise_mark(self, resource: str, *, to: int) -> Stamp:
        """Refuse every token up to ``to``, and return the mark. A higher mark stays."""
        return await self._raise_mark(resource, to)

    async def lower_mark(self, resource: str, *, to: int, seen: int) -> Stamp:
        """Lower the mark to ``to`` if its token is still ``seen``; see `fencepost.guards.RedisGuard.lower_mark`."""
        return await self._lower_mark(resource, to, seen)
