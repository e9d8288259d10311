"""What people and other programs write: URLs, names, durations, tokens, headers, and marks kept with a value."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from math import inf
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers

from fencepost import check, registry
from fencepost.address import parse
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError, ConfigError
from fencepost.guards import envelope, headers
from fencepost.naming import Template
from fencepost.resource import http
from fencepost.rule import MAX_TOKEN, Stamp
from fencepost.signing import Keys
from tests.fuzz.spoil import spoil

SECRET = "s3cr3tw0rd"
_AT_ITS_PLACE = re.compile(rf"[a-z+]+://[^/?#@]*:{SECRET}@")

URLS = [
    f"redis://user:{SECRET}@localhost:6379/0?prefix=a&timeout=500ms&fence=counter",
    f"rediss://:{SECRET}@[::1]:6380/1?verify=0&connect_timeout=2s",
    "redis+unix:///run/redis.sock?db=0",
    "redis+cluster://a:1,b:2,c:3",
    f"redis+sentinel://:{SECRET}@a:26379,b/mymaster/0?wait_replicas=1",
    "redlock://a:1,b:2,c:3?pollers=0.1s",
    f"etcd://root:{SECRET}@a:2379,b:2379,c/locks?timeout=1s",
    f"zk://user:{SECRET}@a,b:2181/chroot?layout=curator&parents=keep",
    f"consul://:{SECRET}@localhost:8500/root?dc=x&lock_delay=1s&session_ttl_min=10s",
    f"postgresql://user:{SECRET}@localhost:5432/db?schema=fencepost&pool=4&listen=postgresql://x",
    "memory:",
    "sqlite:///tmp/none/locks.db?busy=1s",
    "sqlite:rel.db",
]
URL_WORDS = [
    *(b"://", b":", b"@", b"/", b"?", b"#", b"&", b"=", b",", b"[", b"]", b"[::1]", b"%2F", b"%00", b"%", b"%zz"),
    *(b"..", b"tls=1", b"ca=", b"db=", b"=1", b"0", b"65536", b"99999", b"-1", b"1e9", b"nan", b"9" * 30),
    *("é".encode(), b"\xff", b" ", b"\t", b"xn--", b"." * 70, b"a" * 300),
]  # fmt: skip


def url(data: bytes) -> str:
    """A URL is understood, or refused with a message that does not repeat its password. Nothing is connected."""
    text = data.decode("utf-8", "surrogateescape")  # as os.environ has it
    try:
        address = parse(text)
        registry.connect(text, Blocking(time.monotonic))
    except ConfigError as error:
        if _AT_ITS_PLACE.match(text) and text.count(SECRET) == 1 and SECRET in str(error):
            raise AssertionError(f"the password of {text!r} is repeated") from error
        return "refused"
    assert all(port is None or 0 < port < 65536 for _, port in address.hosts)
    assert not _AT_ITS_PLACE.match(text) or text.count(SECRET) > 1 or SECRET not in repr(address), address
    return address.scheme


def url_case(seed: int) -> str:
    rng = random.Random(seed)
    return url(spoil(rng, rng.choice(URLS).encode(), URL_WORDS))


NUMBERS = [b"0", b"1", b"-1", b"+1", b"01", b"1.0", b"1e9", b"0x10", b"1_000", b"9007199254740993", b"\xd9\xa1", b"NaN"]
NUMBERS += [str(MAX_TOKEN).encode(), str(MAX_TOKEN + 1).encode(), b"9" * 5000, b" 7 ", b"", b"\xc2\xb2", b"\x00"]
TOKENS = [
    b"500ms", b"2s", b" 1.5 h", b".5", b"account/42", b"{a}", b"{a}-{b}{c}",
    b"report/{account_id}", b"%2e%2e/%00", b"a%20b", b"%C3%A9",
    b"X-Fence-Token: 7\nX-Fence-Seq: 2\nX-Fence-Holder: ann\nX-Fence-Signature: 1.ab",
    b"X-Fence-Token: 7\nX-Fence-Token: 8", b"X-Fence-Seq: 1", b"X-Fence-Token: 9223372036854775807",
    b'fencepost 1 {"token":"7","seq":"2","holder":"ann","digest":null}\nvalue',
    b'fencepost 1 {"gone":"yes"}\n', b"fencepost 1 ", b'fencepost 1 {"token":"7","seq":"-1","holder":""}\n',
    b"application/json;q=0.5, application/octet-stream;q=0.50", b"localhost:80", b"[::1]:80", b"127.0.0.1",
]  # fmt: skip
TOKEN_WORDS = [
    *NUMBERS,
    b"\n",
    b": ",
    b'"',
    b"{",
    b"}",
    b"[" * 3000,
    b"null",
    b"q=1",
    b"X-Fence-Holder: ",
    b"\xed\xa0\x80",
]

KEYS = Keys({"1": b"0123456789abcdef"})


def token(data: bytes) -> str:
    """Every parser of a short text gives what its rule allows, or says that it cannot be meant."""
    text = data.decode("utf-8", "surrogateescape")
    found = [
        name
        for name, parser in (
            ("duration", _duration),
            ("name", _name),
            ("template", _template),
            ("headers", _headers),
            ("here", _here),
        )
        if _understood(parser, text)
    ]
    found += ["key"] if _key(data) else []
    found += ["mark"] if _mark(data) else []
    return " ".join(found) or "none"


def _understood(parser: Callable[[str], None], text: str) -> bool:
    try:
        parser(text)
    except ConfigError:
        return False
    return True


def _duration(text: str) -> None:
    assert 0 <= check.duration(text) <= inf


def _name(text: str) -> None:
    assert check.name(text) is text
    assert 0 < len(text.encode()) <= check.MAX_NAME


def _template(text: str) -> None:
    found = Template(text)
    values = dict.fromkeys(found.fields, "-a" * 20)
    assert check.name(found.name(values))


def _headers(text: str) -> None:
    """Header lines, as latin-1, which is how servers hand them on."""
    raw = [line.partition(":")[::2] for line in text.split("\n")]
    given = [(name.strip().lower(), value.strip()) for name, value in raw]

    def values(name: str) -> list[str]:
        return [
            value.encode("utf-8", "surrogateescape").decode("latin-1") for each, value in given if each == name.lower()
        ]

    for reads in (False, True):
        found = headers.access("k", values, reads=reads)
        if found is None:
            assert not values("X-Fence-Token")
            continue
        stamp: Stamp = found.stamp
        assert [str(stamp.token)] == values("X-Fence-Token")
        assert 1 <= stamp.token <= MAX_TOKEN
        assert (0 if reads else 1) <= stamp.seq <= MAX_TOKEN
        assert stamp.holder.encode().decode("latin-1") == "".join(values("X-Fence-Holder"))
        assert not KEYS.verify("k", stamp, found.signature)
        assert KEYS.verify("k", stamp, KEYS.sign("k", stamp))


def _here(text: str) -> None:
    value = text.encode("utf-8", "surrogateescape")
    asked = Headers(raw=[(b"accept", value), (b"host", value), (b"origin", value)])
    http.wants_json(asked)
    assert not http.from_here(asked), "it came from a page"
    if http.from_here(Headers(raw=[(b"host", value)])):
        assert text.lower().startswith(("localhost", "127.", "[")), text
        return
    raise ConfigError("not from here")


def _key(data: bytes) -> bool:
    try:
        key = http.key(data)
    except ConfigError:
        return False
    assert key.encode() == unquote_to_bytes(data), "two keys never become one"
    return True


def _mark(data: bytes) -> bool:
    try:
        content = envelope.unpack(data)
    except BackendError:
        return False
    assert envelope.unpack(envelope.pack(content)) == content
    return content.mark is not None


def token_case(seed: int) -> str:
    rng = random.Random(seed)
    return token(spoil(rng, rng.choice(TOKENS), TOKEN_WORDS))
