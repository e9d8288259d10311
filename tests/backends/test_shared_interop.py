"""Shares beside the locks of other clients: etcdctl lock, and kazoo's ReadLock and WriteLock."""

import secrets
from typing import Any

import fencepost
from fencepost import sync
from tests.backends.etcd.tools import LONG, Native
from tests.backends.zookeeper.tools import kazoo
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until


def test_etcdctl_waits_for_sharers_and_sharers_for_etcdctl(etcd_server: Endpoint) -> None:
    name = f"shared-{secrets.token_hex(6)}"
    with fencepost.connect(etcd_server.url, ttl=LONG) as locks:
        one, two = locks.shared(name).acquire(), locks.shared(name).acquire()
        with Native(etcd_server.url, name) as native:
            until(lambda: bool((s := locks.status(name)) and s.waiters), "the waiters are queued")
            got: list[sync.Lease] = []
            reader = background(lambda: got.append(locks.shared(name).acquire()))
            until(lambda: len(((s := locks.status(name)) and s.waiters) or ()) == 2, "the waiters are queued")
            assert one.release()
            assert two.release()
            until(native.has_it, "it has the lock")
            assert not got
            native.release()
            reader.join(PATIENCE)
            assert got[0].release()


def test_kazoos_readers_and_ours_share_and_its_writers_exclude_both(zookeeper_server: Endpoint) -> None:
    folder = secrets.token_hex(6)
    url = f"{zookeeper_server.url}/{folder}"
    with kazoo(zookeeper_server.url) as client, fencepost.connect(url, ttl=LONG) as locks:
        path = f"/{folder}/catalog"
        ours = locks.shared("catalog").acquire()
        theirs: Any = client.ReadLock(path, "reader")
        assert theirs.acquire(timeout=PATIENCE)
        status = locks.status("catalog")
        assert status is not None
        assert len(status.sharers) == 2
        writer: Any = client.WriteLock(path, "writer")
        writes = background(lambda: writer.acquire(timeout=PATIENCE))
        until(lambda: bool((s := locks.status("catalog")) and s.waiters), "the waiters are queued")
        assert locks.shared("catalog").try_acquire() is None, "it came after the writer"
        assert ours.release()
        assert not writer.is_acquired
        theirs.release()
        writes.join(PATIENCE)
        assert writer.is_acquired
        assert locks.shared("catalog").try_acquire() is None
        writer.release()
        again = locks.shared("catalog").try_acquire()
        assert again is not None
        assert again.release()
