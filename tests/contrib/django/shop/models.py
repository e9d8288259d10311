from django.db import models


class Account(models.Model):
    """What the locks protect."""

    balance = models.IntegerField()
