"""The locks agree with each other and with pyproject.toml, and all places name the same Python versions."""

import json
import re
import tomllib
from typing import Any

from packaging.requirements import Requirement

from fencepost.cli.loader import LAB
from fencepost_lab.contend.clients import CLIENTS
from fencepost_lab.servers.programs import PROGRAMS
from tests import ROOT


def settings(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / name).read_text("utf-8"))


def locked(kind: str) -> dict[str, str]:
    """Package -> version and marker, as `requirements/KIND.lock` pins it."""
    text = (ROOT / "requirements" / f"{kind}.lock").read_text("utf-8")
    return {match[1]: match[2] for match in re.finditer(r"^([\w.-]+)==(.*?) \\$", text, re.MULTILINE)}


def test_the_demo_installs_nothing_that_the_full_lock_would_change() -> None:
    demo, dev = locked("demo"), locked("dev")
    versions = {name: pin.partition(" ")[0] for name, pin in dev.items()}
    assert demo
    assert {name: pin.partition(" ")[0] for name, pin in demo.items()}.items() <= versions.items()


def test_every_package_that_an_extra_asks_for_is_locked() -> None:
    ours, lab = settings("pyproject.toml"), settings("lab/pyproject.toml")
    groups = [*ours["dependency-groups"].values()]
    groups += [*ours["project"]["optional-dependencies"].values(), *lab["project"]["optional-dependencies"].values()]
    asked = {re.split(r"[\[<>=!~; ]", requirement)[0].lower() for group in groups for requirement in group}
    assert asked - {"fencepost", "fencepost-lab"} <= set(locked("dev")), "run `make lock`"
    assert ours["project"]["dependencies"] == [], "the core needs nothing but Python"


def test_the_laboratory_has_the_version_of_the_library_and_needs_nothing_else() -> None:
    ours, lab = settings("pyproject.toml")["project"], settings("lab/pyproject.toml")["project"]
    assert lab["version"] == ours["version"]
    assert lab["dependencies"] == [f"fencepost=={ours['version']}"]
    assert lab["requires-python"] == ours["requires-python"]
    python = re.compile(r"Programming Language :: Python.*")
    assert [each for each in lab["classifiers"] if python.match(each)] == [
        each for each in ours["classifiers"] if python.match(each)
    ]


def test_the_table_of_the_laboratorys_commands_is_what_it_registers() -> None:
    assert settings("lab/pyproject.toml")["project"]["entry-points"]["fencepost.commands"] == LAB


def test_the_peers_that_the_lab_measures_are_pinned_and_locked() -> None:
    peers = [Requirement(each) for each in settings("lab/pyproject.toml")["project"]["optional-dependencies"]["peers"]]
    assert {each.name for each in peers} == {row.package for row in CLIENTS.values()} - {""}
    versions = {name: pin.partition(" ")[0] for name, pin in locked("dev").items()}
    assert {each.name: str(each.specifier) for each in peers} == {
        each.name: f"=={versions[each.name]}" for each in peers
    }
    assert "peers]" in settings("lab/pyproject.toml")["project"]["optional-dependencies"]["all"][0]


def test_the_locks_name_no_place_to_download_from() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        assert not re.search(r"://|--(extra-)?index-url|--find-links", lock.read_text("utf-8")), lock.name


def test_all_places_name_the_same_python_versions() -> None:
    project = settings("pyproject.toml")["project"]
    versions = [found[1] for each in project["classifiers"] if (found := re.fullmatch(r".*Python :: (3\.\d+)", each))]
    first, last = versions[0], versions[-1]
    assert project["requires-python"] == f">={first}"
    assert f"Python {', '.join(versions[:-1])} or {last}." in (ROOT / "README.md").read_text("utf-8")
    setup = (ROOT / "scripts" / "setup").read_text("utf-8")
    assert " ".join(f"python{version}" for version in versions[::-1]) in setup
    assert f"(3, {first.partition('.')[2]})" in setup
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    assert f"python: {json.dumps(versions)}" in workflow


def test_whatever_ci_and_the_scripts_fetch_is_pinned() -> None:
    workflows = [path.read_text("utf-8") for path in (ROOT / ".github" / "workflows").iterdir()]
    used = re.findall(r"uses: (.*)", "\n".join(workflows))
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", each)] == []
    lock = (ROOT / "scripts" / "lock").read_text("utf-8")
    assert re.search(r"^uv=\d+\.\d+\.\d+$", lock, re.MULTILINE)
    assert all(program.sha256 for program in PROGRAMS.values() if program.npm)


INTERNAL = {
    "psycopg": r"from psycopg(\.generators import|\.pq import| import .*\bwaiting\b)",
    "kazoo": r"from kazoo\.(protocol|handlers)",
    "uvicorn": r"from uvicorn\.protocols",
}
"""What the library uses that is not the public face of its package, and may change in any release of it."""


def test_whatever_is_not_a_public_face_is_used_within_bounds_and_tried_with_the_newest_each_week() -> None:
    extras = settings("pyproject.toml")["project"]["optional-dependencies"]
    asked = [Requirement(each) for extra in extras.values() for each in extra]
    sources = [path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")]
    for package, pattern in INTERNAL.items():
        assert any(re.search(pattern, source) for source in sources), f"{package}: drop it from the list, and its bound"
        bounds = [each.specifier for each in asked if each.name == package]
        assert bounds
        assert all(any(part.operator in ("<", "<=") for part in each) for each in bounds), package
    workflow = (ROOT / ".github" / "workflows" / "newest.yml").read_text("utf-8")
    assert "scripts/newest" in workflow
    assert "schedule:" in workflow


def test_each_extra_brings_what_its_code_imports_and_nothing_for_others() -> None:
    extras = settings("pyproject.toml")["project"]["optional-dependencies"]
    asked = {name: {Requirement(each).name for each in extra} for name, extra in extras.items()}
    assert asked["redis"] == {"hiredis"}
    assert asked["redlock"] == {"fencepost"}
    stores = "\n".join(path.read_text("utf-8") for path in (ROOT / "src" / "fencepost" / "backends").rglob("*.py"))
    assert "hiredis" in stores
    assert not re.search(r"^\s*(import|from) redis\b", stores, re.MULTILINE), "then the extra must bring redis-py"
    (uvloop,) = [Requirement(each) for each in extras["service"] if each.startswith("uvloop")]
    assert uvloop.marker is not None
    assert not uvloop.marker.evaluate({"sys_platform": "win32"})
