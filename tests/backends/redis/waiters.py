"""Many waiters in one process: ``python -m tests.backends.redis.waiters URL NAME COUNT TTL``.

Prints one line per grant and releases at once. It is made to be killed.
"""

import asyncio
import sys

from fencepost import aio
from tests.harness.child import Child


async def main(url: str, name: str, count: int, ttl: float) -> None:
    async with aio.connect(url, ttl=ttl) as locks:

        async def one(number: int) -> None:
            async with locks.lock(name) as lease:
                print(number, lease.token, flush=True)

        await asyncio.gather(*map(one, range(count)))


class Waiters:
    """Such a process; killed with this one."""

    def __init__(self, url: str, name: str, count: int, ttl: float = 300.0) -> None:
        self._child = Child.python("-m", "tests.backends.redis.waiters", url, name, count, ttl)
        self.check = self._child.check

    def kill(self) -> list[str]:
        """SIGKILL it; the grants it had until then."""
        self._child.close()
        return self._child.output


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
