"""A client of redis-py, blocking or asyncio, of one server or of a Cluster, and commands inside scripts."""

import hashlib
import inspect
from collections.abc import Sequence
from importlib import resources
from typing import Any, TypeAlias

from fencepost.driver import settle
from fencepost.errors import BackendError, ConfigError

Part: TypeAlias = str | bytes | int | float


class Script:
    """A script of ours: a file in the folder ``lua`` of a package.

    It is read when its module is imported: at the time of a request, the process may be out of file descriptors.
    """

    def __init__(self, package: str, file: str) -> None:
        self.source = resources.files(package).joinpath("lua", file).read_text("utf-8")
        self.digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        """The name under which Redis caches it."""


class Link:
    """A client of redis-py, wrapped to run the user's commands inside scripts."""

    def __init__(self, client: Any) -> None:
        from redis.exceptions import ConnectionError, NoScriptError, TimeoutError

        if hasattr(client, "pipeline_execute_command"):
            raise ConfigError("a pipeline answers only when it is executed; give the guard the client itself")
        # OSError: redis-py opens files of its own before it connects.
        self._no_script, self._unanswered = NoScriptError, (ConnectionError, TimeoutError, OSError)
        self._client = client
        self.is_async = inspect.iscoroutinefunction(client.execute_command)
        self._cluster = hasattr(client, "keyslot") or hasattr(client, "get_node_from_key")
        self._known: dict[str, tuple[int, int, int, bool]] = {}

    async def script(self, script: Script, keys: Sequence[Part], args: Sequence[Part]) -> Any:
        """Run a script and return its answer; its source is sent only to a server that does not have it yet."""
        try:
            return await self.ask("EVALSHA", script.digest, len(keys), *keys, *args)
        except self._no_script:
            return await self.ask("EVAL", script.source, len(keys), *keys, *args)

    async def ask(self, *command: Part, anywhere: bool = False, **options: Any) -> Any:
        """The reply to a command; ``anywhere`` asks any node of a Cluster. BackendError if there was no reply."""
        try:
            if not (anywhere and self._cluster):
                reply = self._client.execute_command(*command, **options)
                return await settle(reply) if self.is_async else reply
            if self.is_async:
                await self._client.initialize()  # or it knows no node yet
            node = self._client.get_random_node()
            return await settle(self._client.execute_command(*command, target_nodes=node))
        except self._unanswered as error:
            raise BackendError(
                f"Redis did not answer ({type(error).__name__}): the command may have been carried out, or not; retry "
                f"it with the same stamp",
                backend="redis",
                ambiguous=not anywhere,
            ) from error

    async def value(self, key: str) -> tuple[Any, bytes | None]:
        """A string as the client decodes it, and the bytes that the server holds; None if there is none."""
        held: bytes | None = await self.ask("GET", key, NEVER_DECODE=True)
        return (None if held is None else self._client.get_encoder().decode(held)), held

    def key(self, prefix: str, resource: str) -> str:
        """The key under which we keep data about a resource; it is in the same slot as the key named ``resource``."""
        start = resource.find("{")
        end = resource.find("}", start + 1) if start >= 0 else -1
        tag = resource[start + 1 : end] if end > start + 1 else resource
        if self._cluster and "}" in tag:
            raise ConfigError(
                f"{resource!r} has a '}}' that hides its slot; give it a hash tag, such as 'account:{{42}}'"
            )
        return f"{prefix}{{{tag}}}:{resource}"

    def same_slot(self, own: str, keys: Sequence[Part]) -> None:
        """ConfigError if one script cannot use a key together with our own, because it is in another slot."""
        if not self._cluster:
            return
        from redis.crc import key_slot

        slot = key_slot(own.encode())
        for key in keys:
            if key_slot(encoded(key)) != slot:
                raise ConfigError(
                    f"key {text(key)!r} is in another slot than {own!r}, which belongs to it; give the name and the "
                    f"keys one hash tag, such as 'account:{{42}}'"
                )

    async def keys(self, command: Sequence[Part]) -> tuple[Sequence[Part], bool]:
        """The keys of a command, and whether it only reads, according to the server."""
        name = text(command[0]).lower() if command else ""
        if name not in self._known:
            self._known[name] = await self._look_up(name)
        first, last, step, reads = self._known[name]
        if first <= 0:
            keys: Sequence[Part] = await self.ask("COMMAND GETKEYS", *command, anywhere=True)
        else:
            end = last if last >= 0 else len(command) + last
            keys = command[first : end + 1 : step or 1]
        if not keys:
            raise ConfigError(f"{name.upper()!r} names no key that could be guarded")
        return keys, reads

    async def _look_up(self, name: str) -> tuple[int, int, int, bool]:
        found = await self.ask("COMMAND INFO", name, anywhere=True) if name else None
        info = next(iter(found.values()), None) if isinstance(found, dict) else (found or [None])[0]
        if not info:
            raise ConfigError(f"Redis knows no command {name!r}")
        if isinstance(info, dict):
            flags, positions = info["flags"], (info["first_key_pos"], info["last_key_pos"], info["step_count"])
        else:
            flags, positions = info[2], tuple(info[3:6])
        names = {text(flag) for flag in flags}
        if "movablekeys" in names:
            positions = (0, 0, 0)
        return (*positions, "readonly" in names)


def text(value: Part) -> str:
    """A part of a command as text; ConfigError if it is not UTF-8."""
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise ConfigError(f"{value!r} is not UTF-8, and cannot name what is guarded; give resource=") from None


def encoded(value: Part) -> bytes:
    """A part of a command as it is sent."""
    return value if isinstance(value, bytes) else str(value).encode()
