"""Experiments on real servers and processes: they show what they claim, and notice when it is not so."""

import json
import shutil
import signal
from pathlib import Path

import pytest

import fencepost
import fencepost_lab
from fencepost_lab.experiments import chosen, experiments
from fencepost_lab.history.checks import check
from fencepost_lab.history.format import load
from fencepost_lab.servers.processes import family_of, state_of
from tests.harness.child import Child
from tests.harness.waiting import until
from tests.lab.command import held, lab, needs

pytestmark = [pytest.mark.experiment, pytest.mark.timeout(300)]

PACKAGES = [Path(str(package.__file__)).parent for package in (fencepost, fencepost_lab)]


def test_every_experiment_says_what_it_asks_and_claims() -> None:
    found = experiments()
    assert len({each.number for each in found}) == len(found)
    for each in found:
        assert each.question.endswith("?")
        assert each.claim
        assert each.setup
        assert each.meaning
        assert set(each.quick) <= set(each.full), f"{each.name}: a quick run has a parameter that a full run has not"
    assert [each.name for each in chosen(["all"])] == [each.name for each in found]


@pytest.mark.redis
@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_a_paused_holder_corrupts_without_the_fence_and_is_refused_with_it(tmp_path: Path, backend: str) -> None:
    if backend == "redis":
        needs("REDIS_SERVER")
    done = lab("run", "pause", "--quick", "--backend", backend, "--json", "--out", str(tmp_path))
    held(done)
    off, on = (done.facts["figures"][backend][fence] for fence in ("fence_off", "fence_on"))
    assert off["accepted_writers"] == 2
    assert off["corrupted"]
    assert on["answer"]["status"] == 409
    assert on["answer"]["seen"] > on["answer"]["got"]
    assert on["resource_stale_token_rejections_total"] == 1
    assert not on["corrupted"]
    assert on["stopped"] > on["ttl"]
    assert done.facts["command"] == f"fencepost lab run pause --quick --backend {backend}"
    assert backend in done.facts["versions"]
    assert json.loads((tmp_path / "pause.json").read_text("utf-8")) == done.facts
    assert not check(load(tmp_path / f"pause-{backend}-off.jsonl.gz")).ok
    guarded = check(load(tmp_path / f"pause-{backend}-on.jsonl.gz"))
    assert guarded.ok
    assert (guarded.counts["fault:pause"], guarded.counts["write:stale"]) == (1, 1)


@pytest.mark.redis
def test_get_and_delete_delete_somebody_elses_lock_and_the_script_does_not(tmp_path: Path) -> None:
    needs("REDIS_SERVER")
    held(lab("run", "release", "--quick", "--json", "--out", str(tmp_path)))


@pytest.mark.slow
def test_fencing_only_the_writes_loses_an_update(tmp_path: Path) -> None:
    held(lab("run", "lost-update", "--quick", "--json", "--out", str(tmp_path)))


@pytest.mark.slow
def test_an_experiment_notices_what_was_deleted_from_the_source(tmp_path: Path) -> None:
    """One of them; `scripts/mutate` has the others, as ``experiment-*``."""
    for package in PACKAGES:  # with their bytecode: only what is broken is compiled again
        shutil.copytree(package, tmp_path / package.name)
    broken = tmp_path / "fencepost/resource/store.py"
    text, asks = broken.read_text("utf-8"), "fresh = ledger.admit(key, offer, payload, decision, self.policy)"
    assert text.count(asks) == 1
    broken.write_text(text.replace(asks, "fresh = True"), "utf-8")
    out = str(tmp_path / "out")
    done = lab("run", "pause", "--quick", "--json", "--out", out, "--backend", "sqlite", source=tmp_path)
    assert done.code == 1, done.said
    assert not all(each["held"] for each in done.facts["claims"])
    assert "Traceback" not in str(done.facts["claims"])


STARTING = """
import asyncio, os, signal, sys, threading
from pathlib import Path
from fencepost_lab.stage.processes import open_processes, run

opened = Path.open
def told(self, *args, **options):  # a process is about to be started
    threading.Timer({delay}, os.kill, (os.getpid(), signal.SIGTERM)).start()
    return opened(self, *args, **options)
Path.open = told

async def start():
    async with open_processes() as built:
        await built.worker("A", print, "--resource", "http://127.0.0.1:1", backend="sqlite://:memory:")
        await asyncio.sleep(60)

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
run(start())
"""


@pytest.mark.parametrize("delay", [0, 0.001, 0.003, 0.01, 0.03])
def test_being_told_to_end_while_a_process_is_started_ends_the_run(delay: float) -> None:
    with Child.python("-c", STARTING.format(delay=delay)) as child:
        assert child.wait() == 128 + signal.SIGTERM, child.story


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_ends_early_takes_its_processes_with_it(tmp_path: Path, how: signal.Signals) -> None:
    command = ["lab", "run", "pause", "--backend", "sqlite", "--out", tmp_path / "out"]
    with Child.fencepost(*command, env={"TMPDIR": str(tmp_path)}) as child:
        # Two resource services, four workers and the process that they are forked from, besides the run itself.
        until(lambda: len(family_of(child.pid)) == 8, "everything was started", watching=[child])
        family = family_of(child.pid)
        child.signal(how)
        assert child.wait() == (-how if how == signal.SIGKILL else 128 + how), child.story
        until(lambda: all(state_of(pid) in ("gone", "Z") for pid in family), "all of them end")
    if how != signal.SIGKILL:
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
