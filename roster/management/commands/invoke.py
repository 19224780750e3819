from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from typing import Any, NoReturn

from django.core.management.base import CommandError

from mcp_runtime.calls.invocations import Caller
from mcp_runtime.control.calls import cancel_call, masked_arguments, queue_call, wait_for_call
from mcp_runtime.control.members import live_runtime
from mcp_runtime.protocol.errors import AccessError, NotCancellableError, RequestRefusedError
from roster.calls import parse_arguments, progress_text, texts_of
from roster.management.hall_command import HallCommand
from roster.management.terminal import NO_RUNTIME, as_json, caller, harmless, seconds
from roster.models import Invocation

# How often the command reports that it still waits.
SLICE_SECONDS = 0.5
# Added to the call's own deadline, for the queue and for a member that must start first.
PATIENCE_SECONDS = 60.0
INTERRUPTED = 130


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
        requester = caller(Invocation.Source.COMMAND, options["user"])
        invocation = self.queue(options["member"], options["tool"], options["arguments"], requester)
        if options["no_wait"]:
            self.stdout.write(as_json(_facts(invocation)) if options["json"] else str(invocation.pk))
            return
        patience = invocation.timeout + PATIENCE_SECONDS
        self.wait(invocation, patience if options["timeout"] is None else options["timeout"])
        if options["json"]:
            self.stdout.write(as_json(_facts(invocation)))
        elif invocation.status == Invocation.Status.SUCCEEDED:
            answer = _answer(invocation)
            # A program gets the text unchanged. A terminal would obey its control characters.
            self.stdout.write(harmless(answer) if self.stdout.isatty() else answer)
        _require_success(invocation)

    def queue(self, member: str, tool: str, text: str, requester: Caller) -> Invocation:
        try:
            arguments = parse_arguments(sys.stdin.read() if text == "-" else text)
            invocation, _ = queue_call(member, tool, arguments, caller=requester)
        except (ValueError, AccessError, RequestRefusedError) as error:
            raise CommandError(harmless(str(error))) from error
        if live_runtime() is None:
            self.stderr.write(f"{NO_RUNTIME} Call {invocation.pk} waits in the queue.")
        return invocation

    def wait(self, invocation: Invocation, timeout: float) -> None:
        """Wait until the call is over. Ctrl-C cancels it. Raises CommandError after `timeout` seconds."""
        began_at = time.monotonic()
        try:
            while not wait_for_call(invocation.pk, min(SLICE_SECONDS, began_at + timeout - time.monotonic())):
                invocation.refresh_from_db(fields=["status", "progress"])
                elapsed = time.monotonic() - began_at
                progress = harmless(progress_text(invocation.progress))
                self._progress(
                    f"call {invocation.pk} is {invocation.status}, {elapsed:.0f} s{progress and f': {progress}'}"
                )
                if elapsed >= timeout:
                    raise CommandError(
                        f"call {invocation.pk} is still {invocation.status} after {timeout:g} s. It goes on; "
                        "the admin and the API show what comes of it"
                    )
        except KeyboardInterrupt:
            self._cancel(invocation)
        finally:
            self._progress("")
        invocation.refresh_from_db()

    def _progress(self, text: str) -> None:
        if self.stderr.isatty():
            self.stderr.write(f"\r\x1b[K{text}", style_func=str, ending="")
            self.stderr.flush()

    def _cancel(self, invocation: Invocation) -> NoReturn:
        try:
            is_over = cancel_call(invocation).is_finished
        except NotCancellableError as error:
            raise CommandError(f"too late to cancel: {error}", returncode=INTERRUPTED) from error
        state = "was cancelled" if is_over else "is running; it was asked to cancel"
        raise CommandError(f"call {invocation.pk} {state}", returncode=INTERRUPTED)


def _require_success(invocation: Invocation) -> None:
    if invocation.status == Invocation.Status.FAILED:
        message = harmless(invocation.error_message)
        raise CommandError(f"call {invocation.pk} failed ({invocation.error_kind}): {message}")
    if invocation.status == Invocation.Status.CANCELLED:
        raise CommandError(f"call {invocation.pk} was cancelled")


def _answer(invocation: Invocation) -> str:
    """The result's text. If it has anything else, the result as JSON."""
    texts = texts_of(invocation.result)
    content = (invocation.result or {}).get("content")
    return "\n".join(texts) if texts and len(texts) == len(content or []) else as_json(invocation.result)


def _facts(invocation: Invocation) -> dict[str, Any]:
    """The invocation as in REST."""
    error = {
        "kind": invocation.error_kind,
        "message": invocation.error_message,
        "code": invocation.error_code,
        "data": invocation.error_data,
    }
    return {
        "id": invocation.pk,
        "member": invocation.member.name,
        "tool": invocation.tool_name,
        "status": invocation.status,
        "source": invocation.source,
        "requester": invocation.requester,
        "token": invocation.token_id,
        "queued_at": invocation.queued_at,
        "started_at": invocation.started_at,
        "finished_at": invocation.finished_at,
        "duration": invocation.duration.total_seconds() if invocation.duration is not None else None,
        "timeout": invocation.timeout,
        "progress": invocation.progress,
        "arguments": masked_arguments(invocation),
        "result": invocation.result,
        "error": error if invocation.error_kind else None,
    }
