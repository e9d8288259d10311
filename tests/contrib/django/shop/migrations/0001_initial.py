from django.db import migrations, models

from fencepost.contrib.django.operations import InstallGuard


class Migration(migrations.Migration):
    """A table whose rows even psql changes only under a token, on Postgres."""

    dependencies = (("fencepost", "0001_initial"),)
    operations = (
        migrations.CreateModel(
            "Account", [("id", models.AutoField(primary_key=True)), ("balance", models.IntegerField())]
        ),
        InstallGuard("shop_account", resource="account/{id}"),
    )
