"""A guard for Redis: any command of yours runs inside the script that admits it.

    guard = redis.Guard(client)
    guard.execute("HSET", "account:42", "balance", 50, offer=lease)
    guard.read("HGETALL", "account:42", offer=lease)

The client is redis-py's, blocking or asyncio (then everything is awaited), of one server or of a Cluster. The mark is
a hash beside the data, in the same slot. It must not be evicted: a maxmemory-policy of allkeys-* forgets who
was here, and so does a failover that loses the last writes.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, TypeAlias

from fencepost import check
from fencepost.drive import run, settle
from fencepost.errors import BackendError, ConfigError
from fencepost.events import Event, Hook, Hooks
from fencepost.guards.decision import Access
from fencepost.guards.policy import Policy
from fencepost.lease import Offer
from fencepost.rule import Stamp, Verdict

Part: TypeAlias = str | bytes | int | float


class Done(NamedTuple):
    """A command that was carried out: its reply, or that this very command had been before."""

    reply: Any
    replayed: bool = False


class Guard:
    """The guard of one client. The resource is the command's first key, unless one is named.

    A command has at least one key, and all its keys share the resource's slot on a Cluster; ConfigError
    otherwise. Its own errors come through as redis-py raises them, and then the mark is as it was. Raises the
    Refused of the verdict, and then nothing was changed; BackendError, ambiguous, if the server did not answer:
    retry with the same stamp.
    """

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = "fencepost:mark:",
        hooks: Iterable[Hook] = (),
        policy: Policy | None = None,
    ) -> None:
        if "{" in prefix:
            raise ConfigError("the prefix of marks cannot contain '{': the slot comes from the resource")
        self._client = client
        self._prefix = prefix
        self._hooks = tuple(hooks)
        self._policy = policy
        self._async = inspect.iscoroutinefunction(client.execute_command)
        self._cluster = hasattr(client, "keyslot") or hasattr(client, "get_node_from_key")
        self._known: dict[str, tuple[int, int, int, bool]] = {}

    def execute(self, *command: Part, offer: Offer | None = None, resource: str | None = None) -> Any:
        """Run a command if its holder has not been replaced: Done(reply, replayed)."""
        return self._face(self._execute(command, offer, resource))

    def read(self, *command: Part, offer: Offer | None = None, resource: str | None = None) -> Any:
        """Enter, and run a command that only reads, in one step: its reply."""
        return self._face(self._read(command, offer, resource))

    def enter(self, resource: str, offer: Offer | None = None) -> Any:
        """Raise the mark without writing: from here on every older holder is refused."""
        return self._face(self._enter(resource, offer))

    def update(self, key: str, change: Callable[[Any], Part], offer: Offer | None = None) -> Any:
        """Read a string, change it and write it as one access: what ``change`` was given is what is replaced."""
        return self._face(self._update(key, change, offer))

    def mark(self, resource: str) -> Any:
        """The largest stamp admitted so far; None if there is none."""
        return self._face(self._mark(resource))

    def reset(self, resource: str, above: int) -> Any:
        """Refuse every token up to ``above``. Raises a mark, never lowers one; the mark now."""
        return self._face(self._reset(resource, above))

    def _face(self, job: Any) -> Any:
        return job if self._async else run(job)

    async def _execute(self, command: Sequence[Part], offer: Offer | None, resource: str | None) -> Done:
        keys, _ = await self._keys(command)
        name = _text(keys[0]) if resource is None else resource
        access = Access("redis", name, offer, "write", self._hooks, self._policy)
        if not access.judged:
            return Done(await self._ask(*command))
        digest = hashlib.sha256(repr([_bytes(part) for part in command]).encode()).hexdigest()
        with access.turn(blocking=not self._async):
            return await self._pass(access, name, keys, command, digest)

    async def _read(self, command: Sequence[Part], offer: Offer | None, resource: str | None) -> Any:
        keys, reads = await self._keys(command)
        if not reads:
            raise ConfigError(f"{_text(command[0])} writes, and entering is no leave to write; use execute()")
        name = _text(keys[0]) if resource is None else resource
        access = Access("redis", name, offer, "enter", self._hooks, self._policy)
        if not access.judged:
            return await self._ask(*command)
        return (await self._pass(access, name, keys, command, "")).reply

    async def _enter(self, resource: str, offer: Offer | None) -> None:
        access = Access("redis", resource, offer, "enter", self._hooks, self._policy)
        if access.judged:
            await self._pass(access, resource, (), (), "")

    async def _update(self, key: str, change: Callable[[Any], Part], offer: Offer | None) -> Done:
        while True:
            before = await self._ask("GET", key)
            after = change(before)
            access = Access("redis", key, offer, "write", self._hooks, self._policy)
            if not access.judged:
                return Done(await self._ask("SET", key, after))
            expected = b"-" if before is None else b"=" + _bytes(before)
            with access.turn(blocking=not self._async):
                done = await self._pass(access, key, (key,), ("SET", key, after), "", expected)
            if done is not _CHANGED:
                return done

    async def _mark(self, resource: str) -> Stamp | None:
        found = await self._ask("HMGET", self._key(resource), "token", "seq", "holder")
        return _stamp(found)

    async def _reset(self, resource: str, above: int) -> Stamp:
        check.name(resource, "resource")
        before = await self._mark(resource)
        await self._script([self._key(resource)], [check.token(above), 1, "", "", "1", "", "", ""])
        seen = before.token if before else None
        Hooks(self._hooks)(Event(kind="reset", name=resource, source="redis", token=above, seen=seen))
        after = await self._mark(resource)
        assert after is not None, "the script has just set it"
        return after

    async def _pass(
        self,
        access: Access,
        resource: str,
        keys: Sequence[Part],
        command: Sequence[Part],
        digest: str,
        expected: bytes = b"",
    ) -> Done:
        mark_key = self._key(resource)
        self._same_slot(mark_key, keys)
        offer = access.take()
        limits = ["" if limit is None else limit for limit in access.limits]
        refuses = "1" if access.refuses else "0"
        args = [*offer, digest, refuses, *limits, expected, *command]
        verdict, done, *mark, reply = await self._script([mark_key, *keys], args)
        if _text(verdict) == "changed":
            return _CHANGED
        fresh = access.conclude(_stamp(mark), offer, Verdict(_text(verdict)), done=bool(done))
        return Done(reply, not fresh)

    async def _script(self, keys: Sequence[Part], args: Sequence[Part]) -> Any:
        from redis.exceptions import NoScriptError

        source, digest = _admit()
        try:
            return await self._ask("EVALSHA", digest, len(keys), *keys, *args)
        except NoScriptError:
            return await self._ask("EVAL", source, len(keys), *keys, *args)

    async def _ask(self, *command: Part, anywhere: bool = False) -> Any:
        from redis.exceptions import ConnectionError, TimeoutError

        try:
            if not (anywhere and self._cluster):
                return await settle(self._client.execute_command(*command))
            if self._async:
                await self._client.initialize()  # or it knows no node yet
            node = self._client.get_random_node()
            return await settle(self._client.execute_command(*command, target_nodes=node))
        except (ConnectionError, TimeoutError) as error:
            raise BackendError(
                f"Redis did not answer ({type(error).__name__}): the command may have been carried out, or not; retry "
                f"it with the same stamp",
                backend="redis",
                ambiguous=not anywhere,
            ) from error

    def _key(self, resource: str) -> str:
        """Where a resource's mark is: in the slot of the key that is called like the resource."""
        start = resource.find("{")
        end = resource.find("}", start + 1) if start >= 0 else -1
        tag = resource[start + 1 : end] if end > start + 1 else resource
        if self._cluster and "}" in tag:
            raise ConfigError(
                f"{resource!r} has a '}}' that hides its slot; give it a hash tag, such as 'account:{{42}}'"
            )
        return f"{self._prefix}{{{tag}}}:{resource}"

    def _same_slot(self, mark_key: str, keys: Sequence[Part]) -> None:
        if not self._cluster:
            return
        from redis.crc import key_slot

        slot = key_slot(mark_key.encode())
        for key in keys:
            if key_slot(_bytes(key)) != slot:
                raise ConfigError(
                    f"key {_text(key)!r} is in another slot than its mark; give resource and keys one hash tag, such "
                    f"as 'account:{{42}}'"
                )

    async def _keys(self, command: Sequence[Part]) -> tuple[Sequence[Part], bool]:
        """The keys of a command, and whether it only reads, as the server itself knows."""
        name = _text(command[0]).lower() if command else ""
        if name not in self._known:
            self._known[name] = await self._look_up(name)
        first, last, step, reads = self._known[name]
        if first <= 0:
            keys: Sequence[Part] = await self._ask("COMMAND GETKEYS", *command, anywhere=True)
        else:
            end = last if last >= 0 else len(command) + last
            keys = command[first : end + 1 : step or 1]
        if not keys:
            raise ConfigError(f"{name.upper()!r} names no key that could be guarded")
        return keys, reads

    async def _look_up(self, name: str) -> tuple[int, int, int, bool]:
        found = await self._ask("COMMAND INFO", name, anywhere=True) if name else None
        info = next(iter(found.values()), None) if isinstance(found, dict) else (found or [None])[0]
        if not info:
            raise ConfigError(f"Redis knows no command {name!r}")
        if isinstance(info, dict):
            flags, places = info["flags"], (info["first_key_pos"], info["last_key_pos"], info["step_count"])
        else:
            flags, places = info[2], tuple(info[3:6])
        names = {_text(flag) for flag in flags}
        if "movablekeys" in names:
            places = (0, 0, 0)
        return (*places, "readonly" in names)


_CHANGED = Done(None)


@cache
def _admit() -> tuple[str, str]:
    source = resources.files("fencepost.guards").joinpath("lua", "admit.lua").read_text("utf-8")
    return source, hashlib.sha1(source.encode()).hexdigest()


def _stamp(found: Sequence[Any]) -> Stamp | None:
    token, seq, holder = found
    return None if token is None else Stamp(int(token), int(seq), _text(holder))


def _text(value: Part) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bytes(value: Part) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
