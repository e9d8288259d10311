"""fencepost in a Django project: ``INSTALLED_APPS += ["fencepost.contrib.django"]``.

    from fencepost.contrib.django import fenced, locks

    with locks.lock("account/42"), fenced("account/42"):
        account = Account.objects.get(pk=42)
        account.balance -= 10
        account.save()

The setting ``FENCEPOST`` says where locks live; the app's migration prepares the database for ``fenced``.

How the parts fit: ``conf`` reads the setting and keeps the one ``Locks`` of the process, ``checks`` tells what is wrong
with the setting, ``transactions`` leads to the guard of each database, ``operations`` and ``migrations`` prepare it,
``cache`` stands in for cache locks, ``models`` is there for the permissions and the log of the ``admin`` page, and
``views`` has the page of metrics.
"""

from fencepost.contrib.django.cache import CacheLock, cache_lock
from fencepost.contrib.django.conf import locks
from fencepost.contrib.django.transactions import admit, fenced

__all__ = ["CacheLock", "admit", "cache_lock", "fenced", "locks"]
