from __future__ import annotations

from collections.abc import Callable, Iterator
from wsgiref.types import WSGIApplication

import pytest

from guildhall.uploads import Uploads
from tests.support.wsgi import RunningServer


@pytest.fixture
def serve() -> Iterator[Callable[..., RunningServer]]:
    servers = []

    def start_server(
        application: WSGIApplication, *, threads: int = 2, uploads: Uploads | None = None
    ) -> RunningServer:
        servers.append(RunningServer(application, threads, uploads))
        return servers[-1]

    yield start_server
    for running_server in servers:
        running_server.end()
