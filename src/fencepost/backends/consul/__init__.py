"""Consul: a session and a key per lock, in the layout of ``consul lock``.

::

    backend      the contract: Consul
      +-- sessions   Consul sessions, each lent to one hold at a time
      +-- watch      notices that Consul ended the sessions of this process
      +-- http       a small HTTP client over connections that stay open
      +-- address    the URL's options, and locks to keys and back
      +-- doctor     findings about the cluster

Consul has no queue: the waiters of one process queue in `fencepost.backends.polling`, and the first of them asks.
"""
