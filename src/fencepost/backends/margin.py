"""For how long a server keeps a lease, and for how long its holder counts on it.

Both count the same ttl, each on its own clock. The server's runs a little faster now and then, as while it is being
adjusted; so it keeps the lease a little longer, or it could give it to another one before the holder's deadline.
"""

_DRIFT, _STEP = 0.01, 0.002  # how much faster than ours a server's clock may run, and how coarsely


def kept(ttl: float) -> float:
    """For how many seconds a server keeps a lease of ``ttl``."""
    return ttl * (1 + _DRIFT) + _STEP


def remains(seconds: float) -> float:
    """For how many seconds the holder may count on a lease that its server keeps for so long."""
    return max((seconds - _STEP) / (1 + _DRIFT), 0.0)
