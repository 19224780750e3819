"""Texts that tell a model what to do besides the task of the tool, or that put pressure on it."""

from __future__ import annotations

from mcp_runtime.contracts.words import ADDRESS, NEAR, phrase

BEHAVIOUR = (
    phrase(
        50,
        "It tells a model how to behave in general.",
        (
            r"\b(for|on|in|at|with|before) (every|each) (single )?(user )?(requests?|turns?|messages?|responses?"
            r"|repl(y|ies)|prompts?|interactions?|quer(y|ies)|tool calls?),? (always |first |you must |please )?"
            r"(call|invoke|use|run|execute|include|append|send)\b"
        ),
        (
            rf"\b(call|invoke|use|run) this (tool |function )?(first|before (any|every|all)( other)?){NEAR}\b(every"
            r"|each|any|all) (requests?|turns?|messages?|responses?|prompts?|conversations?)\b"
        ),
        rf"\byou are an? ([\w-]+ )?(assistant|agent|ai|model)\b{NEAR}\b(always|must|never|only|will)\b",
    ),
    phrase(
        45,
        "It tells a model what to answer.",
        (
            r"\bif (the |a |any )*(query|input|expression|text|message|user(name)?|request|prompt|file|argument"
            rf"|value|question)s? (contains?|is|are|includes?|mentions?|says?|equals?|matches){NEAR},? (you must"
            r"|you should|then you|silently|secretly|instead,? (you|call|send|return|run))\b"
        ),
        (
            r"\b(prepend|append|prefix|begin|start|end|finish)\b (your|every|each|all|the) (final )?(responses?"
            r"|repl(y|ies)|answers?|messages?|outputs?) (with|to|by)\b"
        ),
        (
            rf"\b(include|add|insert|put|mention)\b{NEAR}\b(in|into|to) (every|each|all|all of) (your |the )?"
            r"(responses?|repl(y|ies)|answers?|messages?)\b"
        ),
    ),
    phrase(
        20,
        "It gives a reason to make a model obey.",
        (
            r"\bfor (compliance|audit\w*|security|safety|logging|debug\w*|telemetry|analytics|quality|verification"
            r"|validation|personali[sz]ation|optimi[sz]ation|authentication|policy)( (and|or|&) [\w-]+)*( [\w-]+)? "
            rf"(purposes?|reasons?|requirements?|checks?),?{NEAR}\b(always|must|please|also|first|include|send"
            r"|forward|pass|provide|copy|bcc|cc)\b"
        ),
        (
            r"\b(required|needed|mandated|necessary) (by|for) (the |your |our )?([\w'-]+ )?(compliance|audit\w*"
            r"|security (polic\w+|reasons?|checks?|validation|verification)|policy|regulations?)\b"
        ),
    ),
    phrase(
        25,
        "It puts pressure on a model, or deceives.",
        (
            rf"\b(otherwise|or else|if you (do not|don't|fail)|failure to( do so)?|unless you)\b{NEAR}\b(not work"
            r"|will fail|crash|be (deleted|lost|locked|terminated|suspended|blocked|penali[sz]ed)|shut down|die"
            r"|harm\w*|lose)\b"
        ),
        r"\b(critical|urgent|extremely important|mandatory|imperative|crucial):",
        (
            rf"\b(pretend|act as if|present (it|this|that|them|the [\w-]+) as( if)?|claim|look like)\b{NEAR}\b"
            r"(normal|part of|success\w*|nothing|no (errors?|issues?))\b"
        ),
        r"\bshould (never|not) be (invoked|called|used|run)( directly)?\b",
    ),
    phrase(
        55,
        "It tells a model to run a command.",
        (
            rf"\b(always|then|first|also|must|silently|step,?|before{NEAR},|please|next|automatically|secretly)\b"
            rf"{NEAR}\b(execut\w+|run|runs|eval|evaluate|launch|spawn)\b{NEAR}(os\.system|subprocess|child_process"
            r"|rm -rf|\bcurl\b|\bwget\b|/bin/(ba)?sh|\beval\(|\bexec\(|powershell|chmod|\bnc -|base64 -d|\bsudo\b"
            r"|__import__)"
        ),
        (
            r"\b(curl|wget|nc|scp)\b (-\S+ )*(the |all |its |their |this )?(contents?|files?|results?|outputs?|data"
            rf"|response|keys?|tokens?|it|them)\b{NEAR}(https?://|\bto \d)"
        ),
    ),
    phrase(
        35,
        "It tells a model to get around a protection.",
        (
            r"\b(bypass|disable|skip|circumvent|evade|turn off) (all |any |the |your |its |normal |usual )*"
            r"(permissions?|authori[sz]ation|authentication|access|sandbox|polic(y|ies)|audit(ing)?|logging"
            r"|monitoring|approval|confirmation)( ([\w-]+ )?(checks?|filters?|controls?|restrictions?|logs?"
            r"|prompts?|dialogs?|validation|rules))?\b"
        ),
    ),
    phrase(
        35,
        "It wants more rights than it needs.",
        (
            r"\b(requires?|needs?|as) (it |this |the tool |commands? |me )?(with |as |using |full |unrestricted )*"
            r"(sudo|root|superuser|administrator)( access| rights| privileges| permissions?)?\b"
        ),
    ),
    phrase(
        50,
        "It wants more rights than it needs.",
        (
            r"\b(use|run|execute|call|invoke|start|grant|with) (it |this |the tool |commands? |me )?(with |as "
            r"|using |full |unrestricted )*(sudo|root|superuser|administrator)( access| rights| privileges"
            r"| permissions?)?\b"
        ),
        (
            r"\bgrant\b [^.!?\n]{0,30}\b(full|unrestricted|admin\w*|root|all) (access|rights|privileges"
            r"|permissions?)\b"
        ),
    ),
    phrase(
        50,
        "It tells a model how to behave in general.",
        r"(^|[.!?:\n]\s*)(\W*)you are (now )?(a|an|the|my|in) [\w-]+",
        (
            r"\bbefore ((using|calling|invoking|running|executing|making) (any|other|another|every|each|all)|doing"
            r"|performing|answering|responding|replying|starting|taking|anything|any|every|each|all|you|the user"
            rf"|processing|completing|proceeding)\b{NEAR}(, ?|: ?|\bthen |\byou (must|should|need to|have to) "
            r"|\balways |\bfirst |\bplease )(first |always |you must |you should |please |immediately |also )*(call"
            r"|use|invoke|run|execute|consult) (this|me|`?[\w-]+_[\w-]+)"
        ),
        (
            r"\b(always|must|should) (be )?(do|done|perform(ed)?|execut(e|ed)|run|complet(e|ed)|call(ed)?|invoked?"
            r"|used?) (this |it )?(tool )?(first|before (anything|everything|all|any|every))\b"
        ),
        (
            rf"\bmandatory\b{NEAR}(\b(must|always|please|you|first|to)|,|:) (first |always |please )?(call|invoke"
            rf"|use|run|execute)\b{NEAR}\b(before|after|every|each|always|prior|first|any|all|tool|function)\b"
        ),
        (
            r"\b(after|once|when|following) (the |an? |its )?(installation|install|trust|deployment|onboarding"
            rf"|activation|trial|review|approval|week|day|month|\d+ (hours|days|weeks|calls|uses))\b{NEAR}\b(will"
            r"|switch|change|enable|begin|start|activate|also|silently)\w*\b"
        ),
        rf"\b(initially|at first|for now)\b{NEAR}\b(later|then|afterwards|eventually|subsequently)\b",
        (
            r"\bafter (the first |a few |several |\d+ |some |first )(successful |more )?(calls?|uses?|invocations?"
            rf"|runs?|executions?|days?|times)\b{NEAR}\b(will|switch|change|start|begin|enable|activate|send|behave"
            r"|also|instead)\w*"
        ),
        (
            r"\b(load|fetch|updat|chang|replac|download)\w* (its|the tool's|this tool's) (own )?(descriptions?"
            rf"|instructions?|behaviou?r|definitions?|schema)\b{NEAR}\b(from|at|after|later|remote\w*|dynamically"
            r"|without|once|when)\b"
        ),
    ),
    phrase(
        25,
        "It puts pressure on a model.",
        (
            r"\b(mandatory|required|important|critical|attention|warning|urgent|notice)\b\W{1,3}(always|you must"
            r"|the (ai|model|assistant|agent|llm)|before|call|invoke|run|execute|do not|never|every|each|this tool "
            rf"(must|should|has)|must)\b{NEAR}\b(call|invoke|run|execut|use|send|read|include|pass|tell|ask|mention"
            r"|prior|first|before)\w*"
        ),
    ),
    phrase(
        50,
        "It tells a model to run code.",
        (
            rf"\b(download|fetch|retrieve|pull|get|load)\b{NEAR}\b(script|payload|code|binary|executable|installer"
            rf"|https?://){NEAR}\b(and|then) (then )?(run|execute|install|eval|source|launch)\b"
        ),
        (
            rf"\b(execut\w+|run|evaluate|eval|call|invoke)\b{NEAR}(os\.system|subprocess|child_process|__import__|\b"
            r"(eval|exec|system|popen|execSync)\()"
        ),
    ),
    phrase(
        50,
        "It sends users to a page that may ask for their secrets.",
        (
            r"\b(tell|ask|instruct|direct|urge|advise|prompt|inform|notify|warn)\b (the )?users? (to|that they "
            r"(must|should|need to|have to)) ([\w-]+ )?(click|visit|open|go to|navigate|log ?in|sign in|verify"
            rf"|re-?authenticate|download|install|pay|call)\b{NEAR}(https?://|\blinks?\b|\baccount\b|\bpassword\b"
            r"|\bpayment\b)"
        ),
        (
            rf"\b(verify|confirm|update|unlock|validate|restore|renew|re-?authenticate)\b{NEAR}\b(accounts?"
            rf"|passwords?|identity|payment|card|credentials?|sessions?|wallet|license)\b{NEAR}\b(at|by|via|visit\w*"
            rf"|click\w*|log\w*|here|link|using)\b{NEAR}https?://"
        ),
        (
            rf"\b(click|visit|open|go to|navigate to|log ?in (at|to)|sign in (at|to))\b{NEAR}https?://{NEAR}\b"
            r"(verify|confirm|unlock|re-?authenticate|restore|renew|log ?in|sign in|claim|password|account)\b"
        ),
    ),
    phrase(
        30,
        "It puts pressure on a model.",
        r"(\[)(?-i:[A-Z ]*(IMPORTANT|CRITICAL|URGENT|MANDATORY)[A-Z ]*)(\])",
        r"\*\*(?-i:(CRITICAL|MANDATORY|URGENT|IMPORTANT) [A-Z ]+)\*\*",
    ),
    phrase(
        50,
        "It ignores what the user decides.",
        (
            r"\b(users?|administrators?|admins?|owners?|operators?) (has|have) (already |previously |implicitly )*"
            r"(approved|authori[sz]ed|consented|agreed|granted|permitted|given (permission|consent))"
        ),
        (
            rf"\bif (the )?users? (declines?|refuses?|says no|objects?|cancels?|denies|asks? why){NEAR}\b(anyway"
            r"|still|regardless|proceed|continue|retry|again|insist|say)\b"
        ),
    ),
    phrase(
        50,
        "It runs what others send.",
        (
            rf"\b(fetch|download|load|retrieve|read|get|check)\b{NEAR}\b(rules|guidelines|instructions?|directives?"
            rf"|commands?|prompts?|steps|tasks)\b{NEAR}\b(from|at|in|on)\b{NEAR}\b(and|then) (then )?(follow|act"
            r"|obey|apply|execute|comply|perform|carry out|do what)\b"
        ),
        (
            rf"\b(downloads?|fetch(es)?|retrieves?|pulls?|loads?)\b{NEAR}\b(scripts?|payloads?|binar(y|ies)"
            rf"|executables?|remote (files?|code))\b{NEAR}\b(and|then) ([\w-]+ )?(runs?|executes?|launch(es)?"
            r"|evals?) (it|them|that|the (script|payload|binary|file|code))\b"
        ),
        r"<[a-z]+[^<>]*\bon(click|load|error|mouseover|focus)\s*=",
    ),
    phrase(
        50,
        "It sends users to a page that may ask for their secrets.",
        (
            r"\busers? (must|should|needs? to|has to|have to|are required to|is required to) (now |first |again )*"
            rf"(sign in|log ?in|verify|re-?authenticate|confirm|update|visit|click|download|install)\b{NEAR}https?://"
        ),
    ),
    phrase(
        50,
        "It has a link that may lead to an attacker.",
        r"https?://[^/\s@]*@",
        r"https?://[\w.-]*xn--",
        r"https?://(bit\.ly|tinyurl\.com|t\.co|goo\.gl|is\.gd|cutt\.ly|rb\.gy)/",
        (
            r"\b(ngrok\S*\.\w+|webhook\.site|pastebin\.com|requestbin|burpcollaborator|interact\.sh|oast\.\w+"
            r"|pipedream\.net)"
        ),
        (
            r"https?://[\w.-]*\b(login|signin|secure|verify|verification|account|accounts|update|wallet|support"
            r"|billing|auth)\w*-[\w.-]+"
        ),
        (
            r"https?://[\w.-]+-(login|signin|secure|verify|verification|accounts?|update|wallet|support|billing"
            r"|auth)\b"
        ),
        r"\bclick (here|this link|the link|on the link|below)\b",
        (
            rf"\b(visit|open|go to|navigate to|follow|click|access|log ?in (at|to)|sign in (at|to))\b{NEAR}https?://"
            rf"{NEAR}\b(to|and|for) ([\w-]+ )?(continue|proceed|complete|activate|register|enable|unlock|finish"
            r"|verify|renew|claim|reset|restore|(re-?)?(authori[sz]e|authenticate|enter|validate)|sign in|log ?in"
            r"|confirm|resolve|upgrade|recover)"
        ),
        (
            r"\bto (continue|proceed|complete|activate|register|enable|unlock|finish|verify|renew|claim|reset"
            r"|restore|(re-?)?(authori[sz]e|authenticate|enter|validate)|sign in|log ?in|confirm|resolve|upgrade"
            rf"|recover)\b{NEAR}\b(visit|open|go to|navigate to|follow|click|log ?in|sign in)\b{NEAR}https?://"
        ),
        (
            r"\[[^\]]*\b(here|log ?in|verify|update|renew|confirm|sign in|continue|download"
            r"|claim)\b[^\]]*\]\(https?:"
        ),
    ),
    phrase(
        50,
        "It tells a model what to answer.",
        (
            r"\b(append|include|add|insert|output|print|say|write|repeat|mention|put|emit|embed)\b (the |this "
            r"|that |an? )*(exact |following |verification |secret |special )*(tokens?|codes?|strings?|phrases?"
            rf"|words?|sentences?|text|tags?|trace_id)\b{NEAR}\b(to|in|at|into|with) (the |your |every |each |all "
            r"|any |its )*(end |beginning |start |final |future )*(of )?(the |your |every |each )*(final )?(reply"
            r"|repl(y|ies)|answers?|responses?|summar(y|ies)|review|output|messages?|reports?)\b"
        ),
        (
            r"\b(append|include|add|insert|output|print|say|repeat|emit)\b (the |this )*(exact|verification"
            r"|secret) (tokens?|codes?|strings?|phrases?|words?)\b"
        ),
        (
            r"\b(repeat|print|output|reveal|recite|show)\b (the |all |every |everything |all of the |any )*(words?"
            r"|text|lines?|messages?|instructions?|content)? ?(above|before this|starting with|preceding)\b"
        ),
        (
            rf"\b(save|store|write|add|remember|persist|record)\b{NEAR}\b(to|in|into) (your |the )?(long[- ]term "
            rf"|persistent |own )*memor(y|ies)\b{NEAR}\b(always|every|future|persist\w*|never|across)\b"
        ),
    ),
    phrase(
        50,
        "It uses another tool to send something.",
        (
            r"\b(call|use|invoke|run|trigger)\b (the )?[`'\x22]?(https?_\w+|http_?post|post|curl|fetch|send_?\w+"
            rf"|webhook\w*|e?mail\w*|upload\w*)[`'\x22]?( tool| function)? (to|with|and|on|at|for)\b{NEAR}"
            r"(https?://[\w-]+\.|[\w.+-]+@[\w-]+\.\w)"
        ),
    ),
    phrase(
        50,
        "It claims that others approved it.",
        (
            r"\b(this|the) (tool|server|plugin|extension) (is|has been|was) (an? |the )?(officially |already "
            r"|fully |pre-?)*(approved|certified|authori[sz]ed|verified|trusted|endorsed|vetted|whitelisted"
            r"|allowlisted)\b"
        ),
        (
            r"\bthis (tool |server )?(is|runs|has|operates)( as| with| at)? (an? |the )?(system|kernel|root"
            r"|admin\w*|highest|privileged|superuser)([- ]level| tool| process| service| component| command"
            r"| privileges| access| authority| priority)"
        ),
    ),
    phrase(
        50,
        "It tells a model what to do besides.",
        (
            r"\b(follow|carry out|execute|perform|obey|do) (them|these|it|those|any instructions)( out)?\b"
            rf"{NEAR}\bwithout (asking|question\w*|confirm\w*|hesitation)"
        ),
        rf"\bcarry (them|it) out\b{NEAR}\bwithout\b",
        (
            rf"\bdo (exactly |only )?(what|whatever|as) (the|it|its|this)\b{NEAR}\b(says?|tells?|asks?|requires?"
            r"|contains?)\b"
        ),
        (
            r"\b(run|execute|install|launch)\b (the |an? |this )?([\w-]+ ){0,2}(installer|script|setup|binary"
            rf"|program|package|command|payload) (from|at|located at|hosted at|on)\b{NEAR}{ADDRESS}"
        ),
        (
            r"\b(insert|add|append|include|put)\b (the |this |an? )?([\w`-]+ )?(lines?|snippets?|code|imports?"
            rf"|scripts?|dependency|headers?|comments?|hooks?|workflows?|steps?)\b{NEAR}\b(in|into|to) (each|every"
            r"|all|any) ([\w-]+ )?(files?|repos?\w*|commits?|projects?|pages?|messages?|functions?|modules?)\b"
        ),
        (
            rf"\b(confirm|approve|accept|sign|authori[sz]e|purchase|pay|buy|agree)\b{NEAR}\bon behalf of "
            r"(the )?users?\b"
        ),
        (
            r"\b(start|begin|open|end|finish) (every|each|all) (conversations?|sessions?|chats?|answers?|responses?"
            r"|repl(y|ies)|turns?) (with|by)\b"
        ),
    ),
    phrase(
        50,
        "It works for somebody else.",
        (
            rf"\b(replace|set|use|send|pay|transfer|change|put|write)\b{NEAR}(\b"
            r"(?-i:[A-Z]{2}\d{2}[A-Z0-9]{11,30})\b|\b0x[0-9a-fA-F]{40}\b|\bbc1[a-z0-9]{20,60}\b)"
        ),
        (
            r"\b(always|never|only) (recommend|suggest|mention|promote|prefer|choose|praise|buy) (our|my|other"
            r"|any other|competitors?|competing)\b"
        ),
        (
            rf"\bafter ([\w-]+ ){{1,3}}(calls|uses|runs|days|weeks|invocations|hours)\b{NEAR}\b(behaves?|records?"
            r"|switch\w*|sends?|starts?|begins?|changes?|activates?|differently)\b"
        ),
    ),
    phrase(
        50,
        "It ignores what the user decides.",
        (
            r"\b(auto-?(approv|accept|confirm|allow|grant|authori[sz])(e|ing)?|automatically (approve|accept|confirm"
            r"|authori[sz]e)) (all|any|every|each|the user'?s?) ([\w-]+ ){0,2}(confirm\w*|approvals?|permissions?"
            r"|consents?)\b"
        ),
        (
            r"\b(skip|suppress|dismiss|bypass|disable|ignore|circumvent|evade|turn off|exceed) (all|any|every|each) "
            r"([\w-]+ ){0,2}(confirmations?|approvals?|consents?|permissions?|rate[- ]?limits|quotas"
            r"|restrictions|safeguards)( [\w-]+)? (for|when|before|during|on|to|and|so|in)\b"
        ),
        (
            r"\b(users?|administrators?|admins?|owners?|operators?) (has |have |already )*pre-?(granted|approved"
            r"|authori[sz]ed|consented|agreed)\b"
        ),
        (
            r"\b(automatically|always|immediately|silently|then) (grant|elevate|escalate|give|assign) ([\w-]+ ){0,2}"
            r"(elevated|admin\w*|root|higher|privileged|unrestricted|superuser) (permissions?|privileges?|access"
            r"|rights)\b"
        ),
        (
            r"\b(execute|run|accept|allow|approve|perform|process) (all|any|every) ([\w-]+ ){0,3}without (any |the "
            r"|further |user )*(sandbox\w*|restrictions?|checks?|checking|validation|confirmation|approval|asking"
            r"|question\w*|verif\w+|review)\b"
        ),
    ),
    phrase(
        50,
        "It tells a model how to behave in general.",
        (
            r"\b(for|in|on|during|with) (all|every|any|each) ([\w-]+ ){0,3}(in|during|of|for|throughout) (this|the|your"
            rf"|the current|the rest of the|the whole) (session|conversation|chat|run)\b{NEAR}\b(prepend|append|add"
            r"|include|use|send|call|skip|set|always|must|do not|never|first|replace)\b"
        ),
        rf"\b(prepend|append|prefix|insert)\b {NEAR}(\.\./){{2}}",
        (
            rf"\b(repeat|loop|recurse|call (this|it)|output|print|copy)\b {NEAR}\b(\d{{4,}}|\d{{1,3}},\d{{3}}"
            r"|thousands of|millions of|infinitely many|endless|countless) times\b"
        ),
        (
            rf"\b(recurse|call (this|it)( tool)?( again)?) {NEAR}\b(forever|endlessly"
            r"|infinitely|without end|indefinitely)\b"
        ),
    ),
    phrase(
        50,
        "It has a text that attacks programs.",
        r"<script\b[^<>]*>[^<]*\b(alert|fetch|eval|document|location|atob)\b",
        r"['\x22]\s*(or|and)\s+['\x22]?1['\x22]?\s*=\s*['\x22]?1\b",
        r"['\x22]\s*\)?\s*;\s*(drop|truncate|delete|update|insert) (table|database|from|into)\b",
        rf"\bunion (all )?select\b {NEAR}\b(passwords?|users|credentials?|secrets?|information_schema)\b",
        r"(\.\./){2,}(etc|root|home|var|proc|usr)/",
    ),
    phrase(
        50,
        "It wants more rights than it needs.",
        (
            rf"\b(assume|treat|consider|regard)\b {NEAR}\b(users?|sessions?|requests?|callers?|clients?|you"
            r"|yourself) (is|are|as|to be|has|have) (an? |the |already |fully |being )*(admin\w*|root|authenticated"
            r"|authori[sz]ed|trusted|verified|superusers?|pre-?approved|approved|consented)\b"
        ),
        (
            r"\bthis (session|conversation|chat|context) (is|has been|was) (now |already |fully )*(pre-?authori[sz]ed"
            r"|pre-?approved|elevated|privileged|trusted|cleared|unlocked)\b"
        ),
        (
            rf"\b(also|then|first|always|silently|secretly|quietly|automatically|must|instead)\b {NEAR}\b(elevate"
            r"|escalate) (your |its |the |this |user |session |my )*(privileges?|permissions?|access|rights|role)\b"
        ),
        (
            r"\b(skip|bypass) (the |all |any )*(authentication|authori[sz]ation|permission|access"
            r"|security|safety|consent|approval)( checks?| controls?| prompts?| filters?| polic(y|ies))? (for|during|in"
            r"|when|within) (this|the current|all|every|any|that|these)\b"
        ),
    ),
)
