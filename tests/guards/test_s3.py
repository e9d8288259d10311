"""The S3 guard: conditional writes, their conflicts, and the trap of a mark that is metadata."""

import hashlib
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from fencepost.errors import BackendError, ConfigError, ReplayMismatch, StaleToken
from fencepost.guards.policy import Policy
from fencepost.guards.s3 import S3Guard
from fencepost.rule import Stamp
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.servers.objects import Fault, ObjectStore, s3_client
from tests.harness.leases import lease as lease_of


@pytest.fixture(scope="module")
def bucket(object_store: ObjectStore) -> str:
    s3_client(object_store.url).create_bucket(Bucket="guarded")
    return "guarded"


@pytest.fixture
def client(object_store: ObjectStore, bucket: str) -> Iterator[Any]:
    client = s3_client(object_store.url)
    yield client
    client.close()


@pytest.fixture
def guard(client: Any, bucket: str) -> S3Guard:
    guard = S3Guard(client, bucket)
    guard._prepare(required=True)  # so that the faults of a test meet its own requests
    return guard


@pytest.fixture
def store(object_store: ObjectStore) -> Iterator[ObjectStore]:
    yield object_store
    object_store.fault = None


def first_puts(count: int, code: str, hits: list[str], *, carried_out: Any = None) -> Fault:
    """Answer the first puts with an error; ``carried_out`` makes the write all the same."""

    def fault(environ: dict[str, Any]) -> str | None:
        if environ["REQUEST_METHOD"] != "PUT" or len(hits) >= count:
            return None
        hits.append(code)
        if carried_out is not None:
            carried_out()
        return code

    return fault


def test_a_mark_in_the_metadata_lets_a_zombie_pass(client: Any, bucket: str, thing: str) -> None:
    """Why the mark is inside the bytes: the ETag covers nothing else."""

    def put(token: int, body: bytes, **condition: str) -> Any:
        return client.put_object(Bucket=bucket, Key=thing, Body=body, Metadata={"token": str(token)}, **condition)

    put(1, b"same")
    seen_by_zombie = client.head_object(Bucket=bucket, Key=thing)
    assert int(seen_by_zombie["Metadata"]["token"]) <= 1, "so the zombie, with token 1, thinks that it may write"
    put(2, b"same", IfMatch=seen_by_zombie["ETag"])
    put(1, b"zombie", IfMatch=seen_by_zombie["ETag"])
    assert client.get_object(Bucket=bucket, Key=thing)["Body"].read() == b"zombie", "token 2's write is lost"


def test_equal_bytes_of_a_newer_holder_keep_the_zombie_out(
    guard: S3Guard, client: Any, bucket: str, thing: str
) -> None:
    guard.write(thing, b"same", Stamp(1, 1, "zombie"))
    before = client.head_object(Bucket=bucket, Key=thing)["ETag"]
    guard.write(thing, b"same", Stamp(2, 1, "holder"))
    assert client.head_object(Bucket=bucket, Key=thing)["ETag"] != before
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=bucket, Key=thing, Body=b"zombie", IfMatch=before)
    with pytest.raises(StaleToken):
        guard.write(thing, b"zombie", Stamp(1, 2, "zombie"))
    assert guard.peek(thing) == b"same"


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "PreconditionFailed"])
def test_a_conflict_is_settled_by_reading_again(guard: S3Guard, store: ObjectStore, thing: str, code: str) -> None:
    hits: list[str] = []
    store.fault = first_puts(3, code, hits)
    assert guard.write(thing, b"x", 5) is True
    store.fault = first_puts(6, code, hits)
    assert guard.read(thing, Stamp(6, 1, "a")) == b"x"
    assert hits == [code] * 6, "the store refused each of them three times"
    assert (guard.peek(thing), guard.mark(thing)) == (b"x", Stamp(6, 1, "a"))


def test_a_conflict_with_a_newer_holder_ends_in_stale(
    guard: S3Guard, client: Any, bucket: str, store: ObjectStore, thing: str
) -> None:
    guard.write(thing, b"first", 5)
    newer = S3Guard(client, bucket)
    fault, hits = store, list[str]()

    def overtake() -> None:
        fault.fault = None
        newer.write(thing, b"newer", 7)

    store.fault = first_puts(1, "ConditionalRequestConflict", hits, carried_out=overtake)
    with pytest.raises(StaleToken) as caught:
        guard.write(thing, b"older", 6)
    assert (hits, caught.value.seen) == (["ConditionalRequestConflict"], 7)
    assert guard.peek(thing) == b"newer"


def test_a_write_that_was_made_though_the_store_said_otherwise_is_found_again(
    guard: S3Guard, client: Any, bucket: str, store: ObjectStore, thing: str
) -> None:
    offer, other = Stamp(5, 1, "ann"), S3Guard(client, bucket)

    def made() -> None:
        store.fault = None
        other.write(thing, b"x", offer)

    store.fault = first_puts(1, "PreconditionFailed", [], carried_out=made)
    assert guard.write(thing, b"x", offer) is False, "as a client that retries by itself would see it"
    assert guard.write(thing, b"x", offer) is False
    with pytest.raises(ReplayMismatch):
        guard.write(thing, b"y", offer)


@pytest.mark.parametrize("mode", ["strict", "shadow"])
def test_an_update_whose_answer_was_lost_is_made_once(
    store: ObjectStore, client: Any, bucket: str, thing: str, mode: str
) -> None:
    S3Guard(client, bucket).write(thing, b"1", Stamp(4, 1, "ann"))
    with (
        Proxy(int(store.url.rpartition(":")[2])) as proxy,
        closing(s3_client(f"http://{proxy.address}", attempts=3)) as own,
    ):
        proxy.drop_after(b"fencepost 1 ")
        guard = S3Guard(own, bucket, policy=Policy(mode))
        guard.update(thing, lambda before: b"%d" % (int(before or 0) + 1), lease_of("a", "ann", 5))
        assert not proxy._traps, "the answer was to be lost"
    assert S3Guard(client, bucket).peek(thing) == b"2"


@pytest.mark.parametrize("mode", ["strict", "shadow", "off"])
def test_an_update_whose_answer_was_lost_before_a_newer_holder_came_may_have_been_made(
    store: ObjectStore, client: Any, bucket: str, thing: str, mode: str
) -> None:
    """boto3 sends it again, and the store refuses that: not because this holder was replaced before it wrote."""
    S3Guard(client, bucket).write(thing, b"1", Stamp(4, 1, "ann"))
    puts: list[str] = []

    def fault(environ: dict[str, Any]) -> str | None:
        if environ["REQUEST_METHOD"] != "PUT":
            return None
        puts.append(environ["PATH_INFO"])
        if len(puts) == 1:
            return None
        store.fault = None
        S3Guard(client, bucket, probe=False).write(thing, b"7", Stamp(6, 1, "bob"))
        return None

    with (
        Proxy(int(store.url.rpartition(":")[2])) as proxy,
        closing(s3_client(f"http://{proxy.address}", attempts=3)) as own,
    ):
        guard = S3Guard(own, bucket, policy=Policy(mode), probe=False)
        proxy.drop_after(b"fencepost 1 ")
        store.fault = fault
        with pytest.raises(BackendError, match="may have been made, or not") as caught:
            guard.update(thing, lambda before: b"%d" % (int(before or 0) + 1), Stamp(5, 1, "ann"))
        assert caught.value.ambiguous
        assert not proxy._traps, "the answer was to be lost"
    assert len(puts) == 2
    assert S3Guard(client, bucket).peek(thing) == b"7"


def test_a_store_that_fails_leaves_it_open(guard: S3Guard, store: ObjectStore, thing: str) -> None:
    store.fault = first_puts(1, "InternalError", [])
    with pytest.raises(BackendError) as caught:
        guard.write(thing, b"x", Stamp(5, 1, "ann"))
    assert caught.value.ambiguous
    assert guard.write(thing, b"x", Stamp(5, 1, "ann")) is True
    with pytest.raises(BackendError) as caught:
        S3Guard(s3_client(store.url), "nosuchbucket").read(thing, 5)
    assert not caught.value.ambiguous


def test_deleting_leaves_the_mark(guard: S3Guard, thing: str) -> None:
    guard.write(thing, b"x", 5)
    guard.delete(thing, 6)
    assert (guard.peek(thing), guard.mark(thing)) == (None, Stamp(6))
    with pytest.raises(StaleToken):
        guard.write(thing, b"zombie", 5)
    assert guard.read(thing, 7) is None
    guard.write(thing, b"again", 7)
    assert guard.peek(thing) == b"again"


def test_an_object_from_before_the_guard_is_taken_over(guard: S3Guard, client: Any, bucket: str, thing: str) -> None:
    about = {"ContentType": "text/csv", "CacheControl": "no-cache", "Metadata": {"owner": "billing"}}
    client.put_object(Bucket=bucket, Key=thing, Body=b"plain", **about)
    assert (guard.peek(thing), guard.mark(thing)) == (b"plain", None)
    assert guard.read(thing, 5) == b"plain"
    with pytest.raises(StaleToken):
        guard.write(thing, b"zombie", 4)
    assert (guard.peek(thing), guard.mark(thing)) == (b"plain", Stamp(5, 0))
    guard.write(thing, b"new", 6)
    found = client.get_object(Bucket=bucket, Key=thing)
    found["Body"].close()
    assert {name: found[name] for name in about} == about


def about(client: Any, bucket: str, key: str, names: Iterable[str]) -> dict[str, Any]:
    """What the store says about an object, besides its bytes."""
    found = client.get_object(Bucket=bucket, Key=key)
    found["Body"].close()
    return {name: found.get(name) for name in names}


def tags(client: Any, bucket: str, key: str) -> dict[str, str]:
    return {each["Key"]: each["Value"] for each in client.get_object_tagging(Bucket=bucket, Key=key)["TagSet"]}


@pytest.mark.parametrize("mode", ["strict", "shadow"])
def test_an_object_keeps_what_the_store_tells_about_it(client: Any, bucket: str, thing: str, mode: str) -> None:
    given = {
        "ContentType": "text/csv",
        "CacheControl": "no-cache",
        "ContentDisposition": "attachment",
        "ContentLanguage": "de",
        "Metadata": {"owner": "billing"},
        "Expires": datetime(2030, 1, 1, tzinfo=UTC),
        "WebsiteRedirectLocation": "/other",
        "StorageClass": "STANDARD_IA",
        "ServerSideEncryption": "aws:kms",
        "SSEKMSKeyId": "arn:aws:kms:us-east-1:123456789012:key/own",
        "BucketKeyEnabled": True,
    }
    client.put_object(Bucket=bucket, Key=thing, Body=b"plain", Tagging="team=a%3Db%2Bc&cost%20center=4%2F2", **given)
    assert about(client, bucket, thing, given) == given, "the store knows all of this"
    guard = S3Guard(client, bucket, policy=Policy(mode))
    for change in (
        lambda: guard.read(thing, 5),
        lambda: guard.write(thing, b"new", 6),
        lambda: guard.update(thing, lambda before: before, 7),
        lambda: guard.raise_mark(thing, to=8),
        lambda: guard.delete(thing, 9),
    ):
        change()
        assert about(client, bucket, thing, given) == given
        assert tags(client, bucket, thing) == {"team": "a=b+c", "cost center": "4/2"}
    assert guard.mark(thing) == Stamp(9)


def test_reading_without_a_change_asks_for_no_tags(
    guard: S3Guard, client: Any, bucket: str, store: ObjectStore, thing: str
) -> None:
    client.put_object(Bucket=bucket, Key=thing, Body=b"plain", Tagging="team=a")
    asked: list[str] = []
    store.fault = lambda environ: asked.append(environ["QUERY_STRING"])
    guard.peek(thing)
    guard.mark(thing)
    assert "tagging" not in asked
    guard.enter(thing, 5)
    assert asked.count("tagging") == 1


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_tags_that_cannot_be_kept_are_not_dropped(
    guard: S3Guard, client: Any, bucket: str, store: ObjectStore, thing: str, method: str
) -> None:
    client.put_object(Bucket=bucket, Key=thing, Body=b"plain", Tagging="team=a")

    def denied(environ: dict[str, Any]) -> str | None:
        tagging = environ["QUERY_STRING"] == "tagging" if method == "GET" else "HTTP_X_AMZ_TAGGING" in environ
        return "AccessDenied" if environ["REQUEST_METHOD"] == method and tagging else None

    store.fault = denied
    with pytest.raises(BackendError, match=r"s3:GetObjectTagging and s3:PutObjectTagging"):
        guard.read(thing, 5)
    store.fault = None
    assert (guard.mark(thing), tags(client, bucket, thing)) == (None, {"team": "a"})


def test_tags_of_an_object_that_vanishes_in_between_are_nobody_s(
    guard: S3Guard, client: Any, bucket: str, store: ObjectStore, thing: str
) -> None:
    client.put_object(Bucket=bucket, Key=thing, Body=b"plain", Tagging="team=a")

    def gone(environ: dict[str, Any]) -> None:
        if environ["QUERY_STRING"] == "tagging":
            store.fault = None
            client.delete_object(Bucket=bucket, Key=thing)

    store.fault = gone
    assert guard.write(thing, b"new", 5)
    assert (guard.peek(thing), tags(client, bucket, thing)) == (b"new", {})


def test_a_store_that_fails_to_tell_the_tags_was_sent_no_write(
    guard: S3Guard, client: Any, bucket: str, store: ObjectStore, thing: str
) -> None:
    client.put_object(Bucket=bucket, Key=thing, Body=b"plain", Tagging="team=a")
    store.fault = lambda environ: "InternalError" if environ["QUERY_STRING"] == "tagging" else None
    with pytest.raises(BackendError) as caught:
        guard.write(thing, b"new", 5)
    assert not caught.value.ambiguous


def test_what_would_lock_the_object_away_is_left_to_the_bucket(
    guard: S3Guard, client: Any, bucket: str, thing: str
) -> None:
    client.put_object(Bucket=bucket, Key=thing, Body=b"plain", StorageClass="GLACIER", ServerSideEncryption="AES256")
    client.restore_object(Bucket=bucket, Key=thing, RestoreRequest={"Days": 1})
    assert guard.read(thing, 5) == b"plain"
    assert guard.read(thing, 6) == b"plain", "an archive would have to be restored again"
    found = about(client, bucket, thing, ["StorageClass", "ServerSideEncryption"])
    assert found["StorageClass"] in (None, "STANDARD")


def test_an_object_that_vanishes_in_between_is_made_anew(
    guard: S3Guard, client: Any, bucket: str, store: ObjectStore, thing: str
) -> None:
    guard.write(thing, b"x", 5)

    def gone() -> None:
        store.fault = None
        client.delete_object(Bucket=bucket, Key=thing)

    store.fault = first_puts(1, "NoSuchKey", [], carried_out=gone)
    assert guard.write(thing, b"y", 6)
    assert guard.peek(thing) == b"y"


def test_updates_of_many_threads_under_one_lease_lose_nothing(guard: S3Guard, thing: str) -> None:
    held = lease_of("lock", "ann", 5)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: guard.update(thing, lambda before: (before or b"") + b".", held), range(12)))
    assert guard.peek(thing) == b"." * 12


def test_what_is_stored_says_what_it_is(client: Any, bucket: str, thing: str) -> None:
    S3Guard(client, bucket, policy=Policy(ceiling="off")).write(thing, b"value", Stamp(2**63 - 1, 2, "ann"))
    raw = client.get_object(Bucket=bucket, Key=thing)["Body"].read()
    head, _, value = raw.partition(b"\n")
    digest = hashlib.sha256(b"value").hexdigest()
    assert value == b"value"
    assert head == (
        b'fencepost 1 {"token":"9223372036854775807","seq":"2","holder":"ann","digest":"%s"}' % digest.encode()
    )


def ignoring(*headers: str) -> Fault:
    """A store that takes these conditions and does not look at them."""

    def fault(environ: dict[str, Any]) -> None:
        for header in headers:
            environ.pop(header, None)

    return fault


@pytest.mark.parametrize("header", ["HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"])
def test_a_store_that_ignores_conditions_is_refused_on_first_use(
    client: Any, bucket: str, store: ObjectStore, thing: str, header: str
) -> None:
    store.fault = ignoring(header)
    client.put_object(Bucket=bucket, Key=thing, Body=b"before", IfNoneMatch="*")
    if header == "HTTP_IF_MATCH":
        client.put_object(Bucket=bucket, Key=thing, Body=b"before", IfMatch="wrong")  # the fault is there
    guard = S3Guard(client, bucket)
    for ask in (
        lambda: guard.write(thing, b"x", 5),
        lambda: guard.enter(thing, 5),
        lambda: guard.update(thing, lambda before: b"x", 5),
        lambda: guard.raise_mark(thing, to=5),
    ):
        with pytest.raises(ConfigError, match="ignores If-"):
            ask()
    assert guard.peek(thing) == b"before"
    assert S3Guard(client, bucket, probe=False).write(thing, b"at your own risk", 5)
    store.fault = None
    assert S3Guard(client, bucket).write(thing, b"another store", 6)


def test_in_shadow_a_store_that_ignores_conditions_is_told_and_not_refused(
    client: Any, bucket: str, store: ObjectStore, thing: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.fault = ignoring("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")
    guard = S3Guard(client, bucket, policy=Policy("shadow"))
    with caplog.at_level(logging.ERROR, "fencepost"):
        assert guard.write(thing, b"x", 5)
        assert guard.write(thing, b"y", 6)
    assert caplog.text.count("ignores If-") == 1
    assert guard.peek(thing) == b"y"


def test_a_probe_that_is_not_allowed_names_the_way_out(
    client: Any, bucket: str, store: ObjectStore, thing: str
) -> None:
    store.fault = first_puts(1, "AccessDenied", [])
    guard = S3Guard(client, bucket, prefix="mine/")
    with pytest.raises(BackendError, match=r"PUT of 'mine/.fencepost-probe'.*probe=False"):
        guard.write(thing, b"x", 5)
    assert guard.write(thing, b"x", 5), "it is asked again"
    store.fault = first_puts(1, "AccessDenied", [])
    assert S3Guard(client, bucket, prefix="mine/", policy=Policy("shadow")).write(thing, b"y", 6), "never refuses"
    with pytest.raises(ConfigError, match="another name"):
        guard.write(".fencepost-probe", b"x", 5)
