"""A lock in a majority of five Redis: which of them may fail, and what becomes of tokens and late grants."""

import asyncio
import contextlib
import re
import time
from typing import Any

import pytest

import fencepost
from fencepost import aio, sync
from fencepost.driver import boottime
from fencepost.errors import BackendError, ConfigError, LeaseLost
from fencepost_lab.faults.proxy import Proxy
from tests.backends.redlock.conftest import Five
from tests.conformance.faces import FACES, Client
from tests.harness.threads import background
from tests.harness.waiting import GIVES_UP, PATIENCE, run, until, until_async

TTL = 120.0  # nothing here gets free by expiry


@pytest.mark.parametrize("face", FACES)
async def test_two_killed_nodes_change_nothing_for_anybody(five: Five, face: str) -> None:
    here, there = (Client(face, five.url, ttl=TTL) for _ in range(2))
    lease = await here.acquire("a")
    five.kill(0, 1)
    await lease.renew()
    assert await there.try_acquire("a") is None
    assert await lease.release()
    again = await there.acquire("a", timeout=PATIENCE)
    assert again.token > lease.token
    await again.renew()
    assert await again.release()
    for client in (here, there):
        await client.close()


@pytest.mark.parametrize("face", FACES)
async def test_three_killed_nodes_are_an_error_that_names_them_and_leaves_nothing(five: Five, face: str) -> None:
    client = Client(face, five.url, ttl=TTL)
    assert await (await client.acquire("a")).release()
    five.kill(0, 2, 4)
    with pytest.raises(BackendError) as raised:
        await client.acquire("a", timeout=PATIENCE)
    assert "2 of 5 Redis answered, and it takes 3" in str(raised.value)
    assert all(five.members[dead].address in str(raised.value) for dead in (0, 2, 4))
    assert [five.value(alive) for alive in (1, 3)] == [None, None]
    with pytest.raises(BackendError, match="2 of 5 Redis answered, and it takes 3"):
        await client.status("a")
    with pytest.raises(BackendError, match="2 of 5 Redis answered, and it takes 3"):
        await client.bump("a", above=5)
    five.revive(0)
    assert await (await client.acquire("a", timeout=PATIENCE)).release()
    await client.close()


@pytest.mark.parametrize("face", FACES)
async def test_a_node_that_hangs_is_waited_for_once_and_no_longer_than_it_may_take(five: Five, face: str) -> None:
    client = Client(face, five.url, ttl=TTL)
    assert await (await client.acquire("a")).release()
    five.members[2].pause()
    began = time.monotonic()
    for _ in range(20):
        assert await (await client.acquire("a")).release()
    # Each of the twenty makes three requests; to wait in each would take sixty times as long.
    assert GIVES_UP <= time.monotonic() - began < 30 * GIVES_UP
    await client.close()


@pytest.mark.parametrize("face", FACES)
async def test_nodes_that_hang_before_the_first_connection_cost_the_others_no_time(five: Five, face: str) -> None:
    client = Client(face, five.url, ttl=TTL)
    for hung in (1, 4):
        five.members[hung].pause()
    assert await (await client.acquire("a")).release()
    await client.close()


@pytest.mark.parametrize("face", FACES)
async def test_a_node_that_hangs_before_it_is_connected_leaves_the_others_time_to_answer(five: Five, face: str) -> None:
    client = Client(face, five.url, ttl=TTL)
    five.members[1].pause()
    assert await client.status("a") is None
    await client.close()


@pytest.mark.parametrize("face", FACES)
async def test_a_grant_that_comes_after_the_release_is_given_back(five: Five, face: str) -> None:
    client = Client(face, five.url, ttl=TTL)
    assert await (await client.acquire("warm")).release()
    with five.at(3) as late:

        def asked() -> int:
            return int(late.info("commandstats")["cmdstat_evalsha"]["calls"])

        before = asked()
        five.members[3].pause()
        lease = await client.acquire("a")
        assert await lease.release()
        five.members[3].resume()
        await until_async(lambda: asked() > before, "the request that was given up, carried out all the same")
        await until_async(lambda: late.keys("fencepost:lock:a\x1fgone*"), "the news that its holder left")
        await until_async(lambda: five.value(3) is None, "the end of the late grant")
    assert await (await client.acquire("a", timeout=PATIENCE)).release()
    await client.close()


def test_tokens_grow_whichever_minority_forgot_everything(five: Five) -> None:
    tokens = []
    with fencepost.connect(five.url, ttl=TTL) as locks:
        for first in range(5):
            out = (first, (first + 1) % 5)
            tokens.append(_token(locks))
            five.kill(*out)
            tokens.append(_token(locks))
            five.revive(*out)
            tokens.append(_token(locks))
    assert tokens == sorted(set(tokens))


def test_a_majority_remembers_a_token_before_it_is_used_and_every_other_majority_learns_it(five: Five) -> None:
    far = 2**62  # beyond every clock, so that only the counters can carry it
    tokens = [far]
    with fencepost.connect(five.url, ttl=TTL) as locks:
        five.kill(3, 4)
        locks.bump("a", above=far, force=True)
        tokens.append(_token(locks))
        five.revive(3, 4)
        five.kill(0, 1)  # of those who were bumped, one is left
        tokens.append(_token(locks))
        known = [five.value(each, "fencepost:lock:\x1ftoken") for each in (2, 3, 4)]
        assert known == [str(tokens[-1])] * 3
    assert tokens == sorted(set(tokens))


def _token(locks: sync.Locks) -> int:
    with locks.lock("a", timeout=PATIENCE) as lease:
        return lease.token


def test_half_of_an_even_number_of_servers_is_no_majority(five: Five) -> None:
    """Two halves have no server in common."""
    places = ",".join(member.address for member in five.members[:4])
    with fencepost.connect(f"redlock://{places}/0?node_timeout=10s", ttl=TTL) as locks:
        for index in (0, 1):
            with five.at(index) as client:
                assert client.set("fencepost:lock:a", "somebody", nx=True, px=60_000)
        assert locks.try_acquire("a") is None
        assert [five.value(index) for index in (2, 3)] == [None, None]
        with five.at(0) as client:
            assert client.delete("fencepost:lock:a")
        assert locks.acquire("a", timeout=PATIENCE).release()


def test_the_deadline_is_counted_from_before_the_servers_are_asked(five: Five) -> None:
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(member.port)) for member in five.members]
        places = ",".join(each.address for each in proxies)
        url = f"redlock://{places}/0?node_timeout={PATIENCE:g}s"
        locks = stack.enter_context(fencepost.connect(url, ttl=TTL))
        assert locks.acquire("warm").release()
        for each in proxies:
            each.lose_answer_to(b"fencepost:lock:a")
        asking = background(lambda: locks.acquire("a"))
        until(lambda: all(each.held > 0 for each in proxies), "the answers are held back", watching=[asking])
        carried_out = boottime()
        for each in proxies:
            each.heal()
        lease = asking.result()
        assert lease.deadline - lease.ttl < carried_out
        assert lease.release()


def test_the_deadline_comes_before_any_node_forgets_the_lease(five: Five) -> None:
    with fencepost.connect(five.url, ttl=TTL) as locks, locks.lock("a") as lease:
        for renewed in (False, True):
            if renewed:
                lease.renew()
            for index in range(5):
                with five.at(index) as client:
                    left = client.pttl("fencepost:lock:a") / 1000
                # Asked afterwards: what passes between the two makes the difference larger.
                assert left > lease.remaining + TTL * 0.005, "what a clock that runs faster takes is not the holder's"


@pytest.mark.parametrize("face", FACES)
async def test_a_lease_is_lost_once_a_majority_says_so_and_not_before(five: Five, face: str) -> None:
    client = Client(face, five.url, ttl=TTL)
    lease = await client.acquire("a")
    for index in range(3):
        await lease.renew()
        with five.at(index) as node:
            assert node.delete("fencepost:lock:a") == 1
    with pytest.raises(LeaseLost):
        await lease.renew()
    assert await lease.release() is False
    assert five.value(4) is None or await client.status("a") is None
    await client.close()


@pytest.mark.parametrize("face", FACES)
async def test_without_a_majority_a_renewal_is_unknown_and_the_lease_goes_on(five: Five, face: str) -> None:
    client = Client(face, five.url, ttl=TTL)
    lease = await client.acquire("a")
    for index in range(3):
        five.members[index].pause()
    with pytest.raises(BackendError):
        await lease.renew()
    assert not lease.lost
    for index in range(3):
        five.members[index].resume()
    await lease.renew()
    assert await lease.release()
    await client.close()


@pytest.mark.parametrize("face", FACES)
async def test_a_renewal_that_hangs_on_one_silent_node_is_unknown(five: Five, face: str) -> None:
    client = Client(face, five.url, ttl=TTL)
    lease = await client.acquire("a")
    for index in (0, 1):
        with five.at(index) as node:
            assert node.delete("fencepost:lock:a") == 1
    five.members[2].pause()
    with pytest.raises(BackendError, match=five.members[2].address) as raised:
        await lease.renew()
    assert raised.value.ambiguous
    assert not lease.lost
    five.members[2].resume()
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            await lease.renew()
            break
        except BackendError:
            assert time.monotonic() < deadline, "the node that answers again never counted again"
    assert await lease.release()
    await client.close()


def test_a_plain_client_in_a_majority_excludes_and_is_excluded(five: Five) -> None:
    with fencepost.connect(five.url, ttl=TTL) as locks:
        for index in range(3):
            with five.at(index) as client:
                assert client.set("fencepost:lock:a", "somebody", nx=True, px=60_000)
        assert locks.try_acquire("a") is None
        status = locks.status("a")
        assert status is not None
        assert (status.holder, status.token) == ("somebody", 0)
        assert five.value(4) is None, "the attempt left nothing behind"
        with five.at(0) as client:
            client.delete("fencepost:lock:a")
        with locks.lock("a"), five.at(0) as client:
            assert not client.set("fencepost:lock:a", "somebody", nx=True, px=60_000)


def test_scripts_that_were_flushed_are_taught_again(five: Five) -> None:
    with fencepost.connect(five.url, ttl=TTL) as locks, locks.lock("a") as lease:
        for index in range(5):
            with five.at(index) as client:
                client.script_flush()
        lease.renew()
        assert lease.release()


async def test_many_contenders_that_split_the_votes_all_get_their_turn(five: Five) -> None:
    async with aio.connect(five.url, ttl=TTL) as one, aio.connect(five.url, ttl=TTL) as other:
        served: list[int] = []

        async def turn(locks: aio.Locks) -> None:
            async with locks.lock("a", timeout=PATIENCE) as lease:
                served.append(lease.token)

        await asyncio.gather(*(turn(locks) for _ in range(10) for locks in (one, other)))
        assert len(served) == 20
        assert served == sorted(set(served))


@pytest.mark.parametrize("exposed", [False, True])
def test_doctor_tells_of_a_password_in_the_clear(five: Five, exposed: bool) -> None:
    hosts = ",".join(f"{'0.0.0.0' if exposed else '127.0.0.1'}:{member.port}" for member in five.members)
    for index in range(5):
        with five.at(index) as client:
            client.execute_command("ACL", "SETUSER", "app", "on", ">s3cret", "~*", "&*", "+@all")

    async def findings() -> list[Any]:
        async with aio.connect(f"redlock://app:s3cret@{hosts}") as locks:
            return await locks._core.backend.doctor()

    told = [each.what for each in run(findings()) if "clear" in each.what]
    assert told == (["the password goes to 0.0.0.0 in the clear"] if exposed else [])


def test_doctor_speaks_of_each_node_also_of_one_that_is_down(five: Five) -> None:
    five.kill(1)

    async def findings() -> list[Any]:
        async with aio.connect(five.url) as locks:
            return await locks._core.backend.doctor()

    found = run(findings())
    assert found[0].what == "5 nodes, majority 3"
    for member in five.members:
        assert any(each.what.startswith(member.address) for each in found)
    assert [each.level for each in found if each.what.startswith(five.members[1].address)] == ["risk"]


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("redlock://a,b,a", "names a server twice"),
        ("redlock://a,b,c?fence=counter", "has no option 'fence'"),
        ("redlock://a,b,c?node_timeout=0", "node_timeout"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        fencepost.connect(url)


def test_the_options_that_a_refusal_names_are_options() -> None:
    with pytest.raises(ConfigError) as refused:
        fencepost.connect("redlock://a,b,c?timeout=1s")
    named = re.split(", | and ", str(refused.value).partition("it takes ")[2])
    # Each of them is known: what is wrong is the value, and the error names it.
    values = {"node_timeout": "x", "db": "x", "verify": "x", "ca": "", "cert": "", "key": ""}
    assert set(named) == {"prefix", *values}
    fencepost.connect("redlock://a,b,c?prefix=x").close()
    for option, value in values.items():
        with pytest.raises(ConfigError, match=f"{option}=.*(number|0 or 1|duration|such as|no file)"):
            fencepost.connect(f"redlocks://a,b,c?{option}={value}")


def test_nothing_but_the_counter_is_left_behind(five: Five) -> None:
    with fencepost.connect(five.url, ttl=TTL) as locks:
        for number in range(20):
            assert locks.acquire(f"lock {number}").release()
    for index in range(5):
        with five.at(index) as client:
            assert client.keys("*") == ["fencepost:lock:\x1ftoken"]
