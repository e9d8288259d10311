"""etcd: a key per contender, in the layout of etcd's own Mutex.

::

    backend      the contract: Etcd
      +-- sessions   one etcd lease per ttl, to which many locks of this process belong
      |     +-- keeper     the thread that keeps these leases alive and cleans up
      +-- watch      waits until the predecessor's key is deleted
      |     +-- streams    a stream of watches or keep-alives
      +-- keys       the names of keys, and the transactions on them
      +-- rpc        a request to any of the members, with a retry where that is safe
      |     +-- methods    the methods and what their failures mean
      |     +-- channels   the connections, also across a fork; the URL's options
      |           +-- pool     blocking: sockets, one thread at a time on each
      |           +-- link     asyncio: one connection for all tasks of an event loop
      |           +-- dial     TCP and TLS
      |           +-- http2    the protocol without I/O, and gRPC on it; status: how a call ends
      +-- inspect    ls, show, status
      +-- doctor     findings about the cluster
      +-- messages   etcd's messages; codec: their bytes
"""
