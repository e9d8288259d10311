"""The locks agree with each other and with pyproject.toml, and all places name the same Python versions."""

import json
import re
import tomllib

from tests import ROOT


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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = {
        re.split(r"[\[<>=!~; ]", requirement)[0].lower()
        for extra in project["optional-dependencies"].values()
        for requirement in extra
    }
    assert asked - {"fencepost"} <= set(locked("dev")), "run `make lock`"
    assert project["dependencies"] == [], "the core needs nothing but Python"


def test_the_locks_name_no_place_to_download_from() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        assert not re.search(r"://|--(extra-)?index-url|--find-links", lock.read_text("utf-8")), lock.name


def test_all_places_name_the_same_python_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = [found[1] for each in project["classifiers"] if (found := re.fullmatch(r".*Python :: (3\.\d+)", each))]
    first, last = versions[0], versions[-1]
    assert project["requires-python"] == f">={first}"
    assert f"Python {', '.join(versions[:-1])} or {last}." in (ROOT / "README.md").read_text("utf-8")
    setup = (ROOT / "scripts" / "setup").read_text("utf-8")
    assert " ".join(f"python{version}" for version in versions[::-1]) in setup
    assert f"(3, {first.partition('.')[2]})" in setup
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    assert f"python: {json.dumps(versions)}" in workflow
