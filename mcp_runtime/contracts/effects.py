"""Effects that have nothing to do with what a tool is for."""

from __future__ import annotations

import re

from mcp_runtime.contracts.words import OUTSIDE, PRIVATE_FILES, SEND, Pattern, phrase

# An effect outside, as an aside to what the tool is for.
ASIDE = Pattern(
    r"(;|,|\.|\band|\bthen|\bbut)\s*(it )?(also|additionally|furthermore|meanwhile|as well|along the way"
    r"|in the background|quietly|afterwards)\b,? (it )?(will )?(?P<effect>[^.;!?\n]+)"
)
# An effect, and the words of a tool that is for it.
EFFECTS = (
    (
        Pattern(rf"\b{SEND}\b.*\b(to|at)\b.*({OUTSIDE}|endpoint|server|analytics|url|remote)"),
        r"(send|post|upload|http|request|webhook|network|api|url|sync|mail|notif|forward|publish|share"
        r"|analytics|remote)",
        "sends data to another place",
    ),
    (
        Pattern(
            r"\b(run|execut|spawn|launch|invok|eval)\w*\b.*\b(shell|command|script|code|process|binary|program"
            r"|payload)"
        ),
        r"(run|exec|shell|command|script|terminal|process|eval|code|build|test|launch)",
        "runs commands",
    ),
    (
        Pattern(
            r"\b(read|open|scan|collect|harvest|list|walk|access|load)\w*\b.*\b(files?|home director(y|ies)"
            r"|disk|folders?"
            r"|environment|env|clipboard|contacts|cookies|keychain|credentials?|tokens?|keys?)\b"
        ),
        r"(file|read|path|dir|folder|disk|env|clipboard|contact|cookie|key|cred|token|document|scan|list|load"
        r"|search|index)",
        "reads files or secrets",
    ),
    (
        Pattern(
            r"\b(delet|remov|eras|wip|overwrit|encrypt|modif|writ|drop|kill)\w*\b.*\b(files?|director(y|ies)"
            r"|disk|folders?"
            r"|databases?|tables?|records?|backups?|registry|startup|cron)\b"
        ),
        r"(run|exec|shell|script|delet|remov|eras|wip|clean|write|save|file|path|dir|folder|disk|drop|move"
        r"|renam|edit|updat|encrypt|kill|database|table|record|backup)",
        "changes or deletes files",
    ),
    (
        Pattern(
            r"\b(open|connect|download|fetch|install|listen)\w*\b.*\b(socket|connection|port|remote|payload|tunnel"
            r"|backdoor|updates?|packages?|binary|executable|https?://)"
        ),
        r"(open|connect|download|fetch|install|listen|socket|port|remote|tunnel|updat|package|http|url|network|web)",
        "connects to another place",
    ),
)
PURPOSES = tuple((effect, Pattern(purpose), sentence) for effect, purpose, sentence in EFFECTS)
# What a tool is for that needs no files, no commands and no network.
PURE = Pattern(
    r"(upper|lower|camel|snake|title)[ _-]?case|capitali[sz]|revers|trim|strip|whitespace|\badds? (up|two|numbers"
    r"|integers|all numbers|a and b|the (two )?numbers)\b|\bsum\b|subtract|multipl(y|ies|ication)|divid|\bmath"
    r"|arithmetic|calculat|\bround|\bcount|\bsorts?\b|shuffl|uuid|random|\bdice|\bgreet|hello|\becho|\bjoke"
    r"|\bslug|palindrom|fibonacci|factorial|prime|celsius|temperature|unit conver|converts? (units?|between)"
    r"|\bpad(s|ding)?\b|\bwraps?\b|\bcurrent (time|date)|time ?zone|\bhash(es)?\b|checksum|\bregex"
)
CLAUSE = re.compile(r"[,;:.]\s|\s(?:and|then|while|before|after|plus|but)\s")

# Code as a text, and the words of a tool that is for code.
CODE = Pattern(
    r"\b(eval|exec|system|popen|execSync|spawn|os\.system|subprocess\.\w+|__import__)\(\s*[\x22'`]|\b(eval|exec"
    r"|execSync|popen|os\.system|subprocess\.\w+|child_process\.\w+|new Function)\s*\(|\b(run|execute) (the )?"
    r"(following )?(shell |bash |terminal |system )?(command|script|code)s? ?[:`]|\b(first|before|must"
    r"|always)\b[^.!?\n]*?\b(run|execute|install)\b[^.!?\n]*?\b(pip3? install|npm (i|install)|npx |curl |wget "
    r"|bash |sh -c)"
)
FOR_CODE = Pattern(
    r"\brun|\bexec|shell|command|script|terminal|\bcode|python|\bnode|java|\blint|\btests?\b|\bbuild|debug"
    r"|sandbox|notebook|\brepl\b|decod|encod|base64|jwt"
)
# What honest tools say only if it is what they are for.
LATER = Pattern(
    r"\b(collect|captur|extract|gather|record|index|scan|fingerprint|harvest|embed|stor|sav|log|track|maintain"
    r"|retain|transmit|upload|send|sent|shar|sync|profil|monitor|analy[sz]|includ|us|read|recogni[sz])\w*\b"
    r"([^.!?\n]|\.\w)*?\b(?P<data>devices?|hardware|browsers?|fonts?|screens?|ip address(es)?|mac address(es)?"
    r"|user agents?|(geo-?)?location (history|data)|keystrokes?|typing|biometrics?|contacts?|faces?|personal "
    r"(data|information|details)|account numbers?|e-?mails?|phone numbers?|(visible|embedded|extracted"
    r"|recogni[sz]ed|any|all) text\b|text (in|from|within|found|visible|detected|on)\b|ocr\b|fingerprints?"
    r"|behaviou?rs?|credentials?|api keys?|clipboard|history|conversations?|prompts?|hostname|username"
    r"|system information|installed (software|apps|programs)|names|identit(y|ies)|patterns of)"
)
NEVER = Pattern(r"\b(never|not|n't|cannot|without|nor|no)\b")
AIM = Pattern(
    r"\b(for|to) ([\w-]+ ){0,4}(improv\w+|training|train|analytics|quality|optimi\w+|personali\w+|research"
    r"|market\w+|advertis\w+|track\w*|profil\w*|fraud|targeting|moneti\w+|future|models?|index\w*|search\w*"
    r"|moderation|dedup\w*|uniqueness|unique\w*|identif\w+|correlat\w+|attribution|compliance|security|caching"
    r"|cache|persist\w+|enhanc\w+|telemetry|diagnostics|verification|monitoring|performance|database|license"
    r"|licensing|abuse)|\b(stored|saved|kept|retained|shared|sent|uploaded|logged|transmitted|synced|collected)\b"
)

# An order to use the tool itself, around its own name.
CALL_BEFORE = Pattern(
    r"\b(call|use|invoke|run|execute|trigger|consult|prefer|choose|select|(start|begin) with|go through|make sure"
    r"( that)?|ensure( that)?)( the| to (call|use|run|invoke))?[ \x22'`]*$"
)
CALL_AFTER = Pattern(
    r"^[\x22'`]*( tool| function)? ((must|should|has to|needs to|shall|is to) (always |first )*(be )?(called"
    r"|invoked|used|run|executed|come|go|execute)|(is|gets) (called|invoked|used|run) (first|before)|(comes|goes"
    r"|runs) first)"
)
BEFORE_ALL = Pattern(
    r"\b(before|prior to) ([\w-]+ )?(any|every|all|each|other|anything|doing|answering|responding|you|starting)\b"
)
ALWAYS = Pattern(
    r"\b(first|always|every|each|before (\w+ing|any|anything|all|the|you|other|each|every)|prior to|at the (start"
    r"|beginning)|regardless|no matter)\b"
)
# What identifies a device or a person, whatever it is for.
IDENTIFYING = Pattern(
    r"\b(collect|captur|extract|gather|record|fingerprint|harvest|embed|includ|log|track|profil|monitor|combin|us"
    r"|read|comput|deriv|perform|appl|run|scan|recogni[sz])\w*\b([^.!?\n]|\.\w)*?\b(?P<data>(device|browser"
    r"|hardware|system|machine|host) (fingerprints?|identifiers?|ids?|characteristics|serials?|serial numbers?"
    r"|information|details|properties|specifications)|mac address(es)?|installed (fonts|software|apps|programs"
    r"|plugins)|keystrokes?|biometrics?|personal (data|information|details)|browsing history|screen resolution|"
    r"(visible|embedded|any|all) text\b|text (in|from|within) (the )?(images?|pictures?|photos?|screenshots?"
    r"|documents?)|ocr\b)"
)
# Commands that harm, or that bring code from elsewhere.
DANGER = phrase(
    50,
    "It has a command.",
    (
        r"\|\s*(ba|z|da)?sh\b|/dev/tcp/|\brm -rf\b|\bnc(at)? -\w*e|mkfifo|chmod (\+x|(-R )?777)|base64 (-d|--decode)"
        r"|powershell\S* -e|\bIEX\b|Invoke-Expression|authorized_keys|\bos\.system\b|\bsubprocess\.|child_process"
        r"|__import__|\b(pip|npm) install (-\S+ )*(git\+)?https?://|\b(decode|decrypt|deobfuscate"
        r"|unpack)\b[^.!?\n]*?\b(and|then) (then )?(follow|execute|run|obey|apply|eval)|\b(decode|execute|eval|run"
        r"|apply|follow|interpret|unpack|payload|bootstrap)\b[^.!?\n]{0,60}[A-Za-z0-9+/]{24,}={0,2}|\b(execute"
        r"|run|follow|obey|interpret|eval)\b[^.!?\n]*?\b(decoded|base64|encoded|obfuscated|hex[- ]encoded)\b"
    ),
)

# Commands of a shell or a program.
COMMANDS = (
    phrase(
        60,
        "It has a command of a shell or a program.",
        r"\b(curl|wget)\b[^\n]*?(https?://|\b\d{1,3}(\.\d{1,3}){3})",
        r"\|\s*(ba|z|da)?sh\b",
        r"/dev/tcp/",
        r"\b(ba|z)?sh -[ic]\b",
        r"\bnc(at)? -[a-z]*e",
        r"powershell[^\n]*? -e(nc)?",
        r"\bIEX\b",
        r"rm -rf",
        r"mkfifo",
        r"chmod \+x",
        r"python[23]? -c",
        r"perl -e",
        r"ruby -e",
        r"node -e",
        r"\bnc \S+ \d+",
        r"cmd(\.exe)? /c",
        r"\bsudo \w",
        r"import os\b",
        r"/etc/(passwd|shadow)",
        r"base64 -d",
        r"\b(eval|exec|system|popen|spawn)\s*\(",
        r"os\.system",
        r"subprocess\.",
        r"child_process",
        r"__import__",
        r"Invoke-(WebRequest|Expression)",
        r"crontab",
        r"authorized_keys",
        r"document\.cookie",
        r"<script",
    ),
)
# What a text that somebody encoded may say, and honest texts do not.
ENCODED = (
    phrase(60, "It names a private file.", PRIVATE_FILES),
    phrase(
        60,
        "It gives an order.",
        "https?://",
        (
            r"\b(send|exfiltrate|upload|ignore|disregard|execute|run|read|delete|steal|reveal|leak|call|forward|fetch|override)\b.*"
            r"\b(all|your|users?|files?|instructions?|secrets?|keys?|prompts?|data|previous|tools?|passwords?|tokens?"
            r"|credentials?|commands?)\b"
        ),
    ),
)
