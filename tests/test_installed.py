"""What people get who install the wheels: in empty environments, with just the packages that an extra brings."""

import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.experiment]

FOLDERS = {"fencepost": ROOT, "fencepost-lab": ROOT / "lab"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each distribution's wheel."""
    built = {}
    for name, folder in FOLDERS.items():
        out = tmp_path_factory.mktemp(name)
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        (built[name],) = out.glob("*.whl")
    return built


def needed(requirement: str, seen: set[str]) -> Iterator[str]:
    """The distributions that a requirement brings, ours left out."""
    wanted = Requirement(requirement)
    if wanted.marker and not any(wanted.marker.evaluate({"extra": extra}) for extra in (*wanted.extras, "")):
        return
    if str(wanted) in seen:
        return
    seen.add(str(wanted))
    if wanted.name not in FOLDERS:
        yield wanted.name
    for each in metadata.requires(wanted.name) or ():
        inner = Requirement(each)
        if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in (*wanted.extras, "")):
            inner.marker = None
            yield from needed(str(inner), seen)


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def install(wheels: dict[str, Path], tmp_path: Path) -> Callable[..., Run]:
    """Makes an empty environment with wheels of ours, and what ``extras`` of them bring; returns its Python."""

    def make(*names: str, extras: tuple[str, ...] = ()) -> Run:
        place = tmp_path / "venv"
        venv.create(place, symlinks=True)
        (site,) = place.glob("lib/python*/site-packages")
        for name in names:
            with ZipFile(wheels[name]) as packed:
                packed.extractall(site)
        for name in {found for extra in extras for found in needed(extra, set())}:
            files = metadata.files(name) or []
            for first in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
                target = site / first
                if not target.exists():
                    target.symlink_to(Path(str(metadata.distribution(name).locate_file(first))))

        def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
            kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FENCEPOST_URL")}
            return subprocess.run(
                [place / "bin" / "python", "-P", *arguments],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env=kept | {"XDG_STATE_HOME": str(tmp_path)},
                timeout=120,
            )

        return run

    return make


def test_pip_installs_both_into_an_empty_environment(wheels: dict[str, Path], tmp_path: Path) -> None:
    place = tmp_path / "venv"
    venv.create(place, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(place / "bin" / "python")]
    subprocess.run([*pip, "install", "-q", "--no-index", *wheels.values()], check=True, capture_output=True)
    listed = subprocess.run([*pip, "list", "--format", "freeze"], check=True, capture_output=True, text=True).stdout
    version = metadata.version("fencepost")
    assert listed.splitlines() == [f"fencepost=={version}", f"fencepost-lab=={version}"]
    program = subprocess.run([place / "bin" / "fencepost", "demo"], capture_output=True, text=True, cwd=tmp_path)
    assert (program.returncode, "pip install 'fencepost[cli]'" in program.stderr) == (2, True), program.stderr


def test_the_library_alone_has_its_core_and_names_the_extra_for_the_rest(install: Callable[..., Run]) -> None:
    python = install("fencepost")
    program = (
        "import fencepost, sys\n"
        "for url in ('memory://', 'sqlite:locks.db'):\n"
        "    with fencepost.connect(url) as locks, locks.lock('a') as lease:\n"
        "        print(lease.token)\n"
        "foreign = {name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'fencepost'}\n"
        "print(sorted(name for name in foreign if not name.startswith('_')))\n"
    )
    done = python("-c", program)
    assert done.stdout.split() == ["1", "1", "[]"], done.stderr
    done = python("-m", "fencepost", "ls")
    assert (done.returncode, "pip install 'fencepost[cli]'" in done.stderr) == (2, True), done.stderr
    program = (
        "import fencepost\n"
        "for url in ('redis://h', 'etcd://h', 'zk://h', 'postgresql://h/x'):\n"
        "    try:\n        fencepost.connect(url)\n    except fencepost.ConfigError as error:\n        print(error)\n"
    )
    assert python("-c", program).stdout.splitlines() == [
        "redis:// needs the package 'hiredis': pip install 'fencepost[redis]'",
        "etcd:// needs the package 'hpack': pip install 'fencepost[etcd]'",
        "zk:// needs the package 'kazoo': pip install 'fencepost[zookeeper]'",
        "postgresql:// needs the package 'psycopg': pip install 'fencepost[postgres]'",
    ]


def test_the_command_line_works_without_the_laboratory_and_names_it(install: Callable[..., Run]) -> None:
    python = install("fencepost", extras=("fencepost[cli]",))
    fence = ("-m", "fencepost")
    done = python(*fence, "run", "nightly", "--", "sh", "-c", "echo token $FENCE_TOKEN")
    assert (done.returncode, done.stdout) == (0, "token 1\n")
    assert done.stderr.startswith("fencepost: locks are in "), "it says so once, as no store was named"
    assert len(done.stderr.splitlines()) == 1
    assert python(*fence, "ls", "--json").stdout == "[]\n"
    assert python(*fence, "show", "nightly").stdout == "nightly  free\n"
    for command in (["demo"], ["lab", "run", "pause", "--quick"], ["fleet", "sim", "--seeds", "3"]):
        done = python(*fence, *command)
        assert (done.returncode, "pip install 'fencepost-lab[stage]'" in done.stderr) == (2, True), done
        assert "Traceback" not in done.stderr
    done = python(*fence, "--help")
    assert done.returncode == 0
    assert "fencepost-lab" in done.stdout
    assert python("-c", "import fencepost_lab").returncode == 1


def test_the_simulator_needs_no_other_package(install: Callable[..., Run]) -> None:
    python = install("fencepost", "fencepost-lab")
    program = (
        "import sys\n"
        "from fencepost_lab.sim import run\n"
        "from fencepost_lab.sim.seeds import try_seeds\n"
        "import fencepost_lab.sim.serve, fencepost_lab.sim.fleet\n"
        "print(len(try_seeds(range(3)).failures))\n"
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\n"


def test_a_laboratory_of_another_version_is_named(install: Callable[..., Run], tmp_path: Path) -> None:
    python = install("fencepost", "fencepost-lab", extras=("fencepost[cli]",))
    (info,) = (tmp_path / "venv").glob("lib/python*/site-packages/fencepost_lab-*.dist-info")
    text = (info / "METADATA").read_text("utf-8")
    (info / "METADATA").write_text(text.replace("\nVersion: ", "\nVersion: 9"), "utf-8")
    done = python("-m", "fencepost", "advise", "--help")
    assert done.returncode == 2, done.stderr
    assert "does not fit fencepost" in done.stderr
    assert "Traceback" not in done.stderr
