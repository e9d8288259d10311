"""SQLite: the embedded default, one file shared by the processes of one host that may open it.

::

    backend      the contract: SQLite
      +-- queue      minting, hand-over, sharing and the queue, as parts of a transaction
      +-- file       the file: schema, connection, transactions, what must be on disk before a grant
      +-- mailbox    wake-ups between processes: a Unix datagram socket next to the file
      +-- doctor     findings about the file and its file system
"""
