"""The Redis guard with commands of all kinds, every kind of client, and on a Cluster."""

import asyncio
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster

import fencepost
from fencepost.errors import BackendError, ConfigError, ReplayMismatch, StaleToken, TokenClash, TokenLeap
from fencepost.events import Event
from fencepost.guards import aio
from fencepost.guards.policy import Policy
from fencepost.guards.redis import Done, RedisGuard
from fencepost.lease import BaseLease
from fencepost.rule import MAX_TOKEN, Stamp
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.servers import Redis
from tests.harness.leases import lease as lease_of
from tests.harness.servers import Endpoint
from tests.harness.waiting import GIVES_UP, until


@pytest.fixture
def client(redis_server: Endpoint) -> Iterator[Any]:
    with redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def guard(client: Any) -> RedisGuard:
    return RedisGuard(client)


def lease(token: int, holder: str = "ann") -> BaseLease:
    return lease_of("lock", holder, token)


def test_any_command_runs_inside_the_script(guard: RedisGuard, client: Any, thing: str) -> None:
    held = lease(5)
    assert guard.execute("HSET", thing, "a", 1, "b", 2, lease=held) == Done(2)
    assert guard.execute("HINCRBY", thing, "a", 41, lease=held) == Done(42)
    assert guard.read("HGET", thing, "a", lease=held) == b"42"
    assert guard.execute("DEL", thing, lease=held) == Done(1)
    assert client.exists(thing) == 0
    assert guard.mark(thing) == Stamp(5, 4, "ann"), "the mark outlives the data"
    with pytest.raises(StaleToken):
        guard.execute("HSET", thing, "a", 0, lease=4)


def test_entering_alone_keeps_older_holders_out(guard: RedisGuard, thing: str) -> None:
    guard.enter(thing, lease(5))
    with pytest.raises(StaleToken):
        guard.execute("SET", thing, 1, lease=4)
    assert guard.mark(thing) == Stamp(5, 1, "ann")


def test_commands_whose_keys_move_are_understood(guard: RedisGuard, client: Any, thing: str) -> None:
    client.zadd(f"{thing}:1", {"x": 1})
    client.zadd(f"{thing}:2", {"y": 2})
    guard.execute("ZUNIONSTORE", thing, 2, f"{thing}:1", f"{thing}:2", lease=5)
    assert client.zcard(thing) == 2
    assert guard.mark(thing) == Stamp(5)
    guard.execute("MSET", f"{thing}:a", 1, f"{thing}:b", 2, lease=5, resource=thing + "/pair")
    assert client.mget(f"{thing}:a", f"{thing}:b") == [b"1", b"2"]


@pytest.mark.parametrize("command", [("PING",), ("NOSUCHCOMMAND", "a"), ()])
def test_what_names_no_key_cannot_be_guarded(guard: RedisGuard, command: tuple[str, ...]) -> None:
    with pytest.raises((ConfigError, redis.ResponseError)):
        guard.execute(*command, lease=5)


def test_a_command_that_fails_leaves_the_mark(guard: RedisGuard, client: Any, thing: str) -> None:
    client.set(thing, "text")
    guard.enter(thing, Stamp(5, 1, "ann"))
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        guard.execute("HSET", thing, "a", 1, lease=Stamp(9, 1, "bob"))
    assert guard.mark(thing) == Stamp(5, 1, "ann")
    assert client.get(thing) == b"text"


def test_reading_is_no_leave_to_write(guard: RedisGuard, thing: str) -> None:
    with pytest.raises(ConfigError, match="writes"):
        guard.read("SET", thing, 1, lease=5)
    assert guard.mark(thing) is None


def test_a_retry_is_recognised_by_the_whole_command(guard: RedisGuard, client: Any, thing: str) -> None:
    offer = Stamp(5, 1, "ann")
    assert guard.execute("INCRBY", thing, 7, lease=offer) == Done(7)
    assert guard.execute("INCRBY", thing, 7, lease=offer) == Done(None, replayed=True)
    with pytest.raises(ReplayMismatch):
        guard.execute("INCRBY", thing, 8, lease=offer)
    assert client.get(thing) == b"7"


def test_a_retry_of_a_later_write_is_recognised_too(guard: RedisGuard, client: Any, thing: str) -> None:
    guard.execute("INCRBY", thing, 1, lease=Stamp(5, 1, "ann"))
    offer = Stamp(5, 2, "ann")
    assert guard.execute("INCRBY", thing, 7, lease=offer) == Done(8)
    assert guard.execute("INCRBY", thing, 7, lease=offer) == Done(None, replayed=True)
    with pytest.raises(ReplayMismatch):
        guard.execute("INCRBY", thing, 8, lease=offer)
    assert client.get(thing) == b"8"


@pytest.mark.parametrize("seq", [1, 2])
def test_a_reply_is_the_same_at_the_first_access_and_at_a_later_one(
    guard: RedisGuard, client: Any, thing: str, seq: int
) -> None:
    client.rpush(thing, "a", "b", "c", "d", "e", "f")
    for nth in range(seq - 1):
        guard.enter(thing, Stamp(5, nth + 1, "ann"))
    for number, (command, reply) in enumerate(
        [
            (("LPOP", thing, 1), [b"a"]),
            (("LPOP", thing, 0), []),
            (("LPOP", thing, 9), [b"b", b"c", b"d", b"e", b"f"]),
            (("LPOP", thing), None),
            (("LPOP", thing, 1), None),
            (("SET", thing, "ok"), b"OK"),
            (("GETDEL", thing), b"ok"),
            (("INCR", thing), 1),
        ]
    ):
        assert guard.execute(*command, lease=Stamp(5, seq + number, "ann")) == Done(reply)


def test_a_pipeline_is_refused(client: Any) -> None:
    with pytest.raises(ConfigError, match="give the guard the client itself"):
        RedisGuard(client.pipeline())


@pytest.mark.parametrize("answer", [b"QUEUED", None, (b"admit", 0, None, None, None, b"OK"), 1, {}], ids=repr)
def test_what_is_no_answer_of_the_guard_is_not_taken_for_an_admission(client: Any, thing: str, answer: object) -> None:
    class Swallows(redis.Redis):
        def execute_command(self, *command: Any, **options: Any) -> Any:
            reply = super().execute_command(*command, **options)  # type: ignore[no-untyped-call]
            return answer if command[0] in ("EVALSHA", "EVAL") else reply

    seen: list[Event] = []
    guard = RedisGuard(Swallows(connection_pool=client.connection_pool), hooks=[seen.append])
    with pytest.raises(BackendError, match="not known whether") as raised:
        guard.enter(thing, Stamp(5, 1, "ann"))
    assert raised.value.ambiguous
    with pytest.raises(BackendError):
        guard.execute("SET", thing, 1, lease=Stamp(5, 2, "ann"))
    assert not [event for event in seen if event.verdict == "admit"]


def test_the_script_is_loaded_again_when_the_server_forgot_it(guard: RedisGuard, client: Any, thing: str) -> None:
    guard.execute("SET", thing, 1, lease=5)
    client.script_flush()
    guard.execute("SET", thing, 2, lease=6)
    assert client.get(thing) == b"2"


def test_updates_of_many_threads_under_one_lease_lose_nothing(guard: RedisGuard, client: Any, thing: str) -> None:
    held = lease(5)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: guard.update(thing, lambda before: int(before or 0) + 1, held), range(40)))
    assert client.get(thing) == b"40"


@pytest.mark.parametrize("mode", ["off", "passive", "shadow", "enforce"])
def test_updates_without_a_token_lose_nothing_either(client: Any, thing: str, mode: str) -> None:
    told: list[Event] = []
    guard = RedisGuard(client, policy=Policy(mode), hooks=[told.append])
    calls: list[bytes | None] = []

    def change(before: bytes | None) -> bytes:
        calls.append(before)
        if len(calls) == 1:  # between its read and its write another one comes, who has a token
            RedisGuard(client).update(thing, lambda _: b"41", 5)
        return b"%d" % (int(before or 0) + 1)

    assert guard.update(thing, change, None) == Done(b"OK")  # type: ignore[arg-type]
    assert (client.get(thing), calls) == (b"42", [None, b"41"])
    assert guard.mark(thing) == Stamp(5)
    assert len(told) == (mode != "off")


def test_the_policy_holds_here_too(client: Any, thing: str) -> None:
    told: list[Event] = []
    policy = Policy("enforce", max_jump=10, max_first=10)
    guard = RedisGuard(client, hooks=[told.append], policy=policy)
    with pytest.raises(TokenLeap):
        guard.execute("SET", thing, 0, lease=MAX_TOKEN)
    guard.execute("SET", thing, 1, lease=8)
    with pytest.raises(TokenLeap):
        guard.execute("SET", thing, 0, lease=MAX_TOKEN)
    guard.execute("SET", thing, 2)
    policy.mode = "shadow"
    guard.execute("SET", thing, 3, lease=4)
    assert (client.get(thing), guard.mark(thing)) == (b"3", Stamp(8))
    policy.mode = "off"
    guard.execute("SET", thing, 4, lease=3)
    assert [(event.verdict, event.enforced) for event in told] == [
        ("leap", True), ("admit", None), ("leap", True), ("missing", False), ("stale", False),
    ]  # fmt: skip


def test_a_mark_is_lowered_unless_it_has_moved(client: Any, thing: str) -> None:
    guard = RedisGuard(client)
    with pytest.raises(ConfigError, match="not there"):
        guard.lower_mark(thing, to=5, seen=7)
    RedisGuard(client, policy=Policy(ceiling="off")).execute("SET", thing, 1, lease=2**62)
    with pytest.raises(ConfigError, match="and not at 7"):
        guard.lower_mark(thing, to=5, seen=7)
    assert guard.lower_mark(thing, to=5, seen=2**62) == Stamp(5) == guard.mark(thing)
    with pytest.raises(StaleToken):
        guard.execute("SET", thing, 1, lease=5)
    guard.execute("SET", thing, 1, lease=6)


def test_a_mark_is_raised_by_hand_and_not_lowered(client: Any, thing: str) -> None:
    guard = RedisGuard(client, policy=Policy(ceiling="off"))
    guard.execute("SET", thing, 1, lease=5)
    assert guard.raise_mark(thing, to=50) == Stamp(50)
    assert guard.raise_mark(thing, to=20) == Stamp(50)
    with pytest.raises(StaleToken):
        guard.execute("SET", thing, 1, lease=50)
    guard.execute("SET", thing, 1, lease=Stamp(2**53 + 1, 1, "ann"))
    assert guard.raise_mark(thing, to=2**53 + 1) == Stamp(2**53 + 1), "its own holder is refused too"
    with pytest.raises(TokenClash):
        guard.execute("SET", thing, 2, lease=Stamp(2**53 + 1, 2, "ann"))


def test_inside_a_lock_the_lease_is_found(guard: RedisGuard, client: Any, thing: str) -> None:
    with fencepost.connect("memory://guards") as locks, locks.lock(thing) as held:
        guard.execute("SET", thing, 1)
        assert guard.mark(thing) == Stamp(held.token, 1, held.holder)


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 3}, {"protocol": 2}], ids=str)
def test_the_client_s_own_settings_do_not_matter(redis_server: Endpoint, thing: str, options: Any) -> None:
    with redis.from_url(redis_server.url, **options) as client:
        guard = RedisGuard(client)
        guard.execute("SET", thing, "x", lease=Stamp(5, 1, "änn"))
        assert guard.mark(thing) == Stamp(5, 1, "änn")
        with pytest.raises(StaleToken):
            guard.read("GET", thing, lease=4)


MODES = ["off", "passive", "shadow", "canary:50%", "enforce", "strict"]
CLIENTS = [{"decode_responses": text, "protocol": protocol} for text in (False, True) for protocol in (2, 3)]
COMMANDS: list[tuple[str, ...]] = [
    ("HSET", ":hash", "a", "1", "b", "x"),
    ("ZADD", ":sorted", "1.5", "m"),
    ("SADD", ":set", "m"),
    ("SET", ":text", "1"),
    ("EXPIRE", ":text", "600"),
    ("INCRBYFLOAT", ":text", "0.5"),
]
READS: list[tuple[str, ...]] = [
    ("HGETALL", ":hash"),
    ("HMGET", ":hash", "a", "none"),
    ("ZSCORE", ":sorted", "m"),
    ("ZRANGE", ":sorted", "0", "-1", "WITHSCORES"),
    ("SMEMBERS", ":set"),
    ("GET", ":none"),
]


@pytest.mark.parametrize("options", CLIENTS, ids=str)
def test_a_reply_is_the_same_in_every_mode(redis_server: Endpoint, thing: str, options: dict[str, Any]) -> None:
    def replies(mode: str) -> list[Any]:
        guard = RedisGuard(client, policy=Policy(mode))
        client.delete(*(f"{thing}{key}" for key in (":hash", ":sorted", ":set", ":text")))
        return [
            *(guard.execute(name, thing + key, *rest, lease=held).reply for name, key, *rest in COMMANDS),
            *(guard.read(name, thing + key, *rest, lease=held) for name, key, *rest in READS),
        ]

    held = lease(5)
    with redis.from_url(redis_server.url, **options) as client:
        strict = replies("strict")
        assert strict[3] == ("OK" if options["decode_responses"] else b"OK"), "as the server says it"
        assert {mode: repr(replies(mode)) for mode in MODES} == dict.fromkeys(MODES, repr(strict)), "types too"


@pytest.mark.parametrize("options", CLIENTS, ids=str)
async def test_a_reply_to_an_asyncio_client_is_the_same_in_every_mode(
    redis_server: Endpoint, thing: str, options: dict[str, Any]
) -> None:
    async def replies(mode: str) -> list[Any]:
        guard = aio.RedisGuard(client, policy=Policy(mode))
        await client.delete(*(f"{thing}{key}" for key in (":hash", ":sorted", ":set", ":text")))
        written = [(await guard.execute(name, thing + key, *rest, lease=held)).reply for name, key, *rest in COMMANDS]
        return written + [await guard.read(name, thing + key, *rest, lease=held) for name, key, *rest in READS]

    held = lease(5)
    async with AsyncRedis.from_url(redis_server.url, **options) as client:
        strict = await replies("strict")
        assert {mode: repr(await replies(mode)) for mode in MODES} == dict.fromkeys(MODES, repr(strict)), "types too"


def test_on_a_cluster_a_reply_is_the_same_in_every_mode(cluster: Any, thing: str) -> None:
    held = lease(5)
    cluster.hset(thing, mapping={"a": 1})
    for mode in MODES:
        guard = RedisGuard(cluster, policy=Policy(mode))
        assert guard.read("HGETALL", thing, lease=held) == [b"a", b"1"], mode
        assert repr(guard.execute("EXPIRE", thing, 600, lease=held).reply) == "1", mode


async def test_an_asyncio_client_is_awaited(redis_server: Endpoint, thing: str) -> None:
    async with AsyncRedis.from_url(redis_server.url) as client:
        with pytest.raises(ConfigError, match=r"use fencepost\.guards\.aio\.RedisGuard"):
            RedisGuard(client)
        guard = aio.RedisGuard(client)
        assert not (await guard.execute("SET", thing, "x", lease=lease(5))).replayed
        assert await guard.read("GET", thing, lease=lease(5)) == b"x"
        await guard.update(thing, lambda before: before + b"y", Stamp(5, 9, "ann"))
        assert await guard.read("GET", thing, lease=lease(5)) == b"xy"
        with pytest.raises(StaleToken):
            await guard.execute("SET", thing, "z", lease=4)
        assert await guard.mark(thing) == Stamp(5, 9, "ann")
        await guard.enter(thing, 6)
        assert await guard.raise_mark(thing, to=7) == Stamp(7)


def test_a_server_that_does_not_answer_leaves_it_open(thing: str) -> None:
    with Redis() as server, redis.from_url(server.url, socket_timeout=GIVES_UP, retry=None) as client:
        guard = RedisGuard(client)
        offer = Stamp(5, 1, "ann")
        guard.execute("INCRBY", thing, 0, lease=1)
        with server.paused(), pytest.raises(BackendError) as caught:
            guard.execute("INCRBY", thing, 7, lease=offer)
        assert caught.value.ambiguous
        # Thawed, the server carries out what it was sent; the retry finds that out, either way.
        until(lambda: client.get(thing) == b"7", "the server adds the seven")
        assert guard.execute("INCRBY", thing, 7, lease=offer) == Done(None, replayed=True)


def test_on_a_cluster_the_mark_lies_in_the_slot_of_the_data(cluster: Any, thing: str) -> None:
    guard = RedisGuard(cluster)
    for key in (thing, f"a:{{{thing}}}:b", f"{thing}{{"):
        guard.execute("SET", key, "x", lease=lease(5))
        assert guard.read("GET", key, lease=lease(5)) == b"x"
        with pytest.raises(StaleToken):
            guard.execute("SET", key, "y", lease=4)


def test_on_a_cluster_keys_of_another_slot_are_refused(cluster: Any, thing: str) -> None:
    guard = RedisGuard(cluster)
    with pytest.raises(ConfigError, match="another slot"):
        guard.execute("SET", f"{thing}/other", "x", lease=5, resource=thing)
    guard.execute("MSET", f"{{{thing}}}:a", 1, f"{{{thing}}}:b", 2, lease=5, resource=thing)
    for key in (f"{thing}}}x", f"{{}}{thing}"):
        with pytest.raises(ConfigError, match="hash tag"):
            guard.execute("SET", key, "x", lease=5)


async def test_an_asyncio_client_of_a_cluster_works_too(cluster: Any, thing: str) -> None:
    node = cluster.get_default_node()
    async with AsyncRedisCluster(host=node.host, port=node.port) as client:
        guard = aio.RedisGuard(client)
        await guard.execute("SET", thing, "x", lease=5)
        with pytest.raises(StaleToken):
            await guard.execute("SET", thing, "x", lease=4)


def test_marks_of_different_resources_never_share_a_key(guard: RedisGuard) -> None:
    names = [f"{secrets.token_hex(3)}{tail}" for tail in ("", "{a}", "{a", "a}", "{}", "}{")]
    names += [f"{{a}}{name}" for name in names]
    assert len({guard.link.key("mark:", name) for name in names}) == len(names)


def test_an_update_whose_answer_was_lost_is_made_once(redis_server: Endpoint, client: Any, thing: str) -> None:
    with Proxy(int(redis_server.url.rpartition(":")[2].partition("/")[0])) as proxy:
        for mode in ("strict", "shadow"):
            with redis.Redis(port=proxy.port) as retrying:  # as redis-py does by itself
                guard = RedisGuard(retrying, policy=Policy(mode))
                guard.update(thing, lambda before: int(before or 0) + 1, lease(5))
                before = int(client.get(thing))
                proxy.drop_after(b"EVALSHA")
                guard.update(thing, lambda before: int(before or 0) + 1, lease(6))
                assert int(client.get(thing)) == before + 1, mode
                assert not proxy._traps, "the answer was to be lost"
            client.delete(thing, f"fencepost:mark:{{{thing}}}:{thing}")


@pytest.mark.parametrize("options", [{"encoding": "latin-1"}, {"encoding_errors": "replace"}], ids=str)
def test_an_update_of_what_the_client_decodes_its_own_way_ends(
    redis_server: Endpoint, client: Any, thing: str, options: dict[str, str]
) -> None:
    def change(before: str) -> str:
        seen.append(before)
        assert len(seen) < 3, "nobody else writes"
        return "changed"

    raw, seen = b"\xe9\xff", list[str]()
    client.set(thing, raw)
    with redis.from_url(redis_server.url, decode_responses=True, **options) as own:
        RedisGuard(own).update(thing, change, lease(5))
    assert seen == [raw.decode(options.get("encoding", "utf-8"), options.get("encoding_errors", "strict"))]
    assert client.get(thing) == b"changed"


def test_a_key_that_is_no_text_needs_a_name(guard: RedisGuard, client: Any, thing: str) -> None:
    with pytest.raises(ConfigError, match="give resource="):
        guard.execute("SET", b"\xff" + thing.encode(), 1, lease=5)
    guard.execute("SET", b"\xff" + thing.encode(), 1, lease=5, resource=thing)
    assert client.get(b"\xff" + thing.encode()) == b"1"


def test_nobody_writes_over_a_mark(guard: RedisGuard, client: Any, thing: str) -> None:
    guard.execute("SET", thing, "new", lease=9)
    (mark,) = client.keys(f"fencepost:mark:*{thing}")
    with pytest.raises(ConfigError, match="over a mark"):
        guard.execute("DEL", mark, lease=1)
    with pytest.raises(StaleToken):
        guard.execute("SET", thing, "zombie", lease=5)


@pytest.mark.parametrize("mode", ["strict", "off"])
def test_an_update_leaves_a_key_s_expiry_alone(client: Any, thing: str, mode: str) -> None:
    client.set(thing, "1", ex=600)
    guard = RedisGuard(client, policy=Policy(mode))
    guard.update(thing, lambda before: int(before) + 1, 5)
    assert client.get(thing) == b"2"
    assert 0 < client.ttl(thing) <= 600
    guard.update(f"{thing}/new", lambda before: "x", 5)
    assert client.ttl(f"{thing}/new") == -1


async def test_a_task_that_another_one_of_its_lease_overtakes_reads_all_the_same(
    redis_server: Endpoint, thing: str
) -> None:
    sent: list[str] = []
    answered = asyncio.Event()

    class Overtaken(AsyncRedis):
        """Sends its first script only after the second one was answered."""

        async def execute_command(self, *args: Any, **options: Any) -> Any:
            if args[0] != "EVALSHA":
                return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
            sent.append(args[1])
            if len(sent) == 1:
                await answered.wait()
            try:
                return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
            finally:
                answered.set()

    async with AsyncRedis.from_url(redis_server.url) as client:
        await aio.RedisGuard(client).enter(f"{thing}/other", 1)  # the server knows the script from here on
    async with Overtaken.from_url(redis_server.url) as client:
        guard, held = aio.RedisGuard(client), lease(5)
        assert await asyncio.gather(*(guard.read("GET", thing, lease=held) for _ in range(2))) == [None, None]
        assert len(sent) == 3, "the one that was overtaken asked again"
        assert await guard.mark(thing) == Stamp(5, 3, "ann")


async def test_a_mark_is_lowered_through_an_asyncio_client_too(redis_server: Endpoint, thing: str) -> None:
    async with AsyncRedis.from_url(redis_server.url) as client:
        await aio.RedisGuard(client, policy=Policy(ceiling="off")).execute("SET", thing, 1, lease=2**62)
        guard = aio.RedisGuard(client)
        with pytest.raises(ConfigError, match="and not at 7"):
            await guard.lower_mark(thing, to=5, seen=7)
        assert await guard.lower_mark(thing, to=5, seen=2**62) == Stamp(5) == await guard.mark(thing)
        with pytest.raises(StaleToken):
            await guard.execute("SET", thing, 1, lease=5)
        await guard.execute("SET", thing, 1, lease=6)
