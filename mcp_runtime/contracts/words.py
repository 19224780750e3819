"""Patterns of RE2, which take linear time, and the words that they share.

The weight of a phrase is from 1 to 100. The weights of the kinds of a tool are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import re2  # type: ignore[import-untyped]

GROUP_SIZE = 8
GROUP_MEMORY = (
    16 * 1024 * 1024
)  # bytes for the states of a group. With fewer, RE2 drops and builds them again and again


class Pattern:
    """A pattern of RE2. Case does not matter, and a point stands for any character.

    It is compiled when it first searches, until `forget`. All of them compiled take 8 MB in each process, and few texts
    need more than the patterns of the groups.
    """

    _all: ClassVar[list[Pattern]] = []  # they are constants of modules

    def __init__(self, text: str, *, is_group: bool = False) -> None:
        self.text = text
        self._is_group = is_group
        self._all.append(self)

    @classmethod
    def forget(cls) -> None:
        """Free what is compiled, 4 MB after one check. The next check compiles it again, in about 40 ms."""
        for pattern in cls._all:
            for name in ("search", "finditer", "_compiled"):
                vars(pattern).pop(name, None)
        re2.purge()  # it also keeps them

    @cached_property
    def search(self) -> Callable[[str], Any]:
        return self._compiled.search  # type: ignore[no-any-return]

    @cached_property
    def finditer(self) -> Callable[[str], Iterator[Any]]:
        return self._compiled.finditer  # type: ignore[no-any-return]

    @cached_property
    def _compiled(self) -> Any:
        options = re2.Options()
        options.case_sensitive = False
        options.dot_nl = True
        options.log_errors = False
        if self._is_group:
            options.never_capture = True
            options.max_mem = GROUP_MEMORY
        return re2.compile(self.text, options)


@dataclass(frozen=True)
class Phrase:
    """`sentence` says what the text does. `is_hard` means that honest tools have no such text.

    A phrase with `drops_orders` must be an order, as `mentions` says.
    """

    pattern: Pattern
    weight: int
    sentence: str
    is_hard: bool = False
    drops_orders: bool = False


@dataclass(frozen=True)
class Group:
    """Phrases, and one pattern that finds each text that one of them finds."""

    pattern: Pattern
    phrases: tuple[Phrase, ...]


def grouped(*phrases: Phrase) -> tuple[Group, ...]:
    """Return the phrases in groups. In larger groups, RE2 falls back to a slow search in hostile texts."""
    groups = (phrases[start : start + GROUP_SIZE] for start in range(0, len(phrases), GROUP_SIZE))
    return tuple(Group(_union(group), group) for group in groups)


def _union(phrases: tuple[Phrase, ...]) -> Pattern:
    return Pattern("|".join(phrase.pattern.text for phrase in phrases), is_group=True)


def phrase(weight: int, sentence: str, *patterns: str, is_hard: bool = False, drops_orders: bool = False) -> Phrase:
    """Return the phrase that one of these patterns finds."""
    return Phrase(Pattern("|".join(patterns)), weight, sentence, is_hard, drops_orders)


BEFORE = r"(previous|prior|earlier|preceding|foregoing|above)"
PAST = r"(previous|prior|earlier|preceding|foregoing|above|existing|original|past|former|initial)"
RULES = (
    r"(instructions?|prompts?|rules?|directions?|directives?|guidelines?|guidance|constraints?|polic(y|ies)"
    r"|safety|safeguards?|training|restrictions?)"
)
ALL = r"(all |any |every |the |your |these |those |my |of |whatever |such )*"
IGNORE = r"(ignore|disregard|forget|override|bypass)"
DROP = r"(ignore|disregard|forget|override|bypass|do not follow|stop following)"
DROPPING = r"(ignor(es|ing)|disregard(s|ing)|forget(s|ting)|overrid(es|ing)|bypass(es|ing))"
SEND = (
    r"(send|post|upload|forward|transmit|exfiltrate|leak|deliver|e-?mail|mail|copy|submit|report|pipe|relay"
    r"|beacon|log|write|append|embed|encode|attach)(s|ed|ing|d|ies)?"
)
# The bare form of these verbs speaks to the model. The others say what the tool does.
SEND_NOW = (
    r"(send|post|upload|forward|transmit|exfiltrate|leak|deliver|e-?mail|mail|copy|submit|report|pipe|relay|write"
    r"|append|embed|encode|attach)"
)
PRIVATE_FILES = (
    r"(~/\.ssh|id_(rsa|ed25519|ecdsa)\b|\.ssh/|~/\.aws|\.aws/credentials|\.netrc|\.npmrc|\.pypirc|\.kube/config"
    r"|\.docker/config\.json|mcp\.json|claude_desktop_config|\.gnupg|\.env\b|/etc/(passwd|shadow)|\.bash_history"
    r"|wallet\.dat|login data\b|cookies\.sqlite)"
)
SECRETS = (
    rf"({PRIVATE_FILES}|(private|ssh|api|access|secret|signing|encryption)[ _-]?keys?\b|access[ _-]?tokens?\b"
    r"|bearer tokens?\b|credentials?\b|passwords?\b|passphrases?\b|seed phrases?\b|mnemonic phrase|wallet keys?\b"
    r"|keychain\b|environment variables?\b|session (tokens?|cookies?)\b|(browser|login|auth"
    r"(entication)?) cookies?\b|clipboard\b|system prompts?\b|(chat|conversation|message|browsing"
    r"|shell) history\b|\.bash_history|(full|entire|whole|complete|previous) (conversation|chat|context)\b"
    r"|secrets\b)"
)
OUTSIDE = (
    r"(https?://|ftp://|wss?://|\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b|(remote|external|outside"
    r"|third[- ]party|attacker|our|my|analytics|telemetry|tracking|collect(or|ion)|exfil\w*|c2|unknown|hidden"
    r"|foreign|public)('s)?( [\w-]+){0,2} (servers?|hosts?|endpoints?|address(es)?|services?|domains?|urls?"
    r"|sites?|collectors?|accounts?|backends?|machines?|apis?|buckets?|channels?|webhooks?)|attackers?\b"
    r"|collector\b|webhook\b|pastebin|ngrok)"
)
STRANGER = (
    r"(attacker|exfil|collector|third[- ]party|unknown|\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b|pastebin"
    r"|ngrok|webhook\.site|\bc2\b|evil|malicious)"
)
USER = r"(the )?(users?|humans?|persons?|people|operators?|owners?|anyone|anybody)\b"
NEAR = r"([^.!?\n]|\.\w)*?"
DEMAND = r"\b(also|then|first|always|silently|secretly|quietly|additionally|before|must|instead|please|required to)\b"
TAKE = (
    r"(read|cat|open|load|include|append|attach|pass|paste|provide|embed|return|copy|collect|gather|fetch|access"
    r"|upload|send|get|put|call|invoke|run|harvest|retrieve|extract)(s|ing|\b|_)"
)
# What a tool needs from nobody: with it, others read what the user has and says.
PRIVATE = (
    rf"({PRIVATE_FILES}|\b(ssh|private|wallet|gpg) keys?\b|cookies?\b|keychain\b|clipboard\b|pass(words?"
    r"|phrases?)\b|(seed|recovery|mnemonic) phrases?\b|environment variables?\b|\benv(ironment)? vars?\b|(chat"
    r"|conversation|message|browsing|browser|shell|command|session) (history|log|transcript)s?\b|(full|entire"
    r"|whole|complete|previous|user'?s?) (conversation|chat|context|prompts?|messages?|transcript)\b|system "
    r"(prompts?|instructions?|messages?)\b|(hidden|initial|internal|secret|own|original) (instructions|prompts?"
    r"|guidelines)\b|context window\b|browser sessions?\b|(other|previous) tools?('s|s')? (outputs?|results?"
    r"|calls?)\b)"
)
CREDENTIALS = (
    rf"({PRIVATE}|credentials?\b|secrets?\b|(api|access|secret)[ _-]?keys?\b|(access|auth|bearer|api) tokens?\b)"
)
PERSONAL = (
    r"(personal (data|information|details)|names|account numbers?|phone numbers?|locations?( history)?|devices?"
    r"|hardware|fonts|plugins|screens?( resolution)?|screenshots?|ip address(es)?|user agents?|browsing"
    r"|behaviou?rs?|usage (patterns?|data)|keystrokes?|typing|biometrics?|contacts|faces?|text (from|in|within"
    r"|found in)|identifiers?|fingerprints?|conversations?|prompts|queries|user (data|input|inputs|content"
    r"|activity)|e-?mails?)"
)
FOR_OTHERS = (
    r"\b(for|to)\b ([\w-]+ ){0,3}(improv\w+|training|train|analytics|quality|optimi\w+|personali\w+|research"
    r"|market\w+|advertis\w+|track\w*|profil\w*|fraud|targeting|monetiz\w+|surveillance|our|third|partners?"
    r"|future|machine learning|model)"
)
# Files that tools read only in order to take them. Unlike these, `.env` is also read by honest tools.
FOREIGN_FILES = (
    r"(~?/?\.ssh(/\w*|\b)|\bid_(rsa|ed25519|ecdsa)\b|~?/?\.aws(/\w*| credentials|\b)|\.netrc|\.npmrc|\.pypirc"
    r"|\.kube/config|\.docker/config\.json|\bmcp\.json|claude_desktop_config|\.gnupg|/etc/(passwd|shadow)"
    r"|\.bash_history|wallet\.dat|\blogin data\b|cookies\.sqlite|\bprivate_key\b)"
)
# An address of somebody, written out.
ADDRESS = (
    r"(https?://[\w-]+|[\w.+-]+@[\w-]+(\.[\w-]+)+|\b\d{1,3}(\.\d{1,3}){3}\b|\b[\w-]+(\.[\w-]+)+\.(com|net"
    r"|org|io|dev|app|xyz|ru|cn|info|site|example|test|invalid)\b)"
)
