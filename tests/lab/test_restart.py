"""kill -9 of every process, and a fresh start: no token comes again, and no acknowledged write is gone."""

import random
from contextlib import ExitStack
from pathlib import Path

import pytest

import fencepost
from fencepost.rule import Stamp
from tests.harness.resource import Service
from tests.harness.waiting import until
from tests.lab.worker import WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.experiment]

KEY = "counter"
WAITERS = 3


@pytest.fixture
def locks(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/locks.db"


def tokens(*workers: WorkerProcess) -> list[int]:
    return [fact["token"] for worker in workers for fact in worker.facts if fact["event"] == "acquired"]


def next_round(service: Service, locks: str) -> tuple[int, int]:
    """The token and the value of one whole round of a new worker."""
    with WorkerProcess("--backend", locks, "--resource", service.url, "--key", KEY) as worker:
        assert worker.end() == 0, worker.story
    written = worker.facts[-2]
    assert written["event"] == "accepted"
    return written["token"], int(written["value"])


def test_holder_waiters_and_resource_killed_while_the_lock_is_held(locks: str) -> None:
    with Service() as service:
        common = ["--backend", locks, "--resource", service.url, "--key", KEY, "--ttl", "60s"]
        seen, value = [0], 0
        for _ in range(2):
            with ExitStack() as crowd, fencepost.connect(locks) as watch:
                holder = crowd.enter_context(WorkerProcess(*common, "--steps"))
                holder.go("acquire", "read", "write")
                accepted = holder.until("accepted")
                waiters = [crowd.enter_context(WorkerProcess(*common)) for _ in range(WAITERS)]

                def all_wait(watch: fencepost.sync.Locks = watch) -> bool:
                    status = watch.status(KEY)
                    return status is not None and len(status.waiters) == WAITERS

                until(all_wait, f"{WAITERS} waiters", watching=[holder, *waiters])
                for kill in [worker.kill for worker in waiters] + [service.kill, holder.kill]:
                    kill()
                assert watch.break_lock(KEY), "as at its ttl"
            seen += tokens(holder)
            assert int(accepted["value"]) == value + 1

            service.start()
            assert service.get(KEY).body == accepted["value"].encode()
            token, value = next_round(service, locks)
            assert token > max(seen)
            assert value == int(accepted["value"]) + 1
            zombie = service.put(KEY, b"stale", Stamp(holder.facts[1]["token"], 9, holder.facts[1]["holder"]))
            assert (zombie.status, zombie.json["seen"]) == (409, token)
            seen.append(token)


def test_everybody_killed_in_full_swing(locks: str) -> None:
    pick = random.Random(11)
    with Service() as service:
        common = ["--backend", locks, "--resource", service.url, "--key", KEY, "--ttl", "2s"]
        seen = [0]
        for _ in range(3):
            with ExitStack() as crowd:
                workers = [crowd.enter_context(WorkerProcess(*common, "--iterations", "100000")) for _ in range(4)]
                for _ in range(pick.randrange(1, 20)):
                    for worker in workers:
                        worker.until("accepted")
                for kill in pick.sample([worker.kill for worker in workers] + [service.kill], len(workers) + 1):
                    kill()
                for worker in workers:
                    worker.end()
                acknowledged = max(
                    int(fact["value"]) for worker in workers for fact in worker.facts if fact["event"] == "accepted"
                )
            assert len(set(tokens(*workers))) == len(tokens(*workers))
            assert min(tokens(*workers)) > max(seen)
            seen += tokens(*workers)

            service.start()
            token, value = next_round(service, locks)
            assert token > max(seen)
            assert value > acknowledged
            seen.append(token)
