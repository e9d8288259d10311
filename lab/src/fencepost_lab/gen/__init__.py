"""``fencepost gen``: millions of held locks, the same ones for the same seed."""
