"""A guard for S3 and what speaks its protocol: the mark is inside the object, and a write is conditional.

    guard = S3Guard(boto3.client("s3"), "bucket")
    guard.write("reports/2026.csv", data, lease)

An object holds a line with the mark, then the value (``envelope``). The mark must not be metadata: the ETag covers
the bytes only, so equal bytes rewritten by a newer holder would keep it, and a zombie's If-Match would pass. The store
must honour If-Match and If-None-Match on PUT, as S3 does since 2024. Entering rewrites the object, once for each lease.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fencepost.errors import BackendError
from fencepost.events import Hook
from fencepost.guards import cas
from fencepost.guards.envelope import Content, pack, unpack
from fencepost.guards.policy import Policy

__all__ = ["S3Guard"]

_ABSENT = {"NoSuchKey", "404"}
# Somebody was faster: 412, or 409 while both were under way, or 404 when the object to match is gone.
_OVERTAKEN = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409", *_ABSENT}


class S3Guard(cas.Guard):
    """The guarded objects of a bucket, under ``prefix`` if one is given. ``client`` is boto3's.

    ``delete`` leaves an object with nothing but the mark. An object without a mark, from before the guard, is
    read as it is, and gets its mark with the first access.
    """

    source = "s3"

    def __init__(
        self,
        client: Any,
        bucket: str,
        *,
        prefix: str = "",
        hooks: Iterable[Hook] = (),
        policy: Policy | None = None,
    ) -> None:
        super().__init__(hooks, policy)
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    def _load(self, resource: str) -> cas.Found:
        with self._failures(ambiguous=False, passing=_ABSENT) as codes:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + resource)
            return cas.Found(unpack(answer["Body"].read()), answer["ETag"])
        assert codes
        return cas.Found(Content(), None)

    def _save(self, resource: str, content: Content, version: Any) -> bool:
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        with self._failures(ambiguous=True, passing=_OVERTAKEN) as codes:
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + resource, Body=pack(content), **condition)
        return not codes

    @contextmanager
    def _failures(self, *, ambiguous: bool, passing: set[str]) -> Iterator[list[str]]:
        """Gives the codes of an error that is an answer; raises BackendError for any other."""
        from botocore.exceptions import BotoCoreError, ClientError

        codes: list[str] = []
        try:
            yield codes
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            if code not in passing:
                raise BackendError(
                    f"the object store refused: {error}", backend="s3", ambiguous=ambiguous and status >= 500
                ) from error
            codes.append(code)
        except BotoCoreError as error:
            raise BackendError(f"the object store failed: {error}", backend="s3", ambiguous=ambiguous) from error
