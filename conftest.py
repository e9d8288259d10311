"""The plugins of the test suite; tests/harness says what each is for."""

import signal

from hypothesis import HealthCheck, settings

from tests import FUZZ

pytest_plugins = (
    "tests.harness.scratch",
    "tests.harness.complete",
    "tests.harness.stores",
    "tests.harness.order",
    "tests.harness.servers",
    "tests.harness.running",
    "tests.harness.sql",
)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As for a shell's background jobs. The programs that the tests start and interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says nothing on a busy machine.
settings.register_profile(
    "fencepost",
    deadline=None,
    derandomize=not FUZZ,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("fencepost")
