"""A guard for S3 and stores that speak its protocol: the mark is inside the object, and each write is conditional.

    guard = S3Guard(boto3.client("s3"), "bucket")
    guard.write("reports/2026.csv", data, lease)

An object holds a line with the mark, then the value (``envelope``). The mark must not be metadata: the ETag covers
only the bytes, so a newer holder that writes equal bytes would not change it, and a zombie's If-Match would pass. The
store must honour If-Match and If-None-Match on PUT, as S3 does since 2024. The guard tests this before its first
change, by writing an object called ``.fencepost-probe``. If the store ignores the conditions, it raises ConfigError, or
only logs it where the policy refuses nothing. Entering rewrites the object, once for each lease.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

from fencepost.errors import BackendError, ConfigError
from fencepost.events import Hook
from fencepost.guards import cas
from fencepost.guards.envelope import Content, pack, unpack
from fencepost.guards.policy import Policy

__all__ = ["S3Guard"]

_log = logging.getLogger("fencepost")
_PROBE = ".fencepost-probe"
_WHY = b"fencepost writes this object to see whether the store honours If-Match and If-None-Match. It may be deleted."
_ABSENT = {"NoSuchKey", "404"}
_DENIED = {"AccessDenied", "403"}
_TAGGED = (
    "; the object has tags, and to keep them takes s3:GetObjectTagging and s3:PutObjectTagging: allow both, or take "
    "the tags away"
)
# The properties of the old object that a PUT would drop unless it repeats them.
_KEPT = (
    "ContentType",
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "Metadata",
    "Expires",
    "WebsiteRedirectLocation",
    "StorageClass",
    "ServerSideEncryption",
    "SSEKMSKeyId",
    "BucketKeyEnabled",
)
# An object that was restored from these classes can be read; one that is written into them cannot.
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}
# Another client was faster: 412, or 409 while both requests were in flight, or 404 if the object to match is gone.
_OVERTAKEN = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409", *_ABSENT}


class _Version(NamedTuple):
    """An object that was read: the ETag that shows whether it has changed, and what its replacement must keep."""

    etag: str
    kept: dict[str, Any]
    tagged: bool


class S3Guard(cas.Guard):
    """The guarded objects of a bucket, under ``prefix`` if one is given. ``client`` is boto3's.

    Raises ConfigError on first use if the store ignores conditions, or only logs it where the policy refuses nothing;
    ``probe=False`` skips this test.

    ``delete`` leaves an object with nothing but the mark. An object without a mark, from before the guard, is
    read as it is, and gets its mark with the first access. An object keeps its content type, metadata, tags, storage
    class (unless that is an archive) and KMS key. It does not keep its ACL: a PUT sets a new one.

        guard = S3Guard(boto3.client("s3"), "reports")
        guard.write("2026/11.csv", body, lease)
    """

    source = "s3"

    def __init__(
        self,
        client: Any,
        bucket: str,
        *,
        prefix: str = "",
        probe: bool = True,
        hooks: Iterable[Hook] = (),
        policy: Policy | None = None,
    ) -> None:
        super().__init__(hooks, policy)
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._ignored: str | None = None if probe else ""
        """The condition that the store ignores; "" if none; None if that is not known yet."""
        self._told = False

    def _prepare(self, *, required: bool) -> None:
        if self._ignored == "":
            return
        try:
            self._ignored = self._ignored or self._probe()
            if self._ignored:
                raise ConfigError(
                    f"the store of bucket {self._bucket!r} ignores {self._ignored} on PUT, so nothing keeps a replaced "
                    f"holder from overwriting an object; take a store that honours it, or pass probe=False at your own "
                    f"risk"
                )
        except (BackendError, ConfigError) as error:
            if required:
                raise
            if not self._told:
                self._told = True
                _log.error("%s", error)

    def _probe(self) -> str:
        """The condition that the store ignores; "" if it honours both."""
        conditions = ({"IfNoneMatch": "*"}, {"IfNoneMatch": "*"}, {"IfMatch": '"00000000000000000000000000000000"'})
        refused = []
        for condition in conditions:
            try:
                with self._failures(ambiguous=False, passing=_OVERTAKEN) as answers:
                    self._client.put_object(Bucket=self._bucket, Key=self._prefix + _PROBE, Body=_WHY, **condition)
            except BackendError as error:
                raise BackendError(
                    f"a PUT of {self._prefix + _PROBE!r}, to see whether the store honours conditions, failed; allow "
                    f"it, or pass probe=False if you know that it does: {error}",
                    backend="s3",
                    ambiguous=False,
                ) from error
            refused.append(bool(answers))
        # The first PUT may create the object; the store must refuse the second, because the object exists then.
        return "" if refused[1] and refused[2] else "If-Match" if refused[1] else "If-None-Match"

    def _key(self, resource: str) -> str:
        if resource == _PROBE:
            raise ConfigError(f"{resource!r} is an object of the guard's own; take another name")
        return self._prefix + resource

    def _load(self, resource: str) -> cas.Found:
        with self._failures(ambiguous=False, passing=_ABSENT) as answers:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key(resource))
            version = _Version(answer["ETag"], _kept(answer), bool(answer.get("TagCount")))
            return cas.Found(unpack(answer["Body"].read()), version)
        assert answers
        return cas.Found(Content(), None)

    def _save(self, resource: str, content: Content, version: _Version | None) -> bool | None:
        key = self._key(resource)
        put: dict[str, Any] = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version.etag, **version.kept}
        if tagged := version is not None and version.tagged:
            with self._failures(ambiguous=False, passing=_ABSENT, denied=_TAGGED) as answers:
                found = self._client.get_object_tagging(Bucket=self._bucket, Key=key)["TagSet"]
                put["Tagging"] = urlencode([(each["Key"], each["Value"]) for each in found])
            if answers:
                return False
        with self._failures(ambiguous=True, passing=_OVERTAKEN, denied=_TAGGED if tagged else "") as answers:
            self._client.put_object(Bucket=self._bucket, Key=key, Body=pack(content), **put)
        if not answers:
            return True
        # The conflicting object may come from this request's own first attempt, whose answer was lost.
        return False if answers[0].get("RetryAttempts") == 0 else None

    @contextmanager
    def _failures(self, *, ambiguous: bool, passing: set[str], denied: str = "") -> Iterator[list[Mapping[str, Any]]]:
        """Collect the metadata of an error whose code is in ``passing``; raise BackendError for any other.

        ``denied`` is the hint to add if the store denied access.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        answers: list[Mapping[str, Any]] = []
        try:
            yield answers
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            about = error.response.get("ResponseMetadata", {})
            if code not in passing:
                unknown = ambiguous and int(about.get("HTTPStatusCode", 0)) >= 500
                hint = denied if code in _DENIED else ""
                raise BackendError(
                    f"the object store refused: {error}{hint}", backend="s3", ambiguous=unknown
                ) from error
            answers.append(about)
        # OSError: boto3 reads files of its own, such as the token that a pod's credentials come from.
        except (BotoCoreError, OSError) as error:
            raise BackendError(f"the object store failed: {error}", backend="s3", ambiguous=ambiguous) from error


def _kept(answer: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: answer[name] for name in _KEPT if answer.get(name)}
    if kept.get("StorageClass") in _ARCHIVES:
        del kept["StorageClass"]
    if kept.get("ServerSideEncryption") == "AES256":  # S3's default; the bucket may ask for more by now
        del kept["ServerSideEncryption"]
    return kept
