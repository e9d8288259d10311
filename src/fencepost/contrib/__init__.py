"""Adapters for frameworks. Each module needs its framework, and nothing else of fencepost needs any of them."""
