"""The rule as a model: TLC finds nothing lost, finds a loss in each control, and agrees with rule.py."""

import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from fencepost.rule import Stamp, Verdict, judge, raised
from tests import ROOT
from tests.harness.child import Child

SCRIPT = ROOT / "scripts" / "model"


def script() -> ModuleType:
    """scripts/model, which has no .py in its name, as a module."""
    spec = spec_from_loader("model", SourceFileLoader("model", str(SCRIPT)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.experiment
def test_nothing_is_lost_and_each_control_loses_an_update() -> None:
    with Child.python(SCRIPT, "--small") as child:
        said = "\n".join(child.succeed(110))
    assert re.search(r"^Small +nothing lost: \d{4,} distinct states", said)
    assert len(re.findall(r"^No\w+ +loses an update in \d+ steps", said, re.MULTILINE)) == 4


@pytest.mark.slow
def test_the_model_and_the_code_say_the_same_of_every_mark_and_offer() -> None:
    printed = script().tlc("Table", "Table")
    rows = re.findall(r'^<<(\d+), (\d+), (\d+), (\d+), (\d+), (\d+), "(\w+)", (\d+), (\d+), (\d+)>>', printed, re.M)
    assert len(rows) == 19 * 18, printed
    seen = set()
    for *numbers, said, token, seq, holder in rows:
        mark_token, mark_seq, mark_holder, offer_token, offer_seq, offer_holder = map(int, numbers)
        mark = stamp(mark_token, mark_seq, mark_holder) if mark_token else None
        offer = stamp(offer_token, offer_seq, offer_holder)
        verdict = judge(mark, offer)
        after = raised(mark, offer) if verdict is Verdict.ADMIT else mark
        assert (verdict, after) == (said, stamp(int(token), int(seq), int(holder))), (mark, offer)
        seen.add(verdict)
    assert seen == {Verdict.ADMIT, Verdict.STALE, Verdict.LATE, Verdict.CLASH, Verdict.REPLAY}


def test_another_jar_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    model = script()
    model.tlc("Small")
    assert (tmp_path / "started").exists(), "the one that is named is run"
    (tmp_path / "started").unlink()
    good = model.jar()
    (tmp_path / "tla2tools.jar").write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    monkeypatch.setattr(model.resources, "files", lambda package: tmp_path)
    with pytest.raises(SystemExit, match="it is not run"):
        model.tlc("Small")
    assert not (tmp_path / "started").exists()


def stamp(token: int, seq: int, holder: int) -> Stamp:
    return Stamp(token, seq, f"holder-{holder}" if holder else "")
