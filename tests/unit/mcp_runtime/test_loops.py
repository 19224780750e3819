from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

from mcp_runtime.system import loops

THREADS = 4


def test_concurrent_threads_get_the_same_loop() -> None:
    barrier = threading.Barrier(THREADS)

    def get_loop(name: str) -> object:
        barrier.wait(10)
        return loops.loop(name)

    with ThreadPoolExecutor(THREADS) as threads:
        for _ in range(20):
            name = f"test-{uuid.uuid4()}"
            assert len(set(threads.map(get_loop, [name] * THREADS))) == 1
            loops.loop(name).call_soon_threadsafe(loops.loop(name).stop)
