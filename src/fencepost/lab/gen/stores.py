"""Where held locks can be laid down, and what such a store says of itself."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

from fencepost.address import Address, masked, parse
from fencepost.errors import ConfigError
from fencepost.lab.gen.keys import Batch
from fencepost.registry import find

Facts: TypeAlias = dict[str, int]
"""What a store says of its own size."""


class Laid(NamedTuple):
    """A batch that the store has confirmed: how many locks it has, and how many of them were free."""

    locks: int
    free: int


class Ground(Protocol):
    """A store that locks are laid into, in order. ``size`` names the fact that grows with each lock."""

    size: str

    def progress(self, seed: int) -> int:
        """How many locks of the seed's list were laid, and confirmed, and have not all expired since."""
        ...

    def lay(self, batches: Iterable[Batch], seed: int, ttl: float) -> Iterator[Laid]:
        """Lay down batches, several under way at once; each is told of when it is confirmed."""
        ...

    def facts(self) -> Facts: ...

    def close(self) -> None: ...


def ground(url: str) -> Ground:
    """The store behind a URL; ConfigError if locks cannot be laid there."""
    address: Address = parse(url)
    if address.scheme in ("redis", "rediss", "redis+unix", "valkey", "valkeys"):
        find(address.scheme)  # names the pip command if the client library is missing
        from fencepost.lab.gen.redis import RedisGround

        return RedisGround(address)
    if address.scheme == "etcd":
        find(address.scheme)
        from fencepost.lab.gen.etcd import EtcdGround

        return EtcdGround(address)
    raise ConfigError(
        "gen lays locks into one Redis (redis://, rediss://, redis+unix://) or into etcd (etcd://), "
        f"not into {masked(url)!r}"
    )
