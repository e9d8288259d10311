"""Locks with the signature, the keys and the errors of other libraries, so that changing one import is enough.

    from fencepost.compat.redis import Lock, Redis          # redis-py; .redis.aio for redis.asyncio
    from fencepost.compat.redis_lock import Lock            # python-redis-lock
    from fencepost.compat.redlock import Redlock            # redlock-py
    from fencepost.compat.pottery import Redlock            # pottery
    from fencepost.compat.filelock import FileLock          # filelock

Each is a subclass of the original, whose package must be installed, and works in the same way: programs that use the
original and programs that use this one exclude each other, with equal chances. Two things are added. The request that
takes the lock also mints a fencing token, so that ``lock.lease`` can be passed to a guard. And hooks are told what goes
wrong: a lock that expired while its holder worked, or one that another client released.

    observe(Audit("audit.jsonl"), Metrics())                 # the hooks; or set $FENCEPOST_AUDIT
"""

from fencepost.compat.observed import observe

__all__ = ["observe"]
