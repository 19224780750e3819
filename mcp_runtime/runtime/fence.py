"""The worker's side of the fence, which ends this node's members before another node may start them.

Each second the worker renews its lease. It notes the moment *before* it sent the renewal, in a small file that it
shares with the guard. Once the fence is on, the guard ends the worker and all member processes FENCE_SECONDS after that
moment. The guard does so even if the worker is stopped, or hangs. The fence is off until the hall has a second node.

The worker turns the fence on by a signal. It sends the signal only while the guard's state in the file is READY,
because without a handler the signal would kill the guard. It repeats the signal until the state is WATCHING.
"""

from __future__ import annotations

import os

from mcp_runtime.runtime import guard

now = guard.boot_time  # the clock of the fence


class Fence:
    """The file that guard and worker share, by its descriptor. With -1 there is no fence and methods have no effect."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_on = False
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)  # members must not get it

    def note_renewal(self, sent_at: float) -> None:
        """The lease was taken or renewed by a statement that was sent after `sent_at`, a moment of `now()`."""
        if self._descriptor < 0:
            return
        os.pwrite(self._descriptor, guard.RENEWAL.pack(sent_at), 0)
        if self._is_on:
            self._signal_guard()

    def turn_on(self) -> None:
        """Ask the guard to watch the renewals until this process ends. Call it after the first `note_renewal`.

        If the guard is not ready, the next renewal asks again.
        """
        if self._descriptor >= 0:
            self._is_on = True
            self._signal_guard()

    @property
    def is_watched(self) -> bool:
        """Whether the guard watches. After `turn_on` that takes a moment, or a second if the guard was starting."""
        return self._guard_state() == guard.WATCHING

    def _signal_guard(self) -> None:
        if self._guard_state() == guard.READY and not guard.guard_is_gone():
            os.kill(os.getppid(), guard.FENCE_SIGNAL)

    def _guard_state(self) -> int:
        data = os.pread(self._descriptor, guard.STATE.size, guard.STATE_OFFSET) if self._descriptor >= 0 else b""
        return data[0] if data else 0


_fence = Fence(-1)


def take_inherited() -> None:
    """Use the file that the guard passed on. Call it once, before there are other threads or processes."""
    global _fence
    _fence = Fence(guard.inherited_fence_file())


def note_renewal(sent_at: float) -> None:
    _fence.note_renewal(sent_at)


def turn_on() -> None:
    _fence.turn_on()


def is_watched() -> bool:
    return _fence.is_watched
