"""etcd's tokens are its own revisions: what that means for a bump."""

import secrets

import pytest

import fencepost
from fencepost.errors import ConfigError
from tests.harness.servers import Endpoint


def test_a_bump_is_done_if_the_store_is_past_it_and_else_names_the_way(etcd_server: Endpoint) -> None:
    with fencepost.connect(etcd_server.url) as locks:
        lease = locks.acquire(secrets.token_hex(4))
        locks.bump(lease.name, above=lease.token)
        with pytest.raises(ConfigError, match="--bump-revision"):
            locks.bump(lease.name, above=2**60, force=True)
        assert lease.release()
