"""What could go wrong with locks in a given Redis, in plain words."""

from typing import Any

from hiredis import ReplyError

from fencepost.backend import Finding
from fencepost.backends.redis import answers
from fencepost.backends.redis.address import Options
from fencepost.backends.redis.connection import pack, spell
from fencepost.backends.redis.nodes import Transport

_CONFIG = (
    "maxmemory-policy",
    "maxmemory",
    "appendonly",
    "appendfsync",
    "save",
    "min-replicas-to-write",
    "tcp-keepalive",
)


async def examine(transport: Transport, options: Options) -> list[Finding]:
    """Read a server's settings and say what each means for locks."""
    requests = [pack(("INFO",)), *(pack(("CONFIG", "GET", key)) for key in _CONFIG)]
    reply, *settings = await transport.calls(requests, [answers.text, *([answers.table] * len(_CONFIG))])
    if isinstance(reply, ReplyError):
        return [Finding("warn", f"INFO: {reply}", "this user may not look; ask somebody who may")]
    info = dict(line.split(":", 1) for line in _text(reply).splitlines() if ":" in line)
    config: dict[str, str] = {}
    for key, setting in zip(_CONFIG, settings, strict=True):
        if isinstance(setting, dict):
            config |= {_text(name): _text(value) for name, value in setting.items()}
        elif key == _CONFIG[0]:
            config["maxmemory-policy"] = info.get("maxmemory_policy", "")
            config["maxmemory"] = info.get("maxmemory", "0")
    endpoint = getattr(transport, "endpoint", None)
    where = f" at {spell(endpoint)}" if endpoint else ""
    server = (
        f"{info.get('server_name', 'redis')} {info.get('redis_version', '?')}{where}, {info.get('redis_mode', '?')}"
    )
    return [
        Finding("ok", server, "speaks RESP3"),
        _eviction(config),
        *_persistence(info, config, options),
        _replicas(info, config, options),
        *_keepalive(config),
    ]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _eviction(config: dict[str, str]) -> Finding:
    policy, memory = config.get("maxmemory-policy", "?"), config.get("maxmemory", "0")
    what = f"maxmemory {memory}, maxmemory-policy {policy}"
    if memory == "0":
        return Finding("ok", what, "nothing is evicted; give the host enough memory, or its kernel ends Redis")
    if policy == "noeviction":
        return Finding("ok", what, "a full memory makes acquire fail; it never drops a held lock")
    return Finding(
        "risk",
        what,
        "a full memory evicts held locks (they have an expiry, so volatile-* takes them first) and two hold at once; "
        "set noeviction, or give locks a Redis of their own",
    )


def _persistence(info: dict[str, str], config: dict[str, str], options: Options) -> list[Finding]:
    aof = info.get("aof_enabled") == "1"
    fsync = config.get("appendfsync", "everysec")
    if aof and fsync == "always":
        kept = Finding(
            "ok", "appendonly yes, appendfsync always", "locks and counters survive a crash and a power loss"
        )
    elif aof:
        kept = Finding(
            "ok" if options.fence == "clock" else "warn",
            f"appendonly yes, appendfsync {fsync}",
            "a crash of Redis loses nothing, a power loss up to a second of grants: a lock granted then is free again",
        )
    else:
        what = f"appendonly no, save {config.get('save', '?') or '(never)'}"
        kept = Finding(
            "warn" if options.fence == "clock" else "risk",
            what,
            "a crash forgets every lock since the last snapshot: they are free while their holders still work",
        )
    if options.fence == "clock":
        token = Finding(
            "ok", "fence=clock", "tokens grow even if Redis forgets everything, as long as its clock is right"
        )
    else:
        sure = aof and fsync == "always"
        token = Finding(
            "warn" if sure else "risk",
            "fence=counter",
            "a counter that is lost, evicted or failed over starts again: guards then refuse new holders until "
            "'fencepost bump' raises it",
        )
    return [kept, token]


def _replicas(info: dict[str, str], config: dict[str, str], options: Options) -> Finding:
    count = int(info.get("connected_slaves", "0"))
    if info.get("role") != "master":
        return Finding("risk", f"role {info.get('role')}", "this server takes no writes; connect to its master")
    what = f"{count} replicas, min-replicas-to-write {config.get('min-replicas-to-write', '?')}"
    if not count:
        if options.wait_replicas:
            return Finding(
                "risk", what, f"wait_replicas={options.wait_replicas} cannot be met: every acquire fails; add replicas"
            )
        return Finding("ok", what, "nothing fails over; while this server is down, nobody acquires")
    if options.wait_replicas >= count:
        return Finding("ok", what, "a grant waits for every replica; one that is down makes acquire fail")
    return Finding(
        "warn",
        what,
        "replication is asynchronous: a failover can forget a grant and give the lock away twice; wait_replicas= "
        "narrows that, only a guard closes it",
    )


def _keepalive(config: dict[str, str]) -> list[Finding]:
    if "tcp-keepalive" not in config:  # this user may not look
        return []
    seconds = int(config["tcp-keepalive"] or 0)
    if 0 < seconds <= 60:
        return []
    return [
        Finding(
            "warn",
            f"tcp-keepalive {seconds}",
            "a waiter whose host vanished without a word counts as alive for that long, and is handed the lock "
            "meanwhile, which nobody then uses; set it to 60 or less",
        )
    ]
