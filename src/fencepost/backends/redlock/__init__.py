"""Redlock: a majority of independent Redis servers.

::

    backend       the contract: Redlock
      +-- members     the servers: which are out, which clean-ups they still need, when to try them again
      +-- broadcast   one script on all of them at once, within one timeout

The connections, scripts and options are those of `fencepost.backends.redis`; its scripts for Redlock are
redlock_take.lua, redlock_keep.lua and redlock_leave.lua in its folder lua/.
"""
