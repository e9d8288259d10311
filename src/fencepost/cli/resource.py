"""``fencepost resource``: run the protected resource."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from socket import socket
from typing import Annotated

import typer

from fencepost.cli.options import Json

app = typer.Typer(add_completion=False)


class Fence(StrEnum):
    """Whether the rule is enforced."""

    ON = "on"
    OFF = "off"


@app.command()
def resource(
    store: Annotated[
        Path | None, typer.Option(help="SQLite file that holds the values; default: in your state folder.")
    ] = None,
    fence: Annotated[Fence, typer.Option(help="off: accept everything, and only count what is wrong.")] = Fence.ON,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8700,
    max_body: Annotated[int, typer.Option(help="Largest body accepted, in bytes.")] = 1 << 20,
    as_json: Json = False,
) -> None:
    """Serve values over HTTP, and refuse writes from holders that have been replaced.

    PUT /r/KEY with X-Fence-Token, GET /r/KEY, /metrics, /healthz. The first line printed says where.
    """
    from fencepost.resource import serve

    file = serve.default_store() if store is None else store.absolute()
    options = serve.Options(store=file, fence=fence is Fence.ON, host=host, port=port, max_body=max_body)

    def ready(sock: socket) -> None:
        url = serve.url(sock)
        if as_json:
            print(json.dumps({"url": url, "fence": fence, "store": str(file)}), flush=True)
        else:
            print(f"{url}  fence {fence}, store {file}; Ctrl-C stops", flush=True)
        if serve.is_public(sock):
            print(f"fencepost: {url} is open to other machines, and anybody there may write", file=sys.stderr)

    serve.serve(options, ready=ready)
