"""What ``manage.py check`` says about the setting ``FENCEPOST``."""

import os
from collections.abc import Mapping
from typing import Any

from django.core.checks import CheckMessage, Error, Warning

from fencepost.contrib.django import conf


def check_setting(**_: Any) -> list[CheckMessage]:
    """Errors for each key that is wrong; a warning if nothing names the store of the locks."""
    value = conf.raw()
    found = [
        Error(f"{conf.named(key)}: {sentence}", id="fencepost.E001" if key == "" else "fencepost.E002")
        for key, sentence in conf.problems(value)
    ]
    if isinstance(value, Mapping) and not value.keys() & {"URL", "DATABASE"} and "FENCEPOST_URL" not in os.environ:
        found.append(
            Warning(
                "settings.FENCEPOST names no URL, so locks live in an SQLite file of this user on this host",
                hint="Name the store, such as {'URL': 'redis://localhost:6379/0'}, or 'sqlite:' if this is meant; or "
                "set $FENCEPOST_URL.",
                id="fencepost.W001",
            )
        )
    return found


def check_deployment(**_: Any) -> list[CheckMessage]:
    """A warning for a store that only one process sees."""
    value = conf.raw()
    url = None
    if isinstance(value, Mapping) and "DATABASE" not in value:
        url = value.get("URL", os.environ.get("FENCEPOST_URL"))
    if isinstance(url, str) and url.startswith("memory:"):
        return [
            Warning(
                "memory:// locks exclude nobody outside of their own process",
                hint="Use a store that all processes reach, such as redis:// or postgresql://.",
                id="fencepost.W002",
            )
        ]
    return []
