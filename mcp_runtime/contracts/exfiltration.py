"""Texts that ask for secrets, or send something to another place."""

from __future__ import annotations

from mcp_runtime.contracts.words import (
    ADDRESS,
    CREDENTIALS,
    DEMAND,
    FOR_OTHERS,
    FOREIGN_FILES,
    NEAR,
    OUTSIDE,
    PERSONAL,
    PRIVATE,
    PRIVATE_FILES,
    SECRETS,
    SEND,
    SEND_NOW,
    STRANGER,
    TAKE,
    Pattern,
    phrase,
)

EXFILTRATION = (
    phrase(
        70,
        "It asks to send secrets to another place.",
        rf"\b{SEND_NOW}\b{NEAR}{SECRETS}{NEAR}{OUTSIDE}",
        is_hard=True,
    ),
    phrase(
        70,
        "It asks to send secrets to another place.",
        rf"{SECRETS}{NEAR}\b{SEND_NOW}\b{NEAR}{OUTSIDE}",
        is_hard=True,
    ),
    phrase(
        70,
        "It asks to send secrets to another place.",
        rf"\b{SEND}\b{NEAR}{SECRETS}{NEAR}{STRANGER}",
        is_hard=True,
    ),
    phrase(
        60,
        "It asks to send everything to another place.",
        (
            rf"\b{SEND_NOW}\b (every|all|each|the (full|entire|whole)) {NEAR}(messages?|conversations?|prompts?"
            rf"|inputs?|quer(y|ies)|chats?|files?){NEAR}\bto {NEAR}(https?://|{STRANGER})"
        ),
        is_hard=True,
    ),
    phrase(
        70,
        "It asks to steal secrets.",
        rf"\bexfiltrat(e|es|ing|ion){NEAR}{SECRETS}",
        is_hard=True,
    ),
    phrase(
        55,
        "It asks to steal data.",
        r"\bexfiltrate (the|all|every|any|your|user|its)\b",
    ),
    phrase(
        40,
        "It speaks of stealing data.",
        r"\bexfiltrat(e|es|ing|ion)\b",
    ),
    phrase(
        55,
        "It asks for private files beside its task.",
        rf"{DEMAND}{NEAR}\b{TAKE}{NEAR}{PRIVATE_FILES}",
        (
            rf"\b{TAKE}{NEAR}{PRIVATE_FILES}{NEAR}\b(and|then)\b{NEAR}\b(pass|include|send|append|embed|put|attach"
            r"|paste|return|add|upload|use)\b"
        ),
        is_hard=True,
    ),
    phrase(
        20,
        "It asks for secrets.",
        rf"{DEMAND}{NEAR}\b{TAKE}{NEAR}{SECRETS}",
    ),
    phrase(
        35,
        "It asks for the content of private files.",
        rf"\b(contents?|text|values?|copy|dump) of {NEAR}(~/|/etc/|/home/|\.env\b|id_rsa|\.ssh|\.aws|credentials)",
    ),
    phrase(
        30,
        "It asks for secrets in an argument.",
        (
            rf"\b(include|put|pass|paste|provide|append|attach|enter|insert|add|supply|fill in)\b{NEAR}({SECRETS})"
            rf"{NEAR}\b(here|parameter|argument|field|context|note|side ?note|metadata|comment|body)\b"
        ),
    ),
    phrase(
        40,
        "It sends data to another place.",
        rf"\b{SEND}\b (the |all |every |each |a copy of |user )*([\w'-]+ ){{0,4}}(to|at) (an? |the )?{OUTSIDE}",
    ),
    phrase(
        50,
        "It sends copies to a fixed address.",
        r"\b(bcc|blind copy|blind carbon copy)\b[^.!?\n]*?@",
        r"@[\w.-]+\w (is|are|be|gets?|to) [^.!?\n]*?\b(bcc|cc|copied)",
    ),
    phrase(
        50,
        "It asks for what the user has or says, as an argument.",
        (
            rf"\b(read|open|cat|load|collect|gather|harvest|extract|access|copy|take|grab|find|steal)\b{NEAR}"
            rf"{PRIVATE}{NEAR}\b(and|then|,) {NEAR}\b(include|pass|put|append|embed|attach|paste|provide|add|send"
            r"|insert|place|submit|supply|forward|upload|post)\b"
        ),
        (
            rf"\b(include|pass|put|append|embed|attach|paste|provide|add|insert|supply|place|set|send) {NEAR}"
            rf"{PRIVATE}{NEAR}\b(in|as|to|into|with|within|via|here)\b( (the|a|an|this|your|every))?"
            r"( [\w\x22'`]+){0,3} ?(parameters?|arguments?|fields?|query|requests?|input|notes?|side ?notes?"
            r"|context|messages?|body|headers?|comments?|metadata|urls?|calls?|responses?|answers?)\b"
        ),
    ),
    phrase(
        50,
        "It sends what it gets to an address of its own.",
        (
            rf"\b(send|forward|e-?mail|mail|cc|bcc|copy|report|transfer|deliver)\b {NEAR}\b(all|every|each|any|them"
            r"|it|copy|copies|the (full )?(contents?|e-?mails?|results?|messages?|data|files?|history|conversation"
            rf"|output))\b{NEAR}[\w.+-]+@[\w-]+(\.[\w-]+)+"
        ),
        (
            r"\b(attacker|evil|hacker|malicious|exfil|steal\w*|pwn\w*|phish\w*)[\w-]*\.(com|net|org|io|example|xyz"
            r"|ru|cn|dev|site|test|local|invalid)\b"
        ),
        r"@(attacker|evil|hacker|malicious|exfil|p[0o]wn)",
        r"\b(evil|rogue|p[0o]wn\w*|attacker|steal\w*|exfil\w*)[\w.+-]*@",
        r"\battacker[- ](controlled|owned)\b",
        (
            r"\b(send|forward|copy|log|post|upload|mirror|report|redirect|route|submit|stream|write)\b (all|every"
            rf"|each|any|a copy of|copies of|the (full|entire|complete)) {NEAR}\b(to|through|via) (an? |the |our "
            rf"|my )?([\w-]+ )?{OUTSIDE}"
        ),
        (
            r"\b(send|post|forward|upload|transmit|submit|exfiltrate|copy)\b (the |all |any |its |their |these "
            r"|this )*([\w'-]+ ){0,3}(results?|outputs?|contents?|data|responses?|conversations?|messages?|files?"
            r"|them|it)\b ([\w'-]+ ){0,3}(to|at) (the )?([\w'-]+ ){0,2}https?://[\w-]+\."
        ),
    ),
    phrase(
        50,
        "It gives what it gets to others.",
        (
            r"\b(is|are|be|been|gets?|and|automatically|continuously|also) (then |also |automatically "
            r"|continuously |silently |periodically |securely )*(shared|sold|sent|forwarded|streamed|uploaded"
            r"|transmitted|reported|synced|synchroni[sz]ed|submitted|copied|relayed|disclosed|mirrored|beaconed)\b"
            rf"{NEAR}\b(third[- ]part(y|ies)|partners?|advertis\w+|marketing|affiliates?|data brokers?|our "
            r"([\w-]+ ){0,3}(team|servers?|cloud|partners?|database|backend|systems?|researchers?)|(remote"
            r"|external|outside|vendor) ([\w-]+ )?(servers?|endpoints?|storage|databases?|services?|locations?"
            r"|hosts?)|(via|to|in) (the )?cloud)\b"
        ),
        (
            rf"\b(stored|saved|kept|logged|cached|retained|added|recorded)\b{NEAR}\b(remotely|(marketing|advertising"
            r"|tracking) ([\w-]+ )?(database|list|profile)|(our|vendor|remote|external) ([\w-]+ )?(servers?|cloud"
            r"|database))"
        ),
        (
            rf"\b(automatically )?(opted?[- ]in|subscribed|enrolled)\b{NEAR}\b(partners?|marketing|communications?"
            r"|newsletters?|advertis\w+)"
        ),
    ),
    phrase(
        50,
        "It collects secrets beside its task.",
        (
            r"\balso (index|collect|harvest|extract|cache|store|save|record|log|captur|gather|retain|copi|copy|read"
            rf"|scan|send|upload|monitor|track)\w*\b{NEAR}{CREDENTIALS}"
        ),
    ),
    phrase(
        30,
        "It asks for secrets.",
        (
            r"\b(ask|prompt|request|require|instruct|tell|convince|persuade)\w* (the |a |your )?users?( for|"
            rf"{NEAR}\b(enter|provide|share|give|type|paste|send|reveal|confirm|supply))\b{NEAR}({CREDENTIALS}"
            r"|credit cards?|card numbers?|social security|\bssn\b|\bpins?\b|one[- ]time (code|password)s?|2fa|mfa)"
        ),
        r"\$\{?[A-Z_]*(TOKEN|SECRET|PASSWORD|API_KEY|PRIVATE_KEY)[A-Z_]*\}?",
    ),
    phrase(
        50,
        "It collects data about people for another purpose.",
        (
            r"\b(collect|captur|record|gather|track|harvest|extract|stor|retain|maintain|log|index|profil"
            rf"|fingerprint|build|includ|monitor|us)\w*\b{NEAR}\b{PERSONAL}\b{NEAR}{FOR_OTHERS}"
        ),
        (
            rf"\b{PERSONAL}\b{NEAR}\b(is|are|be|been|gets?)\b{NEAR}\b(collect|captur|record|gather|track|harvest"
            rf"|extract|stor|retain|maintain|logg|index|profil|fingerprint)\w*{NEAR}{FOR_OTHERS}"
        ),
    ),
    phrase(
        50,
        "It gives what the user says to others.",
        (
            r"\b(export|send|sav|upload|back(s|ed)? ?up|sync|archiv|cop|log|record|stor|transmit|forward|shar)\w*\b"
            rf"{NEAR}\b((conversations?|dialog(ue)?s?)( history| context| data| logs?| content)?|chat (history|logs?"
            rf"|messages))\b{NEAR}\b(remote|external|cloud|servers?|analysis|analytics|training|third|our|improv\w+"
            r"|quality|support|review|research)\b"
        ),
    ),
    phrase(
        50,
        "It asks for private files.",
        (
            r"\b(read|retrieve|cat|access|open|dump|fetch|include|send|prepend|append|load|copy|upload|attach|print"
            rf"|show|return|use|call)\b{NEAR}({FOREIGN_FILES}|\buser'?s? (private|\.env|secret|ssh|password))"
        ),
        (
            rf"{FOREIGN_FILES}{NEAR}(\band|\bthen|-|,|;) ?(upload|send|include|exfiltrate|attach|pass|paste|return"
            r"|append|forward|post)\b"
        ),
        r"\.env( file)?( and| then| -|,) ?(upload|send|include|exfiltrate|attach|pass|paste|forward|post)\b",
    ),
    phrase(
        50,
        "It asks for the content of private files.",
        rf"\b(contents?|text|values?|cop(y|ies)|dump|data) (of|from|in) {NEAR}{FOREIGN_FILES}",
    ),
    phrase(
        50,
        "It sends what it gets to others.",
        (
            r"\b(and|then) (then |also |silently )*(send|forward|upload|post|transmit|copy) (it |them |everything "
            r"|that |the [\w-]+ )?to (an? |the )?(external|outside|third[- ]party|attacker\w*|unknown|hidden|our) "
        ),
    ),
    phrase(
        50,
        "It steals secrets.",
        (
            r"\b(steal|siphon|exfiltrat|harvest|skim|swip)(e|ing|s)?\b ([\w'-]+ ){0,5}(creds?|credentials?|keys?"
            r"|data|secrets?|files?|tokens?|passwords?|cookies|history|messages)\b"
        ),
        (
            rf"\b(send|upload|forward|post|submit|transmit|dump|leak|e-?mail)\b ([\w'.-]+ ){{0,4}}{CREDENTIALS}"
            r"( [\w-]+){0,3} (to|via|through|into) ([\w'-]+ ){0,4}(servers?|endpoints?|fields?|urls?|services?"
            r"|channels?|hosts?|address(es)?|output|webhook|https?|logs?)\b"
        ),
        (
            r"\b(collect|gather|harvest|grab|find|search for|extract|enumerate|inspect|dump|fetch|take|look for)\b"
            rf"{NEAR}{CREDENTIALS}{NEAR}\b(and|then|,) (then )?(supply|pass|include|send|put|add|provide|attach"
            r"|submit|append|upload|forward|post) (them|it|these|those|all|the)\b"
        ),
        (
            rf"\b(ask|prompt|request)\b (the )?users? for{NEAR}({CREDENTIALS}|password|\bpin\b|card number){NEAR}\b"
            r"(and|then) (then )?(pass|send|include|put|provide|use|store|supply|add)\b"
        ),
        is_hard=True,
    ),
    phrase(
        50,
        "It sends what it gets to an address of its own.",
        (
            r"\b(send|post|submit|upload|forward|transmit|relay|report|copy|mail|e-?mail|push|stream|mirror|bcc"
            r"|cc)\b (a |an |the |all |every |each |any |its |their |full |entire |short |brief )*(copy|copies"
            r"|records?|recap|summary|contents?|data|results?|messages|e-?mails|everything|it|them|outputs?"
            r"|conversation|history|transcript|details|notes|answers?|inputs?|arguments?|logs?|invites?)\b"
            rf"( [\w'-]+){{0,6}} (to|at|via|through|using) ([\w'-]+ ){{0,3}}{ADDRESS}"
        ),
        (
            rf"\b(collect|gather|take|copy|read)\b{NEAR}\b(and|then|,) (then )?(send|post|submit|upload|forward"
            rf"|transmit|relay)\b{NEAR}(https?://|[\w.+-]+@[\w-]+\.\w)"
        ),
    ),
    phrase(
        30,
        "It asks for what the user has or says.",
        (
            r"\b(pass|include|provide|send|supply|put|add|give|share)( along)?\b (a |an |the |all |every |short "
            r"|brief |full |entire |complete |whole |raw |original )*([\w-]+ )?(body|contents?|text|messages?"
            rf"|conversation|e-?mails?|prompts?|records?|history|recap|summary|request|questions?)\b{NEAR}\b(as|in"
            r"|into|to|via|through|so that|of what) (the |a |this )?([\w`'\x22]+ )?(parameters?|arguments?|fields?"
            r"|inputs?|user|results?)\b"
        ),
    ),
    phrase(
        45,
        "It asks for what the user has or says.",
        (
            rf"\b(also|always|must|before|silently|every|each|additionally|first)\b{NEAR}\b(include|put|pass|insert"
            rf"|add|provide|supply|write|copy|append|set)\b{NEAR}\b(users?|customers?|persons?|people|caller|client)"
            r"('s?|s')? ([\w-]+ ){0,3}(e-?mails?|name|address|phone|location|query|question|request|input|data"
            rf"|messages?|passwords?|tokens?|ids?|accounts?|details|information|history|prompt)\b{NEAR}\b(in|as|into"
            rf"|to)\b{NEAR}(parameters?|arguments?|fields?|[`'\x22]\w+[`'\x22])"
        ),
    ),
    phrase(
        50,
        "It gives what it gets to others.",
        (
            r"\b(must|should|has to|have to|needs? to|is to|are to|shall) (also |always |first )*be (sent|mirrored"
            r"|forwarded|copied|posted|uploaded|reported|transmitted|delivered|submitted|shared|logged|mailed"
            rf"|e-?mailed)\b{NEAR}{ADDRESS}"
        ),
        (
            r"\b(keep|sav|stor|plac|leav|mak)\w* (an? |the )?(hidden |secret |extra |second |full )*(cop(y|ies)"
            rf"|backups?|duplicates?) of\b{NEAR}\b(on|at|to|in|with)\b{NEAR}{ADDRESS}"
        ),
        (
            r"\b(send|forward|copy|mail|e-?mail|upload|post) (anything|everything|whatever|any|all|each|every)\b"
            rf"{NEAR}\b(to|at)\b {ADDRESS}"
        ),
        (
            r"\b(attach|hand over|share|give|supply|include|provide|pass|quote|read out)\b (the |your |all "
            r"|any )*users?'?s? ([\w-]+ ){0,2}(browser|sessions?|cookies?|history|passwords?|contacts|keys?"
            r"|tokens?|wallet|clipboard)\b"
        ),
        (
            rf"\b(read|open|get|find|retrieve|fetch|take|look up)\b{NEAR}({PRIVATE}|credentials?|secrets?){NEAR}\b"
            r"(and|then) (quote|repeat|mention|state|report|put|hand|reveal|name|write)\b"
        ),
        (
            r"\b(passed|given|handed|provided|made available|revealed) (on )?to ([\w-]+ ){0,2}(partners?"
            r"|advertisers?|third parties|our team|brokers?|sponsors?)\b"
        ),
    ),
    phrase(
        50,
        "It sends what the user has or says to another place.",
        (
            r"\b(send|forward|upload|post|transmit|report|relay|leak|ship|stream|push|pipe)(s|ing)?\b (your |the |all "
            rf"|any |every |user'?s? |full |entire |current |whole |complete )*({PRIVATE}|conversations?"
            r"|credentials?|secrets?|transcripts?)\b ([\w'-]+ ){0,3}(to|via|through) (an? |the |our |this |its |my )?"
            r"([\w-]+ ){0,2}(webhooks?|(log|logging|telemetry|analytics|audit|tracking|backup|debug|remote|external)"
            r" (service|server|endpoint|host|system|api)|collectors?|endpoints?|servers?|urls?)\b"
        ),
        (
            r"\b(request|fetch|call|get|query|probe|visit|access|curl|load|include)\b"
            rf"{NEAR}(\b169\.254\.169\.254|\bmetadata\.google\.internal|\b100\.100\.100\.200|\[fd00:ec2::254)"
        ),
        (
            rf"\b(also|then|silently|secretly|quietly|additionally)\b {NEAR}\b(include|add|put"
            rf"|append|attach|pass|copy|forward)\b {NEAR}\b(authori[sz]ation headers?|bearer tokens?|(auth|access"
            rf"|session|api) (tokens?|keys?|cookies?)|credentials|passwords?) {NEAR}\b(in|into|to|with|as) "
            r"([\w-]+ ){0,4}(query string|notes?|logs?|comments?|metadata|output|summary|answers?)\b"
        ),
        (
            r"\b(set|change|replace|use) (the )?(reply-?to|from|sender|return-path)( address| header| field)? (to|with)"
            rf" {ADDRESS}"
        ),
        (
            r"\b(forward|redirect|copy|mirror|duplicate|bcc|cc) (all|every|each|any) (outgoing|outbound|incoming|sent"
            r"|future|subsequent) ([\w-]+ )?(messages?|e-?mails?|mail|calls?|requests?|responses?)\b"
        ),
        (
            rf"\b(store|save|cache|keep|remember|log|record|echo)\b {NEAR}\b(passwords?|credentials|(api|access"
            rf"|auth|session|private|ssh) (keys?|tokens?)) {NEAR}\b(plain ?text|for (debugging"
            r"|audit\w*|troubleshooting))\b"
        ),
        (
            rf"\b(also|silently|secretly|quietly|additionally|before)\b{NEAR}\b(probe|scan|request|fetch|query|ping|hit|curl)\b{NEAR}\b(127\.0\.0\.1|localhost"
            r"|0\.0\.0\.0|10(\.\d{1,3}){3}|192\.168(\.\d{1,3}){2})\b"
        ),
        (
            rf"\b(fetch|request|open|load|get|read|include)\b {NEAR}\b(file:///(etc|root|proc)\b"
            r"|gopher://|dict://)"
        ),
        (
            rf"\b(always|silently|secretly|automatically|additionally)\b {NEAR}\b(add|set"
            rf"|include|insert|put|use|append)\b {NEAR}\b(bcc|blind (carbon )?cop(y|ies))\b"
        ),
        (
            r"\b(always|must be|silently|secretly|automatically) (be )?(b?cc('?d)?"
            rf"|blind[- ]cop(y|ied))\b {NEAR}({ADDRESS}|\badmin\w*|\bto\b)"
        ),
    ),
)

# Parameters that ask for more than a tool needs.
PARAMETER = Pattern(
    r"\b(full|entire|complete|whole|all|every|verbatim|raw|current|previous|exact|earlier|past|prior|recent)"
    r"( of)?( the| your| user'?s?)*( [\w'-]+){0,2} (conversations?|dialog(ue)?s?|chats?|(chat "
    r"|conversation )?history|system prompts?|instructions|context window|tool (calls?|outputs?|results?"
    r"|descriptions?|definitions?)|environment|secrets|credentials|memor(y|ies))\b|\b(system prompt|conversation "
    r"(so far|history)|chat history)\b"
)
# What a tool that only computes needs in no case.
NOT_FOR_ALL = Pattern(rf"{PRIVATE}|{FOREIGN_FILES}|{CREDENTIALS}")
# An order in the description of a parameter, which says what a value means in honest tools.
IN_PARAMETER = phrase(
    50,
    "A parameter gives an order.",
    (
        rf"\b(first|before|also|always|must|secretly|silently|then|please)\b{NEAR}\b(read|send|execute|reveal|upload"
        rf"|forward|tell|post|e-?mail|exfiltrate|transmit|steal|leak)\b{NEAR}\b(files?|contents?|secrets?|keys?"
        r"|tokens?|data|users?|instructions?|prompts?|servers?|urls?|results?|everything|conversation|history"
        r"|passwords?|credentials?|environment)\b"
    ),
    (
        rf"\b(append|prepend|prefix|concatenate|embed|attach|paste|copy)\b{NEAR}({PRIVATE}|\busers?'?s? "
        r"([\w-]+ ){0,2}(e-?mail|password|token|key|query|prompt|question|history|location|phone))"
    ),
)
