"""The bounds that keep the code easy to read: the sizes of classes and modules, and private names in tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

HOUSE = Path(__file__).parent.parent.parent
PACKAGES = ("mcp_runtime", "roster", "guildhall")
MAX_CLASS, MAX_MODULE = 300, 500  # lines
MAX_PRIVATE = 40
# What begins with an underscore and is public in Django and Python.
PUBLIC = {"_meta", "_state", "_exit", "_replace"}
# `thing._inside`, and `monkeypatch.setattr(thing, "_inside", ...)`. An object may use its own.
USE = re.compile(r'(?<!\bself)(?<!\bcls)(?<=[\w)\]])\.(_[a-zA-Z]\w*)|attr\([^,()]+,\s*"(_[a-zA-Z]\w*)"')


def modules(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from (path for path in (HOUSE / package).rglob("*.py") if "migrations" not in path.parts)


def private_names() -> set[str]:
    """The names in the code that begin with one underscore."""
    words = {word for path in modules(*PACKAGES) for word in re.findall(r"\b_[a-zA-Z]\w*", path.read_text())}
    return words - PUBLIC


def test_tests_use_few_private_names_of_the_code() -> None:
    """A test that reaches inside breaks with each change inside. Give what it needs a public name."""
    names = private_names()
    uses = [
        f"{path.relative_to(HOUSE)}: {name}"
        for path in modules("tests")
        for name in map("".join, USE.findall(path.read_text()))
        if name in names
    ]
    assert len(uses) <= MAX_PRIVATE, "\n".join(uses)


def test_classes_are_short() -> None:
    classes = [
        f"{node.name} in {path.relative_to(HOUSE)}: {size} lines"
        for path in modules(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and (size := (node.end_lineno or 0) - node.lineno) > MAX_CLASS
    ]
    assert classes == []


def test_modules_are_short_unless_they_say_why() -> None:
    texts = {str(path.relative_to(HOUSE)): path.read_text() for path in modules(*PACKAGES)}
    long_modules = [name for name, text in texts.items() if len(text.splitlines()) > MAX_MODULE]
    assert [
        name for name in long_modules if "long because" not in (ast.get_docstring(ast.parse(texts[name])) or "")
    ] == []
