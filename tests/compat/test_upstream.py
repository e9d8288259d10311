"""redis-py's own tests of its Lock, from its source distribution, on ours: one import of each file is changed.

None is left out: the compat lock differs in no point that they look at. Two in each file leave a machine less than a
second for a step, and get more.
"""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import redis

from fencepost_lab.servers import HOST
from fencepost_lab.servers import Redis as Server
from tests import ROOT
from tests.harness.child import Child
from tests.harness.servers import unavailable

pytestmark = pytest.mark.redis

IMPORTS = {
    "test_lock.py": ("from redis.lock import Lock", "from fencepost.compat.redis import Lock"),
    "test_asyncio/test_lock.py": ("from redis.asyncio.lock import Lock", "from fencepost.compat.redis.aio import Lock"),
}


LONGER = (
    (re.compile(r"timeout=0\.1(, raise_on_release_error=\w+\n\s*\) as lock:)"), r"timeout=300\1", 2),
    (re.compile(r"10000( < \(?(?:await )?r\.pttl\(\"foo\"\)\)? <= (?:old_ttl \+ )?10500)"), r"5000\1", 2),
)


def source() -> Path:
    """The source distribution of the redis-py that is installed, downloaded once."""
    version = redis.__version__
    folder = ROOT / ".cache" / "redis-py"
    archive = folder / f"redis-{version}.tar.gz"
    if not archive.exists():
        wanted = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", folder, f"redis=={version}")
        with Child.python("-m", "pip", "download", *wanted, stdin=subprocess.DEVNULL, merged=True) as pip:
            if pip.wait() or not archive.exists():
                unavailable(f"the source of redis-py {version} cannot be downloaded: {' '.join(pip.output[-2:])}")
    return archive


@pytest.mark.experiment
def test_redis_pys_own_tests_pass_with_one_import_changed(own_redis: Server, tmp_path: Path) -> None:
    with tarfile.open(source()) as archive:
        wanted = [each for each in archive if re.match(r"[^/]+/(tests/|pyproject\.toml)", each.name)]
        archive.extractall(tmp_path, wanted, filter="data")
    (folder,) = tmp_path.iterdir()
    for name, (before, after) in IMPORTS.items():
        path = folder / "tests" / name
        text = path.read_text()
        assert text.count(before) == 1
        text = text.replace(before, after)
        for hasty, patient, count in LONGER:
            text, found = hasty.subn(patient, text)
            assert found == count, hasty.pattern
        path.write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:schemathesis",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    command += ["-o", "filterwarnings=", "-o", "addopts=", "--redis-url", f"redis://{HOST}:{own_redis.port}/0"]
    command += [f"tests/{name}" for name in IMPORTS]
    paths = f"{ROOT / 'src'}:{ROOT / 'lab' / 'src'}"
    kept = {"PYTHONPATH": paths, "PYTEST_ADDOPTS": "", "FENCEPOST_AUDIT": str(tmp_path / "audit.jsonl")}
    with Child(command, cwd=folder, env=kept, stdin=subprocess.DEVNULL, merged=True) as tests:
        status = tests.wait(120)
    assert status == 0, "\n".join(tests.output[-60:])
    passed = re.search(r"(\d+) passed", tests.output[-1])
    assert passed, tests.output[-1]
    assert int(passed[1]) >= 80
    assert "failed" not in tests.output[-1]
    assert "skipped" not in tests.output[-1]
    assert (tmp_path / "audit.jsonl").read_text().count('"kind":"acquired"') >= 50, "they ran on our lock"
