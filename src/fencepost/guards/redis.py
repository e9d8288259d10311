"""A guard for Redis: any command of yours runs inside the script that admits it.

    guard = RedisGuard(client)
    guard.execute("HSET", "account:42", "balance", 50, lease=lease)
    guard.read("HGETALL", "account:42", lease=lease)

The client is redis-py's, of one server or of a Cluster; `fencepost.guards.aio.RedisGuard` is for its asyncio clients.
The mark is a hash in the same slot as the data. Redis must not lose it: a maxmemory-policy of allkeys-* may evict the
mark, and a failover may lose the last writes. After that the guard admits replaced holders again.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from fencepost import check
from fencepost.driver import run
from fencepost.errors import BackendError, ConfigError
from fencepost.events import Event, Hook, Hooks
from fencepost.guards.judgement import Judgement, lowering, moved
from fencepost.guards.policy import Policy
from fencepost.guards.redis_client import Link, Part, Script, encoded, text
from fencepost.lease import AMBIENT, FenceOrAmbient
from fencepost.rule import Stamp, Verdict

__all__ = ["BlockingRedis", "Done", "RedisGuard"]


class Done(NamedTuple):
    """A command that was carried out: its reply; ``replayed`` if the same command had been carried out before."""

    reply: Any
    replayed: bool = False


class BlockingRedis(Protocol):
    """The methods that a blocking client of redis-py has."""

    def close(self) -> None:
        """Close the client's connections."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command, and return the server's answer."""


class BaseRedisGuard:
    """What the guards for blocking and for asyncio clients share: everything but the public methods."""

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
        self.link = Link(client)
        """The client, wrapped to run the user's commands inside scripts."""
        self._prefix = prefix
        self._encoded_prefix = prefix.encode()
        self._hooks = tuple(hooks)
        self._policy = policy

    async def _execute(self, command: Sequence[Part], lease: FenceOrAmbient, resource: str | None) -> Done:
        keys, _ = await self.link.keys(command)
        name = text(keys[0]) if resource is None else resource
        access = Judgement("redis", name, lease, "write", self._hooks, self._policy)
        if not access.judged:
            return await self._run(keys, command)
        sent = [part if isinstance(part, bytes) else str(part).encode() for part in command]
        digest = hashlib.sha256(repr(sent).encode()).hexdigest()
        with access.turn(blocking=not self.link.is_async):
            return await self._pass(access, name, keys, command, digest)

    async def _read(self, command: Sequence[Part], lease: FenceOrAmbient, resource: str | None) -> Any:
        keys, reads = await self.link.keys(command)
        if not reads:
            raise ConfigError(f"{text(command[0])} writes, and read() may not write; use execute()")
        name = text(keys[0]) if resource is None else resource
        access = Judgement("redis", name, lease, "enter", self._hooks, self._policy)
        if not access.judged:
            return (await self._run(keys, command)).reply
        return (await self._in_turn(access, name, keys, command)).reply

    async def _enter(self, resource: str, lease: FenceOrAmbient) -> None:
        access = Judgement("redis", resource, lease, "enter", self._hooks, self._policy)
        if access.judged:
            await self._in_turn(access, resource, (), ())

    async def _in_turn(self, access: Judgement, resource: str, keys: Sequence[Part], command: Sequence[Part]) -> Done:
        with access.turn(blocking=not self.link.is_async):
            while (done := await self._pass(access, resource, keys, command, "")) is _OVERTAKEN:
                pass
        return done

    async def _update(self, key: str, change: Callable[[Any], Part], lease: FenceOrAmbient) -> Done:
        # A digest for this call alone: if the client resends it after a lost answer, the mark shows that it was made.
        digest = f"update {secrets.token_hex(8)}"
        access = Judgement("redis", key, lease, "write", self._hooks, self._policy)
        while True:
            before, held = await self.link.value(key)
            write = ("SET", key, change(before), "KEEPTTL")
            expected = b"-" if held is None else b"=" + held
            if access.judged:
                with access.turn(blocking=not self.link.is_async):
                    done = await self._pass(access, key, (key,), write, digest, expected)
            else:
                done = await self._run((key,), write, expected)
            if done is not _CHANGED:
                return done

    async def _run(self, keys: Sequence[Part], command: Sequence[Part], expected: bytes = b"") -> Done:
        """Run a command that is not judged: in a script too, so that its reply is the same in every mode."""
        made, reply = await self.link.script(_RUN, keys, [expected, *command])
        return Done(reply) if made else _CHANGED

    async def _mark(self, resource: str) -> Stamp | None:
        found = await self.link.ask("HMGET", self.link.key(self._prefix, resource), "token", "seq", "holder")
        return _stamp(found)

    async def _raise_mark(self, resource: str, to: int) -> Stamp:
        check.name(resource, "resource")
        before = await self._mark(resource)
        await self.link.script(_RAISE_MARK, [self.link.key(self._prefix, resource)], [check.token(to)])
        seen = before.token if before else None
        Hooks(self._hooks)(Event(kind="raise_mark", name=resource, source="redis", token=to, seen=seen))
        after = await self._mark(resource)
        assert after is not None, "the script has just set it"
        return after

    async def _lower_mark(self, resource: str, to: int, seen: int) -> Stamp:
        after = lowering(resource, to, seen)
        key = self.link.key(self._prefix, resource)
        if not await self.link.script(_LOWER_MARK, [key], [to, seen]):
            raise moved(resource, seen, await self._mark(resource))
        Hooks(self._hooks)(Event(kind="lower_mark", name=resource, source="redis", token=to, seen=seen))
        return after

    async def _pass(
        self,
        access: Judgement,
        resource: str,
        keys: Sequence[Part],
        command: Sequence[Part],
        digest: str,
        expected: bytes = b"",
    ) -> Done:
        mark_key = self.link.key(self._prefix, resource)
        self.link.same_slot(mark_key, keys)
        if access.action == "write":
            for key in keys:
                if encoded(key).startswith(self._encoded_prefix):
                    raise ConfigError(
                        f"{text(command[0])} would write over a mark; take another key, or another prefix="
                    )
        offer = access.take()
        jump, first = access.limits(offer)
        unusual: tuple[Part, ...] = ("",)
        if not access.refuses or jump is not None or first is not None or expected:
            unusual = (
                "1" if access.refuses else "0",
                "" if jump is None else jump,
                "" if first is None else first,
                expected,
            )
        answer = await self.link.script(_ADMIT, (mark_key, *keys), (*offer, digest, *unusual, *command))
        if not isinstance(answer, list):
            raise BackendError(
                f"the client returned {type(answer).__name__} in place of the guard's answer, so it is not known "
                f"whether the access was made; give the guard a plain client, not a pipeline or a transaction",
                backend="redis",
                ambiguous=True,
            )
        if len(answer) == 1:  # admitted at the mark's own token
            access.conclude(offer, offer, Verdict.ADMIT)
            return Done(answer[0])
        said, done, *mark, reply = answer
        if (word := text(said)) == "changed":
            return _CHANGED
        verdict = Verdict(word)
        if verdict is Verdict.LATE and access.action == "enter" and access.leased:
            return _OVERTAKEN  # by another task that shares the lease: the next stamp is newer
        fresh = access.conclude(_stamp(mark), offer, verdict, done=bool(done))
        return Done(reply, not fresh)


class RedisGuard(BaseRedisGuard):
    """The guard of one blocking client of redis-py. The resource is the command's first key, unless one is named.

    A command has at least one key, and all its keys share the resource's slot on a Cluster; ConfigError otherwise.
    Its reply is what Redis gives a script, the same in every mode of the policy: HGETALL is a flat list, not a dict,
    SET is b"OK", EXPIRE is 1. If the command itself fails, redis-py's error is raised, and the mark is unchanged.
    Raises the Refused of the verdict, and then nothing was changed; BackendError, ambiguous, if the server did not
    answer: retry with the same access.

    A client that retries by itself after a lost answer, as redis-py does by default, may come after a newer holder the
    second time: then the command is refused although the first attempt was carried out. An update that is not judged
    leaves no mark that shows it, so such a retry may make it twice. Give the client ``retry=Retry(NoBackoff(), 0)``
    where that matters.

        guard = RedisGuard(redis.Redis())
        guard.execute("SET", "account:42", "90", lease=lease)
    """

    def __init__(
        self,
        client: BlockingRedis,
        *,
        prefix: str = "fencepost:mark:",
        hooks: Iterable[Hook] = (),
        policy: Policy | None = None,
    ) -> None:
        super().__init__(client, prefix=prefix, hooks=hooks, policy=policy)
        if self.link.is_async:
            raise ConfigError("this client is asyncio's; use fencepost.guards.aio.RedisGuard")

    def execute(self, *command: Part, lease: FenceOrAmbient = AMBIENT, resource: str | None = None) -> Done:
        """Run a command if its holder has not been replaced: Done(reply, replayed)."""
        return run(self._execute(command, lease, resource))

    def read(self, *command: Part, lease: FenceOrAmbient = AMBIENT, resource: str | None = None) -> Any:
        """Enter, and run a command that only reads, in one step: its reply."""
        return run(self._read(command, lease, resource))

    def enter(self, resource: str, lease: FenceOrAmbient = AMBIENT) -> None:
        """Raise the mark without writing: from here on every older holder is refused."""
        run(self._enter(resource, lease))

    def update(self, key: str, change: Callable[[Any], Part], lease: FenceOrAmbient = AMBIENT) -> Done:
        """Read a string, change it and write it as one access: what ``change`` returns replaces what it was given.

        A key that expires keeps its expiry.
        """
        return run(self._update(key, change, lease))

    def mark(self, resource: str) -> Stamp | None:
        """The largest stamp admitted so far; None if there is none."""
        return run(self._mark(resource))

    def raise_mark(self, resource: str, *, to: int) -> Stamp:
        """Refuse every token up to ``to``, and return the mark. A higher mark stays."""
        return run(self._raise_mark(resource, to))

    def lower_mark(self, resource: str, *, to: int, seen: int) -> Stamp:
        """Lower the mark to ``to`` if its token is still ``seen``, and return it. ConfigError if the mark has changed.

        Use it when a token that no issuer gave out has raised the mark. Every token above ``to`` may write again: make
        sure that no replaced holder is still running.
        """
        return run(self._lower_mark(resource, to, seen))


_ADMIT = Script("fencepost.guards", "admit.lua")
_RUN = Script("fencepost.guards", "run.lua")
_RAISE_MARK = Script("fencepost.guards", "raise_mark.lua")
_LOWER_MARK = Script("fencepost.guards", "lower_mark.lua")
_CHANGED = Done(None)
_OVERTAKEN = Done(None)


def _stamp(found: Sequence[Any]) -> Stamp | None:
    token, seq, holder = found
    return None if token is None else Stamp(int(token), int(seq), text(holder))
