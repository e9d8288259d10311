"""Locks with the signature, the keys and the errors of other libraries, so that changing one import is enough.

    from fencepost.compat.redis import Lock, Redis          # redis-py; .redis.aio for redis.asyncio
    from fencepost.compat.redis_lock import Lock            # python-redis-lock
    from fencepost.compat.redlock import Redlock            # redlock-py
    from fencepost.compat.pottery import Redlock            # pottery
    from fencepost.compat.filelock import FileLock          # filelock

Each is the class of the original, whose package must be installed, and does what that does: programs that were not
changed yet exclude those that were, and neither side has a better chance. Two things are added. The request that takes
the lock also mints a fencing token, so that ``lock.lease`` can be passed to a guard. And what goes wrong is told to
hooks: a lock that expired while its holder worked, one that another client released.

    observe(Audit("audit.jsonl"), Metrics())                 # who is told; or set $FENCEPOST_AUDIT
"""

from fencepost.compat.observed import observe

__all__ = ["observe"]
