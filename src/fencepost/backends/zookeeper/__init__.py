"""ZooKeeper: an ephemeral sequential node per contender.

::

    backend      the contract: ZooKeeper
      +-- contender   our nodes: joining a queue, watching the predecessor, leaving
      |     +-- names      paths, layouts (kazoo, curator, zookeeper) and the order of contenders
      +-- session     kazoo's connection, for blocking and asyncio code
      +-- address     the URL's options
      +-- doctor      findings about the ensemble

A session lives longer than a hold, so a `fencepost.driver.timer` ends a hold that was not renewed in time.
"""
