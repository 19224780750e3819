from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

from mcp_runtime.system import loops

THREADS = 4


def test_threads_that_ask_for_a_loop_at_once_get_the_same_one() -> None:
    barrier = threading.Barrier(THREADS)

    def ask(name: str) -> object:
        barrier.wait(10)
        return loops.loop(name)

    with ThreadPoolExecutor(THREADS) as threads:
        for _ in range(20):
            name = f"test-{uuid.uuid4()}"
            assert len(set(threads.map(ask, [name] * THREADS))) == 1
            loops.loop(name).call_soon_threadsafe(loops.loop(name).stop)
