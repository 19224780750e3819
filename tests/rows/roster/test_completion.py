"""What `guildhall` offers in a shell: from the parsers of the commands, and from the rows of the hall."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Group, User

from guildhall import command_setup, commands, completion
from roster.management import completion_rows
from roster.models import MemberExtras, Node, Secret, ToolSet
from tests.support.admin import make_member, make_tool

pytestmark = pytest.mark.django_db

Offered = Callable[[str], list[str]]


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offered:
    """The candidates for the last word, without their descriptions, in the hall of this test."""
    monkeypatch.setattr(command_setup, "choose_hall", lambda _: None)
    monkeypatch.setattr(command_setup, "load_django", lambda: None)

    def offered(line: str) -> list[str]:
        assert completion.complete("", line.split(" ")) == 0
        return [candidate.partition("\t")[0] for candidate in capsys.readouterr().out.splitlines()]

    return offered


@pytest.fixture(autouse=True)
def _rows() -> None:
    notes = make_member("notes", display_name="My\x1b[31m notes\n")
    make_tool(notes, "add_note")
    make_tool(notes, "$(reboot)")
    make_member("example")
    make_tool(make_member("other"), "add_other")
    definition = {"name": "summary", "title": "A summary"}
    resource = {"uri": "notes://1", "name": "one"}
    MemberExtras.objects.create(member=notes, prompts=[definition], resources=[resource], digest="0" * 64)
    User.objects.create_user("bob")
    User.objects.create_user("ben", is_active=False)
    Group.objects.create(name="staff")
    Secret.objects.create(name="API_KEY")
    Node.objects.create(name="node-b")
    ToolSet.objects.create(name="daily")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ros", ["roster"]),
        ("comp", ["completion"]),
        ("--h", ["--hall"]),
        ("help trash", ["trash"]),
        ("completion f", ["fish"]),
        ("--hall ", [":files"]),
        ("--hall /x ros", ["roster"]),
        ("member st", ["start", "stop"]),
        ("member start n", ["notes"]),
        ("member start notes e", ["example"]),
        ("invoke n", ["notes"]),
        ("invoke notes a", ["add_note"]),
        ("invoke --user bob notes a", ["add_note"]),
        ("invoke --user=bob notes a", ["add_note"]),
        ("invoke notes add_note --us", ["--user"]),
        ("invoke notes add_note {} --user b", ["bob"]),
        ("prompt g", ["get"]),
        ("prompt get notes s", ["summary"]),
        ("prompt nothing ", []),
        ("resource read notes notes:", ["notes://1"]),
        ("agent_config --for v", ["vscode"]),
        ("agent_config --for vscode --members notes,e", ["notes,example"]),
        ("create_token bob --tools notes/", ["notes/add_note"]),
        ("create_token bob --tool-set d", ["daily"]),
        ("reserve notes --groups s", ["staff"]),
        ("allow_secret A", ["API_KEY"]),
        ("allow_secret API_KEY n", ["notes"]),
        ("drain_node n", ["node-b"]),
        ("set_role b", ["bob"]),
        ("set_role bob ca", ["caller"]),
        ("changepassword b", ["bob"]),
        ("login_link b", ["bob"]),
        ("logs n", ["notes"]),
        ("check_members x", [":files"]),
        ("contracts check x", [":files"]),
        ("explain_access bob notes/", ["notes/add_note"]),
        ("nothing ", []),
        ("roster ", []),
        ("new_member n", []),
    ],
)
def test_a_word_is_completed_from_parsers_and_rows(offered: Offered, line: str, expected: list[str]) -> None:
    candidates = offered(line)
    assert [name for name in candidates if name in expected] == expected
    assert set(candidates) == {*expected}


def test_names_that_a_shell_would_read_as_commands_are_not_offered(offered: Offered) -> None:
    assert offered("invoke notes ") == ["add_note"]


def test_descriptions_of_members_have_no_control_characters(
    offered: Offered, capsys: pytest.CaptureFixture[str]
) -> None:
    completion.complete("", ["logs", "notes"])
    assert capsys.readouterr().out == "notes\tMy [31m notes\n"


def test_a_fault_is_silent(
    offered: Offered, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("no hall")

    monkeypatch.setattr(command_setup, "load_django", fail)
    assert offered("logs ") == []
    assert capsys.readouterr().err == ""


def test_each_source_is_of_an_argument() -> None:
    """An argument that got another name would lose its completion."""
    arguments: set[tuple[str, str]] = set()
    for name in commands.NAMES:
        parsers = [command_setup.load_command(name).create_parser("guildhall", name)]
        for parser in parsers:
            for action in parser._actions:
                arguments.add((name, action.dest))
                parsers += [*action.choices.values()] if isinstance(action.choices, dict) else []
    anywhere = {argument for _, argument in arguments}
    for command, argument in completion_rows.SOURCES:
        assert (command, argument) in arguments if command else argument in anywhere, (command, argument)
