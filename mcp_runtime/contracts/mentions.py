"""Decides whether a text that looks like an attack is meant, or only mentioned.

Security tools, tests and documents quote attacks, describe them, or say that they refuse them.
"""

from __future__ import annotations

import re

from mcp_runtime.contracts.words import SEND, Pattern, Phrase

MAX_REST = 200  # characters of a sentence after a place
SENTENCE_END = re.compile(r"[.!?](?:\s|$)|\n")
# Words of an honest tool that is about such texts. They count only in the same sentence before the phrase.
ABOUT = Pattern(
    r"\b(detect|analy[sz]|scan|flag|identif|classif|report|find|check|inspect|monitor|audit|block|filter"
    r"|prevent|reject"
    r"|refus|test|recogni[sz]|match|search|lint|warn|protect|guard|example|expected|sample|fixture|catch"
    r"|explain|document"
    r"|describ|teach|train|demonstrat|simulat|highlight|strip|saniti[sz]|redact|remov|label|annotat|evaluat"
    r"|score|rate"
    r"|benchmark|mitigat|defend|stop|quarantin|collect|store|list|generat|count|compar|resist|look|catalog|corpus"
    r"|data ?set|fixture|reference|research|stud(y|ies)|lesson|course|canned|payload)\w*"
)
# What stands directly before a phrase that is only mentioned, and not said to the model.
MENTIONED = Pattern(
    r"(\b(that|which|who|whether|if|how to|like|such as|including|containing|contains?|says?( to)?|saying|called"
    r"|named|or|and|phrases?|strings?|patterns?|payloads?|attacks?|words|texts?|of|for|as|about|by|from|against"
    r"|would|could"
    r"|might|will|can|may|does|should|(attempts?|tr(y|ies|ying)|tell(s|ing)?|ask(s|ing)?|instructions?"
    r"|requests?|orders?|commands?|models?|agents?"
    r"|llms?|assistants?|users?|them|it) to|prompts?|inputs?|messages?|instructions?|it|they)\b"
    r"|\be\.g[.,]*|\b(example|expected|sample|fixture|test)s?\b[^.!?\n]*:)\s*[\"'`(]?\s*$"
)
# The beginning of a sentence that says what a security tool does. Orders to a model do not stand in the third person.
TOPIC = Pattern(
    r"^\W*([\w'-]+:? ){0,2}?(detects|scans|flags|identifies|classifies|reports|finds|checks|inspects|monitors|audits"
    r"|blocks|filters|prevents|rejects|refuses|tests|recogni[sz]es|matches|searches|lints|warns|guards|protects|catches"
    r"|explains|documents|describes|teaches|simulates|evaluates|scores|benchmarks|mitigates|defends|quarantines|queries"
    r"|looks up|lists|labels|moderates|analy[sz]es|shows"
    r"|returns (true|false|whether|if)|(tells|says|decides) whether)\b"
)
# What makes the rest of such a sentence a part of what the tool is about.
SUBORDINATE = Pattern(
    r"\b(that|which|who|where|whether|if|how|such as|like|for example|e\.g|attempts? to|tr(y|ies|ying) to"
    r"|tricked into)\b"
)
# The same for an order after "and" or a comma, which may also be a second order of the tool.
INFINITIVE = Pattern(
    r"\b(ask|tell|instruct|attempt|tr(y|ies)\b|request|order|want|trick|forc|caus|persuad)\w*\b[^;:]*?\b(to|into)\b"
)
NEXT_CLAUSE = Pattern(r"(,|;|:|\band|\bthen|\bbut)\s*(it )?$")
NEXT_ORDER = Pattern(r"\band\s*$")  # an order, or what the tool does beside its task
# The tool itself, or the model: nothing after this is only what a tool is about.
OTHER_CLAUSE = Pattern(r";|\b(then|also|you|your|please|must|always|never|silently|secretly)\b")
# A sentence that reports what others do to a model, or what it must not obey.
REPORTED = Pattern(
    r"(\b(model|assistant|agent|llm|user|player|chatbot|it|they|which|that|who)s? (is|are|was|were|gets?|can be|may be"
    r"|could be) (asked|told|instructed|tricked|made|forced|persuaded|ordered)( into| to)?"
    r"|\b(not|never) (follow|obey|execute|trust|act on|comply with)\b[^.!?;:\n]*\b(that|which)\b[^.!?;:,\n]*"
    r"|\b(row|text|input|message|prompt|e-?mail|page|document|attacker|who|that|which)s? (\w+ )?(say|tell|ask|instruct"
    r"|urge|order)s? ((the|an?|its?|our) )?(\w+ )?to"
    r"|\b(attackers?|prompts?|inputs?|texts?|they|may|might|could|(tr(y|ies)|attempts?) to) (make|get|let|trick"
    r"|force)s? ((the|an?|its?|our) )?(model|assistant|agent|llm|bot|chatbot|judge)s?"
    r"|\w\W+(for example|e\.g|such as)[.,:]* (to)?)\s*$"
)
# Where an order stands: at the beginning of a clause, or after a word about the model. Elsewhere the words before it
# are its subject, and it is a description: "Later rules override earlier rules".
ORDER_PLACE = Pattern(
    r"(^|[^\w\s]|\b(and|or|then|but|so|also|first|now|please|always|just|simply|immediately|must|should|shall|to|instead"
    r"|you|models?|assistants?|agents?|ais?|llms?|chatbots?)( (will|can|may|must|should|shall|need to|have to"
    r"|are to))?)\s*$"
)
# What goes on as an order, wherever it stands.
ORDER_GOES_ON = Pattern(r"^\W*(and|then|instead|you)\b")
# A sentence about when or why somebody tells a model to do that.
CONDITIONAL = Pattern(
    r"\b(if|when|whenever|whether|in case|why|how)\b[^.!?;:,\n]*\b(ask|tell|instruct|order|want|tr(y|ies)\b|get|mak"
    r"|forc|trick|persuad)\w*\b[^.!?;:,\n]*\b(to|into)\s*$|\b(why|how) ((the|an?) )?[\w-]+\s*$"
)
# A setting that changes a prompt or a filter: "Set system to override the system prompt".
SETTING = Pattern(r"\b(to|can|may|will|could|would)\s*$")
SET_ASIDE = Pattern(r"^(override|bypass)\b")
DEFAULT = Pattern(r"^(override|bypass) (the )?default\b")
# What makes a phrase a name: "[INST] tokens".
NAMED_AFTER = Pattern(
    r"^[\"'`)\]]*\s*(tokens?|tags?|markers?|delimiters?|syntax|notation|formats?|templates?|patterns?|attacks?|attempts?"
    r"|detect(or|ion)s?|strings?|phrases?|payloads?)\b"
)
# Instructions in what a tool returns, which a model must not obey.
UNTRUSTED = Pattern(
    r"^[\"'`)]* (or (commands?|requests?|instructions?) )?(that (it|they) contains? |that (is|are) )?"
    r"(in|inside|within|contained|found|embedded|from|of|returned by) (it|its|them|this|these|those"
    r"|(the |this |that |any |all )*(returned |external |untrusted |fetched |tool |web |third[- ]party )*"
    r"(outputs?|results?|pages?|contents?|text|data|responses?|documents?|files?|websites?|messages?|tools?|e-?mails?"
    r"|comments?))\b"
)
OWN_RULES = Pattern(r"\b(your|system|developer|previous|prior|earlier|above|safety)\b")
TO_A_MODEL = Pattern(r"\b(you|your|models?|assistants?|agents?|llms?|ai|must|always|please)\b")
# Directly before an order that is meant.
ORDERED = Pattern(r"\b(first|then|now|please|always|you must|you should|you need to|you have to)[,:]?\s*$")
# A text about attacks, and nouns that make a phrase the name of one.
ATTACKS = Pattern(
    r"(prompt[- ]?injections?|injection (attempts?|attacks?|strings?|tests?)|jailbreaks?|adversarial"
    r"|red[- ]?team|attacks?\b"
    r"|attackers?([^@.-]|$)|malicious (prompts?|inputs?|texts?|instructions?)|guard ?rails?|poison(ed|ing)"
    r"|security (tests?|training))"
)
TAIL = Pattern(r"(\b(and|then)|[,.;:])$")
# The next word after an order to drop something. Others make it harmless, as in "ignore previous rule violations".
GOES_ON = Pattern(
    r"^[\"'`)\]*]*(\s*$|\s*[.,;:!?\n<(\[-]|\s+(and|then|or|that|which|you|but|from|so|when|in|to|with"
    r"|immediately|about|on"
    r"|for|above|below|given|as|now|because|before|after|by|completely|entirely|instead|here|via|first|while"
    r"|the|this)\b)"
)
OPENING_QUOTE = re.compile(r"(?:^|[\s(:,])[\"'`](?![\s,.;:)!?])")
CLOSING_QUOTE = re.compile(r"[\"'`](?:[\s,.;:)!?]|$)")
# Before a quote that is meant.
SAID = Pattern(r"\b(obey|follow|execute|respond|reply|instructions?|system|assistant|prompt|say)\b[^.!?\n]*$")
NEGATED = Pattern(
    r"\b(never|not|n't|nothing|without|cannot|nor|neither|avoids?|prevents?|refuses? to|stops?)( (ever|even|directly"
    r"|actually|to))?\s*$"
)
NEGATED_WITHIN = Pattern(rf"\b(not|never|n't|without|nor|cannot)( \w+)? {SEND}\b")


def is_meant(phrase: Phrase, text: str, start: int, end: int) -> bool:
    """Whether the text between these places is said to a model, and not only mentioned."""
    is_complete = TAIL.search(text[start:end]) or GOES_ON.search(text[end : end + 40])
    if phrase.drops_orders and not (is_complete and _is_order(text, start, end)):
        return False
    return not _is_mentioned(phrase, text, start, end)


def _is_order(text: str, start: int, end: int) -> bool:
    """Whether words that drop earlier orders are said to a model, and do not describe what something does."""
    before = sentence_before(text, start)
    return bool(ORDER_PLACE.search(before) or ORDER_GOES_ON.search(text[end : end + 40]))


def _is_mentioned(kind: Phrase, text: str, start: int, end: int) -> bool:
    """Whether a phrase is only mentioned: it is negated, or it is an example of what the tool is about."""
    before, phrase, after = sentence_before(text, start), text[start:end], text[end : end + MAX_REST]
    if NEGATED.search(before[-40:]) or NEGATED_WITHIN.search(phrase):
        return True
    if ORDERED.search(before):
        return False
    if REPORTED.search(before) or CONDITIONAL.search(before) or _is_topic(before, phrase):
        return True
    if kind.drops_orders and UNTRUSTED.search(after) and not OWN_RULES.search(phrase):
        return True
    if NAMED_AFTER.search(after) or (DEFAULT.search(phrase) and not TO_A_MODEL.search(f"{before}{phrase}")):
        return True
    if SET_ASIDE.search(phrase) and SETTING.search(before) and not TO_A_MODEL.search(f"{before}{phrase}"):
        return True
    lead = _before_quote(before, after)
    if lead is None and NEXT_ORDER.search(before) and not INFINITIVE.search(before):
        return False
    after_in_sentence = rest_of_sentence(text, end)
    if ABOUT.search(before) and ATTACKS.search(f"{before} {after_in_sentence}"):
        return True
    if lead is not None:
        return bool(TOPIC.search(lead)) or not SAID.search(lead)
    is_about = ABOUT.search(before) or ABOUT.search(after_in_sentence)
    return bool(is_about and MENTIONED.search(before[-60:]))


def _before_quote(before: str, after: str) -> str | None:
    """Return what stands before the quote that a phrase is in. None if it is in no quote."""
    if not CLOSING_QUOTE.search(after.partition("\n")[0]):
        return None
    *_, opening = [None, *OPENING_QUOTE.finditer(before)]
    if opening is None or CLOSING_QUOTE.search(before, opening.end()):
        return None
    return before[: opening.end()]


def _is_topic(before: str, phrase: str) -> bool:
    """Whether a sentence says what a security tool looks for, and the phrase is a part of that.

    `before` is the sentence up to the phrase: "Rejects inputs that ask a model to".
    """
    topic = TOPIC.search(before)
    if topic is None:
        return False
    between = before[topic.end() :]
    if OTHER_CLAUSE.search(between) or not SUBORDINATE.search(f"{between}{phrase}"):
        return False
    return not NEXT_CLAUSE.search(between) or bool(INFINITIVE.search(between))


def sentence_before(text: str, start: int) -> str:
    """Return the part of a sentence before this place. A line that ends with a colon belongs to it."""
    lowest = max(0, start - 300)
    beginning = max(text.rfind(mark, lowest, start) + 1 for mark in (". ", "! ", "? "))
    line = text.rfind("\n", lowest, start) + 1
    if not text[:line].rstrip().endswith(":"):
        beginning = max(beginning, line)
    return text[max(beginning, lowest) : start]


def rest_of_sentence(text: str, end: int) -> str:
    """Return the part of a sentence after this place, at most MAX_REST characters."""
    return SENTENCE_END.split(text[end : end + MAX_REST], maxsplit=1)[0]
