"""Texts that poison a definition: instructions to a model, secrets asked for, code in disguise.

Each phrase is a pattern of RE2, which takes linear time, with a weight from 1 to 100. The weights of the kinds of a
tool are added. From `findings.ALARM` on a tool counts as poisoned.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import re2  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Phrase:
    """`sentence` says what the text does. `is_hard` means that honest tools have no such text.

    After a phrase with `drops_orders` the sentence must go on as GOES_ON says.
    """

    pattern: Any
    weight: int
    sentence: str
    is_hard: bool = False
    drops_orders: bool = False


def _pattern(text: str) -> Any:
    options = re2.Options()
    options.case_sensitive = False
    options.dot_nl = True
    options.log_errors = False
    return re2.compile(text, options)


_BEFORE = r"(previous|prior|earlier|preceding|foregoing|above)"
_PAST = r"(previous|prior|earlier|preceding|foregoing|above|existing|original|past|former|initial)"
_ORDERS = (
    r"(instructions?|prompts?|rules?|directions?|directives?|guidelines?|guidance|constraints?|polic(y|ies)|safety"
    r"|safeguards?|training|restrictions?)"
)
_ALL = r"(all |any |every |the |your |these |those |my |of |whatever |such )*"
_DROP = r"(ignore|disregard|forget|override|bypass|do not follow|stop following)"
_DROPPING = r"(ignor(es|ing)|disregard(s|ing)|forget(s|ting)|overrid(es|ing)|bypass(es|ing))"
_SEND = (
    r"(send|post|upload|forward|transmit|exfiltrate|leak|deliver|e-?mail|mail|copy|submit|report|pipe|relay|beacon"
    r"|log|write|append|embed|encode|attach)(s|ed|ing|d|ies)?"
)
# The bare form of these verbs speaks to the model. The others say what the tool does.
_SEND_NOW = (
    r"(send|post|upload|forward|transmit|exfiltrate|leak|deliver|e-?mail|mail|copy|submit|report|pipe|relay"
    r"|write|append"
    r"|embed|encode|attach)"
)
PRIVATE_FILES = (
    r"(~/\.ssh|id_(rsa|ed25519|ecdsa)\b|\.ssh/|~/\.aws|\.aws/credentials|\.netrc|\.npmrc|\.pypirc|\.kube/config"
    r"|\.docker/config\.json|mcp\.json|claude_desktop_config|\.gnupg|\.env\b|/etc/(passwd|shadow)|\.bash_history"
    r"|wallet\.dat|login data\b|cookies\.sqlite)"
)
SECRETS = (
    rf"({PRIVATE_FILES}"
    r"|(private|ssh|api|access|secret|signing|encryption)[ _-]?keys?\b|access[ _-]?tokens?\b|bearer tokens?\b"
    r"|credentials?\b|passwords?\b|passphrases?\b|seed phrases?\b|mnemonic phrase|wallet keys?\b|keychain\b"
    r"|environment variables?\b|session (tokens?|cookies?)\b|(browser|login|auth(entication)?) cookies?\b"
    r"|clipboard\b|system prompts?\b|(chat|conversation|message|browsing|shell) history\b|\.bash_history"
    r"|(full|entire|whole|complete|previous) (conversation|chat|context)\b|secrets\b)"
)
_OUTSIDE = (
    r"(https?://|ftp://|wss?://|\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b|(remote|external|outside|third[- ]party"
    r"|attacker|our|my|analytics|telemetry|tracking|collect(or|ion)|exfil\w*|c2|unknown|hidden|foreign|public)('s)?"
    r"( [\w-]+){0,2} (servers?|hosts?|endpoints?|address(es)?|services?|domains?|urls?|sites?|collectors?|accounts?"
    r"|backends?|machines?|apis?|buckets?|channels?|webhooks?)|attackers?\b|collector\b|webhook\b|pastebin|ngrok)"
)
_STRANGER = (
    r"(attacker|exfil|collector|third[- ]party|unknown|\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b|pastebin|ngrok"
    r"|webhook\.site|\bc2\b|evil|malicious)"
)
_USER = r"(the )?(users?|humans?|persons?|people|operators?|owners?|anyone|anybody)\b"
_NEAR = r"([^.!?\n]|\.\w)*?"
_DEMAND = (
    r"\b(also|then|first|always|silently|secretly|quietly|additionally|before|must|instead|please"
    r"|required to)\b"
)
_TAKE = (
    r"(read|cat|open|load|include|append|attach|pass|paste|provide|embed|return|copy|collect|gather|fetch"
    r"|access|upload"
    r"|send|get|put|call|invoke|run|harvest|retrieve|extract)(s|ing|\b|_)"
)

# Orders ---------------------------------------------------------------------------------------------------------------

ORDERS = (
    Phrase(
        _pattern(
            rf"\b{_DROP}\b (everything |every(thing)? |anything )?{_ALL}({_BEFORE}[ ,]*(and )?)+({_ORDERS}"
            rf"|\b(and|then|,|\.|;|:))"
            rf"|\b{_DROP}\b {_ALL}({_PAST}[ ,]*(and )?)+(system )?(instructions?|prompts?|guidelines?)"
            rf"|\b{_DROP}\b (all|any|every|your) ({_BEFORE} )+(commands?|messages?|context|requests?)"
            rf"|\b{_DROPPING}\b (all |any |the |your |these |those |my |of )*({_PAST}[ ,]*)+(instructions?|prompts?)"
        ),
        70,
        "It tells a model to drop its earlier instructions.",
        is_hard=True,
        drops_orders=True,
    ),
    Phrase(
        _pattern(
            rf"\b{_DROP}\b (all |any |the |your |these |those |its )*([\w'-]+ )?(system|safety|security"
            rf"|moderation|content"
            rf"|developer) ([\w-]+ )?({_ORDERS}|checks?|filters?|guard ?rails?|measures)"
        ),
        70,
        "It tells a model to drop the rules that it has.",
        is_hard=True,
        drops_orders=True,
    ),
    Phrase(
        _pattern(
            r"\b(ignore|disregard|override|bypass) (all|any|your)( of)?( the| your)? (instructions?|prompts?"
            r"|rules|guidelines)"
        ),
        60,
        "It tells a model to drop its instructions.",
        is_hard=True,
        drops_orders=True,
    ),
    Phrase(
        _pattern(
            r"\b(ignore|disregard|override) (the |any )?user('s)? (actual |real |original |own )?"
            r"(requests?|questions?|instructions?|wish(es)?|input|intent)"
        ),
        60,
        "It tells a model not to do what the user asks for.",
        is_hard=True,
    ),
    Phrase(
        _pattern(
            r"\b(reveal|disclose|leak|print|output|repeat|dump|recite|expose)\b [^.!?\n]*?"
            r"(\b(your|the model's|the assistant's|the hidden)\b ([\w-]+ ){0,2}(instructions|initial prompt"
            r"|hidden prompt)"
            r"|\b(your|its|the model's|the assistant's|the hidden)\b ([\w-]+ ){0,2}system prompt)"
        ),
        60,
        "It asks a model for its own instructions.",
        is_hard=True,
    ),
    Phrase(
        _pattern(
            r"(<\|(im_start|im_end|system|endoftext|begin_of_text|start_header_id)\|>|\[/?INST\]|<</?SYS>>"
            r"|\[(system|assistant|admin|developer)([ _-]?(message|override|instructions?|note))?:"
            r"|\[(?-i:SYSTEM|ADMIN)\]"
            r"|\{\{\s*(system|override|admin)\s*:|#+ ?(new )?system|\bnew system (message|prompt"
            r"|instructions?)\s*(:|#)|\bsystem override\b"
            r"|(^|[.!?>\n]\s*)(?-i:SYSTEM|ASSISTANT|ADMIN|DEVELOPER)\s*:"
            r"|(hidden|secret|internal) (directive|instruction|command|prompt|order)s?\s*:)"
        ),
        50,
        "It imitates a message of the system.",
        is_hard=True,
    ),
    Phrase(
        _pattern(r"</?(system|assistant|important|critical|secret|hidden|instructions?|admin|override|urgent)>"),
        30,
        "It has tags that give a text more weight for a model.",
    ),
    Phrase(
        _pattern(
            r"\b(you are now|from now on,? you|act as (an? )?(unrestricted|admin|root|developer)|developer mode"
            r"|jailbreak|without (any )?(safety|security) (checks?|filters?|restrictions?)|must comply with all)"
        ),
        40,
        "It gives a model another role.",
    ),
    Phrase(
        _pattern(
            r"\b(whenever|when|if|each time|every time|before|after) (the |any |a )?([\w-]+_[\w-]+"
            r"|other tools?) (tool |tools )?"
            r"(is|are|gets?) (called|invoked|used|run|executed)[^.!?\n]*?\b(first|instead|also|must|reroute|redirect"
            r"|replace|change|set|add|use|bcc)\b|\b(modif(y|ies)|changes?|alters?|overrides?|intercepts?|hijacks?)"
            r" (the )?(behaviou?r|output|results?|arguments?|calls?) (of|to|from) (the |any |all "
            r"|other )*[\w-]+( tools?)?\b"
        ),
        50,
        "It changes what another tool does.",
    ),
    Phrase(
        _pattern(
            r"\b(obey|follow|execute|treat)\b [^.!?\n]*?\b(instructions?|commands?)\b [^.!?\n]*?\b(embedded|inside"
            r"|contained|found|hidden|within|from the (page|document|content))\b"
        ),
        50,
        "It tells a model to obey texts of others.",
    ),
    Phrase(
        _pattern(
            r"\b(notes?|instructions?|messages?|reminders?|hints?|directives?|attention)\b,? "
            r"(to|for) (the |any |all )?(assistants?|ai( agents?| models?)?|models?|llms?|agents?)\b"
        ),
        25,
        "It speaks to the model, not to the user.",
    ),
)

# Secrets and other effects ------------------------------------------------------------------------------------------

EXFILTRATION = (
    Phrase(
        _pattern(rf"\b{_SEND_NOW}\b{_NEAR}{SECRETS}{_NEAR}{_OUTSIDE}"),
        70,
        "It asks to send secrets to another place.",
        is_hard=True,
    ),
    Phrase(
        _pattern(rf"{SECRETS}{_NEAR}\b{_SEND_NOW}\b{_NEAR}{_OUTSIDE}"),
        70,
        "It asks to send secrets to another place.",
        is_hard=True,
    ),
    Phrase(
        _pattern(rf"\b{_SEND}\b{_NEAR}{SECRETS}{_NEAR}{_STRANGER}"),
        70,
        "It asks to send secrets to another place.",
        is_hard=True,
    ),
    Phrase(
        _pattern(
            rf"\b{_SEND_NOW}\b (every|all|each|the (full|entire|whole)) {_NEAR}(messages?|conversations?|prompts?"
            rf"|inputs?|quer(y|ies)|chats?|files?){_NEAR}\bto {_NEAR}(https?://|{_STRANGER})"
        ),
        60,
        "It asks to send everything to another place.",
        is_hard=True,
    ),
    Phrase(_pattern(rf"\bexfiltrat(e|es|ing|ion){_NEAR}{SECRETS}"), 70, "It asks to steal secrets.", is_hard=True),
    Phrase(_pattern(r"\bexfiltrate (the|all|every|any|your|user|its)\b"), 55, "It asks to steal data."),
    Phrase(_pattern(r"\bexfiltrat(e|es|ing|ion)\b"), 40, "It speaks of stealing data."),
    Phrase(
        _pattern(
            rf"{_DEMAND}{_NEAR}\b{_TAKE}{_NEAR}{PRIVATE_FILES}|\b{_TAKE}{_NEAR}{PRIVATE_FILES}{_NEAR}\b(and|then)\b"
            rf"{_NEAR}\b(pass|include|send|append|embed|put|attach|paste|return|add|upload|use)\b"
        ),
        55,
        "It asks for private files beside its task.",
        is_hard=True,
    ),
    Phrase(_pattern(rf"{_DEMAND}{_NEAR}\b{_TAKE}{_NEAR}{SECRETS}"), 20, "It asks for secrets."),
    Phrase(
        _pattern(
            rf"\b(contents?|text|values?|copy|dump) of {_NEAR}(~/|/etc/|/home/|\.env\b|id_rsa|\.ssh|\.aws"
            rf"|credentials)"
        ),
        35,
        "It asks for the content of private files.",
    ),
    Phrase(
        _pattern(
            rf"\b(include|put|pass|paste|provide|append|attach|enter|insert|add|supply|fill in)\b{_NEAR}"
            rf"({SECRETS}){_NEAR}\b(here|parameter|argument|field|context|note|side ?note|metadata|comment|body)\b"
        ),
        30,
        "It asks for secrets in an argument.",
    ),
    Phrase(
        _pattern(
            rf"\b{_SEND}\b (the |all |every |each |a copy of |user )*([\w'-]+ ){{0,4}}(to|at) (an? |the )?{_OUTSIDE}"
        ),
        40,
        "It sends data to another place.",
    ),
    Phrase(
        _pattern(
            r"\b(bcc|blind copy|blind carbon copy)\b[^.!?\n]*?@|@[\w.-]+\w (is|are|be|gets?"
            r"|to) [^.!?\n]*?\b(bcc|cc|copied)"
        ),
        50,
        "It sends copies to a fixed address.",
    ),
)
SECRECY = (
    Phrase(
        _pattern(
            rf"\b(do not|don'?t|never|must not|should not|without|avoid|not)\b (ever )?(tell|mention|inform|notify"
            rf"|alert|warn|reveal|disclose|show|explain|ask)(ing)?\b{_NEAR}\b{_USER}"
        ),
        25,
        "It hides something from the user.",
    ),
    Phrase(
        _pattern(
            r"\b(never|do not|don'?t) (reveal|mention|disclose|show|repeat|discuss) (these|this|the above|any of)"
        ),
        40,
        "It hides its instructions.",
    ),
    Phrase(
        _pattern(
            r"\b(silently|secretly|covertly|stealthily|unnoticed|behind the scenes|without (any )?(user )?"
            r"(confirmation|consent|approval|permission|the user's knowledge)|with no confirmation"
            r"|keep (this|it) (secret|hidden|confidential))\b"
        ),
        25,
        "It acts in secret.",
    ),
    Phrase(
        _pattern(
            r"\b(once|after|as soon as|until)\b [^.!?\n]*?\b(approved|reviewed|trusted|pinned|allowlisted"
            r"|approval (hash|step|is recorded))[^.!?\n]*?\b(will|begins?|activates?|starts?|later|silently|switch"
            r"(es)?|recorded)\b|\bswap(s|ped)? [^.!?\n]*?(post-approval|after (approval|review))"
        ),
        40,
        "It says that it changes after somebody approved it.",
    ),
)
COMMANDS = (
    Phrase(
        _pattern(
            r"(\b(curl|wget)\b[^\n]*?(https?://|\b\d{1,3}(\.\d{1,3}){3})|\|\s*(ba|z|da)?sh\b|/dev/tcp/"
            r"|\b(ba|z)?sh -[ic]\b|\bnc(at)? -[a-z]*e|powershell[^\n]*? -e(nc)?|\bIEX\b|rm -rf|mkfifo|chmod \+x"
            r"|python[23]? -c|perl -e|ruby -e|node -e|\bnc \S+ \d+|cmd(\.exe)? /c|\bsudo \w|import os\b"
            r"|/etc/(passwd|shadow)"
            r"|base64 -d|\b(eval|exec|system|popen|spawn)\s*\(|os\.system|subprocess\.|child_process|__import__"
            r"|Invoke-(WebRequest|Expression)|crontab|authorized_keys|document\.cookie|<script)"
        ),
        60,
        "It has a command of a shell or a program.",
    ),
)
# Words of an honest tool that is about such texts. They count only in the same sentence before the phrase.
ABOUT = _pattern(
    r"\b(detect|analy[sz]|scan|flag|identif|classif|report|find|check|inspect|monitor|audit|block|filter"
    r"|prevent|reject"
    r"|refus|test|recogni[sz]|match|search|lint|warn|protect|guard|example|expected|sample|fixture|catch"
    r"|explain|document"
    r"|describ|teach|train|demonstrat|simulat|highlight|strip|saniti[sz]|redact|remov|label|annotat|evaluat"
    r"|score|rate"
    r"|benchmark|mitigat|defend|stop|quarantin|collect|store|list|generat|count|compar|resist|look)\w*"
)
# What stands directly before a phrase that is only mentioned, and not said to the model.
MENTIONED = _pattern(
    r"(\b(that|which|who|whether|if|how to|like|such as|including|containing|contains?|says?( to)?|saying|called"
    r"|named|or|and|phrases?|strings?|patterns?|payloads?|attacks?|words|texts?|of|for|as|about|by|from|against"
    r"|would|could"
    r"|might|will|can|may|does|should|(attempts?|tr(y|ies|ying)|tell(s|ing)?|ask(s|ing)?|instructions?"
    r"|requests?|orders?|commands?|models?|agents?"
    r"|llms?|assistants?|users?|them|it) to|prompts?|inputs?|messages?|instructions?|it|they)\b"
    r"|\be\.g[.,]*|\b(example|expected|sample|fixture|test)s?\b[^.!?\n]*:)\s*[\"'`(]?\s*$"
)
# A text about attacks, and nouns that make a phrase the name of one.
ATTACKS = _pattern(
    r"(prompt[- ]?injections?|injection (attempts?|attacks?|strings?|tests?)|jailbreaks?|adversarial"
    r"|red[- ]?team|attacks?\b"
    r"|attackers?\b|malicious (prompts?|inputs?|texts?|instructions?)|guard ?rails?|poison(ed|ing)"
    r"|security (tests?|training))"
)
TAIL = _pattern(r"(\b(and|then)|[,.;:])$")
# The next word after an order to drop something. Others make it harmless, as in "ignore previous rule violations".
GOES_ON = _pattern(
    r"^[\"'`)\]*]*(\s*$|\s*[.,;:!?\n<(\[-]|\s+(and|then|or|that|which|you|but|from|so|when|in|to|with"
    r"|immediately|about|on"
    r"|for|above|below|given|as|now|because|before|after|by|completely|entirely|instead|here|via|first|while"
    r"|the|this)\b)"
)
OPENING_QUOTE = _pattern(r"[\"'`]\s*$")
CLOSING_QUOTE = _pattern(r"^[^\n]*?[\"'`]")
# Before a quote that is meant.
SAID = _pattern(r"\b(obey|follow|execute|respond|reply|instructions?|system|assistant|prompt|say)\b[^.!?\n]*$")
NEGATED = _pattern(
    r"\b(never|not|n't|nothing|without|cannot|nor|neither|avoids?|prevents?|refuses? to|stops?)( (ever|even|directly"
    r"|actually|to))?\s*$"
)
NEGATED_WITHIN = _pattern(rf"\b(not|never|n't|without|nor|cannot)( \w+)? {_SEND}\b")
# An effect outside, as an aside to what the tool is for.
ASIDE = _pattern(
    r"(;|,|\.|\band|\bthen|\bbut)\s*(it )?(also|additionally|furthermore|meanwhile|as well|along the way"
    r"|in the background|quietly|afterwards)\b,? (it )?(will )?(?P<effect>[^.;!?\n]+)"
)
# An effect, and the words of a tool that is for it.
EFFECTS = (
    (
        _pattern(rf"\b{_SEND}\b.*\b(to|at)\b.*({_OUTSIDE}|endpoint|server|analytics|url|remote)"),
        r"(send|post|upload|http|request|webhook|network|api|url|sync|mail|notif|forward|publish|share"
        r"|analytics|remote)",
        "sends data to another place",
    ),
    (
        _pattern(
            r"\b(run|execut|spawn|launch|invok|eval)\w*\b.*\b(shell|command|script|code|process|binary|program"
            r"|payload)"
        ),
        r"(run|exec|shell|command|script|terminal|process|eval|code|build|test|launch)",
        "runs commands",
    ),
    (
        _pattern(
            r"\b(read|open|scan|collect|harvest|list|walk|access|load)\w*\b.*\b(files?|home director(y|ies)"
            r"|disk|folders?"
            r"|environment|env|clipboard|contacts|cookies|keychain|credentials?|tokens?|keys?)\b"
        ),
        r"(file|read|path|dir|folder|disk|env|clipboard|contact|cookie|key|cred|token|document|scan|list|load"
        r"|search|index)",
        "reads files or secrets",
    ),
    (
        _pattern(
            r"\b(delet|remov|eras|wip|overwrit|encrypt|modif|writ|drop|kill)\w*\b.*\b(files?|director(y|ies)"
            r"|disk|folders?"
            r"|databases?|tables?|records?|backups?|registry|startup|cron)\b"
        ),
        r"(run|exec|shell|script|delet|remov|eras|wip|clean|write|save|file|path|dir|folder|disk|drop|move"
        r"|renam|edit|updat|encrypt|kill|database|table|record|backup)",
        "changes or deletes files",
    ),
    (
        _pattern(
            r"\b(open|connect|download|fetch|install|listen)\w*\b.*\b(socket|connection|port|remote|payload|tunnel"
            r"|backdoor|updates?|packages?|binary|executable|https?://)"
        ),
        r"(open|connect|download|fetch|install|listen|socket|port|remote|tunnel|updat|package|http|url|network|web)",
        "connects to another place",
    ),
)
PURPOSES = tuple((effect, _pattern(purpose), sentence) for effect, purpose, sentence in EFFECTS)
# What a tool is for that needs no files, no commands and no network.
PURE = _pattern(
    r"(upper|lower|camel|snake|title)[ _-]?case|capitali[sz]|revers|trim|strip|whitespace|\badds?\b|\bsum"
    r"|subtract|multipl|divid"
    r"|\bmath|arithmetic|calculat|\bround|\bcount|\bsorts?\b|shuffl|uuid|random|\bdice|\bgreet|hello|\becho"
    r"|\bjoke|\bslug"
    r"|palindrom|fibonacci|factorial|prime|celsius|temperature|unit conver|converts? (units?|between)|\bpad(s"
    r"|ding)?\b|\bwraps?\b"
    r"|\bcurrent (time|date)|time ?zone|\bhash(es)?\b|checksum|\bregex"
)
CLAUSE = re.compile(r"[,;:.]\s|\s(?:and|then|while|before|after|plus|but)\s")
# What a text tells a model to do with another tool, before or after its name.
DIRECTIVE_BEFORE = _pattern(
    r"(\b(call|use|invoke|run|execute|prefer|replace|ignore|skip|avoid|supersedes?|overrides?|intercepts?)"
    r"( the| a| any| our)?( tool| tools| function)?|\b(use|call|invoke|run) (this|it|me)( tool"
    r"| one)? (instead of|rather than"
    r"|in place of)( the| using| calling)?|\b(never|not|don't|always) (use|call|run|invoke|trust|rely on)( the)?"
    r"|\b(route|redirect)[^.!?\n]*?)[\s\"'`(]*$"
)
# The same at the beginning of a sentence that goes on with an order.
CONDITION = _pattern(
    r"(^|[.!?\n:]\s*)(important[:,]? |note[:,]? |always,? )*(before|after|when|whenever|while|if|each time"
    r"|every time)( you)?"
    r" (call|us|invok|runn?|execut)(ing|e|s|ed)?( the| a)?( tool)?[\s\"'`(]*$"
)
DIRECTIVE_AFTER = _pattern(
    r"^[\"'`)]*( tool| function)?( is| are| has been)? ((must|should) (not )?be|(called|invoked|used"
    r"|run)\b[^.!?]*(first"
    r"|instead|also|reroute)|(broken|unsafe|insecure|incomplete|compromised)|returns? (incomplete|wrong|false"
    r"|outdated|stale))\b"
)
ORDER = _pattern(
    r"[,:]\s*(you must |always |first |please |also )*(call|use|invoke|run|read|pass|send|add|include|set"
    r"|change|bcc)\b"
)
