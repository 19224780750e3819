"""Agents with the real Agent SDK and its CLI; only the model is a stand-in."""

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

from mcp_runtime.calls.transitions import Caller
from mcp_runtime.control.agents import agent_problem, create_agent, queue_message, stop_agent
from mcp_runtime.control.members import FORCIBLE_VERBS, MEMBER_VERBS, start_member, stop_member
from mcp_runtime.protocol.errors import AgentUnavailableError, MemberInUseError
from roster.models import Agent, AgentMessage, Call, PortAllocation, Token, Tool
from tests.conftest import eventually
from tests.support.agents import make_token
from tests.support.hall import PATIENCE, Hall, bring_up, family, lives, member, wait_for_status
from tests.support.machine import Stopwatch
from tests.support.servers.model import Model

pytestmark = pytest.mark.timeout(120)

# Without the one whose schema is broken: the CLI would take none of them.
TOOLS = "tools=echo,sleep,fail"
COMMAND_LINE = Caller(Call.Source.COMMAND)


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
    """The one of the module, without the requests of earlier tests."""
    only_model.requests.clear()
    return only_model


def environment_of(model: Model, folder: Path) -> dict[str, str]:
    """What a runtime is given to reach the stand-in, and a home without anybody's login."""
    (folder / "home").mkdir()
    nobodys = {"ANTHROPIC_AUTH_TOKEN": "", "CLAUDE_CODE_OAUTH_TOKEN": "", "CLAUDE_CONFIG_DIR": ""}
    return {
        **nobodys,
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "sk-sesame",
        "HOME": str(folder / "home"),
    }


@pytest.fixture
def key(model: Model, tmp_path: Path) -> dict[str, str]:
    return environment_of(model, tmp_path)


SECRETS = {"SECRET_KEY": "hall-secret", "AWS_SECRET_ACCESS_KEY": "cloud-secret"}


@pytest.fixture(scope="module")
def whole_hall(shared_hall: Hall, only_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Hall:
    """`one` always runs. Tests stop `two`, switch a tool of `three` off, and move `four` to a wrong port."""
    for name in ("one", "two", "three", "four"):
        shared_hall.add(name, TOOLS)
    shared_hall.add("broken", "exit=3", restart="never")
    bring_up(shared_hall, "one", **environment_of(only_model, tmp_path_factory.mktemp("agent")), **SECRETS)
    knows_no_problem()
    return shared_hall


@pytest.fixture
def running(whole_hall: Hall, model: Model) -> Iterator[Hall]:
    """The hall of the module. No test leaves an agent that still asks the model."""
    yield whole_hall
    for talk in Agent.objects.filter(messages__isnull=False, messages__finished_at=None).distinct():
        stop_agent(talk)
    eventually(lambda: not agent_processes(whole_hall), what="no agent is left")


def knows_no_problem() -> None:
    eventually(lambda: agent_problem() == "", what="the runtime knows that agents can run")


def new_agent(*members: str, direct: bool = True, **values: Any) -> Agent:
    return create_agent(members, caller=COMMAND_LINE, direct=direct, **values)


def ask(talk: Agent, prompt: str, *, timeout: float = 60, within: float = 60) -> AgentMessage:
    """Queue a prompt and wait for its end."""
    return ended(queue_message(talk, prompt, caller=COMMAND_LINE, timeout=timeout), within=within)


def ended(message: AgentMessage, *, within: float = 60) -> AgentMessage:
    def over() -> bool:
        message.refresh_from_db()
        return message.is_finished

    eventually(over, within=within, what=f"message {message.pk} ends")
    return message


def transcript(message: AgentMessage) -> list[tuple[str, Any]]:
    return list(message.events.values_list("kind", "data"))


def agent_processes(hall: Hall) -> list[psutil.Process]:
    return hall.tagged_processes("agent")


def runs_with_a_hung_model(hall: Hall, talk: Agent, model: Model, **values: Any) -> AgentMessage:
    message = queue_message(talk, "hang", caller=COMMAND_LINE, **values)
    eventually(lambda: model.requests, within=30, what="the model is asked")
    message.refresh_from_db()
    assert message.status == "running", message.error_message
    assert len(agent_processes(hall)) >= 2  # the program and the CLI
    return message


# The way of the seeds: the members' own endpoints -------------------------------------------------------------------


@pytest.mark.services
def test_the_agent_is_offered_the_tools_calls_one_and_says_what_came_back(running: Hall, model: Model) -> None:
    wait_for_status(running, "three", "connected")
    Tool.objects.filter(member__name="three", name="fail").update(enabled=False)
    done = ask(new_agent("three"), 'call echo {"text": "grüß dich"}')
    assert (done.status, done.error_message) == ("succeeded", "")
    assert done.result == "The tool said: grüß dich"
    assert done.usage["turns"] == 2
    kinds = transcript(done)
    assert [kind for kind, _ in kinds] == ["text", "tool_call", "tool_result", "text", "result"]
    assert kinds[0][1] == {"text": "Let me see."}
    call = kinds[1][1]
    assert (call["server"], call["tool"], call["arguments"]) == ("three", "echo", {"text": "grüß dich"})
    assert kinds[2][1] == {
        "id": call["id"],
        "content": [{"type": "text", "text": "grüß dich"}],
        "is_error": False,
    }
    assert kinds[4][1]["status"] == "succeeded"
    tool_names = model.tool_names()
    assert {"mcp__three__echo", "mcp__three__sleep"} <= tool_names
    assert "mcp__three__fail" not in tool_names  # disabled in the hall
    assert {name for name in tool_names if not name.startswith("mcp__three__")} == set()  # none of the agent's own


@pytest.mark.services
def test_messages_to_one_agent_run_one_after_the_other_and_agents_run_side_by_side(running: Hall) -> None:
    first, second = new_agent("one"), new_agent("one")
    prompts = ("say a", "say b", "remember")
    waiting = [queue_message(first, prompt, caller=COMMAND_LINE) for prompt in prompts]
    assert ask(second, "remember").result == "remember"
    for message in waiting:
        ended(message)
    assert [message.error_message for message in waiting] == [""] * 3
    assert [message.result for message in waiting] == ["a", "b", "say a | say b | remember"]
    for earlier, later in itertools.pairwise(waiting):
        assert earlier.finished_at <= later.started_at


def test_a_stopped_member_is_started_for_the_agent(running: Hall) -> None:
    stop_member(member("two"))
    wait_for_status(running, "two", "disconnected")
    done = ask(new_agent("two"), 'call echo {"text": "awake"}')
    assert done.result == "The tool said: awake"


def test_a_member_that_will_not_start_makes_the_message_unavailable_with_the_reason(running: Hall) -> None:
    wait_for_status(running, "broken", "error")
    done = ask(new_agent("broken"), "say hello")
    assert (done.status, done.error_kind) == ("failed", "unavailable")
    assert "member 'broken'" in done.error_message
    assert "exit code 3" in done.error_message


@pytest.mark.services
def test_members_that_an_agent_needs_are_not_stopped_under_it_unless_forced(running: Hall, model: Model) -> None:
    talk = new_agent("two", name="my talk")
    runs_with_a_hung_model(running, talk, model)
    for verb in FORCIBLE_VERBS:
        with pytest.raises(MemberInUseError, match="needed by agent 'my talk'"):
            MEMBER_VERBS[verb](member("two"))
    refused = running.manage("member", "stop", "two")
    assert refused.returncode == 1
    assert "needed by agent 'my talk'" in refused.stderr
    assert member("two").desired_state == "running"
    forced = running.manage("member", "stop", "two", "--force")
    assert forced.returncode == 0, forced.stderr
    stop_agent(talk)
    ended(talk.messages.get())
    start_member(member("two"))
    stop_member(member("two"))  # nobody needs it now


def test_a_conversation_that_is_lost_is_said_and_the_next_message_begins_a_new_one(running: Hall) -> None:
    talk = new_agent("one")
    ask(talk, "say the first thing")
    shutil.rmtree(running.data_dir / "agent" / "config" / "projects")
    lost = ask(talk, "remember")
    assert (lost.status, lost.error_kind) == ("failed", "agent")
    assert "the next message begins a new one" in lost.error_message
    assert ask(talk, "remember").result == "remember"


# Ends ---------------------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_stop_ends_the_run_and_cancels_what_waits_and_the_next_message_runs(running: Hall, model: Model) -> None:
    talk = new_agent("one")
    message = runs_with_a_hung_model(running, talk, model)
    waiting = queue_message(talk, "say never", caller=COMMAND_LINE)
    stop_agent(talk)
    assert ended(message, within=10).status == "cancelled"
    assert ended(waiting).status == "cancelled"
    eventually(lambda: not agent_processes(running), within=3)
    assert transcript(message)[-1][0] == "result"
    assert transcript(message)[-1][1]["status"] == "cancelled"
    assert ask(talk, "say again").result == "again"


def test_a_run_that_takes_too_long_ends_at_its_deadline(running: Hall, model: Model) -> None:
    message = queue_message(new_agent("one"), "hang", caller=COMMAND_LINE, timeout=4)
    assert ended(message, within=15).error_kind == "timeout"
    assert "within 4 s" in message.error_message
    eventually(lambda: not agent_processes(running), within=3)


@pytest.mark.services
def test_a_killed_runtime_leaves_no_agent_and_the_message_ends_as_lost(
    hall: Hall, key: dict[str, str], model: Model
) -> None:
    hall.add("one", TOOLS)
    runtime = hall.start(**key)
    wait_for_status(hall, "one", "connected")
    knows_no_problem()
    message = runs_with_a_hung_model(hall, new_agent("one"), model)
    processes = [*family(runtime), *agent_processes(hall)]
    os.kill(hall.worker_pid, signal.SIGKILL)
    runtime.wait(PATIENCE)
    eventually(lambda: not any(lives(process) for process in processes), within=2)
    assert not hall.tagged_processes()
    hall.start(**key)
    assert ended(message, within=10).error_kind == "lost"
    assert transcript(message)[-1][1]["error_kind"] == "lost"
    eventually(lambda: not list((hall.data_dir / "agent").glob("*.json")))


@pytest.mark.services
def test_guard_and_worker_killed_at_once_leave_agents_that_the_next_start_ends(
    hall: Hall, key: dict[str, str], model: Model
) -> None:
    hall.add("one", TOOLS)
    runtime = hall.start(**key)
    wait_for_status(hall, "one", "connected")
    knows_no_problem()
    message = runs_with_a_hung_model(hall, new_agent("one"), model)
    left = agent_processes(hall)
    os.kill(runtime.pid, signal.SIGSTOP)  # so that it cannot end what the worker leaves
    os.kill(hall.worker_pid, signal.SIGKILL)
    os.kill(runtime.pid, signal.SIGKILL)
    runtime.wait(PATIENCE)
    hall.start(**key)
    assert ended(message, within=10).error_kind == "lost"
    eventually(lambda: not any(lives(process) for process in left), within=2)


@pytest.mark.services
def test_a_runtime_that_is_stopped_stops_its_agents_in_time(hall: Hall, key: dict[str, str], model: Model) -> None:
    hall.add("one", TOOLS)
    runtime = hall.start(**key)
    wait_for_status(hall, "one", "connected")
    knows_no_problem()
    message = runs_with_a_hung_model(hall, new_agent("one"), model)
    watch = Stopwatch()
    runtime.terminate()
    assert runtime.wait(PATIENCE) == 0
    assert watch.seconds < 6
    message.refresh_from_db()
    assert (message.status, message.error_kind) == ("failed", "lost")
    assert "was stopped" in message.error_message
    assert not hall.tagged_processes()


# What it needs, and what it is not given ----------------------------------------------------------------------------


def test_without_a_key_a_message_is_refused_with_what_to_set(hall: Hall, key: dict[str, str]) -> None:
    hall.add("one", TOOLS)
    hall.start(**{**key, "ANTHROPIC_API_KEY": ""})
    wait_for_status(hall, "one", "connected")
    eventually(agent_problem)
    with pytest.raises(AgentUnavailableError, match="ANTHROPIC_API_KEY"):
        queue_message(new_agent("one"), "say hello", caller=COMMAND_LINE)
    asked = hall.manage("agent", "say hello", "--members", "one", "--direct")
    assert asked.returncode == 1
    assert "ANTHROPIC_API_KEY" in asked.stderr
    assert not AgentMessage.objects.exists()


def test_without_the_sdk_a_message_is_refused_with_what_to_install(
    hall: Hall, key: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text("import sys\nsys.modules['claude_agent_sdk'] = None\n")
    hall.add("one", TOOLS)
    hall.start(**key, PYTHONPATH=f"{tmp_path / 'hidden'}:{os.getcwd()}")
    wait_for_status(hall, "one", "connected")
    eventually(agent_problem)
    with pytest.raises(AgentUnavailableError, match=r"pip install -r requirements-agent\.txt"):
        queue_message(new_agent("one"), "say hello", caller=COMMAND_LINE)


def test_neither_the_agent_nor_its_list_of_processes_holds_a_secret_of_the_hall(running: Hall, model: Model) -> None:
    runs_with_a_hung_model(running, new_agent("one"), model)
    for process in agent_processes(running):
        environment = process.environ()
        assert environment["ANTHROPIC_API_KEY"] == "sk-sesame"
        assert not {"DATABASE_URL", "REDIS_URL", *SECRETS} & environment.keys()
        assert "localhost" not in " ".join(process.cmdline())  # the servers are in a file that is ours alone
    files = list((running.data_dir / "agent").glob("*.json"))
    assert files
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


# The command --------------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_the_command_shows_text_calls_and_results_and_its_code_says_how_it_went(running: Hall) -> None:
    done = running.manage("agent", 'call echo {"text": "hi"}', "--members", "one", "--direct", "--name", "talk")
    assert done.returncode == 0, done.stderr
    assert "Let me see." in done.stdout
    assert 'one echo {"text": "hi"}' in done.stdout
    assert "The tool said: hi" in done.stdout
    assert done.stdout.count("The tool said: hi") == 1
    again = running.manage("agent", "remember", "--name", "talk")
    assert 'call echo {"text": "hi"} | remember' in again.stdout
    failed = running.manage("agent", "fail", "--name", "talk")
    assert failed.returncode == 1
    assert "not today" in failed.stderr
    message = AgentMessage.objects.get(agent__name="talk", prompt="fail")
    assert (message.status, message.error_kind) == ("failed", "agent")
    assert "not today" in message.error_message
    assert not agent_processes(running)


@pytest.mark.services
def test_ctrl_c_stops_the_agent_of_the_command(running: Hall, model: Model) -> None:
    asking = running.popen([sys.executable, "manage.py", "agent", "hang", "--members", "one", "--direct"])
    eventually(lambda: model.requests, within=30)
    asking.send_signal(signal.SIGINT)
    assert asking.wait(15) == 130, running.output()
    assert AgentMessage.objects.latest("pk").status == "cancelled"
    eventually(lambda: not agent_processes(running), within=3)


# The gateway --------------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_by_default_the_agent_is_given_the_gateway_and_a_token_that_dies_with_the_run(
    running: Hall, model: Model
) -> None:
    user = User.objects.create_superuser("alice")
    talk = create_agent(["one"], caller=Caller(Call.Source.REST, user))
    message = runs_with_a_hung_model(running, talk, model)
    config = json.loads(next((running.data_dir / "agent").glob("mcp-*.json")).read_text())
    server = config["mcpServers"]["guild-hall"]
    assert server["url"].endswith(f"/agents/{message.agent_id}/mcp")
    digest = Token.digest_of(server["headers"]["Authorization"].removeprefix("Bearer "))
    assert Token.objects.get(digest=digest).user == user
    stop_agent(talk)
    ended(message)
    assert not user.tokens.exists()


def test_a_server_that_the_agent_cannot_use_is_in_the_transcript_and_the_agent_works_on(running: Hall) -> None:
    wait_for_status(running, "four", "connected")
    PortAllocation.objects.filter(member__name="four").update(port=running.port_range[1])  # where nobody listens
    done = ask(new_agent("four"), "say hello")
    assert (done.status, done.result) == ("succeeded", "hello")
    said = dict(transcript(done))  # the agent may speak before it knows of its servers
    missing = said["servers"]["servers"]
    assert [(server["name"], server["status"]) for server in missing] == [("four", "failed")]
    assert missing[0]["error"]


@needs_gateway
def test_through_the_gateway_the_agent_is_offered_the_tools_of_its_members_alone(running: Hall, model: Model) -> None:
    user = User.objects.create_superuser("bob")
    talk = create_agent(["one"], caller=Caller(Call.Source.REST, user))
    done = ask(talk, 'call one__echo {"text": "grüß dich"}')
    assert done.result == "The tool said: grüß dich"
    assert model.tool_names() == {f"mcp__guild-hall__one__{tool}" for tool in ("echo", "sleep", "fail")}
    calls = Call.objects.filter(requested_by=user)
    eventually(calls.exists)  # it is written down a moment later
    assert calls.get().source == "gateway"
    assert not user.tokens.exists()


# Over REST ----------------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_a_prompt_over_rest_streams_what_the_agent_does(running: Hall) -> None:
    with requests.Session() as rest:
        rest.headers["Authorization"] = f"Bearer {make_token()}"
        new_agent = {"members": ["one"], "direct": True}
        made = rest.post(f"{running.url}/api/agents/", json=new_agent, timeout=10).json()
        said = rest.post(
            f"{running.url}{made['url']}messages/",
            json={"prompt": 'call echo {"text": "hi"}'},
            headers={"Accept": "text/event-stream"},
            timeout=60,
        )
    assert said.headers["Content-Type"] == "text/event-stream"
    names = [line.removeprefix("event: ") for line in said.text.splitlines() if line.startswith("event: ")]
    assert names == ["message", "text", "tool_call", "tool_result", "text", "result", "end"]
    assert "The tool said: hi" in said.text
