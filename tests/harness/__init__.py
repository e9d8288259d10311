"""What every test uses, once.

- ``waiting``   ``until(condition, what)`` and ``until_async``: wait for a condition, with a deadline and the cause
- ``child``     ``Child``: a process of the test's own, which it talks to, freezes, signals and kills
- ``isolated``  ``@isolated``: run a whole test in an interpreter of its own; ``in_fork``: run a coroutine in a fork
- ``interrupts``  SIGINT at every place where Python runs signal handlers, or at random moments
- ``descriptors``  ``no_descriptors``: nothing can be opened, for ``@isolated`` tests; ``few_descriptors``
- ``disk``      ``full_disk``: no file can get longer than so much; ``small_disk``: one to fill; for ``@isolated`` tests
- ``memory``    ``OutOfMemory``: MemoryError at the n-th call, for ``@isolated`` tests
- ``forsaken``  ``forsake``: a waiter whose event loop is closed under it
- ``faulty``    ``Faulty``: a store in memory that fails as it is told to
- ``terminal``  ``Terminal``: a program at a pseudo-terminal and in a session of its own
- ``threads``   ``background`` and ``on_thread``: work beside the test, whose errors are not lost; ``known_to_wait``
- ``scripted``  ``Scripted``: a proxy that knows a store's protocol, and spoils the answer to one request
- ``script``    a program of scripts/ as a module
- ``servers``   the session's servers as fixtures, and the ends of their logs after a failure
- ``pgbouncer``, ``resource``   servers that only the tests need
"""
