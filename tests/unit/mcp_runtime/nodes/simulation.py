"""A hall with three nodes in virtual time. One integer decides everything that happens in it.

The decisions are those of `mcp_runtime.nodes`. The rows and the statements are a model (`simulated_rows`), and so are
the processes: on each node a guard, its worker, and the processes of the members. Each node has a clock that is up to
1 % fast or slow, and a wall clock that jumps.

The faults: a killed worker, a killed node, a paused worker, a lost connection to the database (nothing reaches it, or
its answers are lost), single answers that are lost or slow, and statements that commit up to 20 s after they were sent,
even if their sender is dead. A claim takes a batch of members, and skips any rows that others may have locked.
Operators start nodes, drain them, cancel this, and move members.

One fault is excluded: a machine that freezes with its guard and its worker together. No fence in software strikes in
it, and its processes run on for up to a poll of the guard after it continues.

The simulation raises a Violation at once if a member has two processes, or if a call is sent twice or wrongly reported
as not sent. When all faults are over, each member must run where it can, and no call may stay running.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from typing import Any
from uuid import UUID

from mcp_runtime.nodes import watch
from mcp_runtime.nodes.placement import MemberFacts, NodeFacts, place
from tests.unit.mcp_runtime.nodes.simulated_rows import CallRow, MemberRow, Protocol, Rows, View

CALM_SECONDS = 40.0
LATEST_COMMIT = 20.0
LONGEST_KILL = 2.5
GUARD_POLL = 0.25
QUERY_TIMEOUT, RENEWAL_TIMEOUT = 3.0, 1.0
CLAIM_BATCH = 3  # of four members, so there are often two batches
LOCKED_ROWS = 0.1
LABELS = frozenset({"gpu"})

# What a worker's task waits for: a number of seconds, or a statement and its timeout.
Request = float | tuple[Callable[[], Any], float]
Steps = Generator[Request, Any, None]


class Violation(AssertionError):
    """The hall broke a promise."""


class Node:
    """A machine with a guard."""

    def __init__(self, name: str, generator: random.Random, members: list[MemberFacts]) -> None:
        self.name = name
        self.rate = generator.uniform(0.99, 1.01)
        self.offset = generator.uniform(0, 1000)
        self.wall_offset = 0.0
        self.labels = LABELS if generator.random() < 0.5 else frozenset()
        self.folders = {member.name for member in members if generator.random() < 0.8}
        self.is_up = False
        self.worker: Worker | None = None
        self.cut = ""  # "requests" do not reach the database, or "answers" do not come back
        self.moves: set[str] = set()  # members that an operator wants on another node

    def clock(self, now: float) -> float:
        return now * self.rate + self.offset

    def time_of(self, clock: float) -> float:
        return (clock - self.offset) / self.rate

    def can_have(self, member: MemberFacts) -> bool:
        return member.name in self.folders and member.labels <= self.labels


class Worker:
    """The runtime on a node: three tasks that send one statement at a time each, like its threads."""

    def __init__(self, hall: SimulatedHall, node: Node) -> None:
        self.hall, self.rows, self.node, self.name = hall, hall.rows, node, node.name
        self.is_alive = True
        self.paused_until = 0.0
        self.lease = UUID(int=0)
        self.renewal_sent_at = 0.0
        self.fence_is_on = False
        self.calls: set[int] = set()

    def clock(self) -> float:
        return self.node.clock(self.hall.now)

    def live(self) -> Steps:
        yield from self._take()
        self.hall.spawn(self, self._renew())
        self.hall.spawn(self, self._run_calls())
        yield from self._supervise()

    def _take(self) -> Steps:
        while True:
            view: View | None = yield self.rows.read, QUERY_TIMEOUT
            if view is not None:
                self.fence_is_on = self.fence_is_on or bool(view.nodes.keys() - {self.name})
                lease, sent_at = self.hall.new_lease(), self.clock()
                take = partial(self.rows.take, self.name, lease, view.nodes.get(self.name), self.fence_is_on)
                if (yield take, RENEWAL_TIMEOUT):
                    self.lease, self.renewal_sent_at = lease, sent_at
                    if self.fence_is_on:
                        self.hall.watch_fence(self)
                    return
            yield 0.5

    def _renew(self) -> Steps:
        while True:
            yield 1.0
            sent_at = self.clock()
            wall_clock = self.hall.now + self.node.wall_offset
            renewal = partial(self.rows.renew, self.name, self.lease, self.fence_is_on, wall_clock)
            answer = yield renewal, RENEWAL_TIMEOUT
            if answer:
                self.renewal_sent_at = sent_at
            elif answer is False:
                self.hall.end_worker(self)

    def _supervise(self) -> Steps:
        node_watch, turn = watch.NodeWatch(), 0
        while True:
            yield 0.8
            view: View | None = yield self.rows.read, QUERY_TIMEOUT
            if view is None:
                continue
            nodes = view.nodes
            pairs = {name: (row.lease, row.beat) for name, row in nodes.items() if name != self.name}
            draining = {name for name, row in nodes.items() if row.draining}
            gone = node_watch.look(pairs, self.clock(), draining)
            if pairs and not self.fence_is_on:
                self.fence_is_on = True
                self.hall.watch_fence(self)
            if nodes[self.name].lease != self.lease:
                continue
            for name in sorted(gone):
                if nodes[name].lease is not None:
                    yield partial(self.rows.revoke, name, nodes[name]), QUERY_TIMEOUT
            if not nodes[self.name].draining:
                yield from self._claim(view, gone)
            yield from self._tend(view, gone)
            turn += 1
            if turn % 3 == 0 and self.hall.has_running_calls():
                yield self.rows.lose_calls, QUERY_TIMEOUT

    def _claim(self, view: View, gone: set[str]) -> Steps:
        orphans = {
            name: row
            for name, row in view.members.items()
            if row.node is None or (row.node in gone and view.nodes[row.node].lease is None)
        }
        if not orphans:
            return
        placement = place(
            [self.hall.facts(name, row.node) for name, row in orphans.items()], self._living_nodes(view, gone)
        )
        names = [name for name, node in placement.items() if node == self.name]
        claimed: list[str] = []
        for first in range(0, len(names), CLAIM_BATCH):
            batch = names[first : first + CLAIM_BATCH]
            seen, locked = {name: orphans[name] for name in batch}, self.hall.locked_rows(batch)
            answer = yield partial(self.rows.claim, self.name, self.lease, seen, locked), QUERY_TIMEOUT
            if answer is None:
                break  # the turn has failed. Members of this batch may be its own now
            claimed += answer
        for name in claimed:
            yield from self._start(name, orphans[name].version + 1)

    def _living_nodes(self, view: View, gone: set[str]) -> list[NodeFacts]:
        loads = Counter(row.node for row in view.members.values())
        return [
            NodeFacts(name, node.labels, node.folders, loads[name], row.draining)
            for name, row in view.nodes.items()
            if row.lease is not None and name not in gone
            for node in [self.hall.nodes[name]]
        ]

    def _tend(self, view: View, gone: set[str]) -> Steps:
        """Start the node's own members, or give them away."""
        own = {name: row for name, row in view.members.items() if row.lease == self.lease and row.node == self.name}
        is_draining, movable = view.nodes[self.name].draining, 0
        for name, row in own.items():
            is_local = self.hall.members[name].state == "local"
            movable += not is_local
            if not is_local and (is_draining or name in self.node.moves):
                yield from self._give_away(name, row, view, gone)
            elif not self.hall.runs_on(self, name) and not is_draining:
                yield from self._start(name, row.version)
        if is_draining and not movable:
            self.hall.end_processes(self)
            if (yield partial(self.rows.release, self.name, self.lease), QUERY_TIMEOUT):
                self.hall.stop_node(self.node)

    def _start(self, name: str, version: int) -> Steps:
        if self.rows.protocol.has_versions:
            answer = yield partial(self.rows.start, name, self.lease, version), QUERY_TIMEOUT
            if not answer:
                return
        self.hall.start_process(self, name)

    def _give_away(self, name: str, row: MemberRow, view: View, gone: set[str]) -> Steps:
        self.node.moves.discard(name)
        others = [node for node in self._living_nodes(view, gone) if node.name != self.name]
        target = place([self.hall.facts(name, None)], others).get(name)
        if target is None and not view.nodes[self.name].draining:
            return
        if self.hall.random.random() < 0.3:
            target = None
        yield 0.1
        self.hall.end_process(self, name)
        lease = view.nodes[target].lease if target else None
        yield partial(self.rows.give_away, name, self.lease, row.version, target, lease), QUERY_TIMEOUT

    def _run_calls(self) -> Steps:
        while True:
            yield 0.9
            for name in self.hall.members_with_queued_calls():
                if self.hall.runs_on(self, name):
                    number = yield partial(self.rows.claim_call, name, self.lease), QUERY_TIMEOUT
                    if number is not None and number >= 0:
                        self.calls.add(number)
                        self.hall.spawn(self, self._run_call(name, number))
            # The claim of such a call committed, but its answer was lost or came too late. So the call was not sent.
            if self.hall.has_running_calls():
                numbers = yield partial(self.rows.running_calls, self.lease), QUERY_TIMEOUT
                if numbers and (unsent := numbers - self.calls):
                    yield partial(self.rows.end_calls, unsent, self.lease, "unavailable"), QUERY_TIMEOUT

    def _run_call(self, name: str, number: int) -> Steps:
        outcome = "unavailable"
        if self.hall.runs_on(self, name):
            self.hall.send_call(number)
            outcome = "result"
            yield self.hall.random.uniform(0.1, 3.0)
        while (yield partial(self.rows.end_calls, {number}, self.lease, outcome), QUERY_TIMEOUT) is None:
            yield 0.5
        self.calls.discard(number)


class Task:
    __slots__ = ("steps", "worker")

    def __init__(self, worker: Worker, steps: Steps) -> None:
        self.worker, self.steps = worker, steps


class SimulatedHall:
    """One run. `run` raises a Violation if the hall breaks a promise."""

    def __init__(self, seed: int, protocol: Protocol | None = None, wall_clocks_jump: bool = True) -> None:
        self.seed, self.now, self._count = seed, 0.0, 0
        self.random = random.Random(seed)
        members = [
            MemberFacts("none", state="none"),
            MemberFacts("shared", state="shared"),
            MemberFacts("local", state="local"),
            MemberFacts("labels", LABELS, "shared"),
        ]
        self.members = {member.name: member for member in members}
        self.rows = Rows(protocol or Protocol(), self.members.keys())
        self.nodes = {name: Node(name, self.random, members) for name in ("a", "b", "c")}
        self.starts: list[tuple[float, str, str]] = []
        self._processes: dict[str, Worker] = {}
        self._sent_calls: set[int] = set()
        self._leases = 0
        self._late_commits = 0
        self._is_calm = False
        self._is_settled = False
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._calm_at = self.random.uniform(12, 28) if self.random.random() < 0.9 else 60.0
        self._plan(wall_clocks_jump)

    # Time

    def at(self, moment: float, action: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (moment, self._count, action, arguments))

    def run(self) -> None:
        events, pop = self._events, heapq.heappop
        while not self._is_settled:
            self.now, _, action, arguments = pop(events)
            action(*arguments)

    def spawn(self, worker: Worker, steps: Steps) -> None:
        self._resume(Task(worker, steps), None)

    def _resume(self, task: Task, answer: Any) -> None:
        worker = task.worker
        if not worker.is_alive:
            return
        if worker.paused_until > self.now:
            self.at(worker.paused_until, self._resume, task, answer)
            return
        try:
            request = task.steps.send(answer)
        except StopIteration:
            return
        if isinstance(request, tuple):
            self._send(task, *request)
        else:
            self.at(self.now + request / worker.node.rate, self._resume, task, None)

    # The database

    def _send(self, task: Task, statement: Callable[[], Any], timeout: float) -> None:
        dice, cut = self.random.random, task.worker.node.cut
        fate = dice() if not self._is_calm else 1.0
        if cut == "requests":
            if dice() < 0.3:
                self._send_late(statement)
        elif cut == "answers" or fate < 0.02:
            self.at(self.now + 0.03 * dice(), self._commit, statement)
        elif fate < 0.04:
            self._send_late(statement)
        elif fate < 0.07:
            commit_at = self.now + timeout * dice()
            answer_at = commit_at + timeout * dice()
            in_time = answer_at < self.now + timeout
            self.at(commit_at, self._commit_slowly, statement, task if in_time else None, answer_at)
            if in_time:
                return
        else:
            self.at(self.now + 0.03 * dice(), self._commit_and_answer, statement, task)
            return
        self.at(self.now + timeout / task.worker.node.rate, self._resume, task, None)

    def _send_late(self, statement: Callable[[], Any]) -> None:
        self._late_commits += 1
        self.at(self.now + LATEST_COMMIT * self.random.random(), self._commit_late, statement)

    def _commit(self, statement: Callable[[], Any]) -> None:
        statement()

    def _commit_late(self, statement: Callable[[], Any]) -> None:
        self._late_commits -= 1
        statement()

    def _commit_slowly(self, statement: Callable[[], Any], task: Task | None, answer_at: float) -> None:
        answer = statement()
        if task is not None:
            self.at(answer_at, self._resume, task, answer)

    def _commit_and_answer(self, statement: Callable[[], Any], task: Task) -> None:
        self._resume(task, statement())

    def locked_rows(self, names: list[str]) -> set[str]:
        """Some of these rows, as if other transactions had locked them, which may then be rolled back."""
        return {name for name in names if self.random.random() < LOCKED_ROWS}

    def new_lease(self) -> UUID:
        self._leases += 1
        return UUID(int=self._leases)

    # Processes

    def facts(self, name: str, node: str | None) -> MemberFacts:
        member = self.members[name]
        return MemberFacts(name, member.labels, member.state, node)

    def runs_on(self, worker: Worker, member: str) -> bool:
        return self._processes.get(member) is worker

    def start_process(self, worker: Worker, member: str) -> None:
        other = self._processes.get(member)
        if other is not None:
            raise self._violation(f"{member!r} starts on {worker.name} and still runs on {other.name}")
        self._processes[member] = worker
        self.starts.append((self.now, member, worker.name))

    def end_process(self, worker: Worker, member: str) -> None:
        if self._processes.get(member) is worker:
            del self._processes[member]

    def end_processes(self, worker: Worker) -> None:
        for member in self.members:
            self.end_process(worker, member)

    def send_call(self, number: int) -> None:
        if number in self._sent_calls:
            raise self._violation(f"call {number} is sent twice")
        self._sent_calls.add(number)

    def members_with_queued_calls(self) -> list[str]:
        return [call.member for call in self.rows.calls if call.status == "queued"]

    def has_running_calls(self) -> bool:
        return any(call.status == "running" for call in self.rows.calls)

    # Guards

    def start_node(self, node: Node) -> None:
        if not node.is_up:
            node.is_up = True
            self._start_worker(node)

    def _start_worker(self, node: Node, last: Worker | None = None) -> None:
        if node.is_up and node.worker is last:
            node.worker = Worker(self, node)
            self.spawn(node.worker, node.worker.live())

    def end_worker(self, worker: Worker) -> None:
        """The worker ends. Its guard notices it, ends the processes of the members, and starts a worker."""
        if worker.is_alive:
            worker.is_alive = False
            self.at(self.now + self._time_to_kill(), self._sweep, worker)

    def _time_to_kill(self) -> float:
        return LONGEST_KILL * self.random.random() ** 4

    def _sweep(self, worker: Worker) -> None:
        worker.is_alive = False
        self.end_processes(worker)
        self.at(self.now + self.random.uniform(0.3, 2), self._start_worker, worker.node, worker)

    def watch_fence(self, worker: Worker) -> None:
        """The guard looks at the fence. It does so every 0.25 s, but before the deadline its looks change nothing."""
        if not self.rows.protocol.has_fence or not worker.is_alive or worker.node.worker is not worker:
            return
        clock = worker.clock()
        if watch.is_fenced(worker.renewal_sent_at, clock):
            # Until the system has ended them, the worker and its processes go on.
            self.at(self.now + self._time_to_kill(), self._sweep, worker)
            return
        deadline = max(worker.renewal_sent_at + watch.FENCE_SECONDS, clock)
        look = (math.floor(deadline / GUARD_POLL) + 1) * GUARD_POLL
        self.at(worker.node.time_of(look), self.watch_fence, worker)

    def stop_node(self, node: Node) -> None:
        """Nothing runs on the node any more."""
        node.is_up = False
        if node.worker is not None:
            node.worker.is_alive = False
            self.end_processes(node.worker)
            node.worker = None

    # What happens to the hall

    def _plan(self, wall_clocks_jump: bool) -> None:
        dice = self.random
        for number, node in enumerate(self.nodes.values()):
            latest = 0.5 if not number else dice.choice((3, 3, 3, 3, 12))
            self.at(dice.uniform(0, latest), self.start_node, node)
        faults = (self._kill_worker, self._kill_node, self._pause, self._cut, self._drain, self._move)
        for _ in range(dice.randint(2, 10)):
            moment = dice.uniform(0.5, self._calm_at)
            self.at(moment, dice.choice(faults), dice.choice(list(self.nodes.values())))
        for _ in range(dice.randint(3, 12)):
            self.at(dice.uniform(0, self._calm_at), self.rows.calls.append, CallRow(dice.choice(list(self.members))))
        if wall_clocks_jump:
            for node in self.nodes.values():
                self.at(self._calm_at / 2, setattr, node, "wall_offset", -3600.0)
        self.at(self._calm_at, self._calm_down)

    def _kill_worker(self, node: Node) -> None:
        if node.worker is not None:
            self.end_worker(node.worker)

    def _kill_node(self, node: Node) -> None:
        self.stop_node(node)
        if self.random.random() < 0.6:
            self.at(self.now + self.random.uniform(0.5, 15), self.start_node, node)

    def _pause(self, node: Node) -> None:
        if node.worker is not None:
            node.worker.paused_until = min(self.now + self.random.uniform(0, 30), self._calm_at)

    def _cut(self, node: Node) -> None:
        if not self._is_calm:
            node.cut = self.random.choice(("requests", "answers"))
            self.at(self.now + self.random.uniform(0, 40), setattr, node, "cut", "")

    def _drain(self, node: Node) -> None:
        row = self.rows.nodes.get(node.name)
        if row is not None:
            self.rows.nodes[node.name] = row._replace(draining=True)
            if self.random.random() < 0.7:
                self.at(self.now + self.random.uniform(0.2, 15), self._cancel_drain, node)

    def _cancel_drain(self, node: Node) -> None:
        self.rows.nodes[node.name] = self.rows.nodes[node.name]._replace(draining=False)
        self.start_node(node)

    def _move(self, node: Node) -> None:
        node.moves.update(self.members)

    # The end

    def _calm_down(self) -> None:
        self._is_calm = True
        nodes = list(self.nodes.values())
        for node in nodes:
            node.cut = ""
            if not node.is_up and not self._is_draining(node) and self.random.random() < 0.4:
                self.start_node(node)
        if not any(self._is_in_service(node) for node in nodes):
            node = self.random.choice(nodes)
            if self._is_draining(node):
                self._cancel_drain(node)
            self.start_node(node)
        self._check(self.now + CALM_SECONDS)

    def _is_draining(self, node: Node) -> bool:
        row = self.rows.nodes.get(node.name)
        return row is not None and row.draining

    def _is_in_service(self, node: Node) -> bool:
        return node.is_up and not self._is_draining(node)

    def _check(self, deadline: float) -> None:
        """End the run once all is well and no statement is under way. Raise a Violation at the deadline."""
        problem = self._problem()
        if problem and self.now >= deadline:
            raise self._violation(f"{problem}, {CALM_SECONDS:g} s after the last fault")
        self._is_settled = not problem and not self._late_commits
        self.at(self.now + 1.0, self._check, deadline)

    def _problem(self) -> str:
        rows = self.rows
        for number, call in enumerate(rows.calls):
            if call.outcome == "unavailable" and number in self._sent_calls:
                raise self._violation(f"call {number} was sent and ended as unavailable")
            if call.status == "running" and not self._is_doubtful(call.lease):
                return f"call {number} still runs"
        for name, member in self.members.items():
            owner = self.nodes.get(rows.members[name].node or "")
            if owner is not None and self._stays(member, owner):
                continue
            if not any(self._is_in_service(node) and node.can_have(member) for node in self.nodes.values()):
                continue
            process = self._processes.get(name)
            if process is None:
                return f"{name!r} does not run, and its row says {rows.members[name]}"
            if owner is not process.node or rows.members[name].lease != process.lease:
                return f"{name!r} runs on {process.name}, and its row says {rows.members[name]}"
        return ""

    def _stays(self, member: MemberFacts, owner: Node) -> bool:
        """Whether the member waits for a node that does not run."""
        if self._is_in_service(owner):
            return False
        return member.state == "local" or self._is_doubtful(self.rows.nodes[owner.name].lease)

    def _is_doubtful(self, lease: UUID | None) -> bool:
        """Whether the lease is of a node that ended before it knew of another node.

        Its row does not say that its fence was on, so it may be cut off and still run its members. Nobody revokes its
        lease. It starts again, or an operator confirms that it is gone.
        """
        if lease is None or not self.rows.protocol.has_fence_in_row:
            return False
        return any(
            row.lease == lease and not row.fence_is_on and not self.nodes[name].is_up
            for name, row in self.rows.nodes.items()
        )

    def _violation(self, text: str) -> Violation:
        return Violation(f"seed {self.seed}, {self.now:.2f} s: {text}")
