"""Users and passwords, certificates, and what the doctor says about a cluster."""

import asyncio
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

import fencepost
from fencepost.backend import Hold, Renewal
from fencepost.backends.etcd.rpc import Rpc
from fencepost.backends.etcd.watch import Watches
from fencepost.driver import run
from fencepost.errors import BackendError, ConfigError, NotAcquired
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.servers import QUICK_ETCD, Etcd, ask
from fencepost_lab.servers.processes import HOST
from tests.backends.etcd.tools import LONG, command, etcdctl, queued
from tests.conformance.faces import FACES, Client
from tests.harness.certificate import self_signed
from tests.harness.child import Child
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import GIVES_UP, PATIENCE, until, until_async


@pytest.fixture
def guarded() -> Iterator[Etcd]:
    """An etcd that asks who is there, and lets `me` see only `mine/`."""
    with Etcd(args=QUICK_ETCD) as server:
        guard(server)
        yield server


@pytest.fixture
def forgetful() -> Iterator[Etcd]:
    """Such an etcd, which forgets tokens after a second."""
    with Etcd(args=[*QUICK_ETCD, "--auth-token-ttl", "1"]) as server:
        guard(server)
        yield server


def guard(server: Etcd) -> None:
    """Have it ask who is there."""
    for words in (
        "user add root:top",
        "user grant-role root root",
        "role add part",
        "role grant-permission part --prefix=true readwrite mine/",
        "user add me:s3cret",
        "user grant-role me part",
        "auth enable",
    ):
        etcdctl(server.url, *words.split())


def url(server: Etcd, login: str) -> str:
    return f"etcd://{login}@{server.address}"


def test_a_user_locks_what_its_role_allows(guarded: Etcd) -> None:
    with fencepost.connect(url(guarded, "me:s3cret"), ttl=6) as locks:
        with locks.lock("mine/1") as lease:
            seen = lease.deadline
            until(lambda: lease.deadline > seen or lease.lost, "it is renewed")
            lease.check()
            assert locks.try_acquire("mine/1") is None
        with pytest.raises(BackendError, match="permission denied") as raised:
            locks.acquire("others/1")
        assert not raised.value.ambiguous


@pytest.mark.parametrize("login", ["me:wrong", "nobody:s3cret"])
def test_a_wrong_login_is_an_error_that_keeps_the_password_to_itself(guarded: Etcd, login: str) -> None:
    with fencepost.connect(url(guarded, login)) as locks, pytest.raises(BackendError) as raised:
        locks.acquire("mine/1")
    assert "user and password" in str(raised.value)
    assert login.partition(":")[2] not in str(raised.value)
    assert not raised.value.ambiguous


def test_no_login_where_one_is_needed_is_an_error(guarded: Etcd) -> None:
    with fencepost.connect(guarded.url) as locks, pytest.raises(BackendError):
        locks.acquire("mine/1")


def test_a_lock_that_may_no_longer_be_read_costs_no_other_its_renewal(guarded: Etcd) -> None:
    def role(*words: str) -> None:
        etcdctl(guarded.url, "--user", "root:top", "role", *words)

    role("grant-permission", "part", "--prefix=true", "readwrite", "theirs/")
    with fencepost.connect(url(guarded, "me:s3cret"), ttl=LONG) as locks:
        leases = [locks.acquire(f"{'theirs' if number == 3 else 'mine'}/{number}") for number in range(10)]
        role("revoke-permission", "part", "theirs/", "--prefix=true")
        locks.break_lock("mine/5")
        holds = [Hold(each.name, each._stored, each.token, each.ttl) for each in leases]
        expected = [Renewal.RENEWED] * 10
        expected[3], expected[5] = Renewal.UNKNOWN, Renewal.LOST
        assert run(locks._core.backend.renew(holds)) == expected
        with pytest.raises(BackendError, match="permission denied"):
            leases[3].renew()


def test_an_expired_login_is_renewed(forgetful: Etcd) -> None:
    with fencepost.connect(url(forgetful, "me:s3cret"), ttl=60) as locks:
        rpc = locks._core.backend._rpc  # type: ignore[attr-defined]
        assert locks.acquire("mine/1").release()
        first = rpc._login
        assert first
        # etcd drops a token that was not used for a second; each round waits longer than the last for that.
        waits = iter(range(1, 10))

        def renewed() -> bool:
            assert locks.acquire("mine/2", renew=False).ended.wait(next(waits)) is False
            assert locks.acquire("mine/1").release()
            assert locks.break_lock("mine/2")
            return bool(rpc._login != first)

        until(renewed, "it is renewed")


def forget_tokens(server: Etcd) -> None:
    """Have etcd forget every token of `me` now, as it does with one that was not used for its whole life."""
    wanted = command(server.url, "--user", "root:top", "user", "passwd", "me", "--interactive=false")
    subprocess.run(wanted, input="s3cret\n", text=True, check=True, capture_output=True)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections, and answers nothing."""
    with socket.create_server((HOST, 0), backlog=100) as listener:
        yield f"{HOST}:{listener.getsockname()[1]}"


@pytest.mark.parametrize("face", FACES)
async def test_a_member_that_does_not_answer_a_login_is_passed_over(guarded: Etcd, silent: str, face: str) -> None:
    # Each attempt at a member has an equal share of the timeout: 3 s, of which a login on a busy machine may take 2.
    members = [silent, *[guarded.address] * 19]
    client = Client(face, f"etcd://me:s3cret@{','.join(members)}?timeout={PATIENCE:g}s", ttl=LONG)
    assert await (await client.acquire("mine/1")).release()
    await client.close()


@pytest.mark.silence
@pytest.mark.parametrize("face", FACES)
async def test_a_login_that_is_not_answered_does_not_outlast_a_timeout(silent: str, face: str) -> None:
    client = Client(face, f"etcd://me:s3cret@{silent}?timeout={PATIENCE * 10:g}s", ttl=LONG)
    with pytest.raises((BackendError, NotAcquired)) as raised:
        await asyncio.wait_for(client.acquire("mine/1", timeout=0.5), PATIENCE)
    if face == "blocking":
        assert isinstance(raised.value, BackendError)
        assert not raised.value.ambiguous, "only a login was sent"
    await client.close()


@pytest.mark.silence
@pytest.mark.parametrize("face", FACES)
async def test_a_login_given_up_by_one_with_little_time_is_tried_by_another(guarded: Etcd, face: str) -> None:
    with Proxy(guarded.port) as proxy:
        client = Client(face, f"etcd://me:s3cret@{proxy.address}?timeout={PATIENCE:g}s", ttl=LONG)
        rpc = client.raw._core.backend._rpc
        proxy.cut()
        hasty = asyncio.ensure_future(client.acquire("mine/1", timeout=0.1, ttl=LONG / 2))
        # If this process stands still meanwhile, the hasty one is over: then the other's login is the first to arrive.
        await until_async(lambda: rpc._entering is not None or hasty.done(), "it logs in")
        patient = asyncio.ensure_future(client.acquire("mine/2", timeout=PATIENCE))
        with pytest.raises((BackendError, NotAcquired)):
            await hasty
        proxy.heal()
        assert await (await patient).release()
        assert rpc.channels.dial == 0, "nobody hung up on a server that was given too little time"
        await client.close()


async def test_all_who_ask_at_once_share_one_login(guarded: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """etcd takes a tenth of a second to check a password; and a login that expired fails for all at once."""
    logins = 0
    log_in = Rpc._log_in

    async def counted(self: Rpc, member: int, timeout: float) -> None:
        nonlocal logins
        logins += 1
        await log_in(self, member, timeout)

    monkeypatch.setattr(Rpc, "_log_in", counted)
    for face in FACES:
        client = Client(face, url(guarded, "me:s3cret"), ttl=60)
        for _ in range(2):
            before = logins
            leases = await asyncio.gather(*(client.acquire(f"mine/{each}") for each in range(20)))
            await asyncio.gather(*(lease.release() for lease in leases))
            assert 1 <= logins - before <= 5, "one for requests, one for each stream; perhaps once more, of a stream"
            forget_tokens(guarded)
        await client.close()
    before, client = logins, Client("asyncio", url(guarded, "me:wrong"))
    refused = await asyncio.gather(*(client.acquire(f"mine/{each}") for each in range(20)), return_exceptions=True)
    assert all("user and password" in str(error) for error in refused)
    assert logins - before <= 2, "nor does each try a wrong password"
    await client.close()


@pytest.mark.parametrize("face", FACES)
async def test_a_waiter_whose_watch_was_refused_for_its_old_login_is_woken(
    guarded: Etcd, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream keeps the login that it was opened with, long after single requests have a new one."""
    refused: list[str] = []
    heard = Watches._heard

    def noticed(watches: Watches, stream: Any, answer: Any) -> None:
        if answer.created and answer.canceled:
            refused.append(answer.cancel_reason)
        heard(watches, stream, answer)

    monkeypatch.setattr(Watches, "_heard", noticed)
    with fencepost.connect(url(guarded, "me:s3cret"), ttl=LONG) as others:
        client = Client(face, url(guarded, "me:s3cret"), ttl=LONG)
        held = others.acquire("mine/1")
        first = asyncio.ensure_future(client.acquire("mine/1"))
        await until_async(lambda: bool(client.raw._core.backend._watches._watches), "it watches", watching=[first])
        assert await asyncio.to_thread(held.release)
        assert await (await first).release()
        held = await asyncio.to_thread(others.acquire, "mine/1")
        assert not refused
        forget_tokens(guarded)
        waiting = asyncio.ensure_future(client.acquire("mine/1"))
        await until_async(lambda: bool(refused), "its watch is refused", watching=[waiting])
        assert "auth token" in refused[0]
        assert await asyncio.to_thread(held.release)
        lease = await asyncio.wait_for(waiting, PATIENCE)
        assert len(refused) == 1, "the next stream has a login that etcd knows"
        assert await lease.release()
        await client.close()


def test_who_looks_on_looks_again_when_its_watch_was_refused(guarded: Etcd) -> None:
    with fencepost.connect(url(guarded, "me:s3cret"), ttl=LONG) as locks:
        lease = locks.acquire("mine/1")
        changed = locks._core.backend.changed

        def watched() -> bool:
            return bool(locks._core.backend._watches._watches)  # type: ignore[attr-defined]

        first = background(lambda: run(changed("mine/1", lease.token)))
        until(watched, "it watches", watching=[first])
        assert lease.release()
        first.result()
        lease = locks.acquire("mine/1")
        forget_tokens(guarded)
        background(lambda: run(changed("mine/1", lease.token))).result()


@pytest.mark.parametrize("face", FACES)
async def test_a_login_is_used_from_when_etcd_asks_for_one(face: str) -> None:
    with Etcd(args=QUICK_ETCD) as server:
        client = Client(face, url(server, "me:s3cret"), ttl=LONG)
        assert await (await client.acquire("mine/1")).release(), "nobody asks yet"
        guard(server)
        with fencepost.connect(url(server, "me:s3cret"), ttl=LONG) as others:
            held = others.acquire("mine/2")
            waiting = asyncio.ensure_future(client.acquire("mine/2"))
            await until_async(lambda: queued(others, "mine/2", 1), "it waits", watching=[waiting])
            assert held.release()
            lease = await asyncio.wait_for(waiting, PATIENCE)
            assert await lease.release()
        await client.close()


def test_a_login_nobody_asks_for_does_no_harm(etcd_server: Endpoint) -> None:
    address = etcd_server.url.partition("://")[2]
    with fencepost.connect(f"etcd://me:s3cret@{address}") as locks:
        assert locks.acquire(secrets.token_hex(4)).release()


class SecureEtcd(Etcd):
    """An etcd that speaks TLS to its clients, and asks them for a certificate."""

    def prepare(self) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.folder / "ca.pem")
        for whose in ("server", "client"):
            made = authority.issue_cert("127.0.0.1", "localhost")
            made.private_key_pem.write_to_path(self.folder / f"{whose}.key")
            made.cert_chain_pems[0].write_to_path(self.folder / f"{whose}.pem")

    def command(self) -> list[str]:
        plain = [part.replace(f"http://{self.address}", f"https://{self.address}") for part in super().command()]
        files = {"cert-file": "server.pem", "key-file": "server.key", "trusted-ca-file": "ca.pem"}
        options = [part for option, file in files.items() for part in (f"--{option}", str(self.folder / file))]
        return [*plain, *options, "--client-cert-auth"]

    def ping(self) -> bool:
        ask(self.port, b"\x16\x03\x01\x00\x00")
        return True


def test_certificates_open_the_way(tmp_path: Path) -> None:
    with SecureEtcd() as server:
        ca, cert, key = (server.folder / each for each in ("ca.pem", "client.pem", "client.key"))
        with fencepost.connect(f"{server.url}?ca={ca}&cert={cert}&key={key}") as locks:
            assert locks.acquire("lock").release()
        with fencepost.connect(f"{server.url}?ca={ca}&timeout=500ms") as locks, pytest.raises(BackendError):
            locks.acquire("lock")
        with fencepost.connect(f"{server.url}?timeout=500ms") as locks, pytest.raises(BackendError):
            locks.acquire("lock")


@pytest.mark.parametrize(
    "wrong",
    ["etcd://", "etcd://host/path", "etcd://host?ca=/nowhere.pem", "etcd://host?tls=maybe", "etcd://host?colour=red"],
)
def test_a_url_that_cannot_be_meant_is_refused_at_once(wrong: str) -> None:
    with pytest.raises(ConfigError):
        fencepost.connect(wrong)


def test_the_doctor_tells_members_limits_and_risks(etcd_server: Endpoint, etcd_cluster: Endpoint) -> None:
    for endpoint in (etcd_server, etcd_cluster):
        with fencepost.connect(endpoint.url) as locks:
            findings = run(locks._core.backend.doctor())
        told = "\n".join(f"{each.level} {each.what}: {each.means}" for each in findings)
        assert "runs etcd 3." in told
        assert "leader" in told
        assert "shortest ttl is 1 s" in told
        assert "--bump-revision" in told
        if "," not in endpoint.url:
            assert "risk the cluster has one member" in told
        else:
            assert "ok the cluster has 3 members" in told


@pytest.mark.parametrize(("host", "exposed"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_the_doctor_tells_of_a_password_in_the_clear(etcd_server: Endpoint, host: str, exposed: bool) -> None:
    # A client that connects to 0.0.0.0 comes back to this machine; here it stands for any address.
    port = etcd_server.url.rpartition(":")[2]
    with fencepost.connect(f"etcd://me:s3cret@{host}:{port}") as locks:
        findings = run(locks._core.backend.doctor())
    told = [each.what for each in findings if each.level == "risk" and "clear" in each.what]
    assert told == (["the password goes to 0.0.0.0 in the clear"] if exposed else [])


def test_the_doctor_names_members_that_do_not_answer(etcd_server: Endpoint) -> None:
    port = os.getpid() % 1000 + 1  # nobody listens below 1024 but root's own servers
    address = etcd_server.url.partition("://")[2]
    with fencepost.connect(f"etcd://{address},127.0.0.2:{port}?timeout={GIVES_UP:g}s") as locks:
        findings = run(locks._core.backend.doctor())
    assert any(each.level == "warn" and f"127.0.0.2:{port} does not answer" in each.what for each in findings)


def test_a_key_that_may_no_longer_be_deleted_keeps_no_other_from_being_deleted(guarded: Etcd) -> None:
    def there(prefix: str) -> bool:
        return bool(etcdctl(guarded.url, "--user", "root:top", "get", "--prefix", prefix).get("kvs"))

    with fencepost.connect(url(guarded, "me:s3cret"), ttl=LONG) as locks:
        leases = [locks.acquire(name, renew=False) for name in ("mine/stuck", "mine/open/1")]
        for words in (
            "grant-permission part --prefix=true readwrite mine/open/",
            "revoke-permission part --prefix=true mine/",
        ):
            etcdctl(guarded.url, "--user", "root:top", "role", *words.split())
        assert there("mine/open/")
        backend: Any = locks._core.backend
        for lease in leases:
            backend._sessions.find(lease._stored).deadline = backend.driver.now()
        backend._sessions._service.wake()
        until(lambda: not there("mine/open/"), "the other one is deleted", poll=0.3)
        assert there("mine/stuck/")


def test_a_key_that_may_no_longer_be_deleted_ends_with_its_session(guarded: Etcd) -> None:
    def key() -> Any:
        return etcdctl(guarded.url, "--user", "root:top", "get", "--prefix", "mine/stuck/").get("kvs")

    with fencepost.connect(url(guarded, "me:s3cret"), ttl=10) as locks:
        lease = locks.acquire("mine/stuck", renew=False)
        etcdctl(guarded.url, "--user", "root:top", "role", "revoke-permission", "part", "--prefix=true", "mine/")
        assert key(), "it is there"
        sessions = locks._core.backend._sessions  # type: ignore[attr-defined]
        sessions.find(lease._stored).deadline -= 2 * lease.ttl  # so long ago it was to be deleted
        sessions._service.wake()
        until(lambda: not key(), "it is not kept alive forever", poll=0.3)


def test_a_certificate_whose_key_is_in_the_same_file_is_used(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    program = """
import sys, fencepost
with fencepost.connect(f"etcd://127.0.0.1:1?cert={sys.argv[1]}&timeout=200ms") as locks:
    try:
        locks.acquire("a", timeout=0)
    except fencepost.BackendError as error:
        print("said", error)
"""
    with Child.python("-c", program, both) as child:
        child.succeed()
        assert any(line.startswith("said etcd at 127.0.0.1:1") for line in child.output)
