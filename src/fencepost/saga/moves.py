"""The transitions of a saga from one state to the next; each happens in one transaction of its ledger."""

from typing import Any

from fencepost.errors import ConfigError
from fencepost.saga.ledger import Record


def performed(record: Record, step: str, result: Any) -> None:
    """A step was done, or undone."""
    if record.state == "running":
        record.results[step] = result
        record.begun = None
    else:
        record.undone.append(step)
    settle(record)


def failed(record: Record, step: str, cause: Exception) -> None:
    """A step failed: turn back. An undo failed: stuck."""
    what = f"{step}: {type(cause).__name__}: {cause}"
    what = what.encode(errors="backslashreplace").decode().replace("\0", "\\x00")  # as any database can keep it
    if record.state == "running":
        record.state, record.error = "compensating", what
    else:
        record.state, record.trouble = "stuck", f"cannot undo {what}"
    settle(record)


def settle(record: Record) -> None:
    """If that was the last step, end the saga in the same transaction."""
    if record.step is None and record.state in ("running", "compensating"):
        record.state = "done" if record.state == "running" else "compensated"


def unstick(record: Record) -> None:
    """Have a stuck saga try its undo again; any other saga just goes on."""
    if record.state == "stuck":
        record.state, record.trouble = "compensating", None


def turn_back(record: Record) -> None:
    """Undo it instead of going on; ConfigError if it has ended."""
    if record.state in ("done", "compensated"):
        raise ConfigError(f"saga {record.saga} {record.id} is {record.state}, and stays so")
    record.error = record.error or "turned back by hand"
    record.state, record.trouble = "compensating", None
