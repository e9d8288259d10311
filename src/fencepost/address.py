"""URLs: hosts, credentials, a path and options."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fencepost import check
from fencepost.errors import ConfigError

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

# These are compiled, and urllib.parse is imported, when the first URL is parsed.
_URL = r"([a-zA-Z][a-zA-Z0-9+.-]*):(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?"
_HOST = r"(?:\[([^\]]*)\]|([^:\[\]]*))(?::([0-9]{1,5}))?"
_VALUE = r"([?&][^=&#]*)=[^&#]*"


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL: one or more hosts, credentials, a path and options."""

    scheme: str
    hosts: tuple[tuple[str, int | None], ...] = ()
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    path: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    login: Any = field(default=None, repr=False, compare=False)
    """A ``credentials.Source`` that gives user and password for each new connection; None if they are fixed."""
    given: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Settings copied from a client that no URL can express, by the names that the store's backend knows."""

    def options(self, **parsers: Callable[[str], Any]) -> dict[str, Any]:
        """The URL's options, each parsed by its own parser; ConfigError for one that is not known."""
        parsed = {}
        for key, value in self.params.items():
            if key not in parsers:
                near = hint(key, parsers) or f"; it takes {', '.join(sorted(parsers)) or 'none'}"
                raise ConfigError(f"{self.scheme}:// has no option {key!r}{near}")
            try:
                parsed[key] = parsers[key](value)
            except ValueError as error:
                raise ConfigError(f"option {key}={value!r} of {self.scheme}://: {error}") from None
        return parsed

    def check_given(self, options: Iterable[str]) -> None:
        """ConfigError for an option given with a client, if it is copied from the client itself."""
        if self.given and (twice := sorted(self.params.keys() & set(options))):
            raise ConfigError(f"options= has {twice[0]!r}, which is copied from the client: set it there")

    def check_hosts(self) -> None:
        """ConfigError for a host that no server can have, for example from a URL that was composed wrongly."""
        for host, _ in self.hosts:
            if not host.upper().startswith("%2F") and not is_host(host):
                raise ConfigError(f"{self.scheme}:// cannot reach {host[:80]!r}: it is neither a name nor an address")


def is_host(text: str) -> bool:
    """Whether this can be a host's name or address; empty means that none is given, which is allowed."""
    if len(text) > 255 or not text.isprintable() or " " in text:
        return False
    try:
        text.encode("idna")
    except UnicodeError:  # a part of it is empty, or too long
        return False
    return True


def parse(url: str) -> Address:
    """Parse a URL; ConfigError, which never repeats a password, if it is invalid."""
    from urllib.parse import parse_qsl, unquote

    match = re.fullmatch(_URL, url)
    if not match:
        raise ConfigError(f"{masked(url)!r} is not a URL; write it like redis://localhost:6379/0")
    scheme, netloc, path, query = match.groups()
    if scheme.lower() != "sqlite" and not _is_text(url):  # a file's name may be any bytes
        raise ConfigError(f"{masked(url)!r} is not valid Unicode; write other bytes like %FF")
    login, _, servers = (netloc or "").rpartition("@")
    user, colon, password = login.partition(":")
    hosts = []
    # An @ in the path, or in an option's name, means that a password contains a / or ? that ended the host too early.
    cut = "@" in path or any("@" in part.partition("=")[0] for part in (query or "").split("&"))
    for server in servers.split(",") if servers else ():
        found = re.fullmatch(_HOST, server)
        if not found or cut:
            raise ConfigError(
                f"{masked(url)!r}: a host is written like host:1234 or [::1]:1234, / ? # in a password like "
                f"%2F %3F %23, and @ after the host like %40"
            )
        port = int(found[3]) if found[3] else None
        if port is not None and not 0 < port < 65536:
            raise ConfigError(f"{masked(url)!r}: a port lies between 1 and 65535")
        hosts.append((found[1] or found[2] or "", port))
    pairs = parse_qsl(query or "", keep_blank_values=True)
    params = dict(pairs)
    if len(params) < len(pairs):
        raise ConfigError(f"an option of {masked(url)!r} is given twice")
    return Address(
        scheme.lower(),
        tuple(hosts),
        unquote(user) if user else None,
        unquote(password) if colon else None,
        unquote(path),
        params,
    )


def _is_text(url: str) -> bool:
    try:
        url.encode()
    except UnicodeEncodeError:
        return False
    return True


def flag(text: str) -> bool:
    """An option that is 1 or 0."""
    if text not in ("0", "1"):
        raise ValueError("it is 0 or 1")
    return text == "1"


def seconds(text: str) -> float:
    """An option that is a duration greater than 0."""
    found = check.duration(text)
    if not found:
        raise ValueError("it must be greater than 0")
    return found


def choice(*values: str) -> Callable[[str], str]:
    """An option that is one of these words."""

    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"it is {' or '.join(values)}")
        return text

    return parse


TLS: Mapping[str, Callable[[str], Any]] = {"tls": flag, "ca": str, "cert": str, "key": str}
"""The options of a URL that may ask for TLS."""


def secure(options: Mapping[str, Any]) -> bool:
    """Whether these options ask for TLS, by ``tls=1`` or with a file of certificates."""
    files = options.keys() & {"ca", "cert", "key"}
    if empty := [each for each in sorted(files) if not options[each]]:
        raise ConfigError(f"{empty[0]}= names no file")
    if "key" in files and "cert" not in files:
        raise ConfigError("key= is the key of a certificate: give cert= too")
    if files and options.get("tls") is False:
        raise ConfigError(f"{min(files)}= is for TLS, and tls=0 asks for none: leave one of them out")
    return bool(files or options.get("tls"))


def tls_context(scheme: str, options: Mapping[str, Any]) -> "ssl.SSLContext":
    """A context for a client: it trusts ``ca=``, or else what the system trusts, and shows ``cert=`` with ``key=``."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "cert" in options:
            context.load_cert_chain(options["cert"], options.get("key"))
    except OSError as error:  # also for a file that is no certificate
        raise ConfigError(f"cannot load the TLS files of {scheme}://, ca=, cert= or key=: {error}") from None
    return context


def libpq(address: Address) -> dict[str, str]:
    """Server, login and database as libpq's keywords, not as a URL: libpq's errors repeat what it cannot parse."""
    given = {"dbname": address.path.strip("/") or None, "user": address.user, "password": address.password}
    if address.hosts:
        from urllib.parse import unquote

        given["host"] = ",".join(unquote(host) for host, _ in address.hosts)  # a socket's folder is written %2Frun
        given["port"] = ",".join(str(port or 5432) for _, port in address.hosts)
    return {key: value for key, value in given.items() if value is not None}


def hint(word: str, known: Iterable[str], tail: str = "") -> str:
    """``; did you mean ...?`` with the nearest of the ``known`` words; empty if none is near."""
    import difflib  # for messages only

    close = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean '{close[0]}{tail}'?" if close else ""


def masked(url: str) -> str:
    """The URL without its user and password, and without the values of its options, for messages."""
    login, at, rest = url.rpartition("@")
    scheme, slashes, _ = login.partition("//")
    start = f"{scheme if slashes else ''}{slashes}***@" if at else ""
    return start + re.sub(_VALUE, r"\1=***", rest)


def state_file(name: str) -> "Path":
    """A file of fencepost's in this user's state folder, the default when no other path is given.

    ConfigError if the user has no home folder, as in a container whose user is not in the password file.
    """
    from pathlib import Path

    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        raise ConfigError(
            "this user has no home folder for the embedded SQLite file; name a store in the URL or in $FENCEPOST_URL, "
            "or a folder in $XDG_STATE_HOME"
        ) from None
    return Path(state) / "fencepost" / name
