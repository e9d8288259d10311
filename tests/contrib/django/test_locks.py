"""The locks of a process: shared by its threads, fit to be forked, checked, shown, and in the place of cache locks."""

from __future__ import annotations

import json
import secrets
import threading
from io import StringIO
from pathlib import Path

import pytest
import redis

from fencepost import ConfigError, LeaseLost, NotAcquired
from fencepost.errors import BackendError
from tests.contrib.django import site
from tests.harness.interrupts import Interrupter, innermost
from tests.harness.isolated import in_fork, isolated
from tests.harness.servers import Endpoint


@isolated
async def test_threads_share_one_and_a_forked_worker_has_its_own(redis_server: Endpoint, tmp_path: Path) -> None:
    site.begin(str(tmp_path / "site.sqlite3"), {"URL": f"{redis_server.url}?prefix={secrets.token_hex(4)}:"})

    from fencepost.contrib.django import cache_lock, conf, fenced, locks

    made: list[object] = []
    start = threading.Barrier(8)

    def first_use() -> None:
        start.wait()
        made.append(conf.current().locks)

    threads = [threading.Thread(target=first_use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(map(id, made))) == 1

    lease = locks.acquire("report")  # as a module does that gunicorn --preload imports

    cached = cache_lock("cached", timeout=30)
    assert cached.acquire()

    async def worker() -> tuple[bool, str | None, int]:
        site.migrate()
        assert (cached.owned(), cached.acquire(blocking=False)) == (False, False), "the parent holds it"
        with pytest.raises(LeaseLost, match="parent process"), fenced("report", lease):
            pass
        with locks.lock("other", timeout=30) as own, fenced("other"):
            return locks.try_acquire("report") is None, lease.reason, own.token

    kept, reason, token = await in_fork(worker, 30)
    assert (kept, reason) == (True, "forked")
    assert token > lease.token
    lease.check()
    assert lease.release()
    assert cached.owned()
    cached.release()


@isolated
def test_checks_name_what_is_wrong_and_the_command_shows_and_breaks(tmp_path: Path, redis_server: Endpoint) -> None:
    store = f"sqlite:{tmp_path / 'locks.sqlite3'}"
    site.begin(str(tmp_path / "site.sqlite3"), {"URL": store})

    import os

    from django.core.checks import run_checks
    from django.core.management import CommandError, call_command
    from django.test import override_settings

    from fencepost.contrib.django import locks
    from fencepost.hooks.log import Log

    os.environ.pop("FENCEPOST_URL", None)

    def said(setting: object, **options: bool) -> list[str]:
        with override_settings(FENCEPOST=setting):
            found = run_checks(tags=["fencepost"], include_deployment_checks=options.get("deploy", False))
            return [f"{each.id} {each.msg}" for each in found]

    def complaint(setting: object) -> str:
        (only,) = said(setting)
        return only

    assert said({"URL": store, "TTL": 30, "QUEUE_LIMIT": 5, "HOOKS": [Log()], "POLICY": "canary:10%"}) == []
    flag = {"URL": store, "POLICY": lambda: pytest.fail("a check asks no flag")}
    assert said(flag) == []
    assert "E001 settings.FENCEPOST: it is a dict" in complaint(["redis://localhost"])
    assert "E002 settings.FENCEPOST['url']: there is no such key; did you mean 'URL'?" in complaint(
        {"URL": store, "url": 1}
    )
    assert "did you mean 'redis://'" in complaint({"URL": "rediz://localhost"})
    hidden = complaint({"URL": "redis://app:hunter2@host:port/0"})
    assert "settings.FENCEPOST['URL']" in hidden
    assert "hunter2" not in hidden
    assert "a URL is a str" in complaint({"URL": None})
    assert "the URL is empty" in complaint({"URL": ""})
    assert "ttl must be greater than 0" in complaint({"URL": store, "TTL": 0})
    assert "E001 settings.FENCEPOST: consul:// takes a ttl from 10" in complaint({"URL": "consul://c", "TTL": 3})
    assert "a number from 0 on, not True" in complaint({"URL": store, "QUEUE_LIMIT": True})
    assert "such as [Log()]" in complaint({"URL": store, "HOOKS": [Log]})
    assert "a fencepost.signing.Keys, not a str" in complaint({"URL": store, "KEYS": "secret"})
    secret = complaint({"URL": store, "METRICS_TOKEN": "too short"})
    assert "E002 settings.FENCEPOST['METRICS_TOKEN']: it is a secret of at least 16 ASCII characters" in secret
    assert "too short" not in secret
    assert "no mode 'strickt'" in complaint({"URL": store, "POLICY": "strickt"})
    assert "E002 settings.FENCEPOST['POLICY']: it is a mode" in complaint({"URL": store, "POLICY": 3})
    assert "W001" in complaint({})
    assert said({"URL": "memory://"}) == []
    (warning,) = said({"URL": "memory://"}, deploy=True)
    assert "W002" in warning
    os.environ["FENCEPOST_URL"] = store
    assert said({}) == []
    os.environ["FENCEPOST_URL"] = ""
    assert "$FENCEPOST_URL is empty" in complaint({})

    def run(*words: str) -> str:
        out = StringIO()
        call_command("fencepost", *words, stdout=out)
        return out.getvalue()

    assert run("ls") == ""
    lease = locks.acquire("report/1")
    locks.acquire("other")
    titles, row = run("ls", "report").splitlines()
    assert titles.split() == ["NAME", "TOKEN", "LEFT", "WAITING", "HOLDER"]
    assert row.split()[:2] == ["report/1", str(lease.token)]
    assert f"[{os.getpid()}]" in row, "what its process tells of itself"
    (fact,) = json.loads(run("ls", "report", "--json"))
    assert (fact["name"], fact["token"]) == ("report/1", lease.token)
    assert run("break", "report/1").startswith("ended: report/1  token ")
    with pytest.raises(LeaseLost):
        lease.renew()
    with pytest.raises(CommandError, match="nobody to take it from") as error:
        run("break", "report/1")
    assert error.value.returncode == 1
    assert json.loads(run("break", "other", "--json"))["name"] == "other"
    with pytest.raises(CommandError, match="lock name cannot be empty") as error:
        run("break", "")
    assert error.value.returncode == 2
    with pytest.raises(CommandError):
        run("steal", "other")
    with override_settings(FENCEPOST={"URL": "redis://127.0.0.1:1/0"}), pytest.raises(CommandError) as error:
        run("ls")
    assert error.value.returncode == 69
    assert isinstance(error.value.__cause__, BackendError)


@isolated
def test_a_cache_lock_is_what_users_of_django_redis_know(redis_server: Endpoint, tmp_path: Path) -> None:
    site.begin(str(tmp_path / "site.sqlite3"), {"URL": f"{redis_server.url}?prefix="})
    site.migrate()

    from django.core.cache import cache

    from fencepost.contrib.django import cache_lock, fenced, locks

    mine = secrets.token_hex(4)
    key = cache.make_key(mine)  # where django-redis keeps it
    with redis.Redis.from_url(redis_server.url) as client:
        theirs = client.lock(key, timeout=30)
        assert theirs.acquire()
        ours = cache_lock(key, timeout=30, blocking=False)
        assert (ours.locked(), ours.owned(), ours.acquire()) == (True, False, False)
        with pytest.raises(NotAcquired), cache_lock(key, blocking_timeout=0.01):
            pass
        theirs.release()
        assert ours.acquire(sleep=0.1, blocking=True, blocking_timeout=5)
        assert not theirs.acquire(blocking=False), "old and new workers exclude each other"
        with pytest.raises(ConfigError, match="held here already"):
            ours.acquire()
        with fenced(key):  # finds the lease
            pass
        with fenced("else", ours.lease):
            pass
        ours.release()
        assert theirs.acquire(blocking=False)
        theirs.release()

    with pytest.raises(ConfigError, match="nothing to release"):
        ours.release()
    with pytest.raises(ConfigError, match="no lease"):
        _ = ours.lease
    with cache_lock(mine, timeout=30) as held:
        assert (held.name, held.lease.ttl, held.owned(), held.locked()) == (mine, 30, True, True)
        with cache_lock(mine, version=2, blocking=False) as other:
            assert other.name == f"{mine}:2"
        elsewhere: list[bool] = []
        thread = threading.Thread(target=lambda: elsewhere.append(held.owned()))
        thread.start()
        thread.join()
        assert elsewhere == [False], "each thread has its own"
    assert not held.locked()

    def lose() -> str:
        locks.break_lock(mine)
        with pytest.raises(LeaseLost):
            lost.lease.renew()
        return "lost"

    lost = cache_lock(mine, timeout=30)
    with pytest.raises(LeaseLost), lost:
        lose()
    with pytest.raises(KeyError), lost:
        dict[str, str]()[lose()]  # the body's own error comes first
    assert lost.acquire()
    first = lost.lease
    lose()
    assert lost.acquire(blocking=False), "one that was lost can be acquired again"
    assert lost.lease.token > first.token
    lost.release()

    anywhere = cache_lock(mine, timeout=30, thread_local=False)
    assert anywhere.acquire()
    thread = threading.Thread(target=anywhere.release)
    thread.start()
    thread.join()
    assert not anywhere.locked()
    for wrong in ({"timeout": 0}, {"timeout": "30"}, {"blocking_timeout": -1}):
        with pytest.raises(ConfigError):
            cache_lock(mine, **wrong).acquire()
    with pytest.raises(ConfigError):
        cache_lock("").acquire()
    assert locks.status(mine) is None


@isolated
def test_an_interrupt_at_every_bytecode_leaves_no_cache_lock(tmp_path: Path) -> None:
    site.begin(str(tmp_path / "site.sqlite3"), {"URL": "memory://"})

    from fencepost.contrib.django import CacheLock, cache_lock, locks

    lock = cache_lock("cached", timeout=300, blocking=False)

    def acquire_and_release() -> None:
        assert lock.acquire()
        held.append(True)  # from here on it is the caller's
        lock.release()

    def block() -> None:
        with lock:
            pass

    for call, step in ((block, 1), (acquire_and_release, 5)):  # most of their steps are the same
        came = 0
        for at in range(0, 100_000, step):
            held: list[bool] = []
            interrupter = Interrupter(at)
            try:
                interrupter.run(call)
            except KeyboardInterrupt as error:
                came += 1
                if call is block and innermost(error) in (CacheLock.__exit__.__code__, call.__code__) and lock.owned():
                    lock.release()  # Python's own gap: between the end of a block and the first step of its __exit__
                elif held and lock.owned():
                    lock.release()
            assert locks.status("cached") is None, f"after an interrupt at place {at} of {call.__name__}"
            assert not lock.owned()
            if not interrupter.sent:
                break
        assert came > 20, "it was interrupted, at many places"
