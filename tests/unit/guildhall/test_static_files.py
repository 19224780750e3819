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


def copies_of(storage: Any, name: str) -> list[str]:
    """As collectstatic has them made, after it has copied what is new."""
    return [copy for _, copy, _ in storage.post_process({name: None})]


def test_the_hall_uses_it() -> None:
    assert isinstance(storages["staticfiles"], CompressedOnceStorage)


def test_a_file_has_a_compressed_copy_that_is_made_once(storage: CompressedOnceStorage, tmp_path: Path) -> None:
    (tmp_path / "hall.css").write_text(STYLE)
    assert copies_of(storage, "hall.css") == ["hall.css.gz"]
    assert gzip.decompress((tmp_path / "hall.css.gz").read_bytes()).decode() == STYLE
    assert copies_of(storage, "hall.css") == []


def test_a_file_that_changed_has_a_new_copy_or_none(storage: CompressedOnceStorage, tmp_path: Path) -> None:
    style = tmp_path / "hall.css"
    style.write_text(STYLE)
    copies_of(storage, "hall.css")
    style.write_text(STYLE.replace("black", "white"))
    os.utime(style, (0, 1_000_000_000))
    assert copies_of(storage, "hall.css") == ["hall.css.gz"]
    assert b"white" in gzip.decompress((tmp_path / "hall.css.gz").read_bytes())
    style.write_text("a")
    assert copies_of(storage, "hall.css") == []
    assert not (tmp_path / "hall.css.gz").exists()


def test_source_maps_stay_as_they_are(storage: CompressedOnceStorage, tmp_path: Path) -> None:
    (tmp_path / "hall.map").write_text(STYLE)
    assert copies_of(storage, "hall.map") == []
