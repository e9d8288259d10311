"""The exit codes of the command line, in one place."""

from fencepost.errors import BackendError, ConfigError, FencepostError, LeaseLost, NotAcquired, Refused

# The numbers are those of sysexits.h where it has a fitting one: programs seldom use them by themselves.
CODES: dict[type[FencepostError], tuple[int, str]] = {
    ConfigError: (2, "wrong usage: a bad name, URL or option"),
    BackendError: (69, "the store did not answer as it should"),
    NotAcquired: (75, "could not acquire the lock in time; try again later"),
    LeaseLost: (76, "the lease was lost while it was needed"),
    Refused: (77, "a guard refused the access"),
}
FAILED = 1
# What a shell says of a command that it could not run, or that a signal ended (plus its number).
NO_EXEC = 126
NO_COMMAND = 127
SIGNALLED = 128


def code(error: FencepostError) -> int:
    """The exit code for an error."""
    return next((number for kind, (number, _) in CODES.items() if isinstance(error, kind)), FAILED)


def table() -> str:
    """The codes as one line of help."""
    known = [(0, "done"), (FAILED, "failed"), *CODES.values(), (130, "interrupted")]
    return "Exit codes: " + "; ".join(f"{number} {meaning}" for number, meaning in known) + "."
