from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from typing import Any, NoReturn

from django.core.management.base import CommandError

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.calls import cancel_call, masked_arguments, queue_call, wait_for_call
from mcp_runtime.control.members import live_runtime
from mcp_runtime.protocol.errors import AccessError, NotCancellableError, RequestRefusedError
from roster.calls import parse_arguments, progress_text, texts_of
from roster.management import exit_codes
from roster.management.hall_command import HallCommand
from roster.management.requesters import requester_of
from roster.management.terminal import NO_RUNTIME, as_json, harmless, seconds
from roster.models import Call

# How often the command reports that it still waits.
SLICE_SECONDS = 0.5
# Added to the call's own deadline, for the queue and for a member that must start first.
PATIENCE_SECONDS = 60.0


class Command(HallCommand):
    help = "Call a tool of a member, wait for the answer and print it; exit code 0 only when it succeeded."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("member")
        parser.add_argument("tool")
        parser.add_argument("arguments", nargs="?", default="{}", help="a JSON object, or - to read it from stdin")
        parser.add_argument("--user", help="the user who calls. Without it the operator calls")
        parser.add_argument("--json", action="store_true", help="print the whole call as JSON")
        parser.add_argument("--no-wait", action="store_true", help="queue the call, print its id and exit")
        parser.add_argument("--timeout", type=seconds, help="the longest wait, in seconds. The call continues after it")

    def handle(self, *args: Any, **options: Any) -> None:
        requester = requester_of(Call.Source.COMMAND, options["user"])
        call = self.queue(options["member"], options["tool"], options["arguments"], requester)
        if options["no_wait"]:
            self.stdout.write(as_json(_facts(call)) if options["json"] else str(call.pk))
            return
        patience = call.timeout + PATIENCE_SECONDS
        self.wait(call, patience if options["timeout"] is None else options["timeout"])
        if options["json"]:
            self.stdout.write(as_json(_facts(call)))
        elif call.status == Call.Status.SUCCEEDED:
            answer = _answer(call)
            # A program gets the text unchanged. A terminal would obey its control characters.
            self.stdout.write(harmless(answer) if self.stdout.isatty() else answer)
        _require_success(call)

    def queue(self, member: str, tool: str, text: str, requester: Requester) -> Call:
        try:
            arguments = parse_arguments(sys.stdin.read() if text == "-" else text)
            call, _ = queue_call(member, tool, arguments, requester=requester)
        except (ValueError, AccessError, RequestRefusedError) as error:
            raise CommandError(harmless(str(error))) from error
        if live_runtime() is None:
            self.stderr.write(f"{NO_RUNTIME} Call {call.pk} waits in the queue.")
        return call

    def wait(self, call: Call, timeout: float) -> None:
        """Wait until the call is over. Ctrl-C cancels it. Raises CommandError after `timeout` seconds."""
        began_at = time.monotonic()
        try:
            while not wait_for_call(call.pk, min(SLICE_SECONDS, began_at + timeout - time.monotonic())):
                call.refresh_from_db(fields=["status", "progress"])
                elapsed = time.monotonic() - began_at
                progress = harmless(progress_text(call.progress))
                self._progress(f"call {call.pk} is {call.status}, {elapsed:.0f} s{progress and f': {progress}'}")
                if elapsed >= timeout:
                    raise CommandError(
                        f"call {call.pk} is still {call.status} after {timeout:g} s. It goes on; "
                        "the admin and the API show what comes of it",
                        returncode=exit_codes.NO_ANSWER,
                    )
        except KeyboardInterrupt:
            self._cancel(call)
        finally:
            self._progress("")
        call.refresh_from_db()

    def _progress(self, text: str) -> None:
        if self.stderr.isatty():
            self.stderr.write(f"\r\x1b[K{text}", style_func=str, ending="")
            self.stderr.flush()

    def _cancel(self, call: Call) -> NoReturn:
        try:
            is_over = cancel_call(call).is_finished
        except NotCancellableError as error:
            raise CommandError(f"too late to cancel: {error}", returncode=exit_codes.INTERRUPTED) from error
        state = "was cancelled" if is_over else "is running; it was asked to cancel"
        raise CommandError(f"call {call.pk} {state}", returncode=exit_codes.INTERRUPTED)


def _require_success(call: Call) -> None:
    if call.status == Call.Status.FAILED:
        message = harmless(call.error_message)
        code = exit_codes.of_kind(call.error_kind)
        raise CommandError(f"call {call.pk} failed ({call.error_kind}): {message}", returncode=code)
    if call.status == Call.Status.CANCELLED:
        raise CommandError(f"call {call.pk} was cancelled", returncode=exit_codes.CANCELLED)


def _answer(call: Call) -> str:
    """The result's text. If it has anything else, the result as JSON."""
    texts = texts_of(call.result)
    content = (call.result or {}).get("content")
    return "\n".join(texts) if texts and len(texts) == len(content or []) else as_json(call.result)


def _facts(call: Call) -> dict[str, Any]:
    """The call as in REST."""
    error = {
        "kind": call.error_kind,
        "message": call.error_message,
        "code": call.error_code,
        "data": call.error_data,
    }
    return {
        "id": call.pk,
        "member": call.member.name,
        "tool": call.tool_name,
        "status": call.status,
        "source": call.source,
        "requester": call.requester,
        "token": call.token_id,
        "queued_at": call.queued_at,
        "started_at": call.started_at,
        "finished_at": call.finished_at,
        "duration": call.duration.total_seconds() if call.duration is not None else None,
        "timeout": call.timeout,
        "progress": call.progress,
        "arguments": masked_arguments(call),
        "result": call.result,
        "error": error if call.error_kind else None,
    }
