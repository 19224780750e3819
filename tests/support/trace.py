"""The path of one call through our code: its functions and files, in order.

A property, a comprehension or a lambda is read where it is used, so it does not count as a step. A coroutine counts
once, however often it is resumed.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

from tests.conftest import ROOT

OWN_FOLDERS = tuple(f"{ROOT / name}/" for name in ("guildhall", "mcp_runtime", "roster"))


@dataclass
class Trace:
    """Functions in the order of their calls, each as file and name."""

    thread: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    is_on: bool = False
    _frames: set[FrameType] = field(default_factory=set)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self.is_on or threading.current_thread().name != self.thread:
            return
        code = frame.f_code
        if code.co_filename.startswith(OWN_FOLDERS) and frame not in self._frames:
            self._frames.add(frame)
            if not code.co_name.startswith("<"):
                self.steps.append((code.co_filename, code.co_qualname))

    @property
    def visits(self) -> list[tuple[str, list[str]]]:
        """The path as visits to files, each with the functions that were called there."""
        steps = [(file, name) for file, name in self.steps if name not in _properties(file)]
        groups = groupby(steps, key=lambda step: step[0])
        return [(str(Path(file).relative_to(ROOT)), [name for _, name in group]) for file, group in groups]

    @contextmanager
    def recorded(self) -> Iterator[None]:
        self.steps.clear()
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False
            self._frames.clear()


@contextmanager
def threads_traced(name: str) -> Iterator[Trace]:
    """Trace threads with this name that start during the block. They are recorded only inside of `Trace.recorded()`."""
    trace = Trace(name)
    threading.setprofile(trace)
    try:
        yield trace
    finally:
        threading.setprofile(None)


@cache
def _properties(file: str) -> frozenset[str]:
    """Qualified names of the properties of the classes in a file."""
    return frozenset(
        f"{owner.name}.{method.name}"
        for owner in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        if isinstance(method, ast.FunctionDef)
        and any(ast.unparse(decorator) == "property" for decorator in method.decorator_list)
    )
