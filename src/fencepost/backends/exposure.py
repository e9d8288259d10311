"""Whether passwords and locks cross a network in the clear, for the doctors of stores."""

import ipaddress

from fencepost.address import Address
from fencepost.backend import Finding


def is_remote(host: str) -> bool:
    """Whether a host may be another machine: neither a Unix socket nor a loopback address."""
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def examine(address: Address, *, encrypted: bool, remedy: str) -> list[Finding]:
    """A risk if the URL's password goes to another machine unencrypted; ``remedy`` says which options encrypt."""
    remote = sorted({host for host, _ in address.hosts if is_remote(host)})
    if encrypted or (address.password is None and address.login is None) or not remote:
        return []
    return [
        Finding(
            "risk",
            f"the password goes to {', '.join(remote)} in the clear",
            f"who listens on the way can take and break every lock; {remedy}",
        )
    ]
