"""`make docker ARGS=nodes`: docker-compose.nodes.yml in real containers. Three nodes, two webs, and a load balancer.

An agent uses one session through all gateways. Then the broker, a web and a node are killed, while clients call through
the balancer. Members and clients each keep a ledger, and the trial compares them.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections import Counter
from typing import Any

from bench.hall import ROOT, wait_until
from tests.docker.load import Load, settle
from tests.docker.report import Report, check_ports, check_promises, check_rights, check_stop, load_factor
from tests.docker.stack import HEALTHY_SECONDS, Shape, Stack
from tests.storm.ledger import CallRecord
from tests.storm.reckoning import Strike

NODES = ("node-a", "node-b", "node-c")
WEBS = ("web-a", "web-b")
COUNTER = ROOT / "tests" / "support" / "servers" / "counter.py"
QUICK, SLOW = ("quick-a", "quick-b", "quick-c"), ("slow-a", "slow-b", "slow-c")
SHAPE = Shape(
    compose_file="docker-compose.nodes.yml",
    built_services=("prepare", *WEBS, *NODES),
    running_services=(*WEBS, *NODES, "balancer", "rabbitmq", "postgres"),
    web="web-a",
    members={**dict.fromkeys(QUICK, "http"), **dict.fromkeys(SLOW, "slow")},
    manifest={"node": {"state": "none", "files": ["member.py"]}},
    more_members={"counter": COUNTER},
)
VICTIM = "node-b"
COUNT = 100  # calls of one session
RECORDED_SECONDS = 10.0  # gateways write many rows at once, and logs arrive later
PLACED_SECONDS = 60.0
TAKEN_SECONDS = 12.0  # until another node has taken the members of a killed one
START_SECONDS = 5.0  # for their start, on a busy machine
# A failure is excused until the members are connected elsewhere, and so much longer: a call that fails then has begun
# before.
NOTICE_SECONDS = 3.0
QUIET_SECONDS = 5.0  # with load and without a fault
QUEUE_SECONDS = 5.0  # for a call over REST while the broker is away. It starts up to a second later
SILENT_SECONDS = 20.0  # for a call that waits for its member to be taken over, and then runs


def run(hall: Stack, report: Report) -> None:
    start(hall, report)
    use_a_session(hall, report)
    storm(hall, report)
    check_stop(hall, report, volumes=5)
    hall.compose("down", "--volumes")
    report.none("left by `down --volumes`", hall.remains())


def start(hall: Stack, report: Report) -> None:
    hall.check_out()
    hall.compose("build", seconds=900)
    report.check("the image is built", True)
    start = time.monotonic()
    hall.up()
    hall.make_token()
    hall.wait_until_healthy()
    seconds = time.monotonic() - start
    report.check("every service is healthy", True, f"{seconds:.0f} s after `up`")
    check_rights(hall, report, *WEBS, *NODES, "balancer")
    check_ports(hall, report, "balancer")
    is_near = [
        service for service in (*WEBS, *NODES, "rabbitmq", "postgres") if hall.docker("port", hall.container(service))
    ]
    report.none("published beside the balancer", is_near)
    names = {node["name"]: node["is_alive"] for node in hall.get("/api/nodes/")["nodes"]}
    report.check("three nodes are alive", names == dict.fromkeys(NODES, True), names)
    place(hall, report)
    report.check("each node has a queue at the broker", (count := consumers(hall)) == len(NODES), f"{count} consumers")


# The members and their nodes ------------------------------------------------------------------------------------------


def roster(hall: Stack) -> dict[str, dict[str, Any]]:
    """The members of the trial with their nodes, which the list of members does not show."""
    with hall.client("rest", 10.0) as client:
        replies = {name: client.rest("GET", f"/api/members/{name}/") for name in (*SHAPE.members, *SHAPE.more_members)}
    return {name: json.loads(reply.body) for name, reply in replies.items() if reply.status == 200}


def owners(hall: Stack) -> dict[str, str]:
    """The nodes of the connected members."""
    return {name: row["node"] for name, row in roster(hall).items() if row["status"] == "connected"}


def wait_for_owners(hall: Stack, holds: Any, seconds: float, expectation: str) -> dict[str, str]:
    def look() -> dict[str, str] | None:
        found = owners(hall)
        if len(found) == len(SHAPE.members) + len(SHAPE.more_members) and holds(found):
            return found
        time.sleep(0.1)
        return None

    return dict(wait_until(look, seconds, expectation))


def place(hall: Stack, report: Report) -> None:
    """Give each node a quick and a slow member. The counter gets the node that is not killed first."""
    places = {name: f"node-{name[-1]}" for name in (*QUICK, *SLOW)} | {"counter": "node-a"}
    before = wait_for_owners(hall, lambda found: True, PLACED_SECONDS, "all members are connected")
    for name, node in places.items():
        if before[name] != node:
            with hall.client("rest") as client:
                reply = client.rest("POST", f"/api/members/{name}/move/", {"node": node})
            if reply.status != 202:
                raise SystemExit(f"{name} does not move to {node}: {reply.status} {reply.body.decode()}")
    wait_for_owners(hall, lambda found: found == places, PLACED_SECONDS, "the members moved")
    counts = ", ".join(f"{node} {count}" for node, count in sorted(Counter(before.values()).items()))
    report.check("members move where they are sent", True, f"first {counts}")


def consumers(hall: Stack) -> int:
    """The number of nodes that listen at the broker."""
    listing = ["rabbitmqctl", "--quiet", "list_queues", "--no-table-headers", "name", "consumers"]
    lines = hall.docker("exec", hall.container("rabbitmq"), *listing).split("\n")
    return sum(line.split()[-1] == "1" for line in lines if line.startswith("guildhall"))


# One session ----------------------------------------------------------------------------------------------------------


def use_a_session(hall: Stack, report: Report) -> None:
    since = time.time()
    with hall.client("gateway") as client:
        client.begin()
        start = time.monotonic()
        counts = [client.call("counter__count", {}).text for _ in range(COUNT)]
        seconds = time.monotonic() - start
    is_right = counts == [str(number) for number in range(1, COUNT + 1)]
    report.check(f"a session counts to {COUNT} through the balancer", is_right, f"{seconds:.1f} s")
    wait_until(lambda: len(gateways_since(hall, since)) >= COUNT, RECORDED_SECONDS, "the balancer's log has them")
    served = Counter(gateways_since(hall, since))
    is_spread = len(served) == len(NODES) and min(served.values()) > COUNT / 10
    report.check("its requests go to three gateways", is_spread, ", ".join(f"{name} {n}" for name, n in served.items()))
    wait_until(lambda: len(rows_of_counter(hall)) >= COUNT, RECORDED_SECONDS, "the calls are recorded")
    rows = rows_of_counter(hall)
    succeeded = sum(row["status"] == "succeeded" for row in rows)
    report.check("each call is recorded once", len(rows) == succeeded == COUNT, f"{len(rows)}, {succeeded} succeeded")
    ask_on_a_stream(hall, report)


def rows_of_counter(hall: Stack) -> list[dict[str, Any]]:
    time.sleep(0.2)
    return [row for row in hall.get("/api/calls/?member=counter&page_size=200")["results"] if row["tool"] == "count"]


def gateways_since(hall: Stack, since: float) -> list[str]:
    """The gateways of the requests to them, in the log of the balancer."""
    time.sleep(0.2)
    log = hall.docker("logs", f"--since={int(since)}", hall.container("balancer"))
    return re.findall(r"by (?:\S+, )*(\S+):8100$", log, re.MULTILINE)


def ask_on_a_stream(hall: Stack, report: Report) -> None:
    """The member asks on the stream of the call, and the answer goes through the balancer to any gateway."""
    with hall.client("gateway") as client:
        client.begin(elicitation={})
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "counter__ask", "arguments": {}}}
        connection = http.client.HTTPConnection("127.0.0.1", hall.gateway_port, timeout=20)
        start = time.monotonic()
        connection.request("POST", "/mcp", json.dumps(call).encode(), client.headers)
        response = connection.getresponse()
        question = next_message(response)
        asked_at = time.monotonic() - start
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}
        accepted = client.post(answer).status
        result = next_message(response)
        connection.close()
    text = result["result"]["content"][0]["text"]
    holds = (accepted, text) == (202, '{"action": "decline"}') and asked_at < 5.0
    report.check("a question on a stream is answered through the balancer", holds, f"asked after {asked_at:.2f} s")


def next_message(response: http.client.HTTPResponse) -> dict[str, Any]:
    while line := response.readline():
        if line.startswith(b"data: ") and line.strip() != b"data:":
            return dict(json.loads(line[6:]))
    raise SystemExit("the stream ended without a message")


# Under load -----------------------------------------------------------------------------------------------------------


def storm(hall: Stack, report: Report) -> None:
    with Load(hall) as load:
        load.wait_for_successes(time.monotonic(), 30)
        time.sleep(QUIET_SECONDS)
        check_sources(report, load.records)
        kill_the_broker(hall, report, load)
        kill_a_web(hall, report, load)
        strike = kill_a_node(hall, report, load)
        return_the_node(hall, report, load)
    report.none("faults of the trial itself", load.faults)
    check_promises(hall, report, settle(hall, load.records), [strike])


def check_sources(report: Report, records: list[CallRecord]) -> None:
    for source in ("rest", "session", "modern"):
        nodes = Counter(f"node-{r.member[-1]}" for r in list(records) if r.source == source and r.end == "succeeded")
        counts = ", ".join(f"{node} {count}" for node, count in sorted(nodes.items()))
        report.check(f"calls run on every node: {source}", set(nodes) == set(NODES), counts)


def kill_the_broker(hall: Stack, report: Report, load: Load) -> None:
    """No failure is excused."""
    killed_at = hall.kill([hall.main_pid("rabbitmq")])
    wait_until(hall.is_healthy, HEALTHY_SECONDS, "every service is healthy after the broker was killed")
    healthy_after = time.monotonic() - killed_at
    wait_until(lambda: consumers(hall) == len(NODES) or time.sleep(0.5), 30, "the nodes listen to the new broker")
    load.wait_for_successes(time.monotonic(), 30)
    records = [record for record in list(load.records) if record.called_at > killed_at]
    rest = max(record.seconds for record in records if record.source == "rest" and record.member in QUICK)
    failed = sum(record.end != "succeeded" for record in records)
    detail = (
        f"{len(records)} calls in {healthy_after:.0f} s, {failed} failed; the slowest quick one over REST {rest:.1f} s"
    )
    report.check("broker killed", not failed and rest < QUEUE_SECONDS * load_factor(), detail)


def kill_a_web(hall: Stack, report: Report, load: Load) -> None:
    """No failure is excused: clients of REST repeat a request without a response, with the same key."""
    killed_at = hall.kill([hall.main_pid(WEBS[1])])
    wait_until(hall.is_healthy, HEALTHY_SECONDS, "every service is healthy after a web was killed")
    load.wait_for_successes(killed_at + QUIET_SECONDS, 30)
    records = [record for record in list(load.records) if record.called_at > killed_at - 1]
    failed = sum(record.end != "succeeded" for record in records)
    slowest = max(record.seconds for record in records if record.source == "rest" and record.member in QUICK)
    detail = f"{len(records)} calls, {failed} failed; the slowest quick one over REST {slowest:.1f} s"
    report.check("web killed", not failed, detail)


def kill_a_node(hall: Stack, report: Report, load: Load) -> Strike:
    """Docker does not restart its container, because a user requested the kill."""
    before = owners(hall)
    lost = [name for name, node in before.items() if node == VICTIM]
    processes = hall.processes(VICTIM)
    killed_at = time.monotonic()
    hall.docker("kill", hall.container(VICTIM))
    after = wait_for_owners(hall, lambda found: VICTIM not in found.values(), 60.0, "other nodes have the members")
    seconds, bound = time.monotonic() - killed_at, (TAKEN_SECONDS + START_SECONDS) * load_factor()
    places = ", ".join(f"{name} at {after[name]}" for name in lost)
    detail = f"{seconds:.1f} s of {bound:.0f}: {places}"
    report.check(f"node killed: {len(lost)} members are connected elsewhere", seconds <= bound, detail)
    report.none(
        "node killed: processes that are left", [str(process.pid) for process in processes if process.is_running()]
    )
    stayed = [name for name, node in before.items() if node != VICTIM and after[name] != node]
    report.none("node killed: members of other nodes that moved", stayed)
    well_at = time.monotonic() + NOTICE_SECONDS
    strike = Strike("node killed", "", killed_at, over_at=well_at, answered_at=well_at, well_at=well_at)
    load.wait_for_successes(well_at + QUIET_SECONDS, 30)
    struck = [record for record in list(load.records) if strike.covers(record)]
    failed = [record for record in struck if record.end != "succeeded"]
    kinds = Counter(" ".join(filter(None, (record.source, record.end, record.kind))) for record in failed)
    counts = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    slowest = max(struck, key=lambda record: record.seconds)
    detail = (
        f"{len(failed)} of {len(struck)} failed ({counts}); the slowest took {slowest.seconds:.1f} s ({slowest.key})"
    )
    report.check(
        "node killed: every client got an answer or an error", slowest.seconds < SILENT_SECONDS * load_factor(), detail
    )
    stranded = {record.source for record in struck if record.member in lost and record.end == "succeeded"}
    report.check("node killed: calls waited and ran on the new node", bool(stranded), ", ".join(sorted(stranded)))
    return strike


def return_the_node(hall: Stack, report: Report, load: Load) -> None:
    """No failure is excused, while it starts and while members move to it."""
    start = time.monotonic()
    hall.up()
    wait_until(lambda: is_alive(hall, VICTIM), 60, "the node is alive again")
    alive_after = time.monotonic() - start
    wait_until(hall.is_healthy, HEALTHY_SECONDS, "every service is healthy again")
    output = hall.manage("rebalance")
    wait_for_owners(hall, lambda found: VICTIM in found.values(), PLACED_SECONDS, "the node has members again")
    wait_until(lambda: not moving(hall), PLACED_SECONDS, "the members have moved")
    load.wait_for_successes(time.monotonic() + QUIET_SECONDS, 30)
    records = [record for record in list(load.records) if record.called_at > start]
    failed = [record for record in records if record.end != "succeeded"]
    count = output.count("Requested:")
    detail = f"alive after {alive_after:.1f} s, {count} members moved, {len(failed)} of {len(records)} calls failed"
    report.check("the node comes back, and `rebalance` gives it members", count > 0 and not failed, detail)


def is_alive(hall: Stack, name: str) -> bool:
    time.sleep(0.2)
    return any(node["is_alive"] for node in hall.get("/api/nodes/")["nodes"] if node["name"] == name)


def moving(hall: Stack) -> list[str]:
    time.sleep(0.2)
    return [name for name, row in roster(hall).items() if row["requested_node"] or row["status"] != "connected"]
