"""fencepost inside frameworks: one module or package for each, which imports its framework."""
