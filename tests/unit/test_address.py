"""Where a URL leads, and what is said of one that leads nowhere."""

import re
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost import address, registry
from fencepost.address import Address
from fencepost.driver.threads import Blocking
from fencepost.errors import ConfigError
from tests.harness.logs import logged


def test_a_plain_url_is_taken_apart() -> None:
    assert address.parse("redis://localhost:6379/0?fence=counter") == Address(
        "redis", (("localhost", 6379),), None, None, "/0", {"fence": "counter"}
    )


def test_several_hosts_are_kept_in_order() -> None:
    assert address.parse("etcd://a,b:2380,c").hosts == (("a", None), ("b", 2380), ("c", None))


def test_ipv6_hosts_are_written_in_brackets() -> None:
    assert address.parse("etcd://[::1]:2379,[fe80::2]").hosts == (("::1", 2379), ("fe80::2", None))


def test_user_password_and_path_are_unquoted() -> None:
    found = address.parse("postgresql://us%40er:p%3Aa%2Fss@host/da%20ta")
    assert (found.user, found.password, found.path) == ("us@er", "p:a/ss", "/da ta")


def test_a_password_may_contain_what_ends_a_login() -> None:
    found = address.parse("redis://:p@ss:word@host")
    assert (found.user, found.password, found.hosts) == (None, "p@ss:word", (("host", None),))


def test_libpq_gets_what_a_url_says_in_words_of_its_own() -> None:
    found = address.libpq(address.parse("postgresql://us%40er:p%25w@a,[::1]:99/da%20ta"))
    assert found == {"user": "us@er", "password": "p%w", "host": "a,::1", "port": "5432,99", "dbname": "da ta"}
    assert address.libpq(address.parse("postgresql://%2Frun%2Fpg")) == {"host": "/run/pg", "port": "5432"}
    assert address.libpq(address.parse("postgresql:///db?host=/run")) == {"dbname": "db"}


def test_a_file_needs_no_host() -> None:
    assert address.parse("sqlite:rel/locks.db").path == "rel/locks.db"
    assert address.parse("sqlite:///abs/locks.db").path == "/abs/locks.db"
    assert address.parse("SQLite:").scheme == "sqlite"


@pytest.mark.parametrize("text", ["", "localhost", "//host", "1redis://host", "redis//host", "redis ://host", "user@h"])
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        address.parse(text)


@pytest.mark.parametrize("text", ["redis://h:0", "redis://h:65536", "redis://h:port", "redis://[::1", "redis://a:1:2"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        address.parse(text)


def test_a_port_of_any_length_is_refused() -> None:
    with pytest.raises(ConfigError):
        address.parse(f"redis://h:{'9' * 5000}")


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "redlock", "consul", "zookeeper", "postgresql"])
@pytest.mark.parametrize("host", ["a..b", ".a", "a" * 64, "a b", "a." * 200 + "b"], ids=lambda host: host[:5])
def test_a_host_that_no_server_can_have_is_refused_before_it_is_looked_up(scheme: str, host: str) -> None:
    with pytest.raises(ConfigError, match="neither a name nor an address"):
        fencepost.connect(f"{scheme}://{host}/0")


def test_a_name_an_address_or_the_folder_of_a_socket_is_a_host() -> None:
    for host in (
        "h",
        "h.example.",
        "b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example",
        "[fe80::1%eth0]",
        "10.0.0.1",
    ):
        address.parse(f"redis://{host}").check_hosts()
    address.parse(f"postgresql://%2Frun%2F{'a' * 80}/app").check_hosts()


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        address.parse("redis://h?a=1&a=2")


@pytest.mark.parametrize(
    "text",
    [
        "redis://user:s3cret@h:port",
        "redis://user:s3cret@h:65536",
        "redis://user:s3cret@h?a=1&a=2",
        "redis://user:s3cret@h#fragment",
        "redis://user:s3cret/x@h",
        "redis://user:s3cret?x@h",
        "redis://user:s3cret#x@h",
        "redis://user:s3cret:x@[h",
        "redis://:31/s3cret@h",
        "redis://:31?s3cret@h",
        "redis://a:31@41/s3cret@h",
        "redis ://user:s3cret@h",
        "redis://user:s3cret/99999@h:port",
        "@user:s3cret@h",
        "rediss3://user:s3cret@h",
        "nowhere://user:s3cret@h",
        "memory://user:s3cret@h",
        "sqlite://user:s3cret@h/path",
        "memory://user:s3cret@h?no=such",
    ],
)
def test_a_password_is_never_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        registry.connect(text, Blocking())
    assert "s3cret" not in str(raised.value)
    assert "s3cret" not in repr(raised.value)


def test_a_password_is_not_shown_by_an_address() -> None:
    assert "s3cret" not in repr(address.parse("redis://user:s3cret@h"))


def test_a_misspelt_scheme_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sqlite://'"):
        registry.find("sqllite")


def test_a_strange_scheme_is_told_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"there are .*memory.*sqlite"):
        registry.find("quux")


def test_an_unknown_option_is_told_the_nearest_or_all() -> None:
    with pytest.raises(ConfigError, match="no option 'bussy'; did you mean 'busy'"):
        registry.connect("sqlite:x.db?bussy=1s", Blocking())
    with pytest.raises(ConfigError, match="it takes busy"):
        registry.connect("sqlite:x.db?wal=off", Blocking())
    with pytest.raises(ConfigError, match="it takes none"):
        registry.connect("memory://?x=1", Blocking())


def test_an_option_that_cannot_be_parsed_names_itself() -> None:
    with pytest.raises(ConfigError, match="busy='soon'"):
        registry.connect("sqlite:x.db?busy=soon", Blocking())


@pytest.mark.parametrize(
    "url",
    [
        "redis://host?timeout=0",
        "redlock://a,b,c?node_timeout=0s",
        "etcd://host?timeout=0",
        "zk://host?connect_timeout=0ms",
        "consul://host?timeout=0",
        "consul://host?session_ttl_min=0",
        "postgresql://host?poll=0",
        "postgresql://host?timeout=0",
    ],
)
def test_a_time_to_wait_of_nothing_is_refused_by_every_store(url: str) -> None:
    with pytest.raises(ConfigError, match="must be greater than 0"):
        fencepost.connect(url)


@pytest.mark.parametrize("store", ["rediss://host", "redlocks://a,b,c", "etcd://host", "zk://host", "consul://host"])
def test_the_files_of_tls_are_named_alike_in_every_store(store: str, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("no key")
    with pytest.raises(ConfigError, match="key= is the key of a certificate: give cert= too"):
        fencepost.connect(f"{store}?key={tmp_path}/key.pem")
    if not store.startswith("red"):  # TLS is in the scheme there
        with pytest.raises(ConfigError, match="ca= is for TLS, and tls=0 asks for none"):
            fencepost.connect(f"{store}?tls=0&ca={tmp_path}/key.pem")


def test_a_missing_package_names_its_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'hiredis'", name="hiredis")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'fencepost\[sqlite\]'"):
        registry.find("sqlite")


def test_the_environment_names_the_store_where_no_argument_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_URL", "memory://from-the-environment")
    assert registry.connect(None, Blocking()).address.hosts == (("from-the-environment", None),)
    monkeypatch.delenv("FENCEPOST_URL")
    assert registry.connect(None, Blocking()).scheme == "sqlite"


def test_an_empty_url_is_a_mistake_and_not_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="the URL is empty"):
        fencepost.connect("")
    with pytest.raises(ConfigError, match="the URL is empty"):
        fencepost.aio.connect("")
    monkeypatch.setenv("FENCEPOST_URL", "")
    with pytest.raises(ConfigError, match=r"\$FENCEPOST_URL is empty"):
        fencepost.connect()


def test_the_embedded_default_is_told_once_and_not_where_it_is_meant(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.delenv("FENCEPOST_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    registry.warn_of_default.cache_clear()
    fencepost.connect("sqlite:").close()
    assert logged(caplog) == []
    for _ in range(3):
        fencepost.connect().close()
    (record,) = logged(caplog)
    assert record.levelname == "WARNING"
    assert "exclude nobody on other hosts" in record.message


@pytest.mark.parametrize(
    ("name", "hint"),
    [("release", "lease.release()"), ("locked", "locks.status(name)"), ("extend", "lease.renew()")],
)
def test_what_other_locks_have_is_pointed_to(name: str, hint: str) -> None:
    for locks in (fencepost.connect("memory://"), fencepost.aio.connect("memory://")):
        with pytest.raises(AttributeError, match=re.escape(hint)):
            getattr(locks.lock("a"), name)
        with pytest.raises(AttributeError, match="has no attribute 'other'"):
            locks.lock("a").other  # type: ignore[union-attr]  # noqa: B018
        assert not hasattr(locks.lock("a"), "__wrapped__")


@pytest.mark.parametrize(
    ("args", "options"),
    [((), {"timeout": 5}), ((), {"blocking": False}), ((), {"ttl": 30}), ((), {"blocking_timeout": 5}), ((False,), {})],
)
@pytest.mark.parametrize("method", ["acquire", "try_acquire"])
async def test_what_acquire_takes_elsewhere_is_pointed_to(args: Any, options: Any, method: str) -> None:
    locks, alocks = fencepost.connect("memory://"), fencepost.aio.connect("memory://")
    hint = re.escape("locks.lock(name, timeout=5, ttl=30)")
    with pytest.raises(TypeError, match=hint):
        getattr(locks.lock("a"), method)(*args, **options)
    with pytest.raises(TypeError, match=hint):
        await getattr(alocks.lock("a"), method)(*args, **options)
    assert locks.status("a") is None
    assert await alocks.status("a") is None


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://ann:SECRET@h/db", "postgresql://***@h/db"),
        ("postgresql://h/db?sslpassword=SECRET&sslmode=require", "postgresql://h/db?sslpassword=***&sslmode=***"),
        ("postgresql://h/db?listen=postgresql%3A%2F%2Fu2%3ASECRET%40h2", "postgresql://h/db?listen=***"),
        (
            "postgresql://h/db?listen=postgresql://u2:SECRET@h2/db?password=SECRET",
            "postgresql://***@h2/db?password=***",
        ),
        ("redis://:SEC?RET@h/0?prefix=x", "redis://***@h/0?prefix=***"),
        ("redis://h/0", "redis://h/0"),
    ],
)
def test_a_masked_url_has_no_secret(url: str, said: str) -> None:
    assert address.masked(url) == said


@pytest.mark.parametrize("url", ["rediss://host?ca=", "consul://host?cert=", "zk://host?ca=", "etcd://host?ca="])
def test_a_file_of_tls_without_a_name_is_no_reason_to_trust_everybody(url: str) -> None:
    with pytest.raises(ConfigError, match=r"names no file|No such file|Is a directory"):
        fencepost.connect(url)
