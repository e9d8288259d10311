"""A program of scripts/ as a module, so that its parts can be tested."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from types import ModuleType

from tests import ROOT


def script(name: str) -> ModuleType:
    """The module that ``scripts/NAME`` is."""
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / name))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look for their annotations
    loader.exec_module(module)
    return module
