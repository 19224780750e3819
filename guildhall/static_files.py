"""Static files with a gzipped copy of each, which is a third of its size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whitenoise.storage import CompressedStaticFilesStorage

# utime() takes a float, so the times of a copy and its file differ by some nanoseconds.
SAME_TIME_SECONDS = 0.001


class CompressedOnceStorage(CompressedStaticFilesStorage):  # type: ignore[misc]  # untyped
    """Compresses only files that changed since the last start. All files take a second or two."""

    def post_process(self, paths: dict[str, Any], dry_run: bool = False, **options: Any) -> Iterator[Any]:
        if dry_run:
            return
        # Source maps are large, and browsers do not request them.
        files = {path: file for path, file in paths.items() if not path.endswith(".map")}
        new_files = {path: file for path, file in files.items() if not self._has_copy(path)}
        for path in new_files:
            # If compression does not make the new file smaller, there is no new copy to replace the old one.
            self._copy_of(path).unlink(missing_ok=True)
        yield from super().post_process(new_files, dry_run, **options)

    def _copy_of(self, path: str) -> Path:
        return Path(f"{self.path(path)}.gz")

    def _has_copy(self, path: str) -> bool:
        try:
            copy_time, file_time = self._copy_of(path).stat().st_mtime, Path(self.path(path)).stat().st_mtime
        except FileNotFoundError:
            return False
        return abs(copy_time - file_time) < SAME_TIME_SECONDS
