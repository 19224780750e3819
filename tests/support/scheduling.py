"""How many workers of pytest-xdist there are, and which of them runs which tests."""

from __future__ import annotations

import os

import pytest
from xdist import scheduler
from xdist.remote import Producer
from xdist.workermanage import WorkerController


class LoadFileScheduling(scheduler.LoadFileScheduling):
    """With `--dist loadfile`, the tests of a worker that crashed run in another worker.

    In pytest-xdist 3.8 the whole run hangs if no other module waits. The new worker first gets the modules that the
    crashed worker had completed. They contain no tests to run, and after them it gets nothing. A single last test is
    not run either, because a worker runs its last test only when it knows that no other test follows.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        modules = self.assigned_work[node]
        self.assigned_work[node] = {name: tests for name, tests in modules.items() if not all(tests.values())}
        return super().remove_node(node)

    def schedule(self) -> None:
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> scheduler.LoadFileScheduling | None:
    return LoadFileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """With `-n logical`, two for each processor, because tests wait for nearly half of their time."""
    return 2 * (os.cpu_count() or 1)
