"""Who may use the resource: bearer tokens, client certificates, prefixes, and no public address without them."""

from __future__ import annotations

import contextlib
import itertools
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from typer.testing import CliRunner, Result

import fencepost
from fencepost.cli import app as root
from fencepost.errors import ConfigError
from fencepost.resource import auth as clients
from fencepost.signing import Keys
from fencepost_lab.servers.processes import HOST
from tests import ROOT
from tests.harness.resource import Answer, Secure, Service

TOKEN = "X-Fence-Token"
_tokens = itertools.count(1)


@dataclass
class Guarded:
    """A service that knows two clients, and their tokens."""

    service: Service
    billing: str
    admin: str

    def put(self, key: str, authorization: str | None, token: int = 1) -> Answer:
        headers = {TOKEN: str(token)} | ({"Authorization": authorization} if authorization is not None else {})
        return self.service.ask("PUT", f"/r/{key}", b"x", headers)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    file = tmp_path_factory.mktemp("clients") / "clients.toml"
    billing, table = clients.new("billing")
    admin, every = clients.new('the "admin"')
    file.write_text(table.replace('[""]', '["account/", "invoice/"]') + "\n" + every)
    assert billing not in file.read_text()
    with Service(args=["--clients", str(file)]) as service:
        yield Guarded(service, billing, admin)


@pytest.fixture(scope="module")
def open_service() -> Iterator[Service]:
    with Service() as service:
        assert service.put("mine", b"x", next(_tokens)).status == 200
        yield service


def test_a_known_token_reads_and_writes_within_its_prefixes(guarded: Guarded) -> None:
    assert guarded.put("account%2F1", f"Bearer {guarded.billing}").status == 200
    assert guarded.put("invoice/1", f"bearer {guarded.billing}").status == 200
    read = guarded.service.get("account/1", Authorization=f"Bearer {guarded.billing}")
    assert (read.status, read.body) == (200, b"x")
    assert guarded.put("anything", f"Bearer {guarded.admin}").status == 200


@pytest.mark.parametrize("key", ["accounts", "account", "Account/1", "x/account/1", "%2Faccount%2F1", "account%252F1"])
def test_a_key_outside_the_prefixes_gets_403_and_nothing_happens(guarded: Guarded, key: str) -> None:
    refused = guarded.put(key, f"Bearer {guarded.billing}")
    assert refused.status == 403
    assert "billing" in refused.json["error"]
    assert guarded.service.ask("GET", f"/r/{key}", headers={"Authorization": f"Bearer {guarded.billing}"}).status == 403
    assert guarded.service.ask("GET", f"/r/{key}", headers={"Authorization": f"Bearer {guarded.admin}"}).status == 404


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic dXNlcjpwYXNz", "Bearer \u00e9", "{token}"]
)
def test_anybody_else_gets_401_before_anything_is_looked_at(guarded: Guarded, authorization: str | None) -> None:
    value = authorization.replace("{token}", guarded.admin) if authorization else authorization
    refused = guarded.put("account/2", value)
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert guarded.service.get("account/2", Authorization=f"Bearer {guarded.admin}").status == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example:{port}"}, 403),
        ({"Host": "evil.example:{port}", "Origin": "http://evil.example:{port}"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:{port}"}, 403),
        ({"Host": "192.0.2.1:{port}"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Host": "LOCALHOST:{port}"}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "[::1]:{port}"}, 200),
    ],
)
def test_without_clients_it_answers_only_those_that_ask_for_this_machine(
    open_service: Service, headers: dict[str, str], status: int
) -> None:
    """A page of another site reaches the loopback too, if its name is made to lead there."""
    sent = {name: value.format(port=open_service.port) for name, value in headers.items()}
    assert open_service.ask("PUT", "/r/mine", b"x", sent | {TOKEN: str(next(_tokens))}).status == status
    assert open_service.ask("GET", "/r/mine", headers=sent).status == status
    assert open_service.ask("GET", "/metrics", headers=sent).status == status


def test_a_client_with_a_token_may_call_the_service_by_any_name(guarded: Guarded) -> None:
    headers = {"Host": "values.internal", "Authorization": f"Bearer {guarded.admin}", TOKEN: "1"}
    assert guarded.service.ask("PUT", "/r/named", b"x", headers).status == 200


def test_two_authorization_headers_are_not_one(guarded: Guarded) -> None:
    with contextlib.closing(guarded.service.connection()) as connection:
        connection.putrequest("GET", "/r/account/1")
        for token in (guarded.billing, guarded.admin):
            connection.putheader("Authorization", f"Bearer {token}")
        connection.endheaders()
        assert connection.getresponse().status == 401


def test_metrics_are_for_clients_and_health_is_for_everybody(guarded: Guarded) -> None:
    ask = guarded.service.ask
    assert ask("GET", "/metrics").status == 401
    assert ask("GET", "/metrics", headers={"Authorization": f"Bearer {guarded.billing}"}).status == 200
    assert ask("GET", "/healthz").status == 200
    document = ask("GET", "/openapi.json").json
    assert document["security"] == [{"bearer": []}]


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the service's certificate, and the CA that signs its clients'."""
    folder = tmp_path_factory.mktemp("tls")
    ca.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(str(folder / "service.pem"))
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    (folder / "clients.toml").write_text(
        '[[client]]\nname = "reports"\ncertificate = "reports"\nprefixes = ["account/"]\n'
    )
    return folder


def trusting(ca: trustme.CA, client: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if client is not None:
        client.configure_cert(context)
    return context


def test_with_a_client_ca_only_certificates_of_it_get_in_and_their_names_are_clients(ca: trustme.CA, tls: Path) -> None:
    args = ["--tls-cert", str(tls / "service.pem"), "--client-ca", str(tls / "ca.pem")]
    service = Secure(args=[*args, "--clients", str(tls / "clients.toml")])
    reports = trusting(ca, ca.issue_cert("reports.internal", common_name="reports"))
    service.context = reports
    with service:
        assert service.put("account/1", b"x", 1).status == 200
        assert service.put("other", b"x", 1).status == 403
        service.context = trusting(ca, ca.issue_cert("somebody.internal", common_name="somebody"))
        assert service.put("account/1", b"x", 2).status == 401
        stranger = trustme.CA()
        for context in (trusting(ca), trusting(ca, stranger.issue_cert("x", common_name="reports"))):
            service.context = context
            with pytest.raises((ssl.SSLError, ConnectionError)):
                service.put("account/1", b"x", 3)
        service.context = reports
        assert service.get("account/1").headers["X-Fence-Mark"] == "1"


def test_a_client_ca_alone_lets_its_clients_use_every_key(ca: trustme.CA, tls: Path) -> None:
    service = Secure(args=["--tls-cert", str(tls / "service.pem"), "--client-ca", str(tls / "ca.pem")])
    service.context = trusting(ca, ca.issue_cert("anyone.internal", common_name="anyone"))
    with service:
        assert service.put("any/key", b"x", 1).status == 200


def run(*args: str) -> Result:
    """A service that must end by itself, before it serves."""
    return CliRunner().invoke(root.app, ["resource", "--port", "0", *args])


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_public_address_is_refused_without_authentication(tmp_path: Path, host: str) -> None:
    done = run("--host", host, "--store", str(tmp_path / "store"))
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--clients" in done.stderr
    assert "127.0.0.1" in done.stderr
    assert not (tmp_path / "store").exists()


def test_tls_alone_is_no_authentication(tls: Path, tmp_path: Path) -> None:
    done = run("--host", "0.0.0.0", "--store", str(tmp_path / "store"), "--tls-cert", str(tls / "service.pem"))
    assert done.exit_code == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "one or more"),
        ("client = 3", "one or more"),
        ('client = ["a"]', "client 1 of .* is no table"),
        ("[[client]\n", "cannot be read"),
        ('[[client]]\nsha256 = "x"\nprefixes = [""]', "needs a name"),
        ('[[client]]\nname = "a"\nprefixes = [""]', "either sha256"),
        ('[[client]]\nname = "a"\nsha256 = "secret"\nprefixes = [""]', "64 lower-case"),
        ('[[client]]\nname = "a"\ncertificate = "a"\nprefixes = []', "needs prefixes"),
        ('[[client]]\nname = "a"\ncertificate = "a"\nprefixes = "x"', "needs prefixes"),
        ('[[client]]\nname = "a"\ncertificate = "a"\nprefixes = ["x"]\nadmin = true', "no field 'admin'"),
        ('[[client]]\nname = "a"\ncertificate = "a"\nprefixes = ["x"]\n' * 2, "share a token"),
    ],
)
def test_a_clients_file_that_cannot_be_meant_is_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "clients.toml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=complaint):
        clients.load(file)


@pytest.mark.slow
def test_what_cannot_be_used_is_one_line_and_exit_code_2(tmp_path: Path, tls: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    store = ["--store", str(tmp_path / "store")]
    for args in (
        ["--clients", str(tmp_path / "missing")],
        ["--tls-cert", str(tmp_path / "bad.pem")],
        ["--tls-key", str(tls / "service.pem")],
        ["--client-ca", str(tls / "ca.pem")],
        ["--max-connections", "0"],
        ["--timeout", "0"],
        ["--store", f"sqlite://{tmp_path}/store"],
        ["--store", "redis://:secret@localhost/0"],
        ["--store", "postgresql://localhost/db?ssl_mode=require"],
    ):
        done = run(*store, *args)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), (args, done)
        assert "secret" not in done.stderr


def test_a_new_token_can_be_limited_to_prefixes(tmp_path: Path) -> None:
    done = run("--new-token", 'the "billing" job', "--prefix", "account/", "--prefix", 'caf\u00e9\\"')
    (tmp_path / "clients.toml").write_text(done.stdout)
    found = clients.load(tmp_path / "clients.toml").find(f"Bearer {done.stderr.split()[-1]}", None)
    assert found is not None
    assert (found.name, found.prefixes) == ('the "billing" job', ("account/", 'caf\u00e9\\"'))


def test_the_documented_clients_are_nobodys(tmp_path: Path) -> None:
    """Copied as it is, the example must not let a guessable token in."""
    page = (ROOT / "docs" / "resource.md").read_text()
    (tmp_path / "clients.toml").write_text("[[client]]" + page.split("[[client]]", 1)[1].split("```")[0])
    with pytest.raises(ConfigError, match="--new-token makes one"):
        clients.load(tmp_path / "clients.toml")


def test_a_new_token_is_printed_once_and_its_table_holds_only_its_hash(tmp_path: Path) -> None:
    done = run("--new-token", "billing")
    assert done.exit_code == 0
    token = done.stderr.split()[-1]
    assert token not in done.stdout
    (tmp_path / "clients.toml").write_text(done.stdout)
    found = clients.load(tmp_path / "clients.toml").find(f"Bearer {token}", None)
    assert found is not None
    assert (found.name, found.prefixes) == ("billing", ("",))


def test_with_keys_only_what_an_issuer_signed_is_admitted(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(f'[keys]\n2026 = "{"ab" * 32}"\n')
    keys = Keys.load(tmp_path / "keys.toml")
    with (
        Service(args=["--keys", str(tmp_path / "keys.toml")]) as service,
        fencepost.connect("memory://keys", keys=keys) as locks,
        fencepost.connect("memory://keys") as unsigned,
    ):
        with locks.lock("a") as lease:
            assert service.ask("GET", "/r/a", headers=lease.access("a").headers).status == 404
            assert service.ask("PUT", "/r/a", b"1", lease.access("a").headers).status == 200
            wrong = {**lease.access("a").headers, "X-Fence-Signature": "2026.bad"}
            for headers in (wrong, lease.access("b").headers, {"X-Fence-Token": str(lease.token + 1)}):
                for method, body in (("PUT", b"2"), ("DELETE", None), ("GET", None)):
                    answer = service.ask(method, "/r/a", body, headers)
                    assert answer.status == 403
                    assert b"forged" in answer.body
        with unsigned.lock("a") as lease:
            assert service.ask("PUT", "/r/a", b"3", lease.access("a").headers).status == 403
        assert service.ask("GET", "/r/a").body == b"1"
        assert b"fencepost_fencing_reject_total{" in service.ask("GET", "/metrics").body
        assert re.search(rb'verdict="forged"[^\n]*} 1[0-9]\.0', service.ask("GET", "/metrics").body)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a table [keys]"),
        ("[keys]\n2026 = 7\n", "a table [keys] of texts"),
        ('[keys]\n2026 = "secret!"\n', "not hexadecimal"),
        ('[keys]\n2026 = "abcd"\n', "at least 16 bytes"),
        ('current = "2027"\n[keys]\n2026 = "' + "ab" * 16 + '"\n', "no key '2027'"),
        ('[keys]\n2026 = "' + "ab" * 16, "cannot be read"),
    ],
)
def test_a_file_that_holds_no_keys_is_refused_and_its_secrets_not_repeated(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(why)) as refused:
        Keys.load(tmp_path / "keys.toml")
    assert "secret!" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("authorization", ["Bearer wrong", "Bearer ", "Basic dXNlcjpwYXNz"])
def test_a_wrong_token_is_not_made_good_by_a_certificate(tls: Path, authorization: str) -> None:
    known = clients.load(tls / "clients.toml")
    found = known.find(None, "reports")
    assert found is not None
    assert found.name == "reports"
    assert known.find(authorization, "reports") is None
