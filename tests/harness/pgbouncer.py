"""PgBouncer in transaction mode: two statements of a client may run in different sessions of the server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from fencepost_lab.servers import ask
from fencepost_lab.servers.processes import HOST, program
from fencepost_lab.servers.server import Server


@dataclass(kw_only=True, eq=False)
class PgBouncer(Server):
    """A transaction pooler in front of the Postgres at ``target``."""

    target: str
    size: int = 20

    user = "postgres"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{self.address}/postgres"

    def prepare(self) -> None:
        behind = urlsplit(self.target)
        password = behind.password or os.environ["PGPASSWORD"]
        (self.folder / "users.txt").write_text(f'"postgres" "{password}"\n')
        (self.folder / "pgbouncer.ini").write_text(
            f"[databases]\n"
            f"* = host={behind.hostname} port={behind.port or 5432} user={behind.username} password={password}\n"
            f"[pgbouncer]\n"
            f"listen_addr = {HOST}\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = scram-sha-256\nauth_file = {self.folder}/users.txt\n"
            f"pool_mode = transaction\ndefault_pool_size = {self.size}\nmax_client_conn = 500\n"
        )

    def command(self) -> list[str]:
        return [program("PGBOUNCER"), str(self.folder / "pgbouncer.ini"), *self.args]

    def ping(self) -> bool:
        return ask(self.port, bytes([0, 0, 0, 8, 4, 210, 22, 47])) == b"N"  # an SSLRequest: no TLS here
