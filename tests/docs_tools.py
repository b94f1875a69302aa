"""The scripts beside the documentation, which are no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


def tool(name: str) -> ModuleType:
    """``docs/NAME.py`` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    if str(ROOT / "docs") not in sys.path:
        sys.path.append(str(ROOT / "docs"))  # they import each other
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
