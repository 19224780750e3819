"""Agents with the real Agent SDK and its CLI. Only the model is a stand-in."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from django.contrib.auth.models import User

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.agents import agent_problem, create_agent, queue_message, stop_agent
from mcp_runtime.control.members import FORCIBLE_VERBS, MEMBER_VERBS, start_member, stop_member
from mcp_runtime.protocol.errors import AgentUnavailableError, MemberInUseError
from roster.models import Agent, AgentMessage, Call, PortAllocation, Token, Tool
from tests.conftest import eventually
from tests.support.agents import make_token
from tests.support.hall import PATIENCE, Hall, bring_up, family, is_live, member, wait_for_status
from tests.support.machine import Stopwatch
from tests.support.servers.model import Model

pytestmark = pytest.mark.timeout(120)

# Without the tool whose schema is broken, because with it the CLI would accept no tool.
TOOLS = "tools=echo,sleep,fail"
COMMAND_LINE = Requester(Call.Source.COMMAND)


def needs_agent_sdk() -> None:
    if importlib.util.find_spec("claude_agent_sdk") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("pip install -r requirements-agent.txt")


needs_gateway = pytest.mark.skipif(
    importlib.util.find_spec("mcp_runtime.gateway") is None, reason="the gateway is not there yet"
)


@pytest.fixture(scope="module")
def only_model() -> Iterator[Model]:
    needs_agent_sdk()
    with Model() as model:
        yield model


@pytest.fixture
def model(only_model: Model) -> Model:
    """The model of the module, without the requests of earlier tests."""
    only_model.requests.clear()
    return only_model


def environment_of(model: Model, folder: Path) -> dict[str, str]:
    """The environment in which a runtime uses the stand-in model, with a home folder without a login."""
    (folder / "home").mkdir()
    no_login = {"ANTHROPIC_AUTH_TOKEN": "", "CLAUDE_CODE_OAUTH_TOKEN": "", "CLAUDE_CONFIG_DIR": ""}
    return {
        **no_login,
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "sk-sesame",
        "HOME": str(folder / "home"),
    }


@pytest.fixture
def agent_environment(model: Model, tmp_path: Path) -> dict[str, str]:
    return environment_of(model, tmp_path)


SECRETS = {"SECRET_KEY": "hall-secret", "AWS_SECRET_ACCESS_KEY": "cloud-secret"}


@pytest.fixture(scope="module")
def hall_with_members(shared_hall: Hall, only_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Hall:
    """`one` always runs. Tests stop `two`, switch a tool of `three` off, and move `four` to a wrong port."""
    for name in ("one", "two", "three", "four"):
        shared_hall.add(name, TOOLS)
    shared_hall.add("broken", "exit=3", restart="never")
    bring_up(shared_hall, "one", **environment_of(only_model, tmp_path_factory.mktemp("agent")), **SECRETS)
    wait_until_agents_can_run()
    return shared_hall


@pytest.fixture
def running_hall(hall_with_members: Hall, model: Model) -> Iterator[Hall]:
    """The hall of the module. Each test stops its agents that still wait for the model."""
    yield hall_with_members
    for agent in Agent.objects.filter(messages__isnull=False, messages__finished_at=None).distinct():
        stop_agent(agent)
    eventually(lambda: not agent_processes(hall_with_members), what="no agent is left")


def wait_until_agents_can_run() -> None:
    eventually(lambda: agent_problem() == "", what="the runtime knows that agents can run")


def make_agent(*members: str, direct: bool = True, **values: Any) -> Agent:
    return create_agent(members, requester=COMMAND_LINE, direct=direct, **values)


def ask(agent: Agent, prompt: str, *, timeout: float = 60, within: float = 60) -> AgentMessage:
    """Queue a prompt and wait for its end."""
    return wait_for_end(queue_message(agent, prompt, requester=COMMAND_LINE, timeout=timeout), within=within)


def wait_for_end(message: AgentMessage, *, within: float = 60) -> AgentMessage:
    def is_finished() -> bool:
        message.refresh_from_db()
        return message.is_finished

    eventually(is_finished, within=within, what=f"message {message.pk} ends")
    return message


def transcript(message: AgentMessage) -> list[tuple[str, Any]]:
    return list(message.events.values_list("kind", "data"))


def agent_processes(hall: Hall) -> list[psutil.Process]:
    return hall.tagged_processes("agent")


def start_with_hung_model(hall: Hall, agent: Agent, model: Model, **values: Any) -> AgentMessage:
    message = queue_message(agent, "hang", requester=COMMAND_LINE, **values)
    eventually(lambda: model.requests, within=30, what="the model is asked")
    message.refresh_from_db()
    assert message.status == "running", message.error_message
    assert len(agent_processes(hall)) >= 2  # the program and the CLI
    return message


# Directly, at the endpoints of the members ------------------------------------------------------------------------


@pytest.mark.services
def test_the_agent_gets_the_tools_calls_one_and_reports_the_result(running_hall: Hall, model: Model) -> None:
    wait_for_status(running_hall, "three", "connected")
    Tool.objects.filter(member__name="three", name="fail").update(enabled=False)
    message = ask(make_agent("three"), 'call echo {"text": "grüß dich"}')
    assert (message.status, message.error_message) == ("succeeded", "")
    assert message.result == "The tool said: grüß dich"
    assert message.usage["turns"] == 2
    events = transcript(message)
    assert [kind for kind, _ in events] == ["text", "tool_call", "tool_result", "text", "result"]
    assert events[0][1] == {"text": "Let me see."}
    call = events[1][1]
    assert (call["server"], call["tool"], call["arguments"]) == ("three", "echo", {"text": "grüß dich"})
    assert events[2][1] == {
        "id": call["id"],
        "content": [{"type": "text", "text": "grüß dich"}],
        "is_error": False,
    }
    assert events[4][1]["status"] == "succeeded"
    tool_names = model.tool_names()
    assert {"mcp__three__echo", "mcp__three__sleep"} <= tool_names
    assert "mcp__three__fail" not in tool_names  # disabled in the hall
    assert {name for name in tool_names if not name.startswith("mcp__three__")} == set()  # no tool of the agent itself


@pytest.mark.services
def test_messages_of_one_agent_run_in_order_and_agents_run_in_parallel(running_hall: Hall) -> None:
    first, second = make_agent("one"), make_agent("one")
    prompts = ("say a", "say b", "remember")
    messages = [queue_message(first, prompt, requester=COMMAND_LINE) for prompt in prompts]
    assert ask(second, "remember").result == "remember"
    for message in messages:
        wait_for_end(message)
    assert [message.error_message for message in messages] == [""] * 3
    assert [message.result for message in messages] == ["a", "b", "say a | say b | remember"]
    for earlier, later in itertools.pairwise(messages):
        assert earlier.finished_at <= later.started_at


def test_a_stopped_member_is_started_for_the_agent(running_hall: Hall) -> None:
    stop_member(member("two"))
    wait_for_status(running_hall, "two", "disconnected")
    message = ask(make_agent("two"), 'call echo {"text": "awake"}')
    assert message.result == "The tool said: awake"


def test_a_message_fails_as_unavailable_when_a_member_does_not_start(running_hall: Hall) -> None:
    wait_for_status(running_hall, "broken", "error")
    message = ask(make_agent("broken"), "say hello")
    assert (message.status, message.error_kind) == ("failed", "unavailable")
    assert "member 'broken'" in message.error_message
    assert "exit code 3" in message.error_message


@pytest.mark.services
def test_a_member_that_an_agent_needs_is_stopped_only_with_force(running_hall: Hall, model: Model) -> None:
    agent = make_agent("two", name="my talk")
    start_with_hung_model(running_hall, agent, model)
    for verb in FORCIBLE_VERBS:
        with pytest.raises(MemberInUseError, match="needed by agent 'my talk'"):
            MEMBER_VERBS[verb](member("two"))
    refusal = running_hall.manage("member", "stop", "two")
    assert refusal.returncode == 5
    assert "needed by agent 'my talk'" in refusal.stderr
    assert member("two").desired_state == "running"
    forced_stop = running_hall.manage("member", "stop", "two", "--force")
    assert forced_stop.returncode == 0, forced_stop.stderr
    stop_agent(agent)
    wait_for_end(agent.messages.get())
    start_member(member("two"))
    stop_member(member("two"))  # no agent needs the member now


def test_a_lost_conversation_fails_the_message_and_the_next_message_starts_a_new_conversation(
    running_hall: Hall,
) -> None:
    agent = make_agent("one")
    ask(agent, "say the first thing")
    shutil.rmtree(running_hall.data_dir / "agent" / "config" / "projects")
    message = ask(agent, "remember")
    assert (message.status, message.error_kind) == ("failed", "agent")
    assert "the next message begins a new one" in message.error_message
    assert ask(agent, "remember").result == "remember"


# Ends ---------------------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_stop_ends_the_run_and_cancels_queued_messages_and_later_messages_run(running_hall: Hall, model: Model) -> None:
    agent = make_agent("one")
    message = start_with_hung_model(running_hall, agent, model)
    queued_message = queue_message(agent, "say never", requester=COMMAND_LINE)
    stop_agent(agent)
    assert wait_for_end(message, within=10).status == "cancelled"
    assert wait_for_end(queued_message).status == "cancelled"
    eventually(lambda: not agent_processes(running_hall), within=3)
    assert transcript(message)[-1][0] == "result"
    assert transcript(message)[-1][1]["status"] == "cancelled"
    assert ask(agent, "say again").result == "again"


def test_a_run_that_takes_too_long_ends_at_its_deadline(running_hall: Hall, model: Model) -> None:
    message = queue_message(make_agent("one"), "hang", requester=COMMAND_LINE, timeout=4)
    assert wait_for_end(message, within=15).error_kind == "timeout"
    assert "within 4 s" in message.error_message
    eventually(lambda: not agent_processes(running_hall), within=3)


@pytest.mark.services
def test_a_killed_runtime_leaves_no_agent_and_the_message_ends_as_lost(
    hall: Hall, agent_environment: dict[str, str], model: Model
) -> None:
    hall.add("one", TOOLS)
    runtime = hall.start(**agent_environment)
    wait_for_status(hall, "one", "connected")
    wait_until_agents_can_run()
    message = start_with_hung_model(hall, make_agent("one"), model)
    processes = [*family(runtime), *agent_processes(hall)]
    os.kill(hall.worker_pid, signal.SIGKILL)
    runtime.wait(PATIENCE)
    eventually(lambda: not any(is_live(process) for process in processes), within=2)
    assert not hall.tagged_processes()
    hall.start(**agent_environment)
    assert wait_for_end(message, within=10).error_kind == "lost"
    assert transcript(message)[-1][1]["error_kind"] == "lost"
    eventually(lambda: not list((hall.data_dir / "agent").glob("*.json")))


@pytest.mark.services
def test_the_next_start_ends_agents_after_guard_and_worker_were_killed(
    hall: Hall, agent_environment: dict[str, str], model: Model
) -> None:
    hall.add("one", TOOLS)
    runtime = hall.start(**agent_environment)
    wait_for_status(hall, "one", "connected")
    wait_until_agents_can_run()
    message = start_with_hung_model(hall, make_agent("one"), model)
    processes = agent_processes(hall)
    os.kill(runtime.pid, signal.SIGSTOP)  # so that the guard cannot end what the worker leaves
    os.kill(hall.worker_pid, signal.SIGKILL)
    os.kill(runtime.pid, signal.SIGKILL)
    runtime.wait(PATIENCE)
    hall.start(**agent_environment)
    assert wait_for_end(message, within=10).error_kind == "lost"
    eventually(lambda: not any(is_live(process) for process in processes), within=2)


@pytest.mark.services
def test_a_runtime_that_is_stopped_stops_its_agents_in_time(
    hall: Hall, agent_environment: dict[str, str], model: Model
) -> None:
    hall.add("one", TOOLS)
    runtime = hall.start(**agent_environment)
    wait_for_status(hall, "one", "connected")
    wait_until_agents_can_run()
    message = start_with_hung_model(hall, make_agent("one"), model)
    watch = Stopwatch()
    runtime.terminate()
    assert runtime.wait(PATIENCE) == 0
    assert watch.seconds < 6
    message.refresh_from_db()
    assert (message.status, message.error_kind) == ("failed", "lost")
    assert "was stopped" in message.error_message
    assert not hall.tagged_processes()


# Requirements of an agent, and its environment ------------------------------------------------------------------------


def test_without_an_api_key_a_message_is_refused_and_the_error_names_the_variable(
    hall: Hall, agent_environment: dict[str, str]
) -> None:
    hall.add("one", TOOLS)
    hall.start(**{**agent_environment, "ANTHROPIC_API_KEY": ""})
    wait_for_status(hall, "one", "connected")
    eventually(agent_problem)
    with pytest.raises(AgentUnavailableError, match="ANTHROPIC_API_KEY"):
        queue_message(make_agent("one"), "say hello", requester=COMMAND_LINE)
    result = hall.manage("agent", "say hello", "--members", "one", "--direct")
    assert result.returncode == 8
    assert "ANTHROPIC_API_KEY" in result.stderr
    assert not AgentMessage.objects.exists()


def test_without_the_sdk_a_message_is_refused_and_the_error_names_the_command(
    hall: Hall, agent_environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text("import sys\nsys.modules['claude_agent_sdk'] = None\n")
    hall.add("one", TOOLS)
    hall.start(**agent_environment, PYTHONPATH=f"{tmp_path / 'hidden'}:{os.getcwd()}")
    wait_for_status(hall, "one", "connected")
    eventually(agent_problem)
    with pytest.raises(AgentUnavailableError, match=r"pip install -r requirements-agent\.txt"):
        queue_message(make_agent("one"), "say hello", requester=COMMAND_LINE)


def test_processes_of_an_agent_contain_no_secret_of_the_hall(running_hall: Hall, model: Model) -> None:
    start_with_hung_model(running_hall, make_agent("one"), model)
    for process in agent_processes(running_hall):
        environment = process.environ()
        assert environment["ANTHROPIC_API_KEY"] == "sk-sesame"
        assert not {"DATABASE_URL", "REDIS_URL", *SECRETS} & environment.keys()
        assert "localhost" not in " ".join(process.cmdline())  # the servers are in a file that only this user can read
    files = list((running_hall.data_dir / "agent").glob("*.json"))
    assert files
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


# The command --------------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_the_command_shows_the_transcript_and_exits_with_1_after_a_failure(running_hall: Hall) -> None:
    first = running_hall.manage("agent", 'call echo {"text": "hi"}', "--members", "one", "--direct", "--name", "talk")
    assert first.returncode == 0, first.stderr
    assert "Let me see." in first.stdout
    assert 'one echo {"text": "hi"}' in first.stdout
    assert "The tool said: hi" in first.stdout
    assert first.stdout.count("The tool said: hi") == 1
    second = running_hall.manage("agent", "remember", "--name", "talk")
    assert 'call echo {"text": "hi"} | remember' in second.stdout
    failure = running_hall.manage("agent", "fail", "--name", "talk")
    assert failure.returncode == 6
    assert "not today" in failure.stderr
    message = AgentMessage.objects.get(agent__name="talk", prompt="fail")
    assert (message.status, message.error_kind) == ("failed", "agent")
    assert "not today" in message.error_message
    assert not agent_processes(running_hall)


@pytest.mark.services
def test_ctrl_c_stops_the_agent_of_the_command(running_hall: Hall, model: Model) -> None:
    command = running_hall.popen([sys.executable, "manage.py", "agent", "hang", "--members", "one", "--direct"])
    eventually(lambda: model.requests, within=30)
    command.send_signal(signal.SIGINT)
    assert command.wait(15) == 130, running_hall.output()
    assert AgentMessage.objects.latest("pk").status == "cancelled"
    eventually(lambda: not agent_processes(running_hall), within=3)


# The gateway --------------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_by_default_the_agent_gets_the_gateway_and_a_token_for_the_run(running_hall: Hall, model: Model) -> None:
    user = User.objects.create_superuser("alice")
    agent = create_agent(["one"], requester=Requester(Call.Source.REST, user))
    message = start_with_hung_model(running_hall, agent, model)
    config = json.loads(next((running_hall.data_dir / "agent").glob("mcp-*.json")).read_text())
    server = config["mcpServers"]["guild-hall"]
    assert server["url"].endswith(f"/agents/{message.agent_id}/mcp")
    digest = Token.digest_of(server["headers"]["Authorization"].removeprefix("Bearer "))
    assert Token.objects.get(digest=digest).user == user
    stop_agent(agent)
    wait_for_end(message)
    assert not user.tokens.exists()


def test_an_unreachable_server_is_in_the_transcript_and_the_agent_continues(running_hall: Hall) -> None:
    wait_for_status(running_hall, "four", "connected")
    PortAllocation.objects.filter(member__name="four").update(
        port=running_hall.port_range[1]
    )  # a port on which nothing listens
    message = ask(make_agent("four"), "say hello")
    assert (message.status, message.result) == ("succeeded", "hello")
    events = dict(transcript(message))  # the first text may come before the list of servers
    servers = events["servers"]["servers"]
    assert [(server["name"], server["status"]) for server in servers] == [("four", "failed")]
    assert servers[0]["error"]


@needs_gateway
def test_through_the_gateway_the_agent_gets_only_the_tools_of_its_members(running_hall: Hall, model: Model) -> None:
    user = User.objects.create_superuser("bob")
    agent = create_agent(["one"], requester=Requester(Call.Source.REST, user))
    message = ask(agent, 'call one__echo {"text": "grüß dich"}')
    assert message.result == "The tool said: grüß dich"
    assert model.tool_names() == {f"mcp__guild-hall__one__{tool}" for tool in ("echo", "sleep", "fail")}
    calls = Call.objects.filter(requested_by=user)
    eventually(calls.exists)  # the call is stored a moment later
    assert calls.get().source == "gateway"
    assert not user.tokens.exists()


# Over REST ----------------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_a_prompt_over_rest_streams_the_transcript(running_hall: Hall) -> None:
    with requests.Session() as rest:
        rest.headers["Authorization"] = f"Bearer {make_token()}"
        body = {"members": ["one"], "direct": True}
        agent = rest.post(f"{running_hall.url}/api/agents/", json=body, timeout=10).json()
        response = rest.post(
            f"{running_hall.url}{agent['url']}messages/",
            json={"prompt": 'call echo {"text": "hi"}'},
            headers={"Accept": "text/event-stream"},
            timeout=60,
        )
    assert response.headers["Content-Type"] == "text/event-stream"
    names = [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]
    assert names == ["message", "text", "tool_call", "tool_result", "text", "result", "end"]
    assert "The tool said: hi" in response.text
