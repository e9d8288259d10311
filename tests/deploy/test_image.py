"""deploy/Dockerfile: what it copies is there, it ends as a user without rights, and scripts/image understands it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from fencepost_lab.servers.downloads import Failure
from tests import ROOT
from tests.deploy import DEPLOY, document
from tests.harness.script import script
from tests.test_requirements import locked

image = script("image")
STAGES = {stage.name: stage for stage in image.parse((DEPLOY / "Dockerfile").read_text())}


def test_every_stage_begins_from_what_scripts_image_can_stand_in_for_or_another_stage() -> None:
    assert list(STAGES) == ["build", "program", "example"]
    assert {stage.base for stage in STAGES.values()} <= {*image.BASES, *STAGES}


def test_what_is_copied_is_in_the_repository_and_let_in_and_nothing_else_is() -> None:
    copied = set()
    for stage in STAGES.values():
        for step in stage.steps:
            if step.word == "COPY" and "from" not in step.options:
                copied |= set(step.rest.split()[:-1])
    assert all(image.allowed(source).exists() for source in copied)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    with pytest.raises(Failure, match=r"keeps '\.git' out"):
        image.allowed(".git")


def test_the_program_ends_as_a_user_without_rights_who_can_change_nothing_of_it() -> None:
    steps = STAGES["program"].steps
    (user,) = [number for number, step in enumerate(steps) if step.word == "USER"]
    assert re.fullmatch(r"[1-9]\d{4}:[1-9]\d{4}", steps[user].rest)  # numbers: runAsNonRoot cannot read names
    assert not [step for step in steps[user:] if step.word in ("RUN", "COPY")]
    assert all("chown" not in step.options for step in steps)
    assert not [step for step in STAGES["example"].steps if step.word == "USER"]
    entry = next(json.loads(step.rest) for step in steps if step.word == "ENTRYPOINT")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert entry[0] in project["scripts"]


def test_every_package_of_the_image_is_locked_as_it_is_tested() -> None:
    dev = {name: pin.partition(" ")[0] for name, pin in locked("dev").items()}
    for kind in ("image", "build"):
        assert {name: pin.partition(" ")[0] for name, pin in locked(kind).items()}.items() <= dev.items()
    assert {"hiredis", "hpack", "kazoo", "psycopg-binary", "uvicorn", "prometheus-client"} <= set(locked("image"))
    assert "boto3" not in locked("image")
    installs = [step.rest for step in STAGES["build"].steps if "-r requirements/" in step.rest]
    assert len(installs) == 2
    assert all("--require-hashes" in each for each in installs)


def test_the_images_have_the_version_of_the_library() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    tags = re.findall(r"fencepost(?:-example)?:(\d[\d.]*)", (DEPLOY / "compose.yaml").read_text())
    tags += [each["newTag"] for each in document("kubernetes/kustomization.yaml")["images"]]
    tags += re.findall(r"fencepost:(\d[\d.]*)", (DEPLOY / "Dockerfile").read_text())
    assert len(tags) >= 5
    assert set(tags) == {version}


def test_steps_are_taken_in_a_root_as_they_are_written(tmp_path: Path) -> None:
    (stage,) = image.parse(
        "ARG BASE=one\nFROM ${BASE}:2 AS x\n# nothing\nENV A=1 B=$A\nWORKDIR /srv\nCOPY LICENSE README.md docs/\n"
        'RUN true \\\n    && false\nUSER 10:20\nENTRYPOINT ["a"]\n'
    )
    assert (stage.base, stage.name) == ("one:2", "x")
    made = image.Image(tmp_path)
    for step in stage.steps:
        if step.word != "RUN":
            made.do(step, {}, tmp_path)
    assert (made.env["A"], made.env["B"], made.user, made.entry) == ("1", "1", "10:20", ["a"])
    assert (tmp_path / "srv" / "docs" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    (run,) = [step for step in stage.steps if step.word == "RUN"]
    command = made.argv(["/bin/sh", "-ec", run.rest], wheels=tmp_path)
    assert "--net" in command
    assert "--userspec=10:20" in command[-1]
    assert "true && false" in command[-1]
    with pytest.raises(Failure, match="does not know"):
        image.parse("FROM a AS b\nADD x y\n")
