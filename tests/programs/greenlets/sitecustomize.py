"""Patches each Python that starts with this folder on its path, before it imports anything: see scripts/greenlets."""

import os
import sys
import warnings

APART = {
    "tests.harness.keeper",  # keeps servers, and is no part of what is tested
    "tests.conformance.worker",  # another process of the fleet, which is commanded over standard input: that blocks
}

if APART & set(sys.orig_argv):
    pass
elif os.environ["FENCEPOST_GREENLETS"] == "gevent":
    from gevent import monkey

    monkey.patch_all()
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nobody should begin with eventlet today
        import eventlet

        eventlet.monkey_patch()
