"""`python -m bench.resource_service KIND`: the resource's own server, over a store that is measured.

KIND is batched (as shipped), unbatched (each write commits by itself) or nowhere (answers without storing).
"""

import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

from fencepost.events import Hook
from fencepost.lease import Access
from fencepost.resource import serve
from fencepost.resource.ledger import Found
from fencepost.resource.store import Store, Written, opener


class Nowhere:
    """Looks like a store, and keeps nothing."""

    def require(self, key: str, offer: Access | None) -> None:
        pass

    async def write(self, key: str, data: bytes, offer: Access | None, *, gone: object = None) -> Written:
        return Written(False, None if offer is None else offer.stamp)

    async def read(self, key: str, *, gone: object = None) -> Found:
        return Found(None, None)

    async def check(self) -> None:
        pass

    def close(self) -> None:
        pass


def opening(kind: str) -> Callable[[serve.Options, Iterable[Hook]], Store]:
    """What makes the store of a kind."""
    return {
        "batched": serve.open_store,
        "unbatched": lambda options, hooks: Store(opener(options.store), hooks=hooks, group=1),
        "nowhere": lambda options, hooks: cast(Store, Nowhere()),
    }[kind]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = serve.Options(port=0, timeout=600, store=Path(folder) / "store.sqlite3")
        serve.serve(options, ready=lambda sock: print(sock.getsockname()[1], flush=True), opening=opening(sys.argv[1]))


if __name__ == "__main__":
    main()
