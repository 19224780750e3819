"""One cause is one status change, however often the hall tries. The last try stays visible."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import timezone

from roster.models import GuildMember, StatusChange
from tests.support.lifecycle_stage import RemoteStage, history, row, wait_for
from tests.support.member_process import free_port
from tests.support.scripted_server import Request

pytestmark = pytest.mark.django_db(transaction=True)

Status = GuildMember.Status
FIRST_FAILURE = ["disconnected -> starting: start", "starting -> error: start failed"]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[RemoteStage]:
    stage = RemoteStage(tmp_path)
    yield stage
    stage.end_processes()
    for live_member in stage.lifecycle.live_members():
        live_member.client.close()
    for server in stage.servers:
        server.close()


@pytest.fixture
def unreachable(stage: RemoteStage) -> GuildMember:
    """A remote server that failed to start once."""
    member = stage.add_remote(f"http://127.0.0.1:{free_port()}/mcp")
    stage.lifecycle.start(member.pk)
    assert history(member) == FIRST_FAILURE
    return member


def first_failure(member: GuildMember) -> StatusChange:
    return StatusChange.objects.get(member=member, new=Status.ERROR)


def test_an_unreachable_url_has_one_status_change_and_one_line_on_the_console(
    stage: RemoteStage, unreachable: GuildMember, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="guildhall.runtime")
    failed_at, before = row(unreachable).status_changed_at, timezone.now()
    for _ in range(3):
        stage.lifecycle.start(unreachable.pk, automatic=True)
    assert history(unreachable) == FIRST_FAILURE
    assert caplog.messages == []
    change = first_failure(unreachable)
    assert change.repeats == 3
    assert change.repeated_at is not None
    assert change.repeated_at > before
    member = row(unreachable)
    assert member.status == Status.ERROR
    assert member.status_changed_at == failed_at == change.created_at  # it has been in error since then
    assert (member.restarts, member.restarts_total) == (4, 3)
    assert member.next_restart_at is not None
    assert member.next_restart_at > before


def test_calls_do_not_shorten_the_back_off_of_a_repeated_failure(stage: RemoteStage, unreachable: GuildMember) -> None:
    stage.lifecycle.start(unreachable.pk, automatic=True)
    restarts = stage.lifecycle.restarts
    earliest, failed_at = restarts.earliest(row(unreachable)), restarts.failed_at(row(unreachable))
    assert earliest == pytest.approx(failed_at + 2.0)  # the delay after the second failure in a row
    stage.lifecycle.start(unreachable.pk, automatic=True)
    assert restarts.failed_at(row(unreachable)) > failed_at


def test_another_cause_is_written_with_the_restart_that_met_it(
    stage: RemoteStage, unreachable: GuildMember, caplog: pytest.LogCaptureFixture
) -> None:
    stage.lifecycle.start(unreachable.pk, automatic=True)
    refuse = {"initialize": lambda request: request.http(503, b"busy", "text/plain")}
    stage.serve(refuse, port=int(unreachable.server_url.split(":")[2].removesuffix("/mcp")))
    began_at = timezone.now()
    stage.lifecycle.start(unreachable.pk, automatic=True)
    assert history(unreachable) == [*FIRST_FAILURE, "error -> starting: restart", "starting -> error: start failed"]
    assert StatusChange.objects.get(cause="restart").created_at >= began_at
    assert "HTTP status 503" in caplog.messages[-1]
    stage.lifecycle.start(unreachable.pk, automatic=True)
    assert len(history(unreachable)) == 4
    assert [change.repeats for change in StatusChange.objects.filter(new="error").order_by("id")] == [1, 1]


def test_a_restart_that_succeeds_is_written(stage: RemoteStage, unreachable: GuildMember) -> None:
    stage.lifecycle.start(unreachable.pk, automatic=True)
    stage.serve(port=int(unreachable.server_url.split(":")[2].removesuffix("/mcp")))
    stage.lifecycle.start(unreachable.pk, automatic=True)
    assert history(unreachable)[2:] == ["error -> starting: restart", "starting -> connected: handshake"]
    stage.lifecycle.stop(unreachable.pk)
    assert history(unreachable)[4:] == ["connected -> stopping: stop", "stopping -> disconnected: stop"]


def test_a_restart_that_a_person_requests_is_written_even_if_it_fails_in_the_same_way(
    stage: RemoteStage, unreachable: GuildMember
) -> None:
    stage.lifecycle.start(unreachable.pk, automatic=True)
    stage.lifecycle.start(unreachable.pk)
    assert history(unreachable) == [*FIRST_FAILURE, "error -> starting: start", "starting -> error: start failed"]
    assert row(unreachable).status_changed_at > first_of(unreachable).created_at


def first_of(member: GuildMember) -> StatusChange:
    return StatusChange.objects.filter(member=member, new=Status.ERROR).order_by("id")[0]


def test_answers_that_differ_only_in_ids_and_times_are_one_cause(stage: RemoteStage) -> None:
    numbers = iter(range(7_000_000, 7_000_100))

    def refuse(request: Request) -> None:
        request.http(
            502, f"request {next(numbers)}-ab at 2026-11-26T10:00:{next(numbers) % 60:02}Z".encode(), "text/plain"
        )

    server = stage.serve({"initialize": refuse})
    member = stage.add_remote(server.url)
    stage.lifecycle.start(member.pk)
    for _ in range(2):
        stage.lifecycle.start(member.pk, automatic=True)
    assert history(member) == FIRST_FAILURE
    change = first_failure(member)
    assert change.repeats == 2
    assert "7000004" in change.message  # of the last try
    assert row(member).last_error == change.message


def test_a_process_that_fails_in_the_same_way_has_one_status_change_with_its_last_output(stage: RemoteStage) -> None:
    member = stage.add("anna", "exit=3")
    stage.lifecycle.start(member.pk)
    stage.lifecycle.start(member.pk, automatic=True)
    change = first_failure(member)
    assert (change.repeats, change.exit_code, change.log_tail) == (1, 3, "cannot go on")
    stage.set("exit", "4")
    stage.lifecycle.start(member.pk, automatic=True)
    assert history(member)[2:] == ["error -> starting: restart", "starting -> error: start failed"]


def test_processes_that_end_with_one_exit_code_after_other_last_words_have_other_causes(stage: RemoteStage) -> None:
    member = stage.add("anna", "exit=1", "last_output=Error: GITHUB_TOKEN is missing")
    stage.lifecycle.start(member.pk)
    stage.set("last_output", "Error: cannot connect to the database")
    stage.lifecycle.start(member.pk, automatic=True)
    assert history(member)[2:] == ["error -> starting: restart", "starting -> error: start failed"]
    for number in (7_000_001, 7_000_002):  # a time, frames and the version after the cause do not make it another one
        end = f"Error: cannot connect to the database\n    at open (/x/server.js:{number}:5)\n\nNode.js v20.{number}"
        stage.set("last_output", end)
        stage.lifecycle.start(member.pk, automatic=True)
    assert len(history(member)) == 4
    tails = StatusChange.objects.filter(new=Status.ERROR).order_by("id").values_list("log_tail", "repeats")
    assert list(tails) == [("Error: GITHUB_TOKEN is missing", 0), (end, 2)]


def test_a_process_that_runs_between_two_failures_has_all_its_changes(stage: RemoteStage) -> None:
    member = stage.up("anna")
    for number in (1, 2):
        stage.live(member).process.kill()
        wait_for(member, Status.ERROR)
        stage.lifecycle.start(member.pk, automatic=True)
        assert row(member).status == Status.CONNECTED
        assert sum(change.endswith("exit") for change in history(member)) == number
    assert not StatusChange.objects.exclude(repeats=0).exists()
