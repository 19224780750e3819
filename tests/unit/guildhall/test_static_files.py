from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import storages

from guildhall.static_files import CompressedOnceStorage

STYLE = "a { color: black }\n" * 100


@pytest.fixture
def storage(tmp_path: Path) -> CompressedOnceStorage:
    return CompressedOnceStorage(location=tmp_path)


def compressed_copies(storage: Any, name: str) -> list[str]:
    """The copies that collectstatic creates, after it has copied new files."""
    return [copy for _, copy, _ in storage.post_process({name: None})]


def test_the_hall_uses_the_compressing_storage() -> None:
    assert isinstance(storages["staticfiles"], CompressedOnceStorage)


def test_a_file_is_compressed_once(storage: CompressedOnceStorage, tmp_path: Path) -> None:
    (tmp_path / "hall.css").write_text(STYLE)
    assert compressed_copies(storage, "hall.css") == ["hall.css.gz"]
    assert gzip.decompress((tmp_path / "hall.css.gz").read_bytes()).decode() == STYLE
    assert compressed_copies(storage, "hall.css") == []


def test_a_changed_file_is_compressed_again_if_it_is_large_enough(
    storage: CompressedOnceStorage, tmp_path: Path
) -> None:
    style = tmp_path / "hall.css"
    style.write_text(STYLE)
    compressed_copies(storage, "hall.css")
    style.write_text(STYLE.replace("black", "white"))
    os.utime(style, (0, 1_000_000_000))
    assert compressed_copies(storage, "hall.css") == ["hall.css.gz"]
    assert b"white" in gzip.decompress((tmp_path / "hall.css.gz").read_bytes())
    style.write_text("a")
    assert compressed_copies(storage, "hall.css") == []
    assert not (tmp_path / "hall.css.gz").exists()


def test_source_maps_are_not_compressed(storage: CompressedOnceStorage, tmp_path: Path) -> None:
    (tmp_path / "hall.map").write_text(STYLE)
    assert compressed_copies(storage, "hall.map") == []
