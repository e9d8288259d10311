"""Consul: a session and a key per lock, in the layout of ``consul lock``.

::

    backend      the contract: Consul
      +-- sessions   Consul sessions, each lent to one hold at a time
      +-- http       a small HTTP client over connections that stay open
      +-- names      locks to keys and back
      +-- address    the URL's options
      +-- doctor     findings about the cluster

Consul has no queue: the waiters of one process queue in `fencepost.backends.local_queue`, and the first of them asks.
"""
