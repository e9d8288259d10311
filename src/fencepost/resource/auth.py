"""Who may use which keys: bearer tokens and client certificates, from a file that holds no secret.

For example::

    [[client]]
    name = "billing"
    sha256 = "<64 digits>"             # of the bearer token; --new-token prints the line
    prefixes = ["account/", "invoice/"]

    [[client]]
    name = "reports"
    certificate = "reports.internal"   # the common name of its certificate
    prefixes = [""]                    # every key
"""

import hmac
import json
import re
import secrets
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fencepost.errors import ConfigError

_FIELDS = {"name", "sha256", "certificate", "prefixes"}


@dataclass(frozen=True, slots=True)
class Client:
    """One client, and the beginnings of the keys it may read and write."""

    name: str
    prefixes: tuple[str, ...]
    digest: bytes | None = None
    certificate: str | None = None

    def may(self, key: str) -> bool:
        """Whether ``key`` is this client's to use."""
        return key.startswith(self.prefixes)


ANYBODY = Client("anybody", ("",))
"""The client of a service that asks for no token."""


class Clients:
    """The clients of a service."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._tokens = [(client.digest, client) for client in clients if client.digest]
        self._certificates = {client.certificate: client for client in clients if client.certificate}

    def find(self, authorization: str | None, certificate: str | None) -> Client | None:
        """The client, by its Authorization header, else by the common name of its certificate; None if unknown."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return self._certificates.get(certificate) if certificate and not authorization else None
        offered = sha256(token.strip().encode()).digest()
        found = None
        # Compare every digest, each in constant time: the time that it takes must say nothing about any of them.
        for digest, client in self._tokens:
            if hmac.compare_digest(digest, offered):
                found = client
        return found


def load(path: Path) -> Clients:
    """The clients that a file names; ConfigError if it is not such a file."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the clients' file {str(path)!r} cannot be read: {error}") from error
    tables = document.get("client")
    if set(document) != {"client"} or not isinstance(tables, list):
        raise ConfigError(f"the clients' file {str(path)!r} consists of [[client]] tables, one or more")
    clients = [_client(table, f"client {number} of {str(path)!r}") for number, table in enumerate(tables, 1)]
    for what in ("digest", "certificate"):
        given = [value for client in clients if (value := getattr(client, what)) is not None]
        if len(set(given)) < len(given):
            raise ConfigError(f"two clients of {str(path)!r} share a token or a certificate; give each its own")
    return Clients(clients)


def _client(table: Any, where: str) -> Client:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is no table; write [[client]], and its fields below")
    if unknown := set(table) - _FIELDS:
        raise ConfigError(f"{where} has no field {', '.join(sorted(unknown))!r}; it takes {', '.join(sorted(_FIELDS))}")
    name, digest, certificate = (table.get(field) for field in ("name", "sha256", "certificate"))
    prefixes = table.get("prefixes")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where} needs a name")
    if not isinstance(prefixes, list) or not prefixes or not all(isinstance(each, str) for each in prefixes):
        raise ConfigError(f'{where} needs prefixes, such as ["account/"], or [""] for every key')
    if (digest is None) == (certificate is None):
        raise ConfigError(f"{where} needs either sha256, of its bearer token, or certificate, its common name")
    if digest is not None and not (isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest)):
        raise ConfigError(f"{where}: sha256 is 64 lower-case hexadecimal digits; --new-token makes one")
    if certificate is not None and not (isinstance(certificate, str) and certificate):
        raise ConfigError(f"{where}: certificate is the common name of the client's certificate")
    return Client(name, tuple(prefixes), bytes.fromhex(digest) if digest else None, certificate)


def new(name: str, prefixes: Sequence[str] = ("",)) -> tuple[str, str]:
    """A new bearer token, and the table that lets it in."""
    token = secrets.token_urlsafe(32)
    digest = sha256(token.encode()).hexdigest()
    quoted, begins = (json.dumps(each, ensure_ascii=False) for each in (name, list(prefixes)))
    return token, f'[[client]]\nname = {quoted}\nsha256 = "{digest}"\nprefixes = {begins}\n'
