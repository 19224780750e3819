"""Uploaded files: who may send them, and the disk."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import IO, Any
from wsgiref.types import WSGIEnvironment

from django.conf import settings
from django.contrib.auth import get_user
from django.core.exceptions import RequestDataTooBig
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.core.handlers.wsgi import WSGIRequest
from django.db import Error as AnyDatabaseError

from mcp_runtime.control.bundles import MAX_SIZE
from mcp_runtime.control.proposals import PERMISSION
from mcp_runtime.protocol.errors import TokenError
from mcp_runtime.security import principals
from roster.api.authentication import token_in
from roster.sessions import SessionStore

ALLOWANCE = 2_000_000  # bytes of a form beside its file


def may_upload(environment: WSGIEnvironment) -> bool:
    """Whether the request has a token or a session with which a person may add members. Its body is not read.

    It is asked before a view decides, which then tells the client the reason of a refusal.
    """
    request = WSGIRequest(environment)
    try:
        return _has_token(request) or _has_session(request)
    except AnyDatabaseError:
        return False


def _has_token(request: WSGIRequest) -> bool:
    if (token := token_in(request)) is None:
        return False
    try:
        user, principal = principals.holder_of(token)
    except TokenError:
        return False  # a proxy may add a token of its own to requests with a session
    return user.has_perm(PERMISSION) and not principal.is_narrowed


def _has_session(request: WSGIRequest) -> bool:
    key = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    if key is None:
        return False
    request.session = SessionStore(key)
    return get_user(request).has_perm(PERMISSION)


class UnnamedFileHandler(FileUploadHandler):
    """Writes the file into the data folder, without a name there, so that nothing stays if the process is killed.

    Django's own handlers leave a file in that case, or use /tmp, which is in memory on some machines.
    """

    _file: IO[bytes]

    def handle_raw_input(
        self,
        input_data: IO[bytes],
        META: Mapping[str, Any],
        content_length: int,
        boundary: str,
        encoding: str | None = None,
    ) -> None:
        """Raises RequestDataTooBig."""
        if content_length > MAX_SIZE + ALLOWANCE:
            raise RequestDataTooBig(f"The request body has more than {MAX_SIZE + ALLOWANCE:,} bytes.")

    def new_file(self, *args: Any, **options: Any) -> None:
        super().new_file(*args, **options)
        self._file = tempfile.TemporaryFile(dir=settings.GUILD_HALL_DATA_DIR)  # noqa: SIM115 - the request closes it

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self._file.write(raw_data)

    def upload_interrupted(self) -> None:
        self._file.close()

    def file_complete(self, file_size: int) -> UploadedFile[bytes]:
        self._file.seek(0)
        return UploadedFile(self._file, self.file_name, self.content_type, file_size, self.charset)
