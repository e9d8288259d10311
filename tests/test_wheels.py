"""What the wheels contain: every file of the package, so that no script, schema or page is left behind."""

import re
import subprocess
import sys
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


@pytest.mark.parametrize("package", DISTRIBUTIONS)
def test_a_wheel_has_every_file_of_its_package_and_no_other(package: str, tmp_path: Path) -> None:
    folder = DISTRIBUTIONS[package]
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as packed:
        found = {name for name in packed.namelist() if ".dist-info/" not in name}
    wanted = files(package, folder)
    assert KINDS[package] <= {Path(name).suffix for name in wanted}, "the test looks into the wrong folder"
    assert found == wanted | BESIDE[package]


def test_the_library_brings_no_fault_injector_no_server_starter_and_no_c() -> None:
    ours = files("fencepost", ROOT)
    assert not [name for name in ours if name.endswith((".c", ".js", ".toml"))]
    pages = {name for name in ours if name.endswith(".html")}
    assert all(name.startswith("fencepost/contrib/django/templates/admin/fencepost/") for name in pages)
    assert not [name for name in ours if re.search("servers/|faults/|sim/|lab", name)]
