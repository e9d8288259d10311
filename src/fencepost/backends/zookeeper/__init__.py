"""ZooKeeper: an ephemeral sequential node per contender.

::

    backend      the contract: ZooKeeper
      +-- contender   our nodes: joining a queue, watching the predecessor, leaving
      |     +-- names      paths, layouts (kazoo, curator, zookeeper) and the order of contenders
      +-- session     kazoo's connection, for blocking and asyncio code
      +-- address     the URL's options
      +-- doctor      findings about the ensemble

A session outlives a hold: a `fencepost.driver.timer` ends a hold that was not renewed before its session ends.
"""
