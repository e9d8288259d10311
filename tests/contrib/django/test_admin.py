"""The admin page of held locks: who may look, who may break, and what the log says afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from fencepost import LeaseLost
from fencepost.errors import BackendError
from tests.contrib.django import site
from tests.harness.child import Child
from tests.harness.isolated import isolated

WORKER = """
import fencepost
from fencepost.hooks.prometheus import Metrics

with fencepost.connect("memory://", hooks=[Metrics()]) as locks:
    for _ in range(3):
        locks.acquire("job").release()
"""


@pytest.mark.slow
@isolated
def test_the_page_of_held_locks(tmp_path: Path) -> None:
    site.begin(str(tmp_path / "site.sqlite3"), {"URL": f"sqlite:{tmp_path / 'locks.sqlite3'}"}, admin=True)
    site.migrate()

    from django.contrib.admin.models import LogEntry
    from django.contrib.auth.models import Permission, User
    from django.core.management import call_command
    from django.test import Client, override_settings
    from django.urls import reverse

    from fencepost.contrib.django import conf, locks
    from fencepost.contrib.django.models import Lock

    def staff(name: str, *allowed: str) -> Client:
        user = User.objects.create_user(name, is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=allowed))
        client = Client(enforce_csrf_checks=name == "careful")
        client.force_login(user)
        return client

    def text(response: Any) -> str:
        return str(response.content.decode())

    metrics_are_for_scrapers_with_the_token_and_for_people_with_the_permission(tmp_path, staff)

    page, ask = reverse("admin:fencepost_lock_changelist"), reverse("admin:fencepost_lock_break")
    lease = locks.acquire("<b>report</b>/ü?&1")
    what = {"name": lease.name, "token": str(lease.token)}

    def held() -> bool:
        return locks.status(lease.name) is not None

    # Who may not.
    for client in (Client(), staff("nobody")):
        for url in (page, ask):
            assert client.get(url, what).status_code in (302, 403)
            assert client.post(url, what).status_code in (302, 403)
    outsider = Client()
    outsider.force_login(User.objects.create_user("outsider"))
    assert outsider.post(ask, what).status_code == 302, "a user who is no staff is sent to the login page"
    viewer = staff("viewer", "view_lock")
    shown = viewer.get(page)
    assert shown.status_code == 200
    assert "&lt;b&gt;report&lt;/b&gt;/ü?&amp;1" in text(shown)
    assert "<b>report" not in text(shown)
    assert lease.holder in text(shown)
    assert ask not in text(shown)
    assert (viewer.get(ask, what).status_code, viewer.post(ask, what).status_code) == (403, 403)
    assert "No lock is held" in text(viewer.get(page, {"q": "other"}))
    assert reverse("admin:fencepost_lock_changelist") in text(viewer.get(reverse("admin:index")))
    careful = staff("careful", "break_lock")
    assert careful.post(ask, what).status_code == 403, "without its CSRF token a form of another site breaks nothing"
    assert held()
    assert LogEntry.objects.count() == 0

    # Who may.
    breaker = staff("breaker", "break_lock")
    (link,) = [part.split('"')[0] for part in text(breaker.get(page)).split('href="') if part.startswith(ask)]
    question = breaker.get(link.replace("&amp;", "&"))
    assert question.status_code == 200
    assert f'name="token" value="{lease.token}"' in text(question)
    assert held(), "a question breaks nothing"

    def said(**data: str) -> str:
        return text(breaker.post(ask, what | data, follow=True))

    assert "has another holder by now" in said(token=str(lease.token - 1))
    assert "is free" in said(name="free")
    assert "cannot be empty" in said(name="")
    assert held()
    assert LogEntry.objects.count() == 0

    real = conf.current().locks.break_lock

    def failing(ambiguous: bool) -> Any:
        def broken(name: str) -> None:
            raise BackendError("the store gave no answer", backend="sqlite", ambiguous=ambiguous)

        return broken

    conf.current().locks.break_lock = failing(False)  # type: ignore[method-assign]
    assert "store gave no answer" in said()
    conf.current().locks.break_lock = lambda name: None  # type: ignore[method-assign]
    assert "is free" in said()
    assert LogEntry.objects.count() == 0, "what was not done is not in the log"
    conf.current().locks.break_lock = failing(True)  # type: ignore[method-assign]
    assert "is not known: look again" in said()
    assert LogEntry.objects.count() == 1, "what may have been done is"
    conf.current().locks.break_lock = real  # type: ignore[method-assign]

    assert "was taken from" in said()
    assert not held()
    with pytest.raises(LeaseLost):
        lease.renew()
    entry = LogEntry.objects.latest("pk")
    assert (entry.user.username, entry.object_id, entry.is_change()) == ("breaker", lease.name, True)
    assert entry.get_change_message() == f"Break: holder {lease.holder}, token {lease.token}."
    assert breaker.get(reverse("admin:index")).status_code == 200, "the log's entry is shown there"

    # There is no table, and nobody looks for one.
    assert list(Lock.objects.all()) == []
    dumped = StringIO()
    call_command("dumpdata", "--all", stdout=dumped)
    assert "fencepost.lock" not in dumped.getvalue()
    for way in ("add/", f"{lease.token}/change/", f"{lease.token}/delete/"):
        assert breaker.get(f"{page}{way}").status_code == 404
    with override_settings(FENCEPOST={"URL": "redis://127.0.0.1:1/0"}):
        down = breaker.get(page)
        assert (down.status_code, "errornote" in text(down)) == (503, True)


def metrics_are_for_scrapers_with_the_token_and_for_people_with_the_permission(
    folder: Path, staff: Callable[..., Any]
) -> None:
    """Part of the test above, which has a site with users and an interpreter of its own."""
    from django.test import Client, override_settings
    from django.urls import path

    from fencepost.contrib.django import locks
    from fencepost.contrib.django.views import metrics
    from fencepost.hooks.prometheus import Metrics

    site.urlpatterns.append(path("metrics", metrics))
    secret = "a-secret-of-the-scraper"
    setting = {"URL": f"sqlite:{folder / 'measured.sqlite3'}", "HOOKS": [Metrics()]}
    seen, stranger, anybody = staff("seer", "view_lock"), staff("stranger"), Client()

    def asked(client: Any, token: str = "", **headers: str) -> Any:
        return client.get("/metrics", headers={"Authorization": f"Bearer {token}"} if token else headers)

    with override_settings(FENCEPOST=setting):
        locks.acquire("job").release()
        assert [asked(each).status_code for each in (anybody, stranger, seen)] == [403, 403, 200]
        assert asked(anybody, secret).status_code == 403, "no token was set, so none is right"
    with override_settings(FENCEPOST=setting | {"METRICS_TOKEN": secret}):
        locks.acquire("job").release()
        shown = asked(anybody, secret)
        assert (shown.status_code, shown["Content-Type"].partition(";")[0]) == (200, "text/plain")
        assert "fencepost_lock_acquire_success_total 2.0" in shown.content.decode()
        assert "no-store" in shown["Cache-Control"]
        assert [asked(each).status_code for each in (anybody, stranger, seen)] == [401, 401, 200]
        assert asked(anybody)["WWW-Authenticate"].startswith("Bearer")
        wrong = [asked(anybody, each).status_code for each in (secret[:-1], secret + "x", "\N{SNOWMAN}", "é")]
        assert wrong == [403] * 4
        assert asked(anybody, Authorization=f"Basic {secret}").status_code == 403
        assert anybody.post("/metrics", headers={"Authorization": f"Bearer {secret}"}).status_code == 405
        new = asked(seen, Accept="application/openmetrics-text; version=1.0.0")
        assert new["Content-Type"].startswith("application/openmetrics-text")
        assert new.content.endswith(b"# EOF\n")

        # Workers that share their counts in a folder: the page adds up what all of them did.
        shared = folder / "counts"
        shared.mkdir()
        for _ in range(2):
            with Child.python("-c", WORKER, env={"PROMETHEUS_MULTIPROC_DIR": str(shared)}) as worker:
                worker.succeed()
        with patch.dict(os.environ, PROMETHEUS_MULTIPROC_DIR=str(shared)):
            assert "fencepost_lock_acquire_success_total 6.0" in asked(seen).content.decode()
