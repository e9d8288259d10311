"""The etcd guard: a condition for one's own transaction, and servers that come and go."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

from fencepost.errors import BackendError, ConfigError, StaleToken
from fencepost.guards.envelope import Content, pack
from fencepost.guards.etcd import EtcdGuard, text
from fencepost.guards.policy import Policy
from fencepost.rule import Stamp
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.faults.record import Faults
from fencepost_lab.servers import Etcd, http_json
from tests.harness.leases import lease as lease_of
from tests.harness.scripted import JSON, End, Fault, Http, Scripted
from tests.harness.servers import Endpoint
from tests.harness.waiting import GIVES_UP, PATIENCE, until


@pytest.fixture
def guard(etcd_server: Endpoint) -> Iterator[EtcdGuard]:
    guard = EtcdGuard(etcd_server.url.replace("etcd:", "http:"))
    yield guard
    guard.close()


def put(key: str, value: str) -> dict[str, Any]:
    return {"requestPut": {"key": text(key), "value": text(value)}}


def absent(key: str) -> dict[str, Any]:
    return {"key": text(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}


def test_a_transaction_of_one_s_own_is_fenced(guard: EtcdGuard, thing: str) -> None:
    answer = guard.transact(thing, 5, success=[put(f"{thing}/a", "1"), put(f"{thing}/b", "2")])
    assert answer is not None
    assert (guard.peek(f"{thing}/a"), guard.peek(f"{thing}/b"), guard.mark(thing)) == (b"1", b"2", Stamp(5))
    with pytest.raises(StaleToken):
        guard.transact(thing, 4, success=[put(f"{thing}/a", "zombie")])
    assert guard.peek(f"{thing}/a") == b"1"


def test_a_value_that_expires_with_a_lease_of_etcd_goes_on_doing_so(
    guard: EtcdGuard, etcd_server: Endpoint, thing: str
) -> None:
    port = int(etcd_server.url.rpartition(":")[2])
    granted = http_json(port, "POST", "/v3/lease/grant", json.dumps({"TTL": "600"}))
    body = {"key": text(thing), "value": text("1"), "lease": granted["ID"]}
    http_json(port, "POST", "/v3/kv/put", json.dumps(body))
    guard.write(thing, b"2", 5)
    (found,) = http_json(port, "POST", "/v3/kv/range", json.dumps({"key": text(thing)}))["kvs"]
    assert (guard.peek(thing), found["lease"]) == (b"2", granted["ID"])
    http_json(port, "POST", "/v3/lease/revoke", json.dumps({"ID": granted["ID"]}))
    assert (guard.peek(thing), guard.mark(thing)) == (None, Stamp(5)), "and its mark stays"


def test_a_compare_of_one_s_own_that_fails_changes_nothing(guard: EtcdGuard, thing: str) -> None:
    guard.transact(thing, 5, success=[put(thing, "1")])
    assert guard.transact(thing, 6, compare=[absent(thing)], success=[put(thing, "2")]) is None
    assert (guard.peek(thing), guard.mark(thing)) == (b"1", Stamp(5))


def test_a_ticket_fits_into_the_transaction_of_any_client(guard: EtcdGuard, etcd_server: Endpoint, thing: str) -> None:
    port = int(etcd_server.url.rpartition(":")[2])
    ticket, rival = guard.ticket(thing, 5), guard.ticket(thing, 6)
    assert ticket is not None
    assert rival is not None

    def commit(fence: Any, value: str) -> bool:
        body = {"compare": [fence.compare], "success": [fence.put, put(thing, value)]}
        return bool(http_json(port, "POST", "/v3/kv/txn", json.dumps(body)).get("succeeded"))

    assert commit(rival, "6")
    assert not commit(ticket, "5"), "somebody was admitted since the ticket was given"
    assert (guard.peek(thing), guard.mark(thing)) == (b"6", Stamp(6))
    with pytest.raises(StaleToken):
        guard.ticket(thing, 5)
    unguarded = EtcdGuard(etcd_server.url.replace("etcd:", "http:"), policy=Policy("off"))
    assert unguarded.ticket(thing, 5) is None


def test_transactions_of_many_threads_are_all_made(guard: EtcdGuard, thing: str) -> None:
    held = lease_of("lock", "ann", 5)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: guard.transact(thing, held, success=[put(f"{thing}/{n}", "x")]), range(12)))
    assert [guard.peek(f"{thing}/{n}") for n in range(12)] == [b"x"] * 12


def test_somebody_who_enters_between_reading_and_writing_is_noticed(etcd_server: Endpoint, thing: str) -> None:
    url = etcd_server.url.replace("etcd:", "http:")
    newer = EtcdGuard(url)

    class Overtaken(EtcdGuard):
        def _load(self, resource: str) -> Any:
            found = super()._load(resource)
            if newer.mark(resource) != Stamp(7, 0):
                newer.enter(resource, 7)
            return found

    zombie = Overtaken(url)
    with pytest.raises(StaleToken) as caught:
        zombie.write(thing, b"zombie", 6)
    assert caught.value.seen == 7
    assert (newer.peek(thing), newer.mark(thing)) == (None, Stamp(7, 0))
    zombie.close()
    newer.close()


def test_a_restart_costs_no_more_than_the_connections(thing: str) -> None:
    together = threading.Barrier(8)
    tokens = itertools.count(1)
    with Etcd() as server:
        own = EtcdGuard(f"http://{server.address}")

        def write(number: int) -> None:
            together.wait(PATIENCE)
            own.write(f"{thing}/{number}", b"x", next(tokens))

        with ThreadPoolExecutor(8) as pool:

            def connected() -> bool:
                list(pool.map(write, range(8)))
                return len(own._idle) > 2

            until(connected, "several of them at it at the same time")
        server.kill()
        server.restart()
        assert own.write(f"{thing}/1", b"y", next(tokens))
        own.close()


def test_entering_does_not_touch_the_value(guard: EtcdGuard, thing: str) -> None:
    guard.write(thing, b"x", 5)
    before = guard._load(thing).version.data
    guard.enter(thing, 6)
    assert guard._load(thing).version.data == before


def test_deleting_leaves_the_mark(guard: EtcdGuard, thing: str) -> None:
    guard.write(thing, b"x", 5)
    guard.delete(thing, 6)
    assert (guard.peek(thing), guard.mark(thing)) == (None, Stamp(6))


def test_a_server_that_is_gone_is_told_apart_from_one_that_may_have_written(thing: str) -> None:
    with Etcd() as server:
        guard = EtcdGuard("http://127.0.0.1:1", f"http://{server.address}", timeout=GIVES_UP)
        guard.write(thing, b"x", 5)
        with server.paused(), pytest.raises(BackendError) as caught:
            guard.write(thing, b"y", 6)
        assert not caught.value.ambiguous, "it was only read so far"
        guard.write(thing, b"z", 7)
        server.kill()
        with pytest.raises(BackendError):
            guard.write(thing, b"y", 8)
        server.restart()
        assert guard.read(thing, 9) == b"z"
        guard.close()


@pytest.fixture
def prefixed(etcd_server: Endpoint) -> Iterator[Callable[[str], EtcdGuard]]:
    """A guard with this prefix, on the shared server."""
    with ExitStack() as stack:

        def make(prefix: str, kind: type[EtcdGuard] = EtcdGuard) -> EtcdGuard:
            return stack.enter_context(closing(kind(etcd_server.url.replace("etcd:", "http:"), prefix=prefix)))

        yield make


def earlier_mark(guard: EtcdGuard, resource: str, stamp: Stamp) -> None:
    """A mark as the first guards with a prefix kept it: without the prefix in its key, and without its key inside."""
    success = [put(f"fencepost/mark/{resource}", pack(Content(stamp, None, b"")).decode())]
    guard._ask("txn", {"success": success})


@pytest.mark.parametrize("first", ["", "prod/"])
def test_guards_with_different_prefixes_have_marks_of_their_own(
    prefixed: Callable[[str], EtcdGuard], thing: str, first: str
) -> None:
    one, other = prefixed(first), prefixed("staging/")
    one.write(thing, b"1", lease_of("prod", "ann", 1000))
    other.write(thing, b"2", lease_of("staging", "bob", 5))
    assert other.transact(f"{thing}/x", 5, success=[put(f"{thing}/x", "2")])
    one.transact(f"{thing}/x", 4, success=[put(f"{thing}/x", "1")])
    one.write(thing, b"3", lease_of("prod", "ann", 1001))
    assert (one.peek(thing), one.mark(thing)) == (b"3", Stamp(1001, 1, "ann"))
    assert (other.peek(thing), other.mark(thing)) == (b"2", Stamp(5, 1, "bob"))
    with pytest.raises(StaleToken):
        other.write(thing, b"zombie", 4)


def test_two_guards_of_one_key_share_its_mark(prefixed: Callable[[str], EtcdGuard], thing: str) -> None:
    prefixed("data/").write(thing, b"x", 5)
    with pytest.raises(StaleToken):
        prefixed("").write(f"data/{thing}", b"zombie", 4)


def test_a_mark_from_before_it_had_the_prefix_in_its_key_is_honoured(
    prefixed: Callable[[str], EtcdGuard], thing: str
) -> None:
    guard = prefixed("data/")
    earlier_mark(guard, thing, Stamp(5, 1, "ann"))
    assert guard.mark(thing) == Stamp(5, 1, "ann")
    for refused in (
        lambda: guard.write(thing, b"zombie", 4),
        lambda: guard.read(thing, 4),
        lambda: guard.ticket(thing, 4),
        lambda: guard.transact(thing, 4, success=[put(f"{thing}/log", "zombie")]),
    ):
        with pytest.raises(StaleToken):
            refused()
    guard.write(thing, b"new", 6)
    with pytest.raises(StaleToken):
        guard.write(thing, b"zombie", 5)
    assert guard.lower_mark(thing, to=2, seen=6) == Stamp(2) == guard.mark(thing), "the earlier one counts no more"


def test_an_earlier_key_without_a_mark_is_in_nobody_s_way(prefixed: Callable[[str], EtcdGuard], thing: str) -> None:
    guard = prefixed("data/")
    guard._ask("txn", {"success": [put(f"fencepost/mark/{thing}", "")]})  # as a leap in shadow left it
    assert guard.transact(thing, 5, success=[put(f"{thing}/log", "x")])
    assert guard.mark(thing) == Stamp(5)


def test_an_earlier_mark_is_kept_for_each_prefix_although_a_guard_without_one_goes_on_with_it(
    prefixed: Callable[[str], EtcdGuard], thing: str
) -> None:
    plain = prefixed("")
    earlier_mark(plain, thing, Stamp(5, 1, "ann"))
    plain.write(thing, b"x", 6)
    with pytest.raises(StaleToken):
        prefixed("data/").write(thing, b"zombie", 4)


def test_an_earlier_mark_that_is_raised_while_a_guard_takes_it_over_is_honoured(
    prefixed: Callable[..., EtcdGuard], thing: str
) -> None:
    raises: list[Stamp] = []

    class Overtaken(EtcdGuard):
        def _load(self, resource: str) -> Any:
            found = super()._load(resource)
            if raises:
                earlier_mark(self, resource, raises.pop())
            return found

    guard = prefixed("data/", Overtaken)
    calls: list[Callable[[str], object]] = [
        lambda resource: guard.write(resource, b"zombie", 6),
        lambda resource: guard.ticket(resource, 6),
    ]
    for nth, call in enumerate(calls):
        earlier_mark(guard, f"{thing}/{nth}", Stamp(5, 1, "ann"))
        raises.append(Stamp(7, 1, "bob"))
        with pytest.raises(StaleToken) as caught:
            call(f"{thing}/{nth}")
        assert caught.value.seen == 7
    raises.append(Stamp(7, 1, "bob"))  # there was none before
    with pytest.raises(StaleToken):
        guard.write(f"{thing}/none", b"zombie", 6)


@pytest.mark.parametrize("endpoints", [(), ("localhost:2379",), ("etcd://localhost:2379",)])
def test_endpoints_are_urls(endpoints: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="http://"):
        EtcdGuard(*endpoints)


def test_a_leap_in_shadow_leaves_a_guard_that_works(guard: EtcdGuard, etcd_server: Endpoint, thing: str) -> None:
    lenient = EtcdGuard(etcd_server.url.replace("etcd:", "http:"), policy=Policy("shadow", max_jump=10, max_first=10))
    lenient.transact(thing, 100, success=[put(thing, "1")])
    assert (lenient.peek(thing), lenient.mark(thing)) == (b"1", None)
    lenient.close()
    guard.write(thing, b"2", 5)
    assert guard.mark(thing) == Stamp(5)


def test_no_value_takes_the_place_of_a_mark(guard: EtcdGuard, thing: str) -> None:
    guard.write(thing, b"new", 9)
    with pytest.raises(ConfigError, match="place of a mark"):
        guard.write(f"fencepost/mark/{thing}", b"", 1)
    with pytest.raises(StaleToken):
        guard.write(thing, b"zombie", 5)


@pytest.mark.parametrize(
    "endpoint", ["http://root:secret@localhost", "http://localhost:secret", "http://localhost/secret", "localhost:2379"]
)
def test_an_endpoint_that_cannot_be_meant_is_told_without_its_password(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="Authorization") as caught:
        EtcdGuard(endpoint)
    assert "secret" not in str(caught.value)


@pytest.fixture
def losing(etcd_server: Endpoint) -> Iterator[tuple[Proxy, Faults]]:
    """A way to the shared server that can lose answers, and what it did."""
    faults = Faults()
    with Proxy(int(etcd_server.url.rpartition(":")[2]), faults=faults) as proxy:
        yield proxy, faults


def test_a_write_whose_answer_was_lost_may_have_been_made_and_is_found_again(
    losing: tuple[Proxy, Faults], thing: str
) -> None:
    proxy, faults = losing
    access = lease_of("lock", "ann", 5).access(thing)
    guard = EtcdGuard(f"http://{proxy.address}")
    proxy.drop_after(b"requestPut")
    with pytest.raises(BackendError) as caught:
        guard.write(thing, b"x", access)
    assert len(faults.of("lose")) == 1
    assert caught.value.ambiguous
    assert guard.write(thing, b"x", access) is False, "it had been made"
    guard.close()


def test_a_transaction_whose_answer_was_lost_is_not_made_again(
    guard: EtcdGuard, losing: tuple[Proxy, Faults], thing: str
) -> None:
    proxy, faults = losing
    unlucky = EtcdGuard(f"http://{proxy.address}")
    proxy.drop_after(b"requestPut")
    with pytest.raises(BackendError) as caught:
        unlucky.transact(thing, lease_of("lock", "ann", 5), success=[put(f"{thing}/log", "paid")])
    unlucky.close()
    assert len(faults.of("lose")) == 1
    assert caught.value.ambiguous
    assert (guard.peek(f"{thing}/log"), guard.mark(thing)) == (b"paid", Stamp(5, 1, "ann")), "it was made, and once"


_NO_ROOM = b'{"message": "etcdserver: mvcc: database space exceeded"}'
FULL = Fault("done-full", answer=b"HTTP/1.1 429 Full\r\nContent-Length: %d\r\n\r\n%b" % (len(_NO_ROOM), _NO_ROOM))
"""etcd makes the write that exceeds its quota, and refuses it."""


@pytest.mark.parametrize("fault", [FULL, *(each for each in JSON if each.end is not End.HOLD)], ids=str)
def test_a_bad_answer_is_an_error_and_the_same_write_is_made_once(
    guard: EtcdGuard, etcd_server: Endpoint, thing: str, fault: Fault
) -> None:
    for nth, what in enumerate(("the look", "the write"), 1):
        resource, access = f"{thing}/{nth}", lease_of("lock", "ann", 5).access(f"{thing}/{nth}")
        with Scripted(int(etcd_server.url.rpartition(":")[2]), Http) as proxy:
            unlucky = EtcdGuard(f"http://{proxy.address}")
            proxy.plan(fault, "POST kv", nth)
            failure: BackendError | None = None
            try:
                assert unlucky.write(resource, b"x", access)
            except BackendError as error:
                failure = error
            assert proxy.happened, what
            made = guard.peek(resource) is not None
            assert made or failure, what
            assert not made or not failure or failure.ambiguous, what
            assert unlucky.write(resource, b"x", access) is not made, what
            assert guard.peek(resource) == b"x", what
            unlucky.close()
