"""Which store is behind a URL, if locks can be laid down there."""

from fencepost.address import Address, masked, parse
from fencepost.errors import ConfigError
from fencepost.registry import find
from fencepost_lab.gen.ground import Ground


def ground(url: str) -> Ground:
    """The store behind a URL; ConfigError if locks cannot be laid there."""
    address: Address = parse(url)
    if address.scheme in ("redis", "rediss", "redis+unix", "valkey", "valkeys"):
        find(address.scheme)  # names the pip command if the client library is missing
        from fencepost_lab.gen.redis import RedisGround

        return RedisGround(address)
    if address.scheme == "etcd":
        find(address.scheme)
        from fencepost_lab.gen.etcd import EtcdGround

        return EtcdGround(address)
    raise ConfigError(
        "gen lays locks into one Redis (redis://, rediss://, redis+unix://) or into etcd (etcd://), "
        f"not into {masked(url)!r}"
    )
