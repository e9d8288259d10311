import os
from pathlib import Path

ROOT = Path(__file__).parent.parent
"""The repository."""

FUZZ = os.environ.get("FENCEPOST_FUZZ") == "1"
"""Whether all cases are tried, and generated examples are new ones each time, as in `make torment`.

A gate that draws them fails at random, and one that tries them all takes too long.
"""
