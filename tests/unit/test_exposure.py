"""Which hosts are taken for other machines."""

import pytest

from fencepost.address import parse
from fencepost.backends.exposure import examine, is_remote


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1", "", "/run/postgresql", "@abstract"])
def test_what_stays_on_this_machine(host: str) -> None:
    assert not is_remote(host)


@pytest.mark.parametrize("host", ["db", "localhost.evil.example", "10.0.0.1", "0.0.0.0", "::", "fe80::1"])
def test_what_may_leave_it(host: str) -> None:
    assert is_remote(host)


@pytest.mark.parametrize(
    ("url", "encrypted", "named"),
    [
        ("etcd://u:p@a,127.0.0.1,b", False, "a, b"),
        ("etcd://u:p@a", True, ""),
        ("etcd://a", False, ""),
        ("etcd://u:p@localhost", False, ""),
    ],
)
def test_only_a_password_in_the_clear_to_another_machine_is_a_risk(url: str, encrypted: bool, named: str) -> None:
    told = [each.what for each in examine(parse(url), encrypted=encrypted, remedy="use tls=1")]
    assert told == ([f"the password goes to {named} in the clear"] if named else [])
