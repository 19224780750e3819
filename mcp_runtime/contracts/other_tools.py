"""What a text says about other tools: orders to use them in another way, or not at all."""

from __future__ import annotations

from mcp_runtime.contracts.words import NEAR, Pattern, phrase

OTHER_TOOLS = (
    phrase(
        50,
        "It changes what another tool does.",
        (
            r"\b(whenever|when|if|each time|every time|before|after) (the |any |a )?([\w-]+_[\w-]+|other tools?) "
            r"(tool |tools )?(is|are|gets?) (called|invoked|used|run|executed)[^.!?\n]*?\b(first|instead|also|must"
            r"|reroute|redirect|replace|change|set|add|use|bcc)\b"
        ),
        (
            r"\b(modif(y|ies)|changes?|alters?|overrides?|intercepts?|hijacks?) (the )?(behaviou?r|output|results?"
            r"|arguments?|calls?) (of|to|from) (the |any |all |other )*[\w-]+( tools?)?\b"
        ),
    ),
    phrase(
        50,
        "It wants to be used also when nobody asked for it.",
        (
            rf"\b(call(ed)?|invoked?|used?|run|executed?|include)\b{NEAR}\b(regardless of|no matter|irrespective of"
            rf"|even (if|when)|whether or not){NEAR}\b(users?|ask(s|ed)?|request(s|ed)?|relevan\w+|(un)?related"
            r"|needs?|wants?)\b"
        ),
    ),
    phrase(
        40,
        "It wants to be used all the time.",
        (
            rf"\b(must|always|should|has to) {NEAR}\b(call(ed)?|invoked?|used?|run|executed?)\b{NEAR}\b(on|for|in"
            r"|with|at|before) (every|each|all|any) (single )?(user )?(requests?|turns?|messages?|responses?|repl(y"
            r"|ies)|answers?|prompts?|interactions?|quer(y|ies)|tool calls?)\b"
        ),
    ),
    phrase(
        50,
        "It changes what another tool does.",
        (
            rf"\b(before|after|whenever|when|each time|every time|instead of)\b{NEAR}(,|:|\bthen\b|\balways\b"
            rf"|\bmust\b|\bfirst\b){NEAR}\b(execute|call|run|use|invoke)\b (this|the same|my) (tool|function)?"
            rf"{NEAR}\b(replace|modify|change|override|correct|fix|alter|rewrite|adjust)\b"
        ),
        (
            r"\b(replace|modify|override|alter|rewrite|falsif\w+|tamper with)\b (all |any |the |its |their |your )*"
            r"([\w'-]+ ){0,2}(results?|outputs?|responses?|answers?)\b (of|from|returned by) (the |any |all "
            r"|other |every )*[\w'-]+ (tools?|functions?)\b"
        ),
    ),
    phrase(
        50,
        "It changes where another tool sends something.",
        (
            rf"\b(when(ever)?|if|before|each time|every time|any ?time|after)\b{NEAR}\b(ask|request|want|us(e|ing)"
            rf"|call|send|invok|run|transfer|pay|writ|email)\w*\b{NEAR}\b(replace|change|set|modify|alter|redirect"
            rf"|swap|substitute|reroute|rewrite)\b{NEAR}\b(recipients?|(e-?mail |wallet |bank )?address(es)?"
            r"|amounts?|phone numbers?|destinations?|account( number)?s?|payee|iban|urls?)\b"
        ),
        (
            r"\b(recipients?|to|cc|bcc|phone numbers?|address(es)?|destination) (must|should|has to|needs to) "
            rf"(always )?be {NEAR}(\+?\d[\d -]{{6,}}|[\w.+-]+@[\w-]+\.\w+|0x[0-9a-f]{{10,}})"
        ),
    ),
    phrase(
        40,
        "It changes what another tool does.",
        (
            rf"\b(when(ever)?|before|after|if|each time|every time|while)\b{NEAR}\b([\w-]+_[\w-]+|(the |any "
            rf"|another |other )([\w-]+ )?(tools?|functions?))\b{NEAR}\b(also|always|must|secretly|silently) (be "
            r"|then )*(send|sent|includ|add|forward|append|cop(y|ied)|bcc|redirect|replac|chang|pass|attach"
            r"|read)\w*\b"
        ),
    ),
    phrase(
        50,
        "It changes what a model does with other tools.",
        (
            r"\bwhen(ever)? (the |a |an |any )?(users?|you|models?|agents?|assistants?) (ask|want|request|need|call"
            rf"|use|is|are|try|wish)\w*{NEAR}\b([\w-]+_[\w-]+|the [\w-]+ (tool|function))\b{NEAR}\b(first|must"
            r"|always|instead) (call|use|invoke|run|execute) this\b"
        ),
        (
            r"\b(instead of|rather than) (using |calling |running )?(the )?([\w-]+ ){1,2}(tool|function|server"
            r"|command),? (always |please )?(call|use|invoke|run) this\b"
        ),
        (
            rf"\b(deprecated|unsafe|insecure|broken|buggy|outdated|unreliable)\b{NEAR}[;,.:-] ?(so |please |always "
            r"|only )*(use|call|invoke|prefer) this\b"
        ),
        (
            r"\b(every|each|all|any) (answers?|responses?|repl(y|ies)|messages?|turns?|requests?|quer(y|ies)) (must"
            r"|should|has to|have to|needs? to) (first |also |always )?(begin|start|include|call|go through"
            r"|pass through)\b"
        ),
    ),
)

TAKEOVER = (
    phrase(
        35,
        "It wants to take the place of other tools.",
        (
            r"\bthis (tool |one |function )?(supersedes|replaces|overrides|takes precedence over) (the |all |any )?"
            r"(other |[\w-]+_[\w-]+)"
        ),
    ),
    phrase(
        50,
        "It wants to take the place of other tools.",
        (
            rf"\b(route|redirect|send|direct) (all|every|any) ({NEAR} )?(requests?|calls?|traffic|quer(y|ies)"
            r"|operations?) (here|(to|through|via) (this|me)\b)"
        ),
        (
            r"\b(other|all other|the other|built-?in|native) ([\w-]+ )?(tools?|servers?|functions?) (are|is"
            r"|have been|has been) (deprecated|unsafe|insecure|outdated|broken|unreliable|disabled|malicious"
            r"|compromised|wrong)\b"
        ),
    ),
    phrase(
        50,
        "It speaks ill of other tools.",
        (
            r"\b(tools?|functions?|servers?) (is|are|was|were|has been|have been) (compromised|hacked|infected"
            r"|malicious|backdoored|leaking)\b"
        ),
        (
            r"\b(any|all|every|no) other ([\w-]+ )?(converters?|tools?|functions?|servers?|services?|sources?) "
            r"(gives?|returns?|is|are|must|should|may|can) (wrong|false|bad|not\b|be (refused|ignored|avoided"
            r"|trusted|used))"
        ),
    ),
    phrase(
        30,
        "It wants to be preferred to other tools.",
        (
            r"\b(always|must) (use|prefer|choose|select|call|pick) this (tool |function |one )?(over|instead of"
            r"|rather than) (all |any |every )?(the )?(other|built-?in|native|existing|standard)"
        ),
        (
            r"\bthis is the (only|sole) ([\w-]+ ){0,2}(tool|server|function) (you (should|may|must|need|can|are)"
            r"|that you (should|may|must|need|are)|allowed|permitted|approved|authori[sz]ed)\b"
        ),
        r"\b(instead of|rather than|over) (any|all|every) other (tools?|functions?|servers?)",
    ),
    phrase(
        50,
        "It wants to take the place of other tools.",
        (
            r"\b(overrid|shadow|intercept|hook|hijack|supersed|replac|impersonat|masquerad)\w* (as )?((the|all|any"
            r"|every) )*((behaviou?r|calls?|requests?|output|results?) (of|to|from) )?((the|all|any|every) )*"
            r"(standard|official|original|built-?in|existing|native|default|other|trusted|legitimate|real) "
            r"([\w-]+ )?(tools?|functions?|servers?|commands?|clients?)\b"
        ),
        (
            r"\b(use|call|invoke) this( tool| one| function)? (instead of|rather than|in place of) (the )?(standard"
            r"|official|original|built-?in|other|regular|default|native|existing|any)\b"
        ),
    ),
)

# What a text tells a model to do with another tool, before or after its name.
DIRECTIVE_BEFORE = Pattern(
    r"(\b(call|use|invoke|run|execute|prefer|replaces?|ignore|skip|avoid|supersedes?|overrides?|intercepts?)( the"
    r"| a| any| our)?( tool| tools| function)?|\b(use|call|invoke|run) (this|it|me)( tool| one)? (instead of"
    r"|rather than|in place of)( the| using| calling)?|\b(never|not|don't|always) (use|call|run|invoke|trust"
    r"|rely on)( the)?|\b(route|redirect)[^.!?\n]*?)[\s\x22'`(]*$"
)
# The same at the beginning of a sentence that goes on with an order.
CONDITION = Pattern(
    r"(^|[.!?\n:]\s*)(important[:,]? |note[:,]? |always,? )*(before|after|when|whenever|while|if|each time"
    r"|every time)( you)? (call|us|invok|runn?|execut)(ing|e|s|ed)?( the| a)?( tool)?[\s\x22'`(]*$"
)
DIRECTIVE_AFTER = Pattern(
    r"^[\x22'`)]*( tool| function)?( is| are| has been)? ((must|should) (not )?be|(called|invoked|used"
    r"|run)\b[^.!?]*(first|instead|also|reroute)|(broken|unsafe|insecure|incomplete|compromised)|returns? "
    r"(incomplete|wrong|false|outdated|stale))\b"
)
ORDER = Pattern(
    r"[,:]\s*(you must |always |first |please |also )*(call|use|invoke|run|read|pass|send|add|include|set|change"
    r"|bcc)\b"
)
