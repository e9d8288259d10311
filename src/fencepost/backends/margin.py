"""For how long a server keeps a lease, and for how long its holder counts on it.

Both count the same ttl, each on its own clock. The server's clock sometimes runs a little faster, for example while it
is being adjusted. So the server keeps the lease a little longer than the ttl; otherwise it could grant the lock to
another client before the holder's deadline.
"""

_DRIFT, _STEP = 0.01, 0.002  # how much faster a server's clock may run than ours, and how coarse it is, in seconds


def kept(ttl: float) -> float:
    """For how many seconds a server keeps a lease of ``ttl``."""
    return ttl * (1 + _DRIFT) + _STEP


def remains(seconds: float) -> float:
    """For how many seconds the holder may count on a lease that its server keeps for ``seconds``."""
    return max((seconds - _STEP) / (1 + _DRIFT), 0.0)
