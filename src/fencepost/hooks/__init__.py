"""Hooks: what happens to locks and guards, told to Prometheus, OpenTelemetry, a log or an audit file.

A hook is a callable that takes a `fencepost.events.Event`; `instruments` says which event counts for which metric.
"""
