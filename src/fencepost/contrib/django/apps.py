"""The app, for INSTALLED_APPS."""

from django.apps import AppConfig
from django.core.checks import Tags, register


class FencepostConfig(AppConfig):
    """``fencepost.contrib.django``; its label, in permissions and ``migrate``, is ``fencepost``."""

    name = "fencepost.contrib.django"
    label = "fencepost"
    verbose_name = "Locks"

    def ready(self) -> None:
        """Have the setting checked."""
        from fencepost.contrib.django.checks import check_deployment, check_setting

        register(check_setting, "fencepost")
        register(check_deployment, "fencepost", Tags.security, deploy=True)
