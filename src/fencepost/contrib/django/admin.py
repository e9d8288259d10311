"""The locks that are held, for the admin site, and a button that takes one from its holder."""

import logging
from math import isinf
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.core.exceptions import PermissionDenied
from django.db import router, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from fencepost.backend import Status
from fencepost.cli.text import named
from fencepost.contrib.django.conf import locks
from fencepost.contrib.django.models import Lock
from fencepost.errors import BackendError, FencepostError

SHOWN = 500
"""So many locks are shown at most; a prefix finds the others."""

_log = logging.getLogger("fencepost")


class LockAdmin(admin.ModelAdmin):
    """A page of the locks that are held right now. It asks the store each time, and no table."""

    def get_urls(self) -> list[Any]:
        """The list, and the question whether to break one; a lock cannot be added, changed or deleted."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="fencepost_lock_changelist"),
            path("break/", view(self.break_view), name="fencepost_lock_break"),
        ]

    def has_add_permission(self, request: HttpRequest, *_: object) -> bool:
        """Nobody: locks are taken by programs."""
        return False

    def has_change_permission(self, request: HttpRequest, *_: object) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, request: HttpRequest, *_: object) -> bool:
        """Nobody: see ``has_break_permission``."""
        return False

    def has_view_permission(self, request: HttpRequest, *_: object) -> bool:
        """Users with ``fencepost.view_lock``, or ``fencepost.break_lock``."""
        return bool(request.user.has_perm("fencepost.view_lock")) or self.has_break_permission(request)

    def has_break_permission(self, request: HttpRequest) -> bool:
        """Users with ``fencepost.break_lock``."""
        return bool(request.user.has_perm("fencepost.break_lock"))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The locks whose names begin with ``?q=``."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        prefix, held, error = request.GET.get("q", ""), list[Status](), ""
        try:
            held = sorted(locks.list(prefix), key=lambda status: status.name)
        except FencepostError as failure:
            _log.warning("the admin page could not list locks: %s", failure)
            error = str(failure)
        context = {
            "title": "Held locks",
            "prefix": prefix,
            "rows": [_row(status) for status in held[:SHOWN]],
            "more": max(len(held) - SHOWN, 0),
            "error": error,
            "may_break": self.has_break_permission(request),
        }
        return self._page(request, "change_list", context | (extra_context or {}), status=503 if error else 200)

    def break_view(self, request: HttpRequest) -> HttpResponse:
        """Ask first; a POST that names the token which was shown breaks the lock, and leaves an entry in the log."""
        if not self.has_break_permission(request):
            raise PermissionDenied
        data = request.POST if request.method == "POST" else request.GET
        name, token = data.get("name", ""), data.get("token", "")
        try:
            status = locks.status(name)
            if status is None:
                messages.warning(request, f"{name} is free: there is nobody to take it from.")
            elif str(status.token) != token:
                messages.error(request, f"{name} has another holder by now: look again before you break it.")
            elif request.method != "POST":
                context = {"title": f"Break {name}?", "row": _row(status)}
                return self._page(request, "break", context)
            else:
                self._break(request, status)
        except FencepostError as failure:
            messages.error(request, str(failure))
        return HttpResponseRedirect(reverse("admin:fencepost_lock_changelist", current_app=self.admin_site.name))

    def _break(self, request: HttpRequest, status: Status) -> None:
        """Write the log entry first, so that no lock is broken without one; roll it back if nothing was broken."""
        log = router.db_for_write(LogEntry)
        with transaction.atomic(using=log):
            entry = self.log_change(request, Lock(name=status.name), _message(status))
            try:
                ended = locks.break_lock(status.name)
            except BackendError as failure:
                if not failure.ambiguous:
                    raise
                messages.error(request, f"{failure}; whether {status.name} was broken is not known: look again.")
                return
            if ended is None:
                transaction.set_rollback(True, using=log)
                messages.warning(request, f"{status.name} is free: there is nobody to take it from.")
                return
            # Log it at once: the commit of the entry may still fail.
            _log.warning(
                "%s broke lock %r: holder %r, token %d", request.user, ended.name, _holders(ended), ended.token
            )
            if _message(ended) != _message(status):  # it was handed on since we looked
                entry.change_message = _message(ended)
                entry.save(update_fields=["change_message"])
        messages.success(request, f"{ended.name} was taken from {_holders(ended)}, token {ended.token}.")

    def _page(self, request: HttpRequest, name: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
        request.current_app = self.admin_site.name
        whole = self.admin_site.each_context(request) | {"opts": self.opts} | context
        return TemplateResponse(request, f"admin/fencepost/lock/{name}.html", whole, status=status)


def _message(status: Status) -> str:
    return f"Break: holder {_holders(status)}, token {status.token}."


def _holders(status: Status) -> str:
    return ", ".join(named(status, each) for each in status.sharers or (status.holder,))


def _row(status: Status) -> dict[str, Any]:
    return {
        "name": status.name,
        "token": status.token,
        "holder": _holders(status),
        "left": "no expiry" if isinf(status.remaining) else f"{status.remaining:.1f} s",
        "waiting": len(status.waiters),
    }


admin.site.register(Lock, LockAdmin)
