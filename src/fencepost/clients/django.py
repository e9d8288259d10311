"""An entry of Django's settings.DATABASES."""

from collections.abc import Mapping
from typing import Any

from fencepost.address import Address
from fencepost.clients import postgres, sqlite
from fencepost.driver import Driver
from fencepost.errors import ConfigError


def database(client: Any, driver: Driver) -> Address:
    """The address of ``connections["default"]``, or of ``django.db.connection``."""
    wrapper = client
    if type(client).__name__ == "ConnectionProxy":  # django.db.connection, which stands for this thread's connection
        from django.db import connections

        wrapper = connections[client.alias]
    if wrapper.vendor == "sqlite":
        return sqlite.address(str(wrapper.get_connection_params()["database"]), uri=True)
    if wrapper.vendor != "postgresql":
        raise ConfigError(
            f"the database {wrapper.alias!r} is {wrapper.vendor}; fencepost has locks behind PostgreSQL and SQLite"
        )
    if not _connects_itself(wrapper):
        postgres.keywords(_parameters(wrapper))  # raises now if something cannot be copied
    return postgres.address(lambda: _tell(wrapper), driver, f"Django's database {wrapper.alias!r}")


def _connects_itself(wrapper: Any) -> bool:
    return not type(wrapper).get_new_connection.__module__.startswith("django.")


def _tell(wrapper: Any) -> dict[str, str]:
    """The arguments with which it would connect now, including changes by a test database or a subclass."""
    if not _connects_itself(wrapper):
        return postgres.keywords(_parameters(wrapper))
    made = wrapper.get_new_connection(wrapper.get_connection_params())
    return postgres.keywords(_in_role(wrapper, postgres.from_connection(made)))


def _parameters(wrapper: Any) -> dict[str, Any]:
    return _in_role(wrapper, wrapper.get_connection_params())


def _in_role(wrapper: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments, with the role that Django assumes after connecting."""
    role = wrapper.settings_dict["OPTIONS"].get("assume_role")
    if not role:
        return dict(told)
    return dict(told) | {"options": " ".join(filter(None, [told.get("options"), postgres.setting("role", role)]))}
