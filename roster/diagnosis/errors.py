"""Explains the error of a member: the sentence of the runtime and the last output of the member."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from mcp_runtime.bridge.complaints import NO_ANSWER, NO_NEWLINE, NOT_MCP
from mcp_runtime.protocol.errors import InstallError, NotListeningError
from roster.diagnosis import node, outputs, python, sentences
from roster.diagnosis.facts import Diagnosis, Facts, as_sentence, one_line
from roster.diagnosis.places import last_words, place_in
from roster.diagnosis.rules import Advice, Rule, first_match, words_of
from roster.models import GuildMember

MAX_OUTPUT_LINE = 500  # characters of a line of output that are searched
# What begins a sentence of the runtime. Its reason follows.
_BEGINNING = re.compile(r"member '[^'\n]*'(?: could not be (?:started|reached at \S+):)? ")
# What is in a sentence that quotes the answer of a server, in part or as a whole.
_QUOTATIONS = ("(JSON-RPC error ", "HTTP status ", " instead of ")

# What the bridge says of a stdio server that did not answer.
SILENCE = (
    Rule(
        rf"{NO_ANSWER}\. (?P<count>\d+ lines?) on stdout (?:was|were) {NOT_MCP}, the first is: Content-Length: ",
        "It frames its messages with Content-Length, as language servers do. Over stdio, MCP has one message a "
        "line: use a "
        "library of MCP.",
        cause="It frames its messages on stdout in another way than MCP ({count}), and did not answer initialize.",
    ),
    Rule(
        rf"{NO_ANSWER}\. (?P<count>\d+ lines?) on stdout (?:was|were) {NOT_MCP}",
        "Over stdio, stdout is only for messages of MCP. Let it log to stderr: `print(..., file=sys.stderr)`, "
        "`console.error`. "
        "If it serves HTTP, set transport to http in {file}, and give it `${{PORT}}` in args.",
        "transport",
        "It writes to stdout what is no message of MCP ({count}), and did not answer initialize.",
    ),
    Rule(
        rf"{NO_ANSWER}\. {NO_NEWLINE}: \s*[{{\[]",
        'Each message must end with a newline: `write(JSON.stringify(message) + "\\n")`.',
        cause="Its answer on stdout has no newline at its end, so it is not complete.",
    ),
    Rule(
        rf"{NO_ANSWER}\. {NO_NEWLINE}",
        "It waits for input of a person, or logs to stdout. Give it the value in args or env of {file}, and let "
        "it log to "
        "stderr.",
        "args",
        "It writes to stdout what is no message of MCP, and did not answer initialize.",
    ),
)


def of_error(facts: Facts) -> Diagnosis:
    sentence, _, output = facts.last_error.partition(GuildMember.TAIL_MARK)
    tail = "\n".join([line[:MAX_OUTPUT_LINE] for line in output.splitlines()])
    cause = re.sub(rf"^member '{re.escape(facts.name)}'(?: could not be started)?:? ", "", sentence)
    advice = _advice(facts, sentence, tail)
    is_about_tail = advice is not None and advice.at >= 0 and bool(tail)
    words = last_words(tail, advice.at if advice and is_about_tail else None)
    remedy = advice.remedy if advice else "Read its log, fix it, then restart it." if tail else "Restart it."
    again = "" if facts.next_restart_at else " The hall does not try again automatically."
    return Diagnosis(
        cause=as_sentence((advice and advice.cause) or cause.replace(NotListeningError.REMEDY, ""))
        or "It ended for an unknown reason.",
        remedy=one_line(remedy) + again,
        key=advice.key if advice else "",
        last_words=words,
        log_helps=bool(tail),
    )


def _advice(facts: Facts, sentence: str, tail: str) -> Advice | None:
    """The advice of the first rule that knows the failure. Its `at` is negative if it is not about the tail."""
    place = place_in(tail, facts.directory)
    words = words_of(facts, place)
    is_remote = bool(facts.url) or "could not be reached at" in sentence or "does not answer at http" in sentence
    reason = _own_reason(sentence)
    about_sentence = first_match(sentences.CERTAIN, reason, words, at_beginning=True)
    if about_sentence is None and is_remote:
        about_sentence = first_match(sentences.REMOTE, sentence, words)
    if about_sentence is None and reason.startswith(InstallError.WHAT):
        about_sentence = _of_installation(reason, tail, words)
        if about_sentence is not None and about_sentence.at >= 0:
            return about_sentence
    if about_sentence is not None:
        return replace(about_sentence, at=-1)
    if about_tail := _of_tail(facts, tail, words):
        return about_tail
    if about_settings := first_match(outputs.SETTINGS, tail, words):  # it may have matched the code in a traceback
        return replace(about_settings, at=-1)
    silence = first_match(SILENCE, tail, words)
    general = silence or first_match(sentences.NOT_LISTENING, reason, words, at_beginning=True)
    general = general or first_match((*_by_transport(facts), *sentences.GENERAL), sentence, words)
    if general is not None:
        return replace(general, at=-1)
    return Advice(f"Fix {place}, then restart it.", at=-1) if place else None


def _own_reason(sentence: str) -> str:
    """The reason in a sentence of the runtime. Empty if the sentence quotes the answer of a server."""
    if any(mark in sentence for mark in _QUOTATIONS):
        return ""
    beginning = _BEGINNING.match(sentence)
    return sentence[beginning.end() :] if beginning else ""


def _of_tail(facts: Facts, tail: str, words: Mapping[str, str]) -> Advice | None:
    return (
        first_match(outputs.REGISTRY_FAULTS, tail, words)
        or node.advice(tail, words)
        or python.advice(facts, tail, words)
        or first_match(outputs.MACHINE, tail, words)
        or first_match(outputs.REFUSED_BY_SANDBOX if facts.is_in_sandbox else outputs.REFUSED, tail, words)
    )


def _of_installation(reason: str, tail: str, words: Mapping[str, str]) -> Advice | None:
    text = f"{reason}\n{tail}"
    if advice := first_match(outputs.INSTALLATION, text, words):
        return replace(advice, at=-1)
    if advice := first_match(outputs.REGISTRY_FAULTS, tail, words):
        return advice
    advice = first_match(outputs.INSTALLATION_IN_GENERAL, text, words)
    return replace(advice, at=-1) if advice else None


def _by_transport(facts: Facts) -> tuple[Rule, ...]:
    if facts.transport == "stdio":
        return (sentences.ENDED_OVER_STDIO, sentences.SILENT_OVER_STDIO)
    return (sentences.ENDED_OVER_HTTP, sentences.SILENT_OVER_HTTP)
