"""Redis: one server, the master that Sentinel names, or a cluster.

::

    backend     the contract: Redis, Cluster, Sentinel
      |
      +-- topology    which servers there are: one, Sentinel's master, a cluster's masters
      |     +-- nodes       one server, and threads: its connections and its listener
      |     |     +-- pool        a pool of sockets
      |     +-- task_node   one server, and asyncio; a blocking program does not load it
      |           +-- stream      one pipelined stream, `driver.reply` its futures
      |                 +-- connection  addresses, TLS, greeting, errors
      +-- calls       run a script, and send it again if the server forgot it
      |     +-- scripts     the files in lua/, put together; key names, cluster slots, packed requests
      +-- waiters     the waiters of this process, and a look-out for lost messages
      +-- inspect     ls, show, status
      +-- doctor      findings about the server
      +-- address     the URL's options

A grant, the queue and the hand-over to the next waiter happen inside the scripts (lua/take.lua, lua/release.lua,
lua/hand_over.lua). The server publishes to one channel per process; nodes listen there and pass the messages to
waiters.
"""
