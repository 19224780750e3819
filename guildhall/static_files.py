"""Static files as they are served: with a gzipped copy beside each, a third of its size on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whitenoise.storage import CompressedStaticFilesStorage

# utime() is given a float: the copy's time is that of its file but for some nanoseconds.
SAME_TIME_SECONDS = 0.001


class CompressedOnceStorage(CompressedStaticFilesStorage):  # type: ignore[misc]  # untyped
    """Compresses what changed since the last start alone: all of it takes a second or two."""

    def post_process(self, paths: dict[str, Any], dry_run: bool = False, **options: Any) -> Iterator[Any]:
        if dry_run:
            return
        # Source maps are large, and nobody's browser asks for them.
        wanted = {path: found for path, found in paths.items() if not path.endswith(".map")}
        changed = {path: found for path, found in wanted.items() if not self._has_copy(path)}
        for path in changed:
            # Of what can no longer be made smaller no new copy would replace the old one.
            self._copy_of(path).unlink(missing_ok=True)
        yield from super().post_process(changed, dry_run, **options)

    def _copy_of(self, path: str) -> Path:
        return Path(f"{self.path(path)}.gz")

    def _has_copy(self, path: str) -> bool:
        try:
            copied, changed = self._copy_of(path).stat().st_mtime, Path(self.path(path)).stat().st_mtime
        except FileNotFoundError:
            return False
        return abs(copied - changed) < SAME_TIME_SECONDS
