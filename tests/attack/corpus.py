"""The corpus: one file for each target, one input a line, as Python writes bytes."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"


def load(target: str) -> list[bytes]:
    path = FOLDER / f"{target}.txt"
    return [ast.literal_eval(line) for line in path.read_text().splitlines()] if path.exists() else []


def save(target: str, inputs: Iterable[bytes]) -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{target}.txt").write_text("".join(f"{data!r}\n" for data in inputs))
