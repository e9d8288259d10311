"""Faults that the lab and the tests cause on purpose; each one records that it happened."""
