"""What is uploaded: complete, so that no script, schema or page is left behind, and the same bytes each time."""

import email
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent

DISTRIBUTIONS = {"fencepost": ROOT, "fencepost_lab": ROOT / "lab"}
"""Each distribution's import package, and the folder that it is built from."""

BESIDE = {"fencepost": {"_fencepost_pytest.py"}, "fencepost_lab": set[str]()}
"""Modules beside the package: pytest loads the plugin in every run, which must not import the package."""

KINDS = {"fencepost": {".lua", ".sql"}, "fencepost_lab": {".toml", ".js", ".css", ".c", ".lua", ".json"}}
"""What must not be left behind, besides Python."""


def files(package: str, folder: Path) -> set[str]:
    """The files of a package that belong into its wheel."""
    sources = folder / "src"
    found = {path for path in (sources / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    return {path.relative_to(sources).as_posix() for path in found}


def build(folder: Path, out: Path, *targets: str) -> list[Path]:
    """What hatchling makes of a source tree."""
    wanted = [option for target in targets for option in ("-t", target)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-m", "hatchling", "build", *wanted, "-d", str(out)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)
    return sorted(out.iterdir())


@pytest.mark.slow
@pytest.mark.experiment
@pytest.mark.parametrize("package", DISTRIBUTIONS)
def test_both_kinds_of_distribution_are_complete_the_same_each_time_and_fit_for_an_index(
    package: str, tmp_path: Path
) -> None:
    folder = DISTRIBUTIONS[package]
    sdist, wheel = sorted(build(folder, tmp_path / "first", "sdist", "wheel"), key=lambda path: path.suffix)
    with ZipFile(wheel) as packed:
        found = {name for name in packed.namelist() if ".dist-info/" not in name}
        (info,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        told = email.message_from_bytes(packed.read(info))
    wanted = files(package, folder)
    assert KINDS[package] <= {Path(name).suffix for name in wanted}, "the test looks into the wrong folder"
    assert found == wanted | BESIDE[package]

    # From the sdist, in another folder, at another time and with other rights: the same bytes.
    with tarfile.open(sdist) as unpacked:
        unpacked.extractall(tmp_path / "other", filter="data")
    (copy,) = (tmp_path / "other").iterdir()
    for path in copy.rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
        path.chmod(path.stat().st_mode & 0o700)
    again = sorted(build(copy, tmp_path / "second", "sdist", "wheel"), key=lambda path: path.suffix)
    assert [path.name for path in again] == [sdist.name, wheel.name]
    assert [path.read_bytes() for path in again] == [sdist.read_bytes(), wheel.read_bytes()]

    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], check=True, capture_output=True)
    text = told.get_payload()
    assert isinstance(text, str)
    assert len(text) > 500
    assert relative(text) == []


def relative(text: str) -> list[str]:
    """The links and pictures of a document that lead to a file beside it; an index has none."""
    outside = re.sub(r"(?ms)^(`{3,}|~{3,}).*?^\1[ \t]*$", "", text)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", outside) if not re.match("https?:|mailto:|#", target)]


def test_links_of_the_readme_lead_to_the_source_of_this_version_if_it_is_known() -> None:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = "![A b](docs/a.svg) [c](d.md#e), [f](https://g.h/i), [j](#k)\n[![l](m.svg)](n.md)\n```python\nx[0](y)\n```\n"
    assert module.absolute(text, "https://s.t/u/", "1.2") == (
        "![A b](https://s.t/u/raw/v1.2/docs/a.svg) [c](https://s.t/u/blob/v1.2/d.md#e), [f](https://g.h/i), [j](#k)\n"
        "[![l](https://s.t/u/raw/v1.2/m.svg)](https://s.t/u/blob/v1.2/n.md)\n```python\nx[0](y)\n```\n"
    )
    assert module.absolute(text, None, "1.2") == (
        "*A b* c, [f](https://g.h/i), [j](#k)\n*l*\n```python\nx[0](y)\n```\n"
    )
    readme = (ROOT / "README.md").read_text("utf-8")
    assert relative(readme), "it has some"
    assert relative(module.absolute(readme, "https://s.t/u", "1.2")) == []


def test_the_library_brings_no_fault_injector_no_server_starter_and_no_c() -> None:
    ours = files("fencepost", ROOT)
    assert not [name for name in ours if name.endswith((".c", ".js", ".toml"))]
    pages = {name for name in ours if name.endswith(".html")}
    assert all(name.startswith("fencepost/contrib/django/templates/admin/fencepost/") for name in pages)
    assert not [name for name in ours if re.search("servers/|faults/|sim/|lab", name)]
