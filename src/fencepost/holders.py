"""Holders: a random id of 32 hex digits; in the store also a label of the process, or the metadata of a candidate.

The **label** of a process follows the id after a ``~``, so that people can tell who holds:
``report.py[4711] deploy@web-1``. It is in the store only: a lease, its stamps and its events have the bare id. The
**metadata** of a candidate follows after an ``@``, in place of a label. Both are percent-encoded and part of the
holder, so that every store writes them in the same step as the grant or the queue entry. Stores whose own elections
have a field for metadata (etcd's value, the data of a ZooKeeper node) put it there.
"""

import os
import re
import sys

from fencepost.errors import ConfigError

MAX_METADATA = 400
"""Bytes of metadata, percent-encoded: a holder has at most 512, and travels with every stamp."""
MAX_LABEL = 120
"""Bytes of a label, percent-encoded."""

_PLAIN = "/:,;=+*()[]!$&'"  # not encoded, to stay legible; no store splits a holder at them
_OURS = re.compile(r"[0-9a-f]{32}")
_LONGEST = 30  # characters of the command, the user and the host in a label


def random_holder() -> str:
    return os.urandom(16).hex()


def compose(identity: str, metadata: str) -> str:
    """A holder that carries metadata; ConfigError if that is too long."""
    if not metadata and isinstance(metadata, str):
        return identity
    return f"{identity}@{_encoded(metadata, 'metadata', MAX_METADATA, '@')}"


def split(holder: str) -> tuple[str, str]:
    """A holder's id, without its label, and its metadata; empty if it carries none."""
    identity, _, told = (holder[:32] if _labelled(holder) else holder).partition("@")
    return identity, _decoded(told)


def ours(identity: str) -> bool:
    """Whether an id is one that fencepost made."""
    return _OURS.fullmatch(identity) is not None


def suffix(label: str) -> str:
    """What stands in the store after the ids of a process with this label; ConfigError if that is too long."""
    return f"~{_encoded(label, 'a label', MAX_LABEL, '')}" if label or not isinstance(label, str) else ""


def unlabelled(holder: str) -> tuple[str, str]:
    """A holder as its lease has it, and its label; the label is empty if there is none."""
    return (holder[:32], _decoded(holder[33:])) if _labelled(holder) else (holder, "")


def _labelled(holder: str) -> bool:
    return holder[32:33] == "~" and ours(holder[:32])


def own_label(command: str | None = None) -> str:
    """The label of this process: $FENCEPOST_LABEL, or else its command, pid, user and host.

    Never the arguments of the command, which may contain passwords. If $FENCEPOST_LABEL is empty, so is the label;
    ConfigError if it cannot be a label.
    """
    given = os.environ.get("FENCEPOST_LABEL")
    if given is not None:
        _encoded(given, "$FENCEPOST_LABEL", MAX_LABEL, "")
        return given
    from urllib.parse import quote

    parts = [command or _command(), _user(), _host()]
    # Letters beyond ASCII take up to twelve bytes each: such names are cut shorter.
    for longest in (_LONGEST, 12, 3, 2):
        what, user, host = (part[:longest] for part in parts)
        label = f"{what}[{os.getpid()}] {user}@{host}"
        if len(quote(label, safe=_PLAIN, errors="replace")) <= MAX_LABEL:
            break
    return label.encode(errors="replace").decode()


def _command() -> str:
    folder, name = _split(sys.argv[0] if sys.argv else "")
    if name == "__main__.py":  # python -m package
        _, name = _split(folder)
    return name if name not in ("", "-c", "-m", "-") else _split(sys.executable or "python")[1]


def _split(path: str) -> tuple[str, str]:
    """The folder of a path, and its last part, also of one that ends with a slash, as ``python folder/`` has it."""
    return os.path.split(path.rstrip(f"{os.sep}{os.altsep or ''}"))


def _user() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.geteuid()).pw_name
    except ImportError:  # not on Unix
        return os.environ.get("USERNAME", "?")
    except KeyError:  # in a container, the user may be a number without an entry in the password file
        return str(os.geteuid())


def _host() -> str:
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "?")


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote

    return unquote(text)


def _encoded(text: str, what: str, most: int, plain: str) -> str:
    if not isinstance(text, str):
        raise ConfigError(f"{what} is a str, not {text!r}; give an address, or JSON as text")
    from urllib.parse import quote

    try:
        told = quote(text, safe=_PLAIN + plain)
    except UnicodeEncodeError:
        raise ConfigError(f"{what} must be valid Unicode: {text[:40]!r}") from None
    if len(told) > most:
        raise ConfigError(
            f"{what} has at most {most} bytes, percent-encoded; {text[:40]!r}... has {len(told)}: "
            f"make it shorter, such as an address at which the rest can be found"
        )
    return told
