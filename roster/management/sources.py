"""What a command gets as a source of members: a text, or a bundle."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from django.conf import settings
from django.core.management.base import CommandError

from mcp_runtime.control import bundles

MAX_BYTES = 300_000  # of a text: more than a source may have, so that the refusal says how large it may be
BLOCK = 1_000_000  # bytes
_ENDINGS = (".mcpb", ".dxt")


@contextmanager
def content_of(source: str) -> Iterator[str | BinaryIO]:
    """The text of a file or of standard input, an open bundle, or the argument itself. Raises CommandError."""
    if source == "-":
        with _content_of_input() as content:
            yield content
    elif "\0" not in source and os.path.isfile(source):  # False for a name that is too long
        try:
            file = open(source, "rb")  # noqa: SIM115 - closed below. The errors of the caller are not those of the file
        except OSError as error:
            raise CommandError(f"The file cannot be read: {error.strerror}.") from error
        with file:
            is_bundle = bundles.is_zip(file.read(4)) or source.endswith(_ENDINGS)
            file.seek(0)
            yield file if is_bundle else _decoded(file.read(MAX_BYTES))
    elif source.endswith(_ENDINGS) and " " not in source:
        raise CommandError(f"There is no file {source}.")
    else:
        yield source


@contextmanager
def _content_of_input() -> Iterator[str | BinaryIO]:
    start = sys.stdin.buffer.read(4)
    if not bundles.is_zip(start):
        yield _decoded(start + sys.stdin.buffer.read(MAX_BYTES))
        return
    with tempfile.TemporaryFile(dir=settings.GUILD_HALL_DATA_DIR) as file:
        file.write(start)
        while file.tell() <= bundles.MAX_SIZE and (part := sys.stdin.buffer.read(BLOCK)):
            file.write(part)
        yield cast(BinaryIO, file)


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CommandError("The source is not text in UTF-8.") from error
