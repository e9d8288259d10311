"""A worker that takes a lock, waits for a word, and then changes an account with the ORM under its lease.

python -m tests.contrib.django.holder DATABASE STORE TTL
"""

import json
import sys

from tests.contrib.django.site import begin


def main() -> None:
    database, store, ttl = sys.argv[1:]
    begin(database, {"URL": store, "TTL": float(ttl)})

    from fencepost import LeaseLost, Refused
    from fencepost.contrib.django import fenced, locks
    from tests.contrib.django.shop.models import Account

    try:
        with locks.lock("account/1", timeout=30) as lease:
            with fenced("account/1"):
                balance = Account.objects.get(pk=1).balance
            print(json.dumps({"token": lease.token}), flush=True)
            sys.stdin.readline()
            said = "written"
            try:
                with fenced("account/1"):
                    Account.objects.filter(pk=1).update(balance=balance + 1)
            except Refused as error:
                said = type(error).__name__
            print(json.dumps({"said": said, "lost": lease.lost}), flush=True)
    except LeaseLost:
        print(json.dumps({"said": "LeaseLost"}), flush=True)


if __name__ == "__main__":
    main()
