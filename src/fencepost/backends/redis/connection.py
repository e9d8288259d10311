"""How to connect to a Redis server: credentials, TLS, timeouts, and the first commands."""

import re
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, cast

from hiredis import ProtocolError, ReplyError, pack_command

from fencepost.backends.redis import answers
from fencepost.backends.redis.answers import Fits
from fencepost.credentials import LONGEST, Secret, Source
from fencepost.driver.interrupts import interruptible
from fencepost.driver.scope import patience
from fencepost.driver.sockets import connect, keep_alive, limit
from fencepost.errors import BackendError

if TYPE_CHECKING:
    import ssl

Endpoint = tuple[str, int | None]
"""Host and port, or the path of a Unix socket and None."""
Locate = Callable[[], Coroutine[Any, Any, Endpoint]]
"""Finds the server to connect to, at each connect."""

pack = cast("Callable[[tuple[Any, ...]], bytes]", pack_command)  # its stub allows only one argument
NOTHING = object()
"""What a parser returns if it needs more bytes."""

# A server that answers with one of these did not execute the request; a later attempt, or another server, may succeed.
LATER = ("READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ")
ELSEWHERE = ("MOVED ", "ASK ")
_LONGEST = 1000  # the most characters of a server's message that are looked at, and repeated in errors
_TELLTALE = 8  # so many characters of a password are enough to find it in a server's message
_NEVER = ("NOAUTH", "WRONGPASS", "NOPERM", "OOM", "NOREPLICAS", "MISCONF", "WRONGTYPE", "CROSSSLOT", "would overflow")


# Redis 6 wraps the error of a command inside a script; from 7 on the error itself comes first.
_WRAPPED = re.compile(r"ERR Error running script \(call to \w+\): (?:@user_script: ?\d+: )*-(?=[A-Z]+ )")


@dataclass(frozen=True)
class Dial:
    """How to connect to a server: credentials, TLS, timeouts, and the first commands."""

    scheme: str
    user: str | None
    password: str | None = field(repr=False)
    db: int
    tls: "ssl.SSLContext | None"
    connect_timeout: float
    timeout: float
    opening: tuple[bytes, ...] = field(default=(), repr=False)
    name: str = "fencepost"
    """The name of the connections in CLIENT LIST."""
    login: Source[Secret] | None = None
    """Returns user and password for each connection, if they are not fixed."""

    @property
    def patience(self) -> float:
        """Seconds that opening a connection may take, with the time for getting credentials."""
        return self.connect_timeout + self.timeout + (0.0 if self.login is None else LONGEST)

    async def secret(self, most: float = LONGEST) -> Secret | None:
        """The credentials for the next connection; None for no login. BackendError if the caller's function fails, or
        takes more than ``most`` seconds."""
        if self.login is not None:
            return await self.login.get(most)
        return None if self.password is None else Secret(self.user, self.password)

    def greeting(self, secret: Secret | None) -> list[bytes]:
        """The first commands on every connection, sent in one write."""
        hello: list[str] = ["HELLO", "3"]
        if secret is not None:
            hello += ["AUTH", secret.user or self.user or "default", secret.password]
        hello += ["SETNAME", self.name]
        commands = [pack(tuple(hello))]
        if self.db:
            commands.append(pack(("SELECT", self.db)))
        return [*commands, *self.opening]

    def greets(self) -> list[Fits]:
        """The form of the answers to the greeting; ``welcomed`` checks the answer to HELLO."""
        return [answers.anything, *([answers.ok] if self.db else ()), *([answers.text] * len(self.opening))]

    def welcomed(self, endpoint: Endpoint, replies: Sequence[Any], secret: Secret | None) -> None:
        """Check the answers to the greeting. Scripts that cannot be loaded now are sent when they are needed."""
        for reply in replies[: len(replies) - len(self.opening)]:
            if isinstance(reply, ReplyError):
                text = _unsaid(clipped(reply), secret)
                if text.startswith("NOPROTO") or ("unknown command" in text.lower() and "HELLO" in text):
                    text += "; fencepost needs Redis 6 or newer, or Valkey"
                if text.startswith("NOAUTH"):  # its own text is about HELLO, which the user did not send
                    text = "NOAUTH: this server needs a password; write it into the URL, redis://user:password@host, "
                    text += "or give connect() credentials="
                if text.startswith("WRONGPASS") and self.login is not None:
                    text += "; this is what the credentials function returned, for user "
                    text += repr(self.user or "default") if secret is None or not secret.user else repr(secret.user)
                self.fail(endpoint, text, ambiguous=False)
        if not answers.table(replies[0]):
            self.fail(
                endpoint,
                f"it does not speak RESP3; fencepost needs Redis 6 or newer, or Valkey, and no proxy before it that "
                f"speaks RESP2: it answers HELLO with {_unsaid(repr(replies[0]), secret)}",
                ambiguous=False,
            )

    def fail(self, endpoint: Endpoint, why: object, *, ambiguous: bool) -> NoReturn:
        raise self.error(endpoint, why, ambiguous=ambiguous)

    def error(self, endpoint: Endpoint, why: object, *, ambiguous: bool) -> BackendError:
        return BackendError(f"Redis at {spell(endpoint)}: {clipped(why)}", backend=self.scheme, ambiguous=ambiguous)

    def socket(self, endpoint: Endpoint) -> socket.socket:
        """A connected blocking socket. If possible, the kernel enforces its timeouts, which costs no system call."""
        host, port = endpoint
        if port is None and not hasattr(socket, "AF_UNIX"):
            self.fail(endpoint, "this system has no Unix sockets; give host and port", ambiguous=False)
        raw = socket.socket(socket.AF_UNIX) if port is None else connect(host, port, patience(self.connect_timeout))
        try:
            if port is None:
                raw.settimeout(patience(self.connect_timeout))
                interruptible(raw.connect, host)
            else:
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                keep_alive(raw)
                if self.tls is not None:
                    raw = self.tls.wrap_socket(raw, server_hostname=host)
            raw.settimeout(None if self.tls is None and limit(raw, self.timeout) else self.timeout)
        except BaseException:
            raw.close()
            raise
        return raw


def cause(reply: Any) -> str:
    """The text of a server's error, code first, also if an older Redis wraps an error from inside a script."""
    return _WRAPPED.sub("", clipped(reply), count=1)


def _unsaid(text: str, secret: Secret | None) -> str:
    """A server's answer to the greeting, without the password: a server that does not know HELLO repeats all of it."""
    text = text.partition(", with args beginning with")[0]
    if secret is None or not secret.password:
        return text
    before, found, _ = text.partition(secret.password[:_TELLTALE])  # the rest may be cut short
    return f"{before}***" if found else text


def clipped(said: object) -> str:
    """A server's message, cut to a limit: a server may send any amount of text."""
    text = str(said)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


class Denied(BackendError):
    """The server refused the request, and a retry soon after would not help."""


def refusal(reply: Any, scheme: str) -> BackendError:
    """The BackendError for a server's error, with advice."""
    text = cause(reply)
    if "WRONGTYPE" in text:
        text += "; the lock's key is in use for something else: give locks a ?prefix= of their own"
    if "would overflow" in text:
        text += "; the last token was given, and there is no larger one: give locks another ?prefix="
    known = text.startswith((*LATER, *ELSEWHERE, *_NEVER)) or any(word in text for word in _NEVER)
    kind = BackendError if text.startswith((*LATER, *ELSEWHERE)) else Denied
    return kind(f"Redis: {text}", backend=scheme, ambiguous=not known)


GARBAGE = (ProtocolError, TypeError)
"""What the parser raises for bytes that are not a reply; TypeError for a map whose keys are lists."""


def garbled(error: Exception) -> OSError:
    """The error for bytes that are not Redis's protocol; the connection is then treated as broken."""
    return ConnectionAbortedError(f"{error}; either this is no Redis, or it speaks TLS, as rediss:// does")


def fitting(reply: Any, fits: Fits) -> bool:
    """Whether a reply can be the answer to a request; every request can be refused."""
    return reply.__class__ is ReplyError or fits(reply)


def astray() -> OSError:
    """The error for a reply to no request: from then on it is not certain which reply belongs to which request."""
    return ConnectionAbortedError("the server sent a reply that answers no request")


def spell(endpoint: Endpoint) -> str:
    host, port = endpoint
    return host if port is None else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
