"""Prometheus metrics at an address of your site, for URLs that name it: ``path("metrics", metrics)``."""

import os

from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from fencepost.contrib.django import conf
from fencepost.errors import ConfigError

__all__ = ["metrics"]

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.multiprocess import MultiProcessCollector
except ModuleNotFoundError as error:
    raise ConfigError(
        "fencepost.contrib.django.views needs the package 'prometheus_client': pip install 'fencepost[metrics]'"
    ) from error

_FOLDERS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """All metrics of prometheus_client's own registry, those of the hook ``Metrics()`` among them.

    A scraper sends ``Authorization: Bearer`` with the setting ``FENCEPOST["METRICS_TOKEN"]``; a person who is logged in
    needs the permission ``fencepost.view_lock``. Everybody else is answered with 401 or 403. With
    $PROMETHEUS_MULTIPROC_DIR the page adds up all worker processes of this host.

        urlpatterns = [path("metrics", metrics)]
    """
    if not _allowed(request):
        if request.headers.get("Authorization") or conf.current().metrics_token is None:
            return HttpResponse("not allowed to read the metrics\n", status=403, content_type="text/plain")
        challenge = {"WWW-Authenticate": 'Bearer realm="metrics"'}
        return HttpResponse("a token is needed\n", status=401, content_type="text/plain", headers=challenge)
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(_registry()), content_type=content_type)


def _allowed(request: HttpRequest) -> bool:
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    token = conf.current().metrics_token
    if token is not None and kind.lower() == "bearer" and constant_time_compare(given.strip(), token):
        return True
    user = getattr(request, "user", None)  # there is none without the middleware of django.contrib.auth
    return user is not None and bool(user.has_perm("fencepost.view_lock"))


def _registry() -> CollectorRegistry:
    """Where to read: in this process, or, if several share their counts in a folder, there."""
    if not any(os.environ.get(name) for name in _FOLDERS):
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # prometheus_client leaves it untyped
    return registry
