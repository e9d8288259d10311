"""``fencepost resource``: run the protected resource."""

import json
import sys
from pathlib import Path
from socket import socket
from typing import Annotated

import typer

from fencepost.cli.options import Ceiling, Duration, Json, Switch
from fencepost.cli.text import complain
from fencepost.errors import ConfigError

app = typer.Typer(add_completion=False)


def _mode(mode: str | None, file: Path | None, fence: Switch | None) -> str:
    """The mode that the options name; ConfigError if two of them do."""
    if sum(each is not None for each in (mode, file, fence)) > 1:
        raise ConfigError("--mode, --mode-file and --fence say the same thing: leave two of them out")
    return "shadow" if fence is Switch.OFF else mode or "strict"


@app.command()
def resource(
    store: Annotated[
        str | None,
        typer.Option(
            envvar="FENCEPOST_STORE",
            help="Where the values live: an SQLite file, or postgresql://...; default: $FENCEPOST_STORE, else in your "
            "state folder.",
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="off|passive|shadow|canary:P%|enforce|strict",
            help="How far the guard goes: do nothing, tell of accesses, judge and let pass, refuse for P % of keys, "
            "refuse, refuse also what has no token. Default: strict.",
        ),
    ] = None,
    mode_file: Annotated[
        Path | None,
        typer.Option(help="A file with the mode: write another one into it, and it holds a second later."),
    ] = None,
    fence: Annotated[
        Switch | None, typer.Option(help="off is short for --mode shadow, on for --mode strict.", show_default=False)
    ] = None,
    ceiling: Ceiling = Switch.ON,
    max_jump: Annotated[
        int | None, typer.Option(help="How far above a key's mark a token may be, for issuers that count from 1.")
    ] = None,
    max_first: Annotated[int | None, typer.Option(help="How high the first token of a key may be.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8700,
    max_body: Annotated[int, typer.Option(help="Largest body accepted, in bytes.")] = 1 << 20,
    max_waiting: Annotated[int, typer.Option(help="Most bytes of bodies in memory, of answers too; else 503.")] = 256
    << 20,
    max_keys: Annotated[
        int, typer.Option(help="Most keys, also deleted ones: their marks stay. A new one then gets 507.")
    ] = 1_000_000,
    max_queue: Annotated[int, typer.Option(help="Most requests that wait for the store; else 503.")] = 4096,
    max_connections: Annotated[int, typer.Option(help="Most connections; the idlest gives way to a new one.")] = 1000,
    timeout: Annotated[float, Duration(help="How long a client may take over each part of a request.")] = 30.0,
    clients: Annotated[
        Path | None, typer.Option("--clients", "--tokens", help="File of those who may use it, and of their prefixes.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="File of the keys that sign tokens: refuse an access that none of them signed.")
    ] = None,
    audit: Annotated[Path | None, typer.Option(help="Write every decision here, for 'fencepost guard report'.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The service's certificate, in PEM: serve HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, if it is not in the same file.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="Demand a certificate of every client, signed by one of these.")
    ] = None,
    new_token: Annotated[
        str | None, typer.Option(metavar="NAME", help="Make a client's token and its table, and stop.")
    ] = None,
    prefix: Annotated[
        list[str] | None, typer.Option(help="With --new-token: a beginning of the keys it may use; default: every key.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve values over HTTP, and refuse writes from holders that have been replaced.

    PUT /r/KEY with X-Fence-Token, GET /r/KEY, /metrics, /healthz, /openapi.json. The first line printed says where.
    """
    if new_token is not None:
        from fencepost.resource import auth

        token, table = auth.new(new_token, prefix or [""])
        print(table)
        print(f"the client's token, shown only now: {token}", file=sys.stderr)
        return
    from fencepost.address import masked
    from fencepost.resource import serve
    from fencepost.resource.mode import ModeFile

    where = str(serve.default_store()) if store is None else store
    if "://" not in where:
        where = str(Path(where).absolute())
    options = serve.Options(
        store=where,
        mode=_mode(mode, mode_file, fence),
        mode_file=mode_file,
        ceiling=ceiling is Switch.ON,
        max_jump=max_jump,
        max_first=max_first,
        host=host,
        port=port,
        max_body=max_body,
        max_waiting=max_waiting,
        max_keys=max_keys,
        max_queue=max_queue,
        max_connections=max_connections,
        timeout=timeout,
        clients=clients,
        audit=audit,
        keys=keys,
        tls_cert=tls_cert,
        tls_key=tls_key,
        client_ca=client_ca,
    )

    def ready(sock: socket) -> None:
        url = serve.url(sock, options.scheme)
        now = ModeFile(mode_file)() if mode_file else options.mode
        if as_json:
            print(json.dumps({"url": url, "mode": now, "store": masked(where)}), flush=True)
        else:
            print(f"{url}  mode {now}, store {masked(where)}; Ctrl-C stops", flush=True)
        if serve.is_public(sock) and not options.tls_cert:
            complain(f"{url} takes tokens in the clear; add --tls-cert, or a proxy that does")

    serve.serve(options, ready=ready)
