"""The marks of the guards, and the permissions of the admin page."""

from django.db import migrations, models

from fencepost.contrib.django.operations import InstallGuard


class Migration(migrations.Migration):
    """It runs what is in fencepost's own statements, which change nothing where they have run before."""

    initial = True
    dependencies = ()
    operations = (
        InstallGuard(),
        migrations.CreateModel(
            name="Lock",
            fields=[("name", models.CharField(max_length=512, primary_key=True, serialize=False))],
            options={
                "verbose_name": "held lock",
                "permissions": (("break_lock", "Can take a lock from its holder by force"),),
                "managed": False,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
    )
