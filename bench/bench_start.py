"""How long programs take to begin: the processor time of new interpreters, the least of many."""

import os
import sys
import tempfile
from pathlib import Path

from bench.harness import fact


def _spent(*command: str, times: int = 15) -> float:
    """Milliseconds of processor time; the least, for whatever else runs can only add to it."""
    least = float("inf")
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "FENCEPOST_URL": f"sqlite://{folder}/locks.db"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or each start compiles what was changed last
        for _ in range(times):
            child = os.posix_spawn(
                command[0],
                command,
                environment,
                file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
            )
            _, status, usage = os.wait4(child, 0)
            assert status == 0, command
            least = min(least, usage.ru_utime + usage.ru_stime)
    return 1000 * least


@fact("start: milliseconds of `import fencepost` above bare Python", aim=40)
def importing() -> float:
    return _spent(sys.executable, "-c", "import fencepost") - _spent(sys.executable, "-c", "")


@fact("start: milliseconds of `fencepost ls`, interpreter included", aim=120)
def listing() -> float:
    return _spent(str(Path(sys.executable).with_name("fencepost")), "ls")
