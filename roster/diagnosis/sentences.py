"""Rules for the sentences of the runtime."""

from __future__ import annotations

from roster.diagnosis.facts import SECRETS
from roster.diagnosis.rules import Rule

# Reasons that the runtime knows for certain, whatever the member wrote. They match at the beginning of a reason.
CERTAIN = (
    Rule(
        r"needs a sign-in",
        "Press Sign in, or run `guildhall sign_in {name}`. Then it connects.",
        cause="It asks for an account at its authorization server.",
    ),
    Rule(
        r"command not found: '[^']*'; did you mean '(?P<other>[^']*)'(?:, in the member's folder)?\?",
        "Write `{other}` as command in {file}.",
        "command",
    ),
    Rule(
        r"command not found: '(?P<command_name>uvx|uv)'",
        "Install uv on the machine of the hall (`python3 -m pip install uv`), or give its full path as command "
        "in {file}.",
        "command",
    ),
    Rule(
        r"command not found: '(?P<command_name>npx|npm|node)'",
        "Install Node.js on the machine of the hall, which has {command_name}, or give its full path as command "
        "in {file}.",
        "command",
    ),
    Rule(
        r"command not found: '(?P<command_name>[^']*)'",
        "Install {command_name}, or give its full path as command in {file}. `command -v {command_name}` shows "
        "the path.",
        "command",
    ),
    Rule(
        r"permission denied: '(?P<program>[^']*)' is not executable",
        "Make it executable: `chmod +x {program}` in the folder {directory}. Or name its interpreter as command "
        "in {file}, such as "
        "python3, and the script in args.",
        "command",
    ),
    Rule(
        r"the interpreter in the first line of '(?P<program>[^']*)' does not exist: .*CR and LF",
        "Save {program} with the line ends of Unix: `sed -i 's/\\r$//' {program}` in the folder {directory}.",
    ),
    Rule(
        r"the interpreter in the first line of '(?P<program>[^']*)' does not exist: '(?P<interpreter>[^']*)'",
        "Install {interpreter}, or write `#!/usr/bin/env python3` or the like as the first line of {program} in "
        "the folder {directory}.",
    ),
    Rule(
        r"'(?P<program>[^']*)' has no first line that names its interpreter",
        "Write it as the first line of {program} in the folder {directory}, or name the interpreter as command "
        "in {file} and "
        "{program} in args.",
        "command",
    ),
    Rule(
        r"its manifest requires the sandbox",
        "Run it on a machine that has what is missing, or set sandbox to on in {file}, which uses what there is.",
        "sandbox",
    ),
    Rule(
        r"was ended: its? [^,]*, and (?P<limit>processes|memory_mb) in limits allows",
        "Fix what its server does, or raise limits in {file}.",
        "limits.{limit}",
    ),
    Rule(r"its folder .* is gone", "Put the folder {directory} back."),
    Rule(r"no free port", "Stop some members, or widen GUILD_HALL_PORT_RANGE and start the runtime again."),
    Rule(
        r"nothing listened on its port within [\d.]+ s of its start; it listens on port (?P<port>\d+)",
        "Let it take its port from the hall: put `${{PORT}}` into args or env of {file}, in place of {port}. If "
        "it has a "
        "port in its code, change that to the argument or the variable.",
        "args",
    ),
    Rule(
        r"(?:[a-z]+\.[^:]+: )?the secret '",
        "The page of the member lists its secrets: set what is missing, and allow the member to use it.",
        SECRETS,
    ),
    Rule(
        r"(?P<part>headers|env|args)\.[^:]+: ",
        "Put the secret where {file} says it is, for the runtime to see.",
        "{part}",
    ),
)

# What a remote server answered, or that there is none.
REMOTE = (
    Rule(
        r"HTTP status 401",
        "It wants another key: correct headers in {file} and its secret, for example Authorization with `Bearer "
        "${{secret:NAME}}`.",
        "headers",
    ),
    Rule(
        r"HTTP status 403",
        "The server knows who asks, and refuses it: give the key the rights there, or correct headers in {file}.",
        "headers",
    ),
    Rule(
        r"HTTP status 404",
        "Nothing is served at that path. Correct url in {file}. Many servers have /mcp at its end.",
        "url",
    ),
    Rule(
        r"HTTP status (?:405|501)",
        "The server there takes no POST at that path, so it serves no MCP over Streamable HTTP there. Correct url in "
        "{file}. A url that ends with /sse is of an older transport: try /mcp.",
        "url",
    ),
    Rule(
        r"HTTP status 429",
        "The server there limits requests. Find out who else uses the same key.",
    ),
    Rule(r"HTTP status 30\d", "Write the address to which it redirects as url in {file}.", "url"),
    Rule(
        r"HTTP status 5\d\d",
        "The server there has a fault. Look into its log, or wait until it works again.",
    ),
    Rule(
        r"instead of JSON: a web page",
        "A web page is there, such as a login, and no MCP server. Correct url in {file}, or headers if it wants a key.",
        "url",
    ),
    Rule(
        r"instead of JSON|is not JSON|is not a JSON-RPC|no result object|did not respond with HTTP",
        "Something else than an MCP server is there. Correct url in {file}.",
        "url",
    ),
    Rule(
        r"certificate is not trusted",
        "Let the server send a certificate that the machine of the hall trusts, with its whole chain. For an own "
        "authority, "
        "start the hall with `SSL_CERT_FILE`, a file with its certificate.",
    ),
    Rule(
        r"TLS failed: wrong version number",
        "The server there speaks http and not https. Write http in url in {file} if it is on this machine, or "
        "put a proxy "
        "with TLS in front of it.",
        "url",
    ),
    Rule(
        r"TLS failed",
        "Compare the versions of TLS of the server and of this machine, or look for a proxy between them.",
    ),
    Rule(
        r"host name cannot be looked up",
        "Correct the host of url in {file}. If it is right, look at the network and DNS of the machine of the hall.",
        "url",
    ),
    Rule(
        r"connection was closed before",
        "The server there closed the connection. If it speaks https, write https in url in {file}.",
        "url",
    ),
    Rule(
        r"did not complete the initialize handshake",
        "The server there accepts connections, but does not answer. Look whether it works, and at url in {file}. "
        "If it only needs longer, set start_timeout there.",
        "url",
    ),
    Rule(
        r"connection refused|no connection",
        "Start the server there, or correct host and port of url in {file}.",
        "url",
    ),
    Rule(
        r"could not be reached|does not answer at http",
        "Look at url in {file}, and whether the server there runs.",
        "url",
    ),
)

# Of a member that the hall started. Its last output may say more. This matches at the beginning of a reason.
NOT_LISTENING = (
    Rule(
        r"nothing listened on its port",
        "It must listen on 127.0.0.1 at the port that `${{PORT}}` in args or env of {file} gives it. If it "
        "speaks over stdin "
        "and stdout, set transport to stdio there. If it only needs longer, set start_timeout.",
        "transport",
    ),
)
GENERAL = (
    Rule(
        r"HTTP status 404",
        "It serves HTTP, but not at /mcp. Serve its MCP there, or let the hall connect to it with url in {file}.",
    ),
    Rule(
        r"HTTP status (?:401|403)",
        "It wants a key at /mcp, but the hall sends none to a server that it starts. Turn that off in its settings.",
    ),
    Rule(
        r"HTTP status|instead of JSON|is not JSON|is not a JSON-RPC|did not respond with HTTP|no result object",
        "It listens on its port, but serves no MCP over Streamable HTTP at /mcp. Start its MCP server: look at "
        "command and "
        "args in {file}.",
        "args",
    ),
    Rule(
        r"protocol version .*; the hall speaks",
        "Update the server, or its library of MCP, to a version that the hall speaks.",
    ),
    Rule(
        r"JSON-RPC error",
        "The server itself refuses to begin. Do what its message says, then restart it.",
    ),
    Rule(
        r"tools/list failed",
        "The handshake works, but the server cannot list its tools. Fix its tools/list, then restart it.",
    ),
    Rule(
        r"signal SIGKILL|exit code 137\b",
        "Something outside the hall killed it: a person, or the system because memory ran out. `dmesg | grep -i "
        "oom` tells.",
    ),
    Rule(
        r"signal SIG(?:SEGV|ABRT|BUS|ILL)|exit code 13[4-9]\b",
        "Native code in it crashed. Update its packages and its Python or Node.js, then restart it.",
    ),
    Rule(r"signal SIGTERM|exit code 143\b", "Something outside the hall ended it. Restart it."),
    Rule(r"its process is gone", "Restart it. Should it happen again, read the runtime's log."),
    Rule(r"does not answer on port", "It runs, but takes no connections any more: read its log, then restart it."),
)

ENDED_OVER_HTTP = Rule(
    r"exit code 0\b",
    "It ended, but a server runs until it is stopped. If it speaks over stdin and stdout, set transport to stdio "
    "in {file}.",
    "transport",
)
ENDED_OVER_STDIO = Rule(
    r"exit code 0\b",
    "It ended, but a stdio server runs until its stdin is closed. Look whether command and args in {file} start "
    "the server.",
    "args",
)
SILENT_OVER_STDIO = Rule(
    r"did not complete",
    "It runs, but wrote no answer to initialize. Look whether args in {file} start its stdio server, and whether "
    "it flushes "
    "stdout after each message. If it only needs longer, set start_timeout.",
    "args",
)
SILENT_OVER_HTTP = Rule(
    r"did not complete",
    "It listens, but does not answer initialize. If it only needs longer, set start_timeout in {file}.",
    "start_timeout",
)
