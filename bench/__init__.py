"""Measurements of fencepost against a baseline, as ratios within one run: see README.md."""
