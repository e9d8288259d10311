"""An object store that speaks S3's protocol on a loopback port: moto's, whose requests take effect one at a time.

moto imitates S3 in memory: its conditional puts answer as S3's do, and it loses everything when it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Self

from fencepost_lab.servers.processes import HOST, Missing

Fault = Callable[[dict[str, Any]], str | None]
"""Given a request's environment, the code of the error to answer instead of carrying it out, or None."""


def s3_client(url: str, *, attempts: int = 1, timeout: float = 60.0) -> Any:
    """A boto3 client for ``url`` with made-up credentials; ``attempts`` of its own, of ``timeout`` seconds each."""
    # Slow to import, and every pytest worker imports this module.
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(
            retries={"total_max_attempts": attempts},
            s3={"addressing_style": "path"},
            connect_timeout=timeout,
            read_timeout=timeout,
        ),
    )


class ObjectStore:
    """moto's server in a thread. ``fault`` answers for it where a real store would, and moto never does.

    Missing, with the pip command, if moto is not installed.
    """

    def __init__(self) -> None:
        # Slow to import, and clients do not need them.
        try:
            from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
            from werkzeug.serving import WSGIRequestHandler, make_server
        except ModuleNotFoundError as error:
            raise Missing(
                f"an object store needs the package {error.name!r}: pip install 'fencepost-lab[objects]'"
            ) from error

        class Quiet(WSGIRequestHandler):
            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                pass

        self.fault: Fault | None = None
        self.answers: list[tuple[str, str, int]] = []
        """Method, path and status of each request that was carried out, in order."""
        self._app = DomainDispatcherApplication(create_backend_app)
        self._one_at_a_time = threading.Lock()
        self._server = make_server(HOST, 0, self._serve, threaded=True, request_handler=Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.port)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def _serve(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        fault = self.fault
        if fault and (code := fault(environ)):
            status = {"ConditionalRequestConflict": "409 Conflict", "PreconditionFailed": "412 Precondition Failed"}
            start(status.get(code, "500 Internal Server Error"), [("Content-Type", "application/xml")])
            return [f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>fault</Message></Error>".encode()]

        # The check and the write of a conditional put are two steps in moto, and one in a real store.
        def begin(status: str, *rest: Any) -> Any:
            self.answers.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], int(status.split()[0])))
            return start(status, *rest)

        with self._one_at_a_time:
            return list(self._app(environ, begin))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
