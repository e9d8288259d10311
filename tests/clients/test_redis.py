"""Redis behind credentials that change, and behind a client of redis-py: its servers, users, TLS and names."""

import asyncio
import queue
import secrets
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

import fencepost
from fencepost import aio, credentials
from fencepost.clients import redis as clients
from fencepost.errors import BackendError, ConfigError
from fencepost_lab.servers import Redis
from fencepost_lab.servers.processes import HOST
from fencepost_lab.servers.redis_groups import Independent, Watcher
from tests.clients.rotation import Told, goes_on, renewed
from tests.conformance.faces import FACES, Client
from tests.harness.certificate import self_signed
from tests.harness.servers import Endpoint, running
from tests.harness.waiting import GIVES_UP, until_async

ODD = "p@ss:/?#[]% ☃\n'\""


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with running(Redis(args=["--save", ""])) as started:
        yield started


@pytest.fixture
def admin(server: Redis) -> Iterator[Any]:
    with redis.Redis(port=server.port, decode_responses=True) as client:
        yield client
        client.flushall()
        client.execute_command("ACL", "DELUSER", "app")


def user(admin: Any, password: str) -> tuple[str, str]:
    admin.execute_command("ACL", "SETUSER", "app", "resetpass", "on", f">{password}", "~*", "&*", "+@all")
    return "app", password


def module(face: str) -> Any:
    return redis if face == "blocking" else redis.asyncio


async def close(client: Any) -> None:
    if hasattr(client, "aclose"):
        await client.aclose()
    else:
        client.close()


class Provider(redis.CredentialProvider):
    """As those of IAM and Entra are: a new token for each connection."""

    def __init__(self, told: Told) -> None:
        self.told = told

    def get_credentials(self) -> Any:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()  # it may block
        return self.told()


class AsyncProvider(Provider):
    async def get_credentials_async(self) -> Any:
        return await self.told.awaited()


# Credentials


@pytest.mark.parametrize("face", FACES)
async def test_credentials_are_replaced_while_a_listener_is_connected(server: Redis, admin: Any, face: str) -> None:
    told = Told(user(admin, ODD))

    def rotate() -> tuple[str, str]:
        found = user(admin, "next")
        assert admin.execute_command("CLIENT", "KILL", "USER", "app") >= 2
        return found

    await goes_on(server.url, face, told, rotate)


@pytest.mark.parametrize("face", FACES)
async def test_credentials_are_replaced_in_a_cluster(redis_cluster: Endpoint, face: str) -> None:
    ports = [int(place.rpartition(":")[2]) for place in redis_cluster.url.partition("://")[2].split(",")]
    name = f"app-{secrets.token_hex(4)}"

    def everywhere(*command: str) -> list[Any]:
        answers = []
        for port in ports:
            with redis.Redis(port=port) as client:
                answers.append(client.execute_command(*command))
        return answers

    def change(password: str) -> tuple[str, str]:
        everywhere("ACL", "SETUSER", name, "resetpass", "on", f">{password}", "~*", "&*", "+@all")
        return name, password

    def rotate() -> tuple[str, str]:
        found = change("next")
        assert sum(everywhere("CLIENT", "KILL", "USER", name)) >= 2
        return found

    await goes_on(redis_cluster.url, face, Told(change(ODD)), rotate)
    everywhere("ACL", "DELUSER", name)


@pytest.mark.parametrize("face", FACES)
async def test_a_refused_password_says_where_it_came_from(server: Redis, admin: Any, face: str) -> None:
    user(admin, ODD)
    locks = Client(face, server.url, credentials=lambda: ("app", "wr0ng"))
    with pytest.raises(BackendError, match=r"WRONGPASS.* credentials function returned, for user 'app'") as raised:
        await locks.acquire("a", timeout=10)
    assert "wr0ng" not in str(raised.value)
    await locks.close()


@pytest.mark.parametrize("face", FACES)
async def test_redlock_asks_once_for_all_its_servers(face: str) -> None:
    told = Told(("app", ODD))
    with running(Independent(size=3)) as servers:
        for each in servers.members:
            with redis.Redis(port=each.port) as client:
                user(client, ODD)
        locks = Client(face, f"{servers.url}?node_timeout={GIVES_UP:g}s", credentials=told.on(face))
        hold = await locks.acquire("a")
        assert told.calls == 1
        assert await hold.release()
        told.credentials = None
        servers.members[0].restart()
        with redis.Redis(port=servers.members[0].port) as client:
            user(client, ODD)
        hold = await locks.acquire("a", timeout=10)
        assert await hold.release(), "two of them need no new connection"
        told.credentials = ("app", ODD)
        members = locks.raw._core.backend._nodes.all

        async def whole() -> bool:
            assert await (await locks.acquire("b")).release()
            return all(each.out is None for each in members)

        await until_async(whole, "the third is back", poll=0.05)
        hold = await locks.acquire("a", ttl=120)
        told.answers.clear()
        calls = told.calls
        servers.members[0].restart()
        if face == "asyncio":
            await until_async(lambda: members[0].node.at_hand() is None, "it is known that the connection is gone")
        await asyncio.wait_for(hold.renew(), credentials.LONGEST / 2)
        other = asyncio.create_task(locks.acquire("b"))
        await asyncio.wait([other], timeout=credentials.LONGEST / 2)
        done = other.done()
        told.answers.set()
        assert await (await other).release()
        assert done, "nor do they wait for a function that hangs"
        assert told.calls > calls
        assert await hold.release()
        await locks.close()


# A client


@pytest.mark.parametrize("face", FACES)
async def test_user_database_and_name_are_copied_and_closing_either_leaves_the_other(
    server: Redis, admin: Any, face: str
) -> None:
    user(admin, ODD)
    own = module(face).Redis(
        port=server.port, db=3, username=b"app", password=ODD.encode(), client_name="shop", decode_responses=True
    )
    locks = Client(face, own, options={"prefix": "jobs:", "timeout": "60s"})
    hold = await locks.acquire("a")
    [held] = [each for each in admin.client_list() if each["name"] == "shop" and each["user"] == "app"]
    assert held["db"] == "3"
    assert locks.raw._core.backend.options.timeout == 60
    await close(own)
    await hold.renew()
    other = await locks.try_acquire("a")
    assert other is None
    admin.execute_command("SELECT", 3)
    assert "jobs:a" in admin.keys("*")
    admin.execute_command("SELECT", 0)
    assert await hold.release()
    await locks.close()
    again = module(face).Redis(port=server.port)
    locks = Client(face, again)
    await locks.close()
    pong = again.ping()
    assert pong if face == "blocking" else await pong
    await close(again)


@pytest.mark.parametrize("kind", [Provider, AsyncProvider])
@pytest.mark.parametrize("face", FACES)
async def test_a_credential_provider_is_asked_for_each_connection(
    server: Redis, admin: Any, face: str, kind: type[Provider]
) -> None:
    told = Told(user(admin, ODD))
    own = module(face).Redis(port=server.port, credential_provider=kind(told))
    locks = Client(face, own)
    hold = await locks.acquire("a")
    calls = told.calls
    assert calls >= 1
    told.credentials = user(admin, "next")
    admin.execute_command("CLIENT", "KILL", "USER", "app")
    await until_async(lambda: renewed(hold), "it connects with the new token", poll=0.05)
    assert told.calls > calls
    assert await hold.release()
    await locks.close()
    await close(own)


def test_a_unix_socket(short_folder: Path) -> None:
    path = short_folder / "redis.sock"
    with running(Redis(args=["--unixsocket", str(path), "--save", ""])) as server:
        for own in (redis.Redis(unix_socket_path=str(path), db=3), redis.Redis.from_url(f"unix://{path}?db=3")):
            with fencepost.connect(own) as locks, locks.lock("a"):
                assert own.exists("fencepost:lock:a")
            own.close()
        with redis.Redis(port=server.port, db=0) as client:
            assert not client.dbsize()


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path, Path]]:
    """A server that speaks TLS and asks for a certificate; its own one names its address, and no host."""
    certificate, key = self_signed(tmp_path_factory.mktemp("tls"))

    class Encrypted(Redis):
        port_count = 2

        def command(self) -> list[str]:
            files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file"]
            return [*super().command(), "--tls-port", str(self.ports[1]), *files, str(certificate)]

    with running(Encrypted()) as started:
        yield started.ports[1], certificate, key


@pytest.mark.parametrize("face", FACES)
async def test_tls_is_as_strict_as_the_client(encrypted: tuple[int, Path, Path], face: str) -> None:
    port, certificate, key = encrypted
    files = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}

    async def fails(host: str, **options: Any) -> str:
        own = module(face).Redis(host=host, port=port, ssl=True, **files, **options)
        locks = Client(face, own)
        try:
            await (await locks.acquire("a", timeout=30)).release()
            return ""
        except BackendError as error:
            return str(error)
        finally:
            await locks.close()
            await close(own)

    trusted = {"ssl_ca_certs": str(certificate)}
    assert not await fails(HOST, **trusted)
    assert not await fails(HOST, ssl_ca_data=certificate.read_text(), ssl_min_version=ssl.TLSVersion.TLSv1_3)
    assert "self-signed certificate" in await fails(HOST), "whom the system trusts did not sign it"
    assert "is not valid for 'localhost'" in await fails("localhost", **trusted, ssl_check_hostname=True)
    assert not await fails("localhost", **trusted, ssl_check_hostname=False)
    assert not await fails("localhost", ssl_cert_reqs="none")
    files.clear()
    assert await fails(HOST, **trusted), "the server asks for a certificate"


@pytest.mark.parametrize("face", FACES)
async def test_sentinel_s_own_password_is_not_the_master_s(face: str) -> None:
    with running(Redis(args=["--save", "", "--requirepass", "m4ster"])) as master, Watcher(master=master.port) as watch:
        with redis.Redis(port=watch.port) as client:
            client.execute_command("SENTINEL", "SET", "mymaster", "auth-pass", "m4ster")
            client.execute_command("ACL", "SETUSER", "default", "resetpass", ">w4tch")
        known: Any = redis.sentinel if face == "blocking" else redis.asyncio.sentinel
        sentinel: Any = known.Sentinel(
            [(HOST, 1), (HOST, watch.port)], sentinel_kwargs={"password": "w4tch"}, password="m4ster"
        )
        own = sentinel.master_for("mymaster", db=2, client_name="shop")
        locks = Client(face, own)
        hold = await locks.acquire("a")
        with redis.Redis(port=master.port, password="m4ster", decode_responses=True) as admin:
            assert {each["db"] for each in admin.client_list() if each["name"] == "shop"} == {"2"}
        assert await hold.release()
        await locks.close()
        forced = known.Sentinel(
            [(HOST, watch.port)], sentinel_kwargs={"password": "w4tch"}, password="m4ster", force_master_ip="127.1"
        )
        locks = Client(face, forced.master_for("mymaster"))
        assert await (await locks.acquire("a")).release()
        [node] = locks.raw._core.backend._nodes.nodes
        endpoint = node.transport.endpoint if face == "asyncio" else node.transport._idle[0].endpoint
        assert endpoint == ("127.1", master.port)
        await locks.close()
        for each in (own, *sentinel.sentinels, *forced.sentinels):
            await close(each)
        with redis.Redis(port=watch.port, password="w4tch") as client:
            client.execute_command("ACL", "SETUSER", "default", "resetpass", ">m4ster")
        told = Told("m4ster")
        locks = Client(face, f"redis+sentinel://{watch.address}/mymaster", credentials=told.on(face))
        assert await (await locks.acquire("a")).release()
        assert told.calls == 3, "the sentinel, which asks for a login, the master's role, and the connection"
        await locks.close()


@pytest.mark.parametrize("face", FACES)
async def test_a_cluster_s_addresses_are_mapped_as_the_client_maps_them(redis_cluster: Endpoint, face: str) -> None:
    port = int(redis_cluster.url.rpartition(":")[2])
    kind: Any = redis.RedisCluster if face == "blocking" else redis.asyncio.RedisCluster
    elsewhere: Any = {"client_name": "shop", "address_remap": lambda server: ("127.1", server[1])}
    if face == "blocking":  # what is for the pool is no hindrance
        elsewhere |= {"connection_pool_class": redis.BlockingConnectionPool, "timeout": 3, "queue_class": queue.Queue}
        own = kind.from_url(f"redis://{HOST}:{port}", **elsewhere)
    else:
        own = kind(startup_nodes=[redis.asyncio.cluster.ClusterNode(HOST, port)], **elsewhere)
    locks = Client(face, own)
    for name in ("a", "b", "c", "d"):
        assert await (await locks.acquire(name)).release()
    assert {host for host, _ in locks.raw._core.backend._nodes._by_endpoint} == {"127.1"}
    await locks.close()
    await close(own)


def test_a_provider_that_fails_is_named(server: Redis) -> None:
    class Broken(redis.CredentialProvider):
        def get_credentials(self) -> Any:
            raise LookupError("vault is sealed")

    own = redis.Redis(port=server.port, credential_provider=Broken())
    with (
        fencepost.connect(own) as locks,
        pytest.raises(BackendError, match=r"credential_provider .*raised LookupError"),
    ):
        locks.acquire("a", timeout=10)
    own.close()


# What cannot be copied


class Tunnel(redis.Connection):
    """A connection that leads elsewhere."""


Sentinel: Any = redis.sentinel.Sentinel


def tunnelled() -> Any:
    return redis.Redis(connection_pool=redis.ConnectionPool(connection_class=Tunnel))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (tunnelled, "class of their own, tests.clients.test_redis.Tunnel"),
        (lambda: redis.Redis(redis_connect_func=lambda: None), "redis_connect_func=.*credential_provider"),
        (lambda: redis.RedisCluster, "or a client"),
        (
            lambda: redis.Redis(ssl=True, ssl_validate_ocsp=True),
            "ssl_validate_ocsp=, which fencepost's connections cannot have",
        ),
        (
            lambda: redis.Redis(connection_pool=redis.ConnectionPool(socket_type=socket.AF_INET6)),
            "socket_type=.*a URL with an address",
        ),
        (lambda: redis.Redis(connection_pool=redis.ConnectionPool(proxy="socks5://h")), "proxy="),
        (lambda: redis.Redis(password="p\xe4ss", encoding="latin-1"), "password of this client, sent as 'latin-1'"),
        (lambda: redis.Redis(ssl=True, ssl_ca_certs="/nowhere.pem"), "cannot load the TLS files"),
        (lambda: Sentinel([("h", 1)]).slave_for("m"), "locks need the master"),
        (lambda: Sentinel([("h", 1)], min_other_sentinels=2).master_for("m"), "min_other_sentinels="),
        (lambda: Sentinel([("h", 1)]), r"sentinel.master_for\('mymaster'\)"),
        (lambda: redis.ConnectionPool(), r"redis.Redis\(connection_pool=pool\)"),
        (lambda: redis.asyncio.Redis(), r"asyncio's: give it to fencepost.aio.connect\(\), or give a redis.Redis here"),
    ],
)
def test_what_cannot_be_copied_is_refused_with_the_next_step(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        fencepost.connect(make())


@pytest.mark.parametrize("face", FACES)
async def test_options_that_a_newer_redis_py_gives_to_every_client_are_no_hindrance(
    monkeypatch: pytest.MonkeyPatch, face: str
) -> None:
    monkeypatch.setattr(clients, "_OURS", frozenset())
    own = module(face).Redis()
    unknown = {name for name, value in own.get_connection_kwargs().items() if value} - clients._COPIED
    assert {"retry", "encoding", "socket_timeout"} <= unknown
    await Client(face, own).close()
    await close(own)
    for unusual in ({"encoding": "latin-1"}, {"legacy_responses": False}):
        other = module(face).Redis(**unusual)
        with pytest.raises(ConfigError, match=f"this client has {next(iter(unusual))}="):
            Client(face, other)
        await close(other)


def test_asyncio_code_refuses_a_client_that_blocks() -> None:
    with closing(redis.Redis()) as own, pytest.raises(ConfigError, match=r"fencepost.connect\(\).*redis.asyncio.Redis"):
        aio.connect(own)  # type: ignore[call-overload]


@pytest.mark.parametrize("options", [{"ca": "x.pem"}, {"db": 3}, {"verify": False}])
def test_options_beside_a_client_cannot_contradict_it(options: dict[str, Any]) -> None:
    with closing(redis.Redis()) as own, pytest.raises(ConfigError, match="copied from the client"):
        fencepost.connect(own, options=options)


def test_credentials_beside_a_client_and_options_beside_a_url_are_refused() -> None:
    connect: Any = fencepost.connect
    with closing(redis.Redis()) as own, pytest.raises(ConfigError, match="brings its own credentials"):
        connect(own, credentials=lambda: "x")
    with pytest.raises(ConfigError, match=r"behind its \?"):
        connect("redis://h", options={"prefix": "x"})
    with closing(redis.Redis()) as own, pytest.raises(ConfigError, match="prefix"):
        fencepost.connect(own, options={"prefx": "x"})
    with closing(redis.Redis()) as own, pytest.raises(ConfigError, match=r"'prefix' as a NoneType; .* leave it out"):
        connect(own, options={"prefix": None})


def test_a_url_imports_no_client_library() -> None:
    program = (
        "import sys, fencepost; fencepost.connect('redis://localhost').close(); "
        "print([each for each in ('redis', 'asyncio', 'psycopg', 'kazoo', 'sqlalchemy', 'fencepost.clients') "
        "if each in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "fencepost.clients" not in found
    assert found.strip() in ("[]", "['asyncio']"), found
