"""Modules that run only when they are used. Standard library only."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader  # it imports `tempfile`


class LateModule(ModuleType):
    """A module that is imported, but runs only when somebody reads an attribute that it does not have yet.

    The class of the standard library, LazyLoader, runs a module at the second import, before Python 3.12.
    """

    def __getattr__(self, name: str) -> Any:
        state: _State = self.__dict__["__late__"]
        with state.lock:
            if type(self) is LateModule:
                if state.is_running:  # it reads an attribute of itself that it does not have
                    raise AttributeError(name)
                state.is_running = True
                state.loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
        return getattr(self, name)


class _State:
    """What a LateModule needs to run. Other threads wait for the lock meanwhile."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.lock = threading.RLock()
        self.is_running = False


def load_late(name: str, **attributes: Any) -> None:
    """Import the module as a LateModule. Nothing happens if it is imported already.

    Whoever reads one of the `attributes`, which must be those of the module, does not run it.
    """
    package = name.rpartition(".")[0]
    # Found by their folders, because `importlib.util.find_spec` would import their packages.
    folders = [os.path.join(folder, *package.split(".")) for folder in sys.path] if package else None
    spec = None if name in sys.modules else PathFinder.find_spec(name, folders)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    module.__dict__.update(attributes, __late__=_State(spec.loader))
    module.__class__ = LateModule
    sys.modules[name] = module
