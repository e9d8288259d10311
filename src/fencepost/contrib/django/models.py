"""A model without a table: the admin page, its permissions and its log need one to name a lock."""

from typing import Any

from django.db import models


class _Nothing(models.Manager):
    """Locks live in their store, so that there is nothing to find, count or dump here."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class Lock(models.Model):
    """A lock that is held. Permissions: ``fencepost.view_lock`` and ``fencepost.break_lock``."""

    name = models.CharField(primary_key=True, max_length=512)

    objects = _Nothing()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (("break_lock", "Can take a lock from its holder by force"),)
        verbose_name = "held lock"

    def __str__(self) -> str:
        return str(self.name)
