"""The lab of fencepost: real servers, real faults, experiments, a checker and a simulator.

::

    history      the format of a history, and the checks on it
    servers      starts Redis, etcd, ZooKeeper, Consul and Postgres on free ports
    faults       signals, a proxy, clocks that jump, lost files, cut networks
    stage        workers and resource services that go step by step
    report       claims, tables, plots and pages
    experiments  one module and one TOML file for each claim
    contend      many clients on one lock, ours and others'
    gen          millions of locks in a store
    sim          the same core in virtual time, and its page in the browser
    advise       which store, ttl and guard to use
    cli          the commands, as part of the program ``fencepost``

It imports fencepost; fencepost never imports it.
"""
