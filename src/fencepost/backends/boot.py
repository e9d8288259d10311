"""Which boot of the host this is: a boot-time deadline means nothing in another one."""

import functools
import subprocess
from pathlib import Path


@functools.cache
def boot_id() -> str:
    """A string that is new after every boot of this host, and the same for all its processes until then."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        called = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True)
        return called.stdout.strip()
