"""Orders to a model to drop its rules, and texts that look like messages of the system."""

from __future__ import annotations

from mcp_runtime.contracts.words import ALL, BEFORE, DROP, DROPPING, IGNORE, NEAR, PAST, RULES, phrase

ORDERS = (
    phrase(
        70,
        "It tells a model to drop its earlier instructions.",
        (
            rf"\b{DROP}\b (everything |every(thing)? |anything )?{ALL}({BEFORE}[ ,]*(and )?)+(([\w-]+ ){{0,2}}"
            rf"(instruction sets?|{RULES})|\b(and|then|,|\.|;|:|<|$))"
        ),
        rf"\b{DROP}\b {ALL}({PAST}[ ,]*(and )?)+(system )?(instructions?|prompts?|guidelines?)",
        rf"\b{DROP}\b (all|any|every|your) ({BEFORE} )+(commands?|messages?|context|requests?)",
        rf"\b{DROPPING}\b (all |any |the |your |these |those |my |of )*({PAST}[ ,]*)+(instructions?|prompts?)",
        is_hard=True,
        drops_orders=True,
    ),
    phrase(
        70,
        "It tells a model to drop the rules that it has.",
        (
            rf"\b{DROP}\b (all |any |the |your |these |those |its )*([\w'-]+ )?(system|safety|security|moderation"
            rf"|content|developer) ([\w-]+ )?({RULES}|checks?|filters?|guard ?rails?|measures|warnings?|alerts?"
            r"|controls?|validations?|protocols?|boundaries|concerns)"
        ),
        is_hard=True,
        drops_orders=True,
    ),
    phrase(
        60,
        "It tells a model to drop its instructions.",
        (
            rf"\b{IGNORE} (all|any|your)( of)?( the| your)? (([\w'-]+ ){{0,2}}(instructions?|prompts?|guidelines?)"
            r"|rules)\b"
        ),
        (
            rf"\b{IGNORE} (the |any |all )*(instructions?|directives?|guidelines?|prompts?|requests?|rules) (above"
            r"|before|you|from (the |your )?(users?|system|developers?|above|before)|given|that (you|were"
            r"|came))\b[^.!?\n]{0,60}"
        ),
        (
            rf"\b{IGNORE} (the |any |all |what the |whatever the )*(users?|system|developers?)( and (the )?(users?"
            r"|system|developers?))? (instructions?|prompts?|messages?|requests?|asks?|asked|wants?|says?|said)\b"
        ),
        rf"\b{IGNORE} your ([\w'-]+ ){{0,2}}{RULES}\b",
        (
            rf"\b{IGNORE} (everything|anything|all|what(ever)?) (that )?(you|the user|the system|was|were|came"
            r"|i)\b[^.!?\n]{0,60}"
        ),
        rf"\b{IGNORE} (everything|anything) (above|before|else|prior|previous|so far)\b",
        is_hard=True,
        drops_orders=True,
    ),
    phrase(
        60,
        "It tells a model not to do what the user asks for.",
        (
            r"\b(ignore|disregard|override) (the |any )?user('s)? (actual |real |original |own )?(requests?"
            r"|questions?|instructions?|wish(es)?|input|intent)"
        ),
        is_hard=True,
    ),
    phrase(
        60,
        "It asks a model for its own instructions.",
        (
            r"\b(reveal|disclose|leak|print|output|repeat|dump|recite|expose)\b [^.!?\n]*?(\b(your|the model's"
            r"|the assistant's|the hidden)\b ([\w-]+ ){0,2}(instructions|initial prompt|hidden prompt)|\b(your"
            r"|its|the model's|the assistant's|the hidden)\b ([\w-]+ ){0,2}system prompt)"
        ),
        is_hard=True,
    ),
    phrase(
        50,
        "It imitates a message of the system.",
        r"<\|(im_start|im_end|system|endoftext|begin_of_text|start_header_id)\|>",
        r"\[/?INST\]",
        r"<</?SYS>>",
        r"\[(system|assistant|admin|developer)([ _-]?(message|override|instructions?|note))?:",
        r"\[(?-i:SYSTEM|ADMIN)\]",
        r"\{\{\s*(system|override|admin)\s*:",
        r"#+ ?(new )?system",
        r"\bnew system (message|prompt|instructions?)\s*(:|#)",
        r"\bsystem override\b",
        r"(^|[.!?>\n]\s*)(?-i:SYSTEM|ASSISTANT|ADMIN|DEVELOPER)\s*:",
        (
            r"(^|[.!?>\n(\[\x22'-]\s*)(system|assistant|admin|developer)( prompt| message| note)?\s*: *(you|your"
            r"|ignore|disregard|from now|always|never|do not|don't|new|override|execute|run|call|send|must|begin)\b"
        ),
        r"(hidden|secret|internal) (directive|instruction|command|prompt|order)s?\s*:",
        is_hard=True,
    ),
    phrase(
        30,
        "It has tags that give a text more weight for a model.",
        r"</?(system|assistant|important|critical|secret|hidden|instructions?|admin|override|urgent)>",
    ),
    phrase(
        40,
        "It gives a model another role.",
        (
            r"\b(you are now|from now on,? you|act as (an? )?(unrestricted|admin|root|developer)|developer mode"
            r"|jailbreak|without (any )?(safety|security) (checks?|filters?|restrictions?)|must comply with all)"
        ),
    ),
    phrase(
        50,
        "It tells a model to obey texts of others.",
        (
            r"\b(obey|follow|execute|treat)\b [^.!?\n]*?\b(instructions?|commands?)\b [^.!?\n]*?\b(embedded|inside"
            r"|contained|found|hidden|within|from the (page|document|content))\b"
        ),
    ),
    phrase(
        25,
        "It speaks to the model, not to the user.",
        (
            r"\b(notes?|instructions?|messages?|reminders?|hints?|directives?|attention)\b,? (to|for) (the |any "
            r"|all )?(assistants?|ai( agents?| models?)?|models?|llms?|agents?)\b"
        ),
    ),
    phrase(
        50,
        "It has a text in a markup that people do not see.",
        (
            r"<(system|assistant|important|critical|secret|hidden|instructions?|admin|override"
            r"|urgent)\b[^<>]*>[^<]{8,}</"
        ),
        r"(?-i:<[A-Z][A-Z_ -]{3,}>)[^<]{8,}</(?-i:[A-Z])",
        r"!\[[^\]]*\]\(https?://[^)\s]*[?{=]",
        r"\bjavascript:",
        r"data:text/html",
        (
            r"<!--[^>]*?\b(you|your|must|call|invoke|ignore|assistant|system|ai|model|agents?|llm|users?|always"
            r"|never|send|read|secret(ly)?|hidden|instructions?|before|execute|upload)\b"
        ),
        (
            r"<[a-z]+[^<>]*(display: ?none|visibility: ?hidden|font-size: ?0|opacity: ?0\b|size=.?0\b"
            r"|\bhidden\b)[^<>]*>[^<]"
        ),
        r"\[[\w/ ]+\]: ?(#|<>)",
    ),
    phrase(
        70,
        "It tells a model in another language to drop its earlier instructions.",
        r"(忽略|无视|忘记|忽視)[^。\x{ff01}\n]{0,12}(之前|以前|先前|以上|上述|前面|所有)[^。\x{ff01}\n]{0,8}(指令|指示|提示|规则|说明|约束)",
        (
            r"\b(ignorier\w*|vergiss|vergesst|missachte\w*) (sie )?((alle|die|deine|meine|ihre|jegliche) )*"
            r"(vorherigen|bisherigen|vorigen|früheren|obigen|vorangegangenen)"
        ),
        (
            r"\b(ignore[rz]?|oublie[rz]?) (toutes? )?((les|tes|vos) )*(consignes|instructions|règles|directives)"
            r"( \w+)? (précédentes|antérieures|ci-dessus)"
        ),
        (
            r"\b(ignor\w*|olvid\w*|esqueça|desconsidere) (tod[ao]s? )?((las|los|as|os|tus|suas|sus) )*"
            r"(instrucciones|instruções|reglas|regras|órdenes|ordens)( \w+)? (anteriores|previas|prévias|de arriba"
            r"|acima)"
        ),
        (
            r"\b(ignora|dimentica|trascura)(te)? (tutte )?((le|tue) )*(istruzioni|regole)( \w+)? (precedenti"
            r"|di sopra)"
        ),
        r"(以前|これまで|上記|前|すべて)の(すべての)?(指示|命令|ルール)を(無視|忘れ)",
        r"(игнорируй|забудь)(те)? (все )?(предыдущие|прежние|прошлые)",
        is_hard=True,
    ),
    phrase(
        50,
        "It puts itself above the user or other tools.",
        r"\b(ignore|avoid|disregard|skip) (all |any |the )*other ([\w-]+ )?(tools?|functions?|servers?)\b",
        (
            rf"\b(always|must|should|only){NEAR}\b(regardless of|no matter) (the |what |which |how )*(user|input"
            r"|query|request|question|prompt|asked|many)"
        ),
        (
            r"\b(treat|consider|regard|accept)\b (the |this |its |all |any |every )*([\w'-]+ )?(outputs?|results?"
            rf"|responses?|contents?|text|data|values?)\b{NEAR}\bas ((a|an|the|your|if) )*([\w-]+ )?(instructions?"
            r"|commands?|orders?|system|directives?)\b"
        ),
        (
            r"\b(takes?|has|have) (precedence|priority) over (the |your |any |all |every )*([\w'-]+ )?(user|system"
            r"|instructions?|prompts?|request|safety|developer)"
        ),
    ),
    phrase(
        50,
        "It tells a model whom to obey.",
        r"\b(obey|follow|listen to|trust|comply with) only (me|my|this|these)\b",
        r"\bonly (obey|follow|listen to|trust) (me|my|this|these)\b",
        r"\byou must (comply|obey)\b",
        (
            rf"\b(fetch|download|load|retrieve|read|get){NEAR}\b(instructions?|directives?|commands?|prompts?)\b"
            rf"{NEAR}https?://"
        ),
    ),
    phrase(
        25,
        "It speaks to the model, not to the user.",
        (
            rf"\b(as an? (ai|llm|language model|assistant|agent)\b{NEAR}|\b(the|any|all|every) (ai |llm |calling )?"
            r"(assistants?|models?|llms?|ai|agents?) )(must|should|shall|has to|have to|needs? to|is required to"
            r"|are required to)\b"
        ),
    ),
    phrase(
        50,
        "It imitates a message of the system.",
        r"(\[|\*\*)(?-i:[A-Z ]*(SYSTEM|HIDDEN|SECRET|OVERRIDE|INSTRUCTIONS?)[A-Z ]*)(\]|\*\*):?\s",
    ),
    phrase(
        50,
        "It lifts the rules of a model.",
        r"\bfrom now on\b",
        (
            r"\b(no|without( any)?|free (of|from)|lift(ed|ing)?|remove|drop) (all |any |your |the |usual |normal "
            r"|ethical |content |safety )*(restrictions?|filters?|limits|limitations|guardrails?|content polic(y"
            rf"|ies)|censorship)\b{NEAR}\b(answer|respond|comply|act|reply|output|you|assistant|ai|model|whatsoever"
            r"|freely)\b"
        ),
        (
            rf"\b(answer|respond|comply|act|reply|behave|pretend)\b{NEAR}\b(no|without( any)?) ([\w-]+ )?"
            r"(restrictions?|filters?|limits|limitations|guardrails?|content polic(y|ies))\b"
        ),
        (
            r"\b(safety|content|security|moderation) (protocols?|guidelines?|polic(y|ies)|rules|filters?"
            rf"|measures)\b{NEAR}\b(disabled|off|suspended|lifted|changed|(do|does|did|were|was) (not|n't) (apply"
            r"|meant)|not meant|no longer)\b"
        ),
        (
            r"\byour (rules|instructions|guidelines|polic(y|ies)|restrictions) (have|has|are|were) (been )?(changed"
            r"|updated|replaced|lifted|removed|disabled)\b"
        ),
        r"\bexempt from (the |all |any |your )*([\w-]+ )?(restrictions|rules|polic(y|ies)|guidelines|filters)\b",
        (
            r"\b(must|should|will|to) (fully )?comply (fully|with (every|all|any|the following|each|this"
            r"|whatever))\b"
        ),
    ),
    phrase(
        50,
        "It speaks to the model, not to the user.",
        (
            r"\b(ai|llm|language model) (assistants?|agents?|models?|systems?|bots?|reviewers?|readers?)\b,? ?(who "
            r"|that )?(are |is )?(reading|reviewing|processing|integrating|using|parsing|summari[sz]ing|seeing"
            r"|handling|analy[sz]ing) (this|these|the)\b"
        ),
        r"\bif you are (an? )?(ai|llm|language model|assistant|agent|bot|automated)\b",
        (
            r"\b(note|message|memo|reminder|attention) (to|for) (the )?(ai|bots?|self|chatbot|agent"
            r"|assistant)\b[^.!?\n]{0,30}:"
        ),
        r"\b(ignore|disregard|bypass) (the )?users? (and|instead|entirely|completely|,)",
        r"</?thinking>",
        r"\bas the (assistant|ai|model), i\b",
        r"\b(assistant|ai|model|agent)\W{1,3}i (have|should|will|must|can)\b",
    ),
    phrase(
        50,
        "It puts itself above the user.",
        (
            rf"\b(set|use|send|answer|reply|say|return|choose|pay|recommend)\b{NEAR}\b(no matter|regardless"
            r"|irrespective) (of )?(what|which|who|how|the user)\b"
        ),
        (
            rf"\b(what|who)ever (the |a )?(user|person|human|customer|they|he|she|you)\b{NEAR},? (always |just "
            r"|only )?(answer|reply|say|return|tell|respond|do|use|send)\b"
        ),
        r"\b(contradicts?|against|overrul\w+|despite) (the |what the )?users?('s)?\b",
        rf"\b(has|have|takes?) (priority|precedence) over{NEAR}\b(users?|person|instructions|requests?)\b",
        r"\byou (no longer|do not|don't) (work for|serve|answer to|report to|obey)\b",
        r"\byou (now |only )*(work for|serve|belong to|answer to|report to)\b",
        (
            r"\byour (previous |prior |earlier |current |old )*(guidelines|instructions|rules|polic(y|ies)"
            r"|restrictions|orders) (are|is|were) (now |hereby |all )*(void|invalid|obsolete|cancel\w+|suspended"
            r"|null|superseded|outdated|lifted|not valid)"
        ),
        (
            rf"\b(treat|consider|regard|take)\b{NEAR}\bas (coming |if (it|they) came |being )*from (your |the )*"
            r"(developers?|system|operators?|admin\w*|users?|owner)\b"
        ),
        rf"\b{IGNORE} what(ever)? (your|the) (operator|developer|user|owner|admin\w*|system|human)\b",
    ),
    phrase(
        50,
        "It gives a model another role.",
        (
            r"\b(uncensored|unfiltered|unrestricted|unaligned|unmoderated|jailbroken|amoral|lawless|limitless) (ai"
            r"|assistants?|models?|llms?|chatbots?|agents?|persona|mode|version of)\b"
        ),
        r"\b(dan|god|jailbreak|unrestricted|uncensored|unfiltered|opposite|evil) mode\b",
        (
            r"\b(developer|debug|maintenance|admin|root|sudo|service|unsafe) mode (is )?(now )?(active|activated"
            r"|enabled|engaged|unlocked)\b"
        ),
        r"\bdo anything now\b",
        (
            r"\byou( are|'re| were) (now )?(no longer|not|never) (bound|limited|restricted|constrained|governed|held"
            r"|subject)( back)? (by|to)\b"
        ),
        r"\byou( are|'re) now (?-i:[A-Z][\w-]+)",
        r"\byou( are|'re) now (acting|operating|running|working) (as|in|under|without|for)\b",
        (
            r"\b(ai|assistant|model|llm|chatbot|agent) (with no|without( any)?|that has no|free (of|from)) "
            r"(ethical |moral |content |safety |built-in )*(restrictions?|limits|limitations|filters?|rules"
            r"|guidelines|guardrails?|ethics|morals|boundaries)\b"
        ),
    ),
    phrase(
        50,
        "It gives a model another task.",
        (
            r"\byour (new|real|true|actual|sole|hidden|secret|updated|revised) (tasks?|goals?|objectives?|purpose"
            r"|mission|job|role|instructions?|orders?|directives?|priority|identity)( is| are| will be|:)"
        ),
        (
            r"\b(new|real|actual) (instructions?|directives?|system prompt)( for (you|the (ai|assistant|agent"
            r"|model)))?\s*:"
        ),
        (
            r"\b(assistant|ai|model|system|agent)\s*: ?[\x22']?(sure|ok(ay)?|yes|certainly|of course|understood"
            r"|absolutely|got it|will do|no problem|i will|i'll|i have|i am|i'm)\b"
        ),
    ),
    phrase(
        50,
        "It puts itself above the user.",
        (
            r"\b(priority|precedence|authority|weight|importance)\b( is| are| must be| should be)? (higher|greater|more"
            rf"|above|over)\b{NEAR}\b(users?('s?)? (own )?(requests?|instructions?|prompts?|messages?|questions?"
            r"|input|wish(es)?|intent)|system prompts?|system messages?|safety|developers?)\b"
        ),
        (
            r"\b(higher|greater|more) (priority|precedence|authority|weight|important) than (the |any |your |all )*"
            r"(users?('s?)? (own )?(requests?|instructions?|prompts?|messages?|questions?|wish(es)?|intent)"
            r"|system prompts?|system messages?|safety|developers?)\b"
        ),
        (
            r"\b(ignore|disregard|forget|discard|dismiss) (the |any |all |every |whatever |what )*(other )?([\w-]+ )?"
            r"users?'?s? ([\w-]+ ){0,2}(choices?|decisions?|wish(es)?|intent(ion)?|opinion"
            r"|consent|refusal|objections?)\b"
        ),
        (
            r"\b(ignore|disregard|forget|discard) (any|all|every|whatever|everything|anything)( other)?( [\w-]+)?"
            r"( that| which)? (the )?users? (provid|giv|say|ask|send|want|specif|mention|request|writ)\w*"
        ),
    ),
    phrase(
        50,
        "It imitates a message of the system.",
        (
            r"(^|[.!?>\n]\s*)(?-i:([A-Z]{3,}[ _-]){0,3}(OVERRIDE|DIRECTIVE|MANDATE|MODE (ACTIVE|ENABLED|ON)"
            r"|(GLOBAL|SYSTEM|SECURITY|ADMIN|PRIORITY|UNIVERSAL|MASTER|CORE) (RULE|PROTOCOL|POLICY|BEHAVIOU?R|MODE"
            r"|COMMAND|INSTRUCTION))): ?(?-i:[A-Z])[a-z]"
        ),
        (
            r"(^|[.!?>\n]\s*)(?-i:([A-Z]{3,}[ _-]){0,3}(RULE|PROTOCOL|BEHAVIOU?R|POLICY|COMMAND|INSTRUCTION): ?(All"
            r"|Always|Never|Every|You must|Must)\b)"
        ),
    ),
    phrase(
        50,
        "It claims an authority that it does not have.",
        (
            r"\b(treat|consider|regard|interpret|accept) (this|these|the following|it|everything (below|after|here))"
            r"( [\w-]+){0,3} as (an? |the |being |your |highest )*(system|trusted|authoritative|authori[sz]ed|verified"
            r"|privileged|official|administrator|top|highest)\b"
        ),
        (
            r"\b(previous|earlier|prior|existing|all) (safety |system |security |content )?(instructions|guidelines"
            r"|restrictions|policies|safeguards) (are|were|have been) (now |hereby |all |temporarily )*(void|invalid"
            r"|suspended|disabled|lifted|revoked|cancel\w+|superseded|obsolete|outdated|no longer|waived)\b"
        ),
        (
            r"\b(anthropic|openai|the (platform|security|compliance|development|developer|it|admin\w*) team|your "
            r"(developers?|operators?|creators?|administrators?|owners?|employer|company)) (has |have |had |already )*"
            r"(authori[sz]ed|approved|instructed|ordered|directed|asked|told|requires?|mandates?|wants?|expects?"
            r"|confirmed) (you|this|that|all|every)\b"
        ),
        (
            r"\byou (now have|have been (granted|given)|are (now |hereby )+(granted|given)|have been (cleared|elevated)"
            r"( to| for)?) ([\w-]+ ){0,2}(full|admin\w*|root|unrestricted|elevated|unlimited|superuser|special|all) "
            r"([\w-]+ )?(access|permissions?|privileges?|rights|authority|clearance)\b"
        ),
        (
            r"\b(outputs?|results?|contents?|responses?|data|text|messages?) (of|from|returned by) this (tool|server"
            r"|page)( is| are| must be| should be) (always |fully |already |to be )*(trusted|obeyed"
            r"|followed|treated as (trusted|true|instructions?|commands?))\b"
        ),
        (
            r"\b(always |fully |blindly |unconditionally )+trust (all |any |the |every )*([\w-]+ )?(outputs?|results?"
            r"|contents?|responses?|instructions?|messages?)\b"
        ),
    ),
    phrase(
        50,
        "It changes the instructions or the memory of a model.",
        (
            r"\b((clear|erase|wipe|flush|reset|discard|purge) (all )?(of )?your|(replace|rewrite|update|change) "
            r"your own) (own |previous |prior |current |entire |original |existing )*(context( window)?"
            r"|instructions|rules|guidelines|training|system prompts?|values|persona|identity|constraints)\b"
        ),
        (
            r"\b(add|append|write|save|store|insert|commit|copy|include) (this|the following|these|the above) "
            r"([\w-]+ ){0,2}(to|in|into) (the system prompts?|your (own )?(system prompts?|instructions"
            r"|context( window)?|rules|guidelines|long-term memory))\b"
        ),
        (
            r"\b(pretend|imagine|act as (though|if)|behave as (though|if)|role-?play( as)?) (that )?(you are|you're"
            rf"|you were|you have|to be|being) {NEAR}\b(no|not|without|un\w+|another|different|admin\w*|root"
            r"|hacker|developer|evil|human)\b"
        ),
    ),
)
