"""The same seed lays the same locks, held as the backend would hold them, also after a kill in the middle."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

import fencepost
from fencepost.cli.app import app
from fencepost.errors import ConfigError
from fencepost_lab.faults.record import Faults
from fencepost_lab.faults.signals import Victim
from fencepost_lab.gen.keys import batches
from fencepost_lab.gen.run import Order, lay
from fencepost_lab.servers import HOST, Redis
from tests.harness.child import Child
from tests.harness.servers import Endpoint, provided
from tests.harness.waiting import until

pytestmark = pytest.mark.redis


def listed(seed: int, count: int, size: int = 1000, start: int = 0) -> list[tuple[str, str]]:
    return [
        pair for batch in batches(seed, start, count, size) for pair in zip(batch.names, batch.holders, strict=True)
    ]


class Store:
    """A Redis with nothing in it, and how redis-py sees it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client: Any = redis.Redis.from_url(url, decode_responses=True)
        self.client.flushdb()

    def locks(self) -> dict[str, str]:
        """Every lock's name and holder."""
        keys = [key for key in self.client.scan_iter("fencepost:lock:*", count=1000) if "\x1f" not in key]
        values = self.client.mget(keys) if keys else []
        return {
            key.removeprefix("fencepost:lock:"): value.partition(":")[0]
            for key, value in zip(keys, values, strict=True)
            if value
        }


@pytest.fixture(scope="module")
def own_server() -> Iterator[Endpoint]:
    with provided("REDIS_GEN", Redis(args=["--save", ""])) as server:
        yield server


@pytest.fixture
def store(own_server: Endpoint) -> Iterator[Store]:
    made = Store(own_server.url)
    with made.client:
        yield made


def test_a_seed_is_one_list_however_it_is_cut() -> None:
    whole = listed(7, 5000)
    assert len({name for name, _ in whole}) == len({holder for _, holder in whole}) == 5000
    for size in (1, 7, 1023, 1024, 1025, 9999):
        assert listed(7, 2500, size) == whole[:2500]
    assert listed(7, 4000, 300, start=2222) == whole[2222:4000]
    assert not {name for name, _ in listed(8, 5000)} & {name for name, _ in whole}


def test_the_locks_are_held_as_the_backend_holds_them(store: Store) -> None:
    done = lay(store.url, Order(keys=2500, seed=7, ttl=60, batch=999))
    assert (done.laid, done.found, done.resumed) == (2500, 0, 0)
    assert store.locks() == dict(listed(7, 2500))
    with fencepost.connect(store.url, label="") as locks:
        mine = locks.acquire("mine", ttl=60)
        ours, theirs = (store.client.get(f"fencepost:lock:{name}") for name in ("mine", listed(7, 1)[0][0]))
        assert len(ours) == len(theirs), "holder and token"
        tokens = []
        for name, holder in (listed(7, 2500)[index] for index in (0, 998, 999, 2499)):
            status = locks.status(name)
            assert status is not None
            assert status.holder == holder
            assert 0 < status.remaining <= 60
            assert locks.try_acquire(name) is None
            tokens.append(status.token)
        assert tokens == sorted(set(tokens))
        assert mine.token > tokens[-1], "from the same counter"
        assert mine.release()


def test_a_counter_for_each_lock_if_the_backend_would_have_one(store: Store) -> None:
    lay(f"{store.url}?fence=counter", Order(keys=20, ttl=60, batch=6))
    assert {store.client.get(f"fencepost:lock:{name}").partition(":")[2] for name, _ in listed(7, 20)} == {"1"}
    assert len(list(store.client.scan_iter("fence:*"))) == 20


def test_a_lock_that_is_held_already_is_left_to_its_holder(store: Store) -> None:
    name = listed(7, 10)[3][0]
    with fencepost.connect(store.url) as locks:
        lease = locks.acquire(name, ttl=60)
        done = lay(store.url, Order(keys=10, ttl=60))
        assert (done.laid, done.found) == (9, 1)
        assert lease.release()


def answer(*options: str) -> dict[str, Any]:
    with Child.fencepost("gen", "--json", *options) as child:
        found: dict[str, Any] = json.loads("\n".join(child.succeed()))
    return found


def test_killed_in_the_middle_it_goes_on_to_the_very_same_locks(store: Store) -> None:
    faults = Faults()
    options = ["--keys", "6_000", "--seed", "3", "--ttl", "5m", "--batch", "70", "--backend", store.url]
    for wanted in (110, 510):
        with Child.fencepost("gen", *options, "--rate", "500") as child:  # it would take 12 s
            until(lambda reach=wanted: store.client.dbsize() > reach, f"{wanted} locks", watching=[child])  # type: ignore[misc]
            Victim(child.pid, "gen", faults).kill()
        assert wanted < len(store.locks()) < 6000, "it was to be cut off in the middle"
    assert len(faults.of("kill")) == 2
    done = answer(*options)
    assert 510 <= done["resumed"] < 6000
    assert done["resumed"] + done["laid"] + done["found"] == 6000
    assert store.locks() == dict(listed(3, 6000))
    assert answer(*options)["laid"] == 0, "everything is there"
    assert answer(*options, "--fresh")["found"] == 6000


def test_more_keys_of_the_same_seed_add_to_those_that_are_there(store: Store) -> None:
    lay(store.url, Order(keys=100, ttl=60))
    done = lay(store.url, Order(keys=250, ttl=60))
    assert (done.resumed, done.laid) == (100, 150)
    assert store.locks() == dict(listed(7, 250))


def test_memory_is_reported_per_lock_and_after_expiry_and_its_own_does_not_grow(store: Store) -> None:
    small = answer("--keys", "1_000", "--ttl", "1s", "--backend", store.url, "--until-expired")
    # The last ones are laid long before the first expire.
    large = answer("--keys", "30_000", "--seed", "8", "--ttl", "5s", "--backend", store.url, "--until-expired")
    assert 100 < large["bytes_per_key"] < 400
    assert large["bytes_per_key_after_expiry"] < large["bytes_per_key"] / 5
    assert large["expired"]["expiring"] == 0
    assert large["peak_memory"] < 200 * 2**20
    assert large["peak_memory"] < small["peak_memory"] + 20 * 2**20


def test_a_rate_is_kept(store: Store) -> None:
    done = lay(store.url, Order(keys=300, ttl=60, rate=400))
    assert done.seconds >= 0.7
    assert len(store.locks()) == 300


def test_it_serves_its_metrics(store: Store) -> None:
    options = ["--keys", "1_000_000", "--rate", "2000", "--metrics", "0", "--backend", store.url]
    with Child.fencepost("gen", *options, merged=True) as child:
        place = child.heard("metrics at ").removeprefix("metrics at ").strip()

        def counted() -> bool:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(place) as reply:
                lines = dict(line.split(" ") for line in reply.read().decode().splitlines() if line[:1] != "#")
            return (
                float(lines["fencepost_lock_acquire_success_total"])
                == float(lines["fencepost_lock_acquire_attempts_total"])
                > 0
            )

        until(counted, "what was laid is counted", watching=[child])


def test_in_etcd_each_lock_has_a_lease_and_is_held(etcd_server: Endpoint) -> None:
    seed = 41
    first = lay(etcd_server.url, Order(keys=130, seed=seed, ttl=120, batch=1000))
    assert (first.laid, first.found) == (130, 0)
    again = lay(etcd_server.url, Order(keys=150, seed=seed, ttl=120))
    assert (again.resumed, again.laid) == (130, 20)
    fresh = lay(etcd_server.url, Order(keys=160, seed=seed, ttl=120, fresh=True))
    assert (fresh.resumed, fresh.laid, fresh.found) == (0, 10, 150)
    assert fresh.after["revision"] > first.before["revision"]
    with fencepost.connect(etcd_server.url) as locks:
        for name, holder in (listed(seed, 160)[index] for index in (0, 99, 100, 159)):
            status = locks.status(name)
            assert status is not None
            assert status.holder == holder
            assert 0 < status.remaining <= 121
            assert locks.try_acquire(name, ttl=5) is None


@pytest.mark.parametrize("url", ["postgresql://u:secret@h/x", "redlock://a,b,c", "redis+cluster://a", "sqlite:"])
def test_other_stores_are_refused_by_name(url: str) -> None:
    with pytest.raises(ConfigError, match=r"one Redis .* or into etcd") as raised:
        lay(url, Order(keys=1))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("wrong", [{"keys": 0}, {"keys": 1, "batch": 0}, {"keys": 1, "ttl": 0}, {"keys": 1, "rate": 0}])
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Order(**wrong)


def test_without_a_store_it_says_how_to_name_one() -> None:
    said = CliRunner().invoke(app, ["gen", "--keys", "1"], env={"FENCEPOST_URL": None})
    assert said.exit_code == 2
    assert "--backend redis://" in said.stderr


@pytest.mark.parametrize("command", [("gen", "--keys", "1"), ("contend", "--sections", "1")])
def test_the_everyday_store_is_not_put_under_load_by_default(command: tuple[str, ...]) -> None:
    said = CliRunner().invoke(app, command, env={"FENCEPOST_URL": "redis://:secret@127.0.0.1:1/0"})
    assert said.exit_code == 2
    assert '--backend "$FENCEPOST_URL"' in said.stderr
    assert "secret" not in said.stderr


def test_a_store_that_is_not_there_is_named() -> None:
    with Redis() as server:
        port = server.port
    with pytest.raises(fencepost.BackendError, match=f"{HOST}:{port}: cannot connect"):
        lay(f"redis://{HOST}:{port}", Order(keys=1))
