"""A run that claims to be complete fails when it skipped anything."""

import os

import pytest


def complete_run() -> bool:
    """Whether this run promises to leave nothing out."""
    return os.environ.get("CI") == "true" or os.environ.get("FENCEPOST_REQUIRE_SERVERS") == "1"


def _skipped(config: pytest.Config) -> int:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return len(reporter.stats.get("skipped", ())) if reporter else 0


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if complete_run() and _skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if complete_run() and (count := _skipped(terminalreporter.config)):
        terminalreporter.section("no test may be skipped here", red=True)
        terminalreporter.line(f"{count} skipped under CI=true or FENCEPOST_REQUIRE_SERVERS=1: the run fails")
