"""fencepost inside frameworks: one package for each, which imports its framework."""
