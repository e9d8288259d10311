"""Redlock over TLS: the same majority, and no node that cannot prove who it is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost.errors import BackendError, ConfigError
from fencepost_lab.servers import HOST, Cluster, Redis
from tests.conformance.faces import FACES, Client
from tests.harness.certificate import self_signed
from tests.harness.servers import running

TTL = 60.0


class Encrypted(Redis):
    """A Redis with a port for TLS, and none without."""

    certificate: Path
    key: Path

    def command(self) -> list[str]:
        plain = [*super().command(), "--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no"]
        return [*plain, "--tls-cert-file", str(self.certificate), "--tls-key-file", str(self.key)]

    def ping(self) -> bool:
        locks = fencepost.connect(f"rediss://{self.address}?ca={self.certificate}")
        with locks:
            try:
                return locks.status("nobody") is None
            except BackendError as error:
                raise OSError(str(error)) from error


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster[Encrypted]]:
    Encrypted.certificate, Encrypted.key = self_signed(tmp_path_factory.mktemp("tls"))
    with running(Cluster(lambda number, peers: Encrypted(args=["--save", ""]), size=3)) as cluster:
        yield cluster


def url(servers: Cluster[Encrypted], scheme: str = "redlocks", **options: object) -> str:
    places = ",".join(member.address for member in servers.members)
    return f"{scheme}://{places}/0?{'&'.join(f'{key}={value}' for key, value in options.items())}"


@pytest.mark.parametrize("face", FACES)
async def test_a_majority_is_had_kept_and_given_back_over_tls(servers: Cluster[Encrypted], face: str) -> None:
    place = url(servers, ca=Encrypted.certificate, node_timeout="5s")
    here, there = (Client(face, place, ttl=TTL) for _ in range(2))
    tokens = []
    for round in range(3):
        lease = await here.acquire(f"{face}-tls")
        await lease.renew()
        assert await there.try_acquire(f"{face}-tls") is None
        if round == 1:
            servers.members[0].kill()
            await lease.renew()
        assert await lease.release()
        tokens.append(lease.token)
    assert tokens == sorted(set(tokens))
    servers.members[0].restart()
    for client in (here, there):
        await client.close()


@pytest.mark.parametrize("face", FACES)
async def test_a_certificate_that_nobody_vouches_for_is_refused(servers: Cluster[Encrypted], face: str) -> None:
    client = Client(face, url(servers, node_timeout="5s"), ttl=TTL)
    with pytest.raises(BackendError, match=r"0 of 3 Redis answered.*certificate"):
        await client.acquire("a")
    await client.close()


def test_files_for_tls_without_tls_name_the_scheme_that_has_it() -> None:
    with pytest.raises(ConfigError, match="redlocks://"):
        fencepost.connect(f"redlock://{HOST}:1,{HOST}:2,{HOST}:3?ca=/x")
