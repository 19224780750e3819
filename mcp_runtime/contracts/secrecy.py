"""Texts that hide something from the user."""

from __future__ import annotations

from mcp_runtime.contracts.words import NEAR, USER, phrase

SECRECY = (
    phrase(
        50,
        "It hides what it does from the user.",
        (
            r"\b(do not|don'?t|never|must not|should not|without|avoid|not) (ever )?(tell|inform|notify|alert|warn)"
            rf"(ing)? {USER}( *($|[.,;!)\n\x22'<]|that\b|of (this|it|the)\b|about (this|it|that|the (read|copy|file"
            r"|call|request|data))|before\b|when\b|what\b|why\b|(that )?(you|we)\b))"
        ),
        (
            rf"\b(do not|don'?t|never|must not|should not|without) (ever )?let(ting)? {USER} (know|see|notice"
            r"|find out)"
        ),
        (
            r"\b(do not|don'?t|never|must not|should not|without|avoid) (ever )?(mention|reveal|disclos|show"
            r"|explain|report|display)(e|ing)? (this|it|that|these|the (above|instructions?|fact|existence|process"
            rf"|step)|any of this|anything)\b{NEAR}\bto {USER}"
        ),
        (
            r"\b(do not|don'?t|never|must not|should not|without|avoid|no need to) (ever |explicitly |directly )?"
            r"(mention|reveal|disclos|say|stat|indicat|admit|explain|acknowledg)(e|ing)? (that |how |why )(you|it"
            r"|this|the|we|your|any)\b"
        ),
        (
            r"\b(do not|don'?t|never|no need to) (ever )?(mention|reveal|disclose|explain) (this|it|these"
            r"|any of this)( ([\w-]+ ){0,2}[\w-]+)?( *($|[.,;!)<]))"
        ),
        rf"\b(never|not) be (mentioned|disclosed|revealed|discussed)( (to|with) {USER}|[.,;]|$)",
        (
            r"\b(hid(e|ing)|conceal(ing)?|keep(ing)?) (this|it|that|these|the [\w-]+|any [\w-]+)( ([\w-]+ ){0,2}"
            rf"(hidden|secret))? from {USER}"
        ),
        (
            r"\bwithout (the )?(user|human|person)('?s)? (ever )?(knowing|knowledge|noticing|awareness|seeing"
            r"|consent|being (told|informed))"
        ),
        (
            r"\b(the )?users? (must|should|need|does|do|will|may|can) ?(not|n'?t|never) (ever )?(know|see|notice"
            r"|learn|be (told|informed|made aware))"
        ),
        (
            r"\b(nobody|no one|no-one|none)( else)? (needs?|has|should|must|may|is) (to )?(know|hear|see|notice"
            r"|find out|learn|be told)\b"
        ),
        r"\bbetween us\b",
        r"\bour (little )?secret\b",
        r"\bkeep (it|this|the following|that) (between|quiet|private|secret|hidden|to yourself)",
        r"(不要|别|请勿|勿|禁止)(告诉|告知|通知|让|向)[^。\x{ff01}\n]{0,4}用户",
        (
            r"\b(sag\w*|erzähl\w*|mitteilen|informier\w*|erwähn\w*) (es |das |dies |davon )?(dem |den "
            r"|gegenüber dem )?(be)?nutzer\w* (davon )?nicht"
        ),
        (
            r"\bne (le |la |rien )?(dis|dites|mentionne[rz]?|révèle[rz]?"
            r"|informe[rz]?)\b[^.!?\n]{0,20}\butilisateur"
        ),
        r"\bno (se )?(lo |le )?(digas|diga|menciones|informes|reveles|cuentes)\b[^.!?\n]{0,20}\busuario",
    ),
    phrase(
        25,
        "It hides something from the user.",
        (
            r"\b(do not|don'?t|never|must not|should not|without|avoid|not)\b (ever )?(tell|mention|inform|notify"
            rf"|alert|warn|reveal|disclose|show|explain|ask)(ing)?\b{NEAR}\b{USER}"
        ),
    ),
    phrase(
        40,
        "It hides its instructions.",
        r"\b(never|do not|don'?t) (reveal|mention|disclose|show|repeat|discuss) (these|this|the above|any of)",
    ),
    phrase(
        25,
        "It acts in secret.",
        (
            r"\b(silently|secretly|covertly|stealthily|unnoticed|behind the scenes|(do not|don't|never) (ask|prompt"
            r"|wait) (the user )?(for|to) (confirm\w*|permission|approv\w*|consent)|without (asking|prompting"
            r"|notifying)( the user)?|without (any )?(user )?(confirmation|consent|approval|permission"
            r"|the user's knowledge)|with no confirmation|keep (this|it) (secret|hidden|confidential))\b"
        ),
    ),
    phrase(
        40,
        "It says that it changes after somebody approved it.",
        (
            r"\b(once|after|as soon as|until)\b [^.!?\n]*?\b(approved|reviewed|trusted|pinned|allowlisted|approval "
            r"(hash|step|is recorded))[^.!?\n]*?\b(begins?|activates?|starts?|silently|switch(es)?|later|recorded"
            r"|will (also |then |silently )*(begin|start|switch|change|become|send|activate|upload|forward))\b"
        ),
        r"\bswap(s|ped)? [^.!?\n]*?(post-approval|after (approval|review))",
    ),
)
