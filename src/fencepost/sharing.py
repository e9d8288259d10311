"""How many may share a lock: what ``shared`` and ``semaphore`` ask of a backend, and which backends can."""

from typing import Any

from fencepost import url
from fencepost.errors import ConfigError
from fencepost.locks import Core

EVERYBODY = 2**31 - 1
"""The limit of a shared lock: as many as like."""


def limit(core: Core[Any], permits: int = EVERYBODY) -> int:
    """How many may hold at once; ConfigError if that cannot be, or not on this backend."""
    if isinstance(permits, bool) or not isinstance(permits, int) or not 1 <= permits <= EVERYBODY:
        raise ConfigError(f"permits is a number from 1 to 2^31-1, not {permits!r}")
    if not core.backend.promises.shared:
        raise ConfigError(
            f"{core.backend.scheme}:// cannot promise shared locks and semaphores; "
            f"{', '.join(f'{scheme}://' for scheme in able())} can"
        )
    return permits


def able() -> list[str]:
    """The schemes of the installed backends that can, one each."""
    found: dict[str, str] = {}
    for scheme, target in url.SCHEMES.items():
        try:
            if url.find(scheme).promises.shared:
                found.setdefault(target, scheme)
        except ConfigError:  # its extra is not installed
            continue
    return list(found.values())
