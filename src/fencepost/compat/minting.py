"""Taking a lock's key by SET NX PX, and minting a token in the same step, through the caller's own client of redis-py.

The lock's key and its counter are those of the Redis backend with ``?prefix=``, so tokens grow across holders of both
kinds. If there are several servers, as in Redlock, each mints a token of its own. The token of the hold is the largest
from a majority of servers, once a majority remembers it.
"""

import inspect
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from fencepost.backends.redis.scripts import Layout, Script, build, scripts, tags
from fencepost.compat.observed import text
from fencepost.driver import boottime, run, settle

_log = logging.getLogger("fencepost")
_TAKE = build("plain_take", {"mint": "mint_clock"})
_REMEMBER = scripts("clock").bump
_REFUSED = ("ACL failure", "The user executing the script can't")  # inside a script, by Redis 7 and by Redis 6
_warned: set[str] = set()


class Taken(NamedTuple):
    """A server's answer: whether the lock is now held, and under which token."""

    held: bool
    token: int | None
    since: float
    """An instant before the server was asked."""


def is_async(client: Any) -> bool:
    """Whether a client of redis-py is asyncio's."""
    return inspect.iscoroutinefunction(client.execute_command)


def counter(client: Any, key: Any, prefix: str) -> str:
    """The key of the counter that goes with a lock's key, in the same slot of a cluster."""
    name = text(key)
    if not name.startswith(prefix):
        prefix = ""
    if not hasattr(client, "keyslot"):
        return Layout(prefix, "clock", False).keys(name.removeprefix(prefix)).counter
    # Use the slot of the key as the client encodes it: the text of a name in bytes may be in another slot.
    neighbour = f"{{{tags()[client.keyslot(key)]}}}"
    return Layout(prefix, "clock", True).keys(neighbour).counter


async def take(client: Any, key: Any, value: str | bytes, ms: int | None, prefix: str = "") -> Taken:
    """Take the lock if it is free; redis-py's errors come through.

    A user that may not touch the counter gets the lock without a token, and an ERROR in the log, once for each counter.
    """
    from redis.exceptions import NoPermissionError, ResponseError

    tokens = counter(client, key, prefix)
    since = boottime()
    try:
        token = int(await _run(client, _TAKE, (key, tokens), (value, "" if ms is None else ms)))
        return Taken(token > 0, token or None, since)
    except ResponseError as error:
        if not isinstance(error, NoPermissionError) and not any(each in str(error) for each in _REFUSED):
            raise
        if tokens not in _warned:
            _warned.add(tokens)
            _log.error(
                "locks have no fencing tokens: the server refused what mints them (%s); let the ACL of this user have "
                "the key %r, and +evalsha +eval +exists +get +set +incr +time",
                error,
                tokens,
            )
    return Taken(bool(await settle(client.set(key, value, nx=True, px=ms))), None, since)


async def _run(client: Any, script: Script, keys: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    from redis.exceptions import NoScriptError

    try:
        return await settle(client.evalsha(script.sha, len(keys), *keys, *args))
    except NoScriptError:
        return await settle(client.eval(script.text, len(keys), *keys, *args))


async def agree(taken: Iterable[tuple[Any, Taken]], servers: int, key: str, prefix: str) -> int | None:
    """The token of a hold that a majority of ``servers`` granted; None if no majority remembers it.

    Two majorities have a server in common, so the next holder's token is larger.
    """
    from redis.exceptions import RedisError

    granted = [(client, each.token) for client, each in taken if each.held and each.token is not None]
    if len(granted) <= servers // 2:
        return None
    highest = max(token for _, token in granted)
    remembered = 0
    for client, token in granted:
        try:
            if token < highest:
                await _run(client, _REMEMBER, (counter(client, key, prefix),), (highest,))
            remembered += 1
        except RedisError as error:
            _log.warning("a server did not remember token %d of %r: %s", highest, key, error)
    if remembered <= servers // 2:
        _log.error("%r is held without a fencing token: no majority of its servers remembers one", key)
        return None
    return highest


class Minting:
    """A client of redis-py that mints a token whenever it takes a key by SET NX; all else is left to the client."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client = client
        self._prefix = prefix
        self._taken: tuple[Any, Taken] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def __repr__(self) -> str:
        return repr(self.client)  # pottery's errors name the servers by it

    def set(self, name: Any, value: Any, ex: int | None = None, px: int | None = None, nx: bool = False, **more: Any):  # type: ignore[no-untyped-def]
        """redis-py's SET; a coroutine if the client is asyncio's."""
        if not nx or more:
            return self.client.set(name, value, ex=ex, px=px, nx=nx, **more)
        job = self._set(name, value, ex * 1000 if ex is not None else px)
        return job if is_async(self.client) else run(job)

    async def _set(self, name: Any, value: Any, ms: int | None) -> bool | None:
        taken = await take(self.client, name, value, ms, self._prefix)
        if not taken.held:
            return None
        self._taken = value, taken
        return True

    def taken(self, value: Any) -> Taken | None:
        """What the server answered when the key was taken with this value; None if it was not."""
        found = self._taken
        return found[1] if found is not None and found[0] == value else None
