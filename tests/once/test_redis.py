"""Run once in Redis: commands and memory in one script."""

import secrets
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import ResponseError

from fencepost.errors import BackendError, ConfigError
from fencepost.guards import aio
from fencepost.guards.redis import RedisGuard
from fencepost.once import Commands, once
from fencepost.once.aio import once as aio_once
from tests.harness.isolated import isolated
from tests.harness.mortal import Fate, lives
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE


@pytest.fixture
def client(redis_server: Endpoint) -> Iterator[Any]:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def tag() -> str:
    return secrets.token_hex(6)


def test_the_second_attempt_gets_the_result_of_the_first(client: Any, tag: str) -> None:
    guard = RedisGuard(client)
    for attempt in range(3):
        with once(guard, f"pay/{tag}") as run:
            assert run.done is (attempt > 0)
            if not run.done:
                run.execute("INCRBY", f"balance:{tag}", -10)
                run.execute("RPUSH", f"ledger:{tag}", "paid")
                run.result = {"paid": 10}
        assert run.result == {"paid": 10}
        assert run.replies == ([] if attempt else [-10, 1])
    assert (client.get(f"balance:{tag}"), client.lrange(f"ledger:{tag}", 0, -1)) == ("-10", ["paid"])


async def test_asyncio_and_a_limited_memory(redis_server: Endpoint, tag: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_server.url) as client:
        async with aio_once(aio.RedisGuard(client), tag, keep=600) as run:
            run.execute("INCR", f"n:{tag}")
            run.result = "é"
        async with aio_once(aio.RedisGuard(client), tag) as again:
            assert (again.done, again.result) == (True, "é")
        (key,) = await client.keys(f"fencepost:run:*{tag}")
        assert 0 < await client.pttl(key) <= 600_000


def test_a_cluster_wants_one_hash_tag(cluster: Any, tag: str) -> None:
    guard = RedisGuard(cluster)
    with once(guard, f"pay/{{{tag}}}") as run:
        run.execute("INCR", f"n:{{{tag}}}")
        run.execute("SADD", f"s:{{{tag}}}", "a")
    assert run.replies == [1, 1]
    with pytest.raises(ConfigError, match="one hash tag"), once(guard, f"other/{tag}") as run:
        run.execute("INCR", f"n:{tag}")


def test_of_many_at_once_one_makes_it_and_all_know(client: Any, redis_server: Endpoint, tag: str) -> None:
    results = []
    together = threading.Barrier(8)

    def attempt(number: int) -> None:
        with redis.Redis.from_url(redis_server.url) as own:
            with once(RedisGuard(own), tag) as run:
                together.wait(PATIENCE)
                assert not run.done, "all of them are in their block before the first leaves it"
                run.execute("INCR", f"n:{tag}")
                run.result = number
            results.append((run.done, run.result))

    for each in [background(partial(attempt, number)) for number in range(8)]:
        each.result()
    assert client.get(f"n:{tag}") == "1"
    assert len({result for _, result in results}) == 1
    assert sorted(done for done, _ in results) == [False] + [True] * 7


def test_a_block_that_raises_sends_nothing(client: Any, tag: str) -> None:
    def attempt() -> None:
        with once(RedisGuard(client), tag) as run:
            run.execute("INCR", f"n:{tag}")
            raise LookupError

    with pytest.raises(LookupError):
        attempt()
    with once(RedisGuard(client), tag) as run:
        assert not run.done
    assert client.get(f"n:{tag}") is None


def test_a_first_command_that_fails_leaves_the_run_open(client: Any, tag: str) -> None:
    client.set(f"text:{tag}", "x")
    with pytest.raises(ResponseError, match="not an integer"), once(RedisGuard(client), tag) as run:
        run.execute("INCR", f"text:{tag}")
    with once(RedisGuard(client), tag) as run:
        assert not run.done


def test_a_later_command_that_fails_is_remembered_for_nothing_can_be_taken_back(client: Any, tag: str) -> None:
    client.set(f"text:{tag}", "x")

    def attempt() -> None:
        with once(RedisGuard(client), tag) as run:
            run.execute("INCR", f"n:{tag}")
            run.execute("LPUSH", f"text:{tag}", "y")

    for _ in range(2):
        with pytest.raises(BackendError, match=r"broke off: LPUSH, its command 2, failed: WRONGTYPE.*delete the key"):
            attempt()
    assert client.get(f"n:{tag}") == "1", "never doubled"


def test_a_command_that_no_script_can_hand_on_is_refused_before_anything_is_done(client: Any, tag: str) -> None:
    """Lua's stack is full at 8000 parts: the script would end there, what came before done and not remembered."""

    def push(run: Commands, count: int) -> None:
        run.execute("INCR", f"{tag}:n")
        run.execute("RPUSH", f"{tag}:l", *range(count))

    with pytest.raises(ConfigError, match="7000 parts"), once(RedisGuard(client), tag) as run:
        push(run, 8000)
    assert client.exists(f"{tag}:n", f"{tag}:l") == 0
    with once(RedisGuard(client), tag) as run:
        push(run, 6998)
    assert run.replies == [1, 6998]


def test_a_lost_answer_is_made_good_by_another_attempt(client: Any, redis_server: Endpoint, tag: str) -> None:
    class Deaf(redis.Redis):
        """Sends scripts, and is cut off before their answer."""

        def execute_command(self, *args: Any, **options: Any) -> Any:
            answer = super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
            if args[0] in ("EVALSHA", "EVAL"):
                raise redis.exceptions.ConnectionError("cut off")
            return answer

    with Deaf.from_url(redis_server.url) as deaf:

        def attempt() -> None:
            with once(RedisGuard(deaf), tag) as run:
                run.execute("INCR", f"n:{tag}")
                run.result = "made"

        with pytest.raises(BackendError, match="may have been made") as caught:
            attempt()
        assert caught.value.ambiguous
    with once(RedisGuard(client), tag) as run:
        assert (run.done, run.result) == (True, "made")
    assert client.get(f"n:{tag}") == "1"


@isolated
def test_a_process_killed_around_its_script_neither_loses_nor_doubles_the_run(redis_server: Endpoint) -> None:
    for when in ("before", "after"):
        killed_around_its_script(redis_server, secrets.token_hex(6), when)


def killed_around_its_script(redis_server: Endpoint, tag: str, when: str) -> None:
    class Mortal(redis.Redis):
        fate: Fate

        def execute_command(self, *args: Any, **options: Any) -> Any:
            if args[0] not in ("EVALSHA", "EVAL"):
                return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
            self.fate.passes("before")
            answer = super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
            self.fate.passes("after")
            return answer

    def attempt(fate: Fate) -> None:
        with Mortal.from_url(redis_server.url) as mortal:
            mortal.fate = fate
            with once(RedisGuard(mortal), tag) as run:
                if not run.done:
                    run.execute("INCR", f"n:{tag}")

    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        with once(RedisGuard(client), f"warm/{tag}"):
            pass  # the script is known from here on
        assert not lives(attempt, (when, 1))
        assert client.get(f"n:{tag}") == (None if when == "before" else "1")
        assert lives(attempt, None)
        assert client.get(f"n:{tag}") == "1"


def test_what_cannot_be_meant_is_refused(client: Any, tag: str) -> None:
    with pytest.raises(ConfigError, match=r"guards\.RedisGuard\(client\)"):
        once(client, tag)
    for never in (0, -1):
        with pytest.raises(ConfigError, match="keep must"):
            once(RedisGuard(client), tag, keep=never)
