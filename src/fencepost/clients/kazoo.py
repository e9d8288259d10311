"""kazoo's client, for ZooKeeper."""

from typing import Any

from fencepost.address import Address
from fencepost.driver import Driver

_TLS = ("use_ssl", "verify_certs", "check_hostname", "certfile", "keyfile", "keyfile_password", "ca")


def client(client: Any, driver: Driver) -> Address:
    """The address of a KazooClient's servers; the locks are below its chroot."""
    settings = {name: getattr(client, name) for name in _TLS}
    sasl = client._connection.sasl_options
    return Address(
        "zookeeper",
        hosts=tuple((host, int(port)) for host, port in client.hosts),
        path=client.chroot or "",
        given={
            "client": settings | {"auth_data": list(client.auth_data)},
            "acl": client.default_acl,
            "sasl": None if sasl is None else dict(sasl),  # a copy: our connection changes it
        },
    )
