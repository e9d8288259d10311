"""The plugins of the test suite; tests/harness says what each is for."""

import signal

pytest_plugins = (
    "tests.harness.complete",
    "tests.harness.stores",
    "tests.harness.order",
    "tests.harness.servers",
    "tests.harness.running",
)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As for a shell's background jobs. The programs that the tests start and interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
