"""What locks in etcd cost, and what a session shared by many of them must not change."""

import asyncio
import base64
import threading
from collections.abc import Iterator

import pytest

import fencepost
from fencepost import sync
from fencepost.backends.etcd import keeper
from fencepost.backends.etcd import messages as pb
from fencepost.driver import boottime
from fencepost.errors import BackendError
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.servers import QUICK_ETCD, Etcd
from tests.backends.etcd.tools import LONG, counts, etcdctl, queued
from tests.conformance.faces import FACES, Client
from tests.harness.threads import background
from tests.harness.waiting import GIVES_UP, PATIENCE, until, until_async

WORK = ("Txn", "Range", "Put", "DeleteRange", "LeaseGrant", "LeaseRevoke", "LeaseTimeToLive")


@pytest.fixture
def server() -> Iterator[Etcd]:
    with Etcd(args=QUICK_ETCD) as started:
        yield started


@pytest.fixture
def locks(server: Etcd) -> Iterator[sync.Locks]:
    with fencepost.connect(f"{server.url}?timeout={PATIENCE:g}s", ttl=LONG) as connected:
        yield connected


def leases(server: Etcd) -> int:
    return len(etcdctl(server.url, "lease", "list").get("leases") or ())


def test_an_uncontended_acquire_is_one_transaction_and_a_release_one(server: Etcd, locks: sync.Locks) -> None:
    assert locks.acquire("first").release()
    before = counts(server, *WORK)
    for number in range(20):
        assert locks.acquire(f"lock-{number % 3}").release()
    spent = [after - earlier for after, earlier in zip(counts(server, *WORK), before, strict=True)]
    assert dict(zip(WORK, spent, strict=True)) == dict.fromkeys(WORK, 0) | {"Txn": 40}


def test_all_locks_of_one_ttl_share_one_lease(server: Etcd, locks: sync.Locks) -> None:
    held = [locks.acquire(f"lock-{number}") for number in range(20)]
    assert leases(server) == 1
    other = locks.acquire("another", ttl=LONG / 2)
    assert leases(server) == 2
    assert all(lease.release() for lease in [*held, other])


def test_waiters_for_one_lock_share_it_too(server: Etcd, locks: sync.Locks) -> None:
    holder = locks.acquire("hot")
    crowd = [threading.Thread(target=lambda: locks.acquire("hot", timeout=LONG).release()) for _ in range(5)]
    for each in crowd:
        each.start()
    until(lambda: queued(locks, "hot", 5), "five wait")
    assert leases(server) == 1
    assert holder.release()
    for each in crowd:
        each.join(PATIENCE)
    assert locks.status("hot") is None


def test_a_waiter_with_a_short_ttl_keeps_its_place_beside_locks_with_a_long_one(server: Etcd) -> None:
    """The keeper has nothing to do for minutes when its session is opened."""
    with fencepost.connect(server.url, ttl=600) as locks:
        holder = locks.acquire("hot")
        waiter = background(lambda: locks.acquire("hot", ttl=5, timeout=LONG).release())
        until(lambda: queued(locks, "hot", 1), "one waits", watching=[waiter])
        sessions = locks._core.backend._sessions._sessions  # type: ignore[attr-defined]
        [session] = [each for each in sessions.values() if each.asked == 5]
        opened = session.since
        until(lambda: session.gone or session.since > opened, "its session is kept alive", watching=[waiter])
        assert not session.gone
        assert queued(locks, "hot", 1)
        assert holder.release()
        assert waiter.result()


@pytest.mark.parametrize("size", [50, 200])
def test_a_hand_over_wakes_one_waiter_in_its_turn(server: Etcd, locks: sync.Locks, size: int) -> None:
    """Each waiter puts its key, looks whom it follows, is woken once, looks once more, and deletes its key.

    It looks one time more if the store has changed before its watch began, as it does while others join the queue.
    """
    served: list[int] = []

    def turn() -> None:
        lease = locks.acquire("hot", timeout=LONG)
        served.append(lease.token)
        assert lease.release()

    holder = locks.acquire("hot")
    before = counts(server, "Txn")[0]
    crowd = [threading.Thread(target=turn) for _ in range(size)]
    for each in crowd:
        each.start()
    until(lambda: queued(locks, "hot", size), "all wait")
    watches = locks._core.backend._watches  # type: ignore[attr-defined]
    until(lambda: len(watches._watches) == size, "all watch")
    assert holder.release()
    for each in crowd:
        each.join(PATIENCE)
    assert len(served) == size
    assert served == sorted(served), "0 inversions"
    assert 3 * size < counts(server, "Txn")[0] - before <= 5 * size + 1


def test_a_hold_that_is_not_renewed_ends_at_its_own_ttl_while_its_session_lives_on(server: Etcd) -> None:
    # Long enough that a busy machine finds the time to renew.
    with fencepost.connect(server.url, ttl=5) as locks, fencepost.connect(server.url, ttl=LONG) as others:
        kept = locks.acquire("kept")
        left = locks.acquire("left", renew=False)
        assert leases(server) == 1
        got = others.acquire("left", timeout=PATIENCE)
        assert left.lost
        assert got.token > left.token
        kept.check()
        assert others.try_acquire("kept") is None
        assert leases(server) == 2
        assert kept.release()


def test_the_granted_ttl_is_the_one_that_counts(server: Etcd) -> None:
    with Etcd() as usual, fencepost.connect(usual.url) as locks:
        assert locks.acquire("short", ttl=1).ttl == 2.0, "etcd as it comes takes nothing shorter"
        assert locks.acquire("odd", ttl=2.5).ttl == 3.0, "nor parts of a second"


def test_deadlines_are_counted_from_before_the_request_was_sent(server: Etcd) -> None:
    """Not from when it is answered: on a slow network the lock would be somebody else's by then."""
    delay = 1.0
    with Proxy(server.port) as proxy, fencepost.connect(f"etcd://{proxy.address}?timeout=60s", ttl=LONG) as locks:
        assert locks.acquire("first").release(), "it is connected"
        sessions = locks._core.backend._sessions  # type: ignore[attr-defined]
        [session] = sessions._sessions.values()
        proxy.slow(delay)
        start = boottime()
        lease = locks.acquire("second", ttl=LONG / 2)
        assert proxy.slowed
        counted = lease.deadline - lease.ttl
        assert start <= counted
        assert boottime() - counted > 4 * delay, "both requests were sent later"
        start = boottime()
        sessions.ping(session)
        until(lambda: session.since >= start, "it is kept alive")
        assert boottime() - session.since > 2 * delay
        proxy.slow(0)
        assert lease.release()


def test_closing_leaves_no_lease_behind(server: Etcd) -> None:
    with fencepost.connect(server.url, ttl=LONG) as locks:
        locks.acquire("held")
        assert leases(server) == 1
    assert leases(server) == 0


def test_a_revoked_session_is_news_to_all_its_holders_and_to_nobody_else(server: Etcd) -> None:
    with fencepost.connect(server.url, ttl=6) as locks, fencepost.connect(server.url, ttl=LONG) as others:
        held = [locks.acquire(f"lock-{number}") for number in range(3)]
        other = others.acquire("other")
        for lease in etcdctl(server.url, "lease", "list")["leases"]:
            identity = f"{lease['id']:x}"
            if etcdctl(server.url, "lease", "timetolive", identity)["granted-ttl"] == 6:
                etcdctl(server.url, "lease", "revoke", identity)
        assert all(lease.ended.wait(PATIENCE) for lease in held)
        other.check()
        assert locks.acquire("lock-0", timeout=PATIENCE).token > held[0].token


def test_whoever_finds_a_session_gone_tells_all_its_holders(server: Etcd, locks: sync.Locks) -> None:
    held = locks.acquire("held", renew=False)
    (lease,) = etcdctl(server.url, "lease", "list")["leases"]
    etcdctl(server.url, "lease", "revoke", f"{lease['id']:x}")
    assert locks.acquire("another").release(), "under a session of its own"
    assert held.ended.wait(PATIENCE), "long before its ttl, and although it is not renewed"


def test_a_waiter_whose_key_was_deleted_does_not_hold_the_lock_beside_another(server: Etcd, locks: sync.Locks) -> None:
    with fencepost.connect(server.url, ttl=LONG) as others:
        holder = others.acquire("lock")
        got: list[sync.Lease] = []
        robbed = threading.Thread(target=lambda: got.append(locks.acquire("lock", timeout=LONG)))
        robbed.start()
        until(lambda: queued(others, "lock", 1), "one waits")
        keys = etcdctl(server.url, "get", "--prefix", "lock/", "--sort-by=CREATE")["kvs"]
        etcdctl(server.url, "del", base64.b64decode(keys[-1]["key"]).decode())
        until(lambda: queued(others, "lock", 0), "nobody waits")
        next_one: list[sync.Lease] = []
        behind = threading.Thread(target=lambda: next_one.append(others.acquire("lock", timeout=LONG)))
        behind.start()
        until(lambda: queued(others, "lock", 1), "one waits")
        assert holder.release()
        behind.join(PATIENCE)
        until(lambda: queued(others, "lock", 1), "it is queued again")
        assert not got
        assert next_one[0].release()
        robbed.join(PATIENCE)
        assert got[0].token > next_one[0].token


@pytest.mark.parametrize("thread", ["fencepost-etcd-keeper", "fencepost-etcd"])
def test_sessions_are_kept_alive_once_there_are_threads_for_it(
    server: Etcd, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    """A thread that could not be started, as at a limit of a container, is not taken for one that runs."""
    start = threading.Thread.start
    refused: list[threading.Thread] = []

    def refuse(each: threading.Thread) -> None:
        if each.name == thread and len(refused) < 2:
            refused.append(each)
            raise RuntimeError("can't start new thread")
        start(each)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with fencepost.connect(server.url, ttl=9) as locks:
        if thread == "fencepost-etcd-keeper":
            for _ in range(2):
                with pytest.raises(RuntimeError, match="thread"):
                    locks.acquire("a")
        holder = locks.acquire("a")
        first = holder.deadline
        until(lambda: holder.deadline > first + 1 or bool(holder.ended), "it is renewed, or lost")
        holder.check()
        assert len(refused) == 2
        assert holder.release()


def test_a_keeper_that_failed_starts_again(
    locks: sync.Locks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the sessions would expire, with all that is held under them."""
    lease = locks.acquire("a", renew=False)
    sessions = locks._core.backend._sessions  # type: ignore[attr-defined]
    stuck, failures = keeper._stuck, [MemoryError("no memory")]

    def fails(session: keeper.Session, now: float) -> bool:
        if failures:
            raise failures.pop()
        return stuck(session, now)

    monkeypatch.setattr(keeper, "_stuck", fails)
    sessions._service.wake()
    until(lambda: not sessions._service.running, "it failed")
    assert "no memory" in caplog.text
    lease.renew()
    assert sessions._service.running
    assert lease.release()


def test_an_answer_counts_for_as_long_as_it_says_and_no_longer(locks: sync.Locks) -> None:
    """grpc-proxy answers with what is left of a lease, if it could not renew it."""
    lease = locks.acquire("lock", renew=False)
    sessions = locks._core.backend._sessions  # type: ignore[attr-defined]
    [session] = sessions._sessions.values()
    with sessions._gate:
        until(lambda: boottime() > session.since + 1.0, "a second has passed")
        session.unanswered.append(boottime())
        answer = pb.LeaseKeepAliveResponse(ID=session.id, TTL=int(session.ttl) - 100)
        before = session.since
        sessions._heard(sessions._stream, answer)
        assert session.since == before
        session.unanswered.append(sent := boottime())
        sessions._heard(sessions._stream, pb.LeaseKeepAliveResponse(ID=session.id, TTL=int(session.ttl)))
        assert session.since == sent
    assert lease.release()


@pytest.mark.parametrize("wait", [False, True], ids=["asks", "waits"])
def test_a_key_of_another_process_under_its_session_is_not_taken_for_its_own(server: Etcd, wait: bool) -> None:
    """As a copy of this process would put it, which knows the session and not that it must not use it."""
    with fencepost.connect(server.url, ttl=5) as locks:
        assert locks.acquire("first").release()
        (lease,) = etcdctl(server.url, "lease", "list")["leases"]
        etcdctl(server.url, "put", f"lock/{lease['id']:x}", "another", f"--lease={lease['id']:x}")
        (other,) = etcdctl(server.url, "get", "--prefix", "lock/")["kvs"]
        if not wait:
            assert locks.try_acquire("lock") is None
            assert etcdctl(server.url, "get", "--prefix", "lock/")["kvs"] == [other], "it is not deleted either"
        mine = locks.acquire("lock", timeout=PATIENCE)
        assert mine.token > other["create_revision"]
        assert mine.release()


@pytest.mark.silence
def test_a_session_that_one_with_little_time_could_not_open_is_opened_by_the_next(server: Etcd) -> None:
    with Proxy(server.port) as proxy, fencepost.connect(f"etcd://{proxy.address}?timeout=60s", ttl=LONG) as locks:
        sessions = locks._core.backend._sessions  # type: ignore[attr-defined]
        proxy.slow(1.0)
        hasty = background(lambda: locks.acquire("a", timeout=0.1))
        # If this process stands still meanwhile, the hasty one is over, and the patient one opens the first session.
        until(lambda: sessions._openings or hasty.done, "it opens a session")
        patient = background(lambda: locks.acquire("b", timeout=PATIENCE))
        with pytest.raises(BackendError):
            hasty.result()
        lease = patient.result()
        proxy.slow(0)
        assert lease.release()


@pytest.mark.silence
@pytest.mark.parametrize("face", FACES)
async def test_who_waits_for_a_session_does_not_outlast_its_timeout(server: Etcd, face: str) -> None:
    """Somebody with more time opens it, and gets no answer."""
    with Proxy(server.port) as proxy:
        client = Client(face, f"etcd://{proxy.address}?timeout={PATIENCE * 10:g}s", ttl=LONG)
        sessions = client.raw._core.backend._sessions
        proxy.cut()
        patient = asyncio.ensure_future(client.acquire("a", timeout=PATIENCE))
        await until_async(lambda: bool(sessions._openings), "it opens a session", watching=[patient])
        with pytest.raises(BackendError):
            await asyncio.wait_for(client.acquire("b", timeout=0.1), PATIENCE / 2)
        proxy.heal()
        assert await (await patient).release()
        await client.close()


async def test_an_outage_while_a_session_is_opened_is_everybodys_once_their_time_is_over(server: Etcd) -> None:
    with Proxy(server.port) as proxy:
        client = Client("blocking", f"etcd://{proxy.address}?timeout={GIVES_UP:g}s", ttl=LONG)
        proxy.cut()
        crowd = [asyncio.ensure_future(client.acquire(f"{number}")) for number in range(5)]
        done = await asyncio.wait_for(asyncio.gather(*crowd, return_exceptions=True), PATIENCE)
        assert all(isinstance(each, BackendError) for each in done)
        proxy.heal()
        await client.close()
