"""The project: ``begin`` configures it in this process."""

from __future__ import annotations

import os
from typing import Any

import django
from django.conf import settings
from django.urls import URLPattern, URLResolver

urlpatterns: list[URLPattern | URLResolver] = []

CONTRIB = [f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "messages", "sessions")]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = {
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "APP_DIRS": True,
    "OPTIONS": {
        "context_processors": [
            "django.template.context_processors.request",
            "django.contrib.auth.context_processors.auth",
            "django.contrib.messages.context_processors.messages",
        ]
    },
}


def begin(database: str, fencepost: Any, *, admin: bool = False) -> None:
    """Set Django up with this database, a Postgres URL or a path of SQLite's, and this FENCEPOST."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    more: dict[str, Any] = {}
    if admin:
        more = {"MIDDLEWARE": MIDDLEWARE, "TEMPLATES": [TEMPLATES], "ROOT_URLCONF": __name__, "STATIC_URL": "static/"}
    settings.configure(
        DATABASES={"default": described(database)},
        INSTALLED_APPS=[*(CONTRIB if admin else ()), "fencepost.contrib.django", "tests.contrib.django.shop"],
        SECRET_KEY="for tests",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        USE_TZ=True,
        FENCEPOST=fencepost,
        **more,
    )
    django.setup()
    if admin:
        from django.contrib import admin as site
        from django.urls import path

        urlpatterns.append(path("admin/", site.site.urls))


def described(database: str) -> dict[str, Any]:
    """How settings.DATABASES says it."""
    if "://" not in database:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": database, "OPTIONS": {"timeout": 30}}
    from psycopg.conninfo import conninfo_to_dict

    info = conninfo_to_dict(database)
    place = {"NAME": info["dbname"], "USER": info["user"], "HOST": info["host"], "PORT": info["port"]}
    return {"ENGINE": "django.db.backends.postgresql", **place, "OPTIONS": {"options": info["options"]}}


def migrate(*labels: str) -> None:
    """``manage.py migrate``, quietly."""
    from django.core.management import call_command

    call_command("migrate", *labels, verbosity=0, interactive=False)
