"""Rules for the last output of a member: what programs of all kinds write before they end."""

from __future__ import annotations

from mcp_runtime.protocol.errors import InstallError
from roster.diagnosis.rules import Rule

# A variable that programs ask for: words with underscores between them.
VARIABLE = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+"
MISSING = (
    r"(?:is|are|was|were)? ?"
    r"(?:not (?:set|found|defined|provided|configured|specified)|required|missing|undefined|unset)"
)
NPM_ERROR = r"npm (?:ERR!|error)"
NPM_PACKAGE = r"(?P<package>(?:@[\w.-]+/)?[\w.-]{1,100})"
BEFORE = r"(?i:missing|required?|requires|set|provide|no|without|need|needs|undefined|export)"

# The registries of npm and PyPI, during an installation or a start with npx or uvx.
REGISTRY_FAULTS = (
    Rule(
        rf"(?P<at>{NPM_ERROR} 404 .*'{NPM_PACKAGE}@[^'\n]*' (?:could not be found|is not in))",
        "npm has no package {package}. Correct its name in args of {file}. `npm view {package}` shows whether it "
        "exists.",
        "args",
    ),
    Rule(
        r"(?P<at>npm (?:ERR!|error) .*\bE404\b)", "npm has no such package. Correct its name in args of {file}.", "args"
    ),
    Rule(
        rf"(?P<at>{NPM_ERROR}.*No matching version found for {NPM_PACKAGE}@(?P<version>[^\s]{{1,50}}?)\.?\n)",
        "{package} has no version {version}. Correct it in args of {file}. `npm view {package} versions` lists them.",
        "args",
    ),
    Rule(
        r"could not determine executable to run",
        "The package has no program. Name another package in args of {file}, or `-p PACKAGE PROGRAM`.",
        "args",
    ),
    Rule(
        r"npx canceled due to missing packages",
        "Add `-y` before the package in args of {file}, so that npx does not ask whether it may install it.",
        "args",
    ),
    Rule(
        r"(?P<at>npm (?:ERR!|error).*request to https?://(?P<host>[\w.:-]{1,100})\S* failed, reason: .*)",
        "npm cannot reach {host}. Look at the network of the machine, or set `npm_config_registry` or "
        "`HTTPS_PROXY` in env of "
        "{file}.",
        "env",
    ),
    Rule(
        r"npm (?:ERR!|error).*(?:ECONNREFUSED|ENOTFOUND|ETIMEDOUT|EAI_AGAIN|ECONNRESET)",
        "npm cannot reach its registry. Look at the network of the machine, or set `npm_config_registry` or "
        "`HTTPS_PROXY` in "
        "env of {file}.",
        "env",
    ),
    Rule(
        r"npm (?:ERR!|error).*\bE40[13]\b",
        "The registry wants a key: set it as `NPM_TOKEN` or in an .npmrc file in {directory}.",
    ),
    Rule(
        r"(?P<at>Because (?P<package>[\w.-]{1,100}) was not found in the package registry)",
        "PyPI has no package {package}. Correct its name in args of {file}. "
        "`uvx --from PACKAGE PROGRAM` is for a program with another name than its package.",
        "args",
    ),
    Rule(
        r"was not found in the package registry",
        "PyPI has no such package. Correct its name in args of {file}.",
        "args",
    ),
    Rule(
        r"there is no version of (?P<package>[\w.-]{1,100})(?:==|@)(?P<version>[^\s,]{1,50})",
        "{package} has no version {version}. Correct it in args of {file}. `python3 -m pip index versions {package}` "
        "lists them.",
        "args",
    ),
    Rule(
        r"Package `?'?(?P<package>[\w.-]{1,100})'?`? does not provide any executables",
        "{package} has no program. Name the package that has one in args of {file}, such as `--from PACKAGE PROGRAM`.",
        "args",
    ),
    Rule(
        r"No interpreter found for (?:Python )?(?P<version>[\w.<>=*, -]{1,30}?) in ",
        "Install it with `uv python install {version}`, or name a Python that the machine has in args of {file}.",
        "args",
    ),
    Rule(
        r"(?:Failed to fetch: `?|error sending request for url \()https?://(?P<host>[\w.:-]{1,100})",
        "uv cannot reach {host}. Look at the network of the machine, or set `UV_DEFAULT_INDEX` or `HTTPS_PROXY` "
        "in env of "
        "{file}.",
        "env",
    ),
)

_INSTALLATION = rf"(?s){InstallError.WHAT}: .*"
# An installation that failed. The last output is then that of npm or uv, and not of the member.
INSTALLATION = (
    Rule(
        _INSTALLATION + r"(?:EINTEGRITY|Hash mismatch)",
        "The registry sends another file than the one in the lock of its packages. Find out why before you "
        "change anything.",
    ),
    Rule(
        _INSTALLATION + r"\b(?P<tool>npm|uv) is not on the PATH",
        "Install it on the machine of the hall, and start the hall with a PATH that has {tool}.",
    ),
    Rule(
        _INSTALLATION + r"guildhall relock",
        "Find out who changed the row. Then press Lock again on its page, or run `guildhall relock {name}`.",
    ),
    Rule(_INSTALLATION + r"(?:have no program|which program)", "Name the program in args in {file}.", "args"),
    Rule(
        _INSTALLATION + r"(?:no usable hash|has no hash|only npx and uvx|no usable wheels)",
        "It cannot be installed as packages in {file} says: choose another value, or another package.",
        "packages",
    ),
)
INSTALLATION_IN_GENERAL = (
    Rule(_INSTALLATION, "Read what the installer wrote. The registry must be reachable until it is installed."),
)

# The machine lacks something, or refuses it.
MACHINE = (
    Rule(
        r"(?i)address already in use|EADDRINUSE",
        "Another program has the port on which it listens. Put `${{PORT}}` into args or env of {file}, so that "
        "it takes the "
        "port of the hall.",
        "args",
    ),
    Rule(
        r"(?i)too many open files|EMFILE|ENFILE",
        "It may open no more files. Raise the limit of the hall (`ulimit -n`, or LimitNOFILE of systemd), or fix "
        "{place}, "
        "which does not close them.",
    ),
    Rule(
        r"(?i)no space left on device|ENOSPC|disk quota exceeded",
        "The disk is full. `df -h` shows which one. Free some space, then restart it.",
    ),
    Rule(
        r"JavaScript heap out of memory",
        "Node.js may use no more memory. Raise it with `--max-old-space-size=4096` in args of {file}, and "
        "memory_mb in limits "
        "if it has that.",
        "args",
    ),
    Rule(
        r"(?m)^MemoryError|Cannot allocate memory|ENOMEM",
        "It may use no more memory. Raise memory_mb in limits of {file}, or let {place} need less.",
        "limits.memory_mb",
    ),
    Rule(
        r"(?i)Cannot connect to the Docker daemon",
        "Start Docker on the machine of the hall, such as with `systemctl start docker`.",
    ),
    Rule(
        r"(?i)permission denied while trying to connect to the docker",
        "Let the user of the hall use Docker: `usermod -aG docker USER`, then start the hall again.",
    ),
    Rule(
        r"(?i)pull access denied for (?P<image>[\w./:-]{1,100})|manifest for (?P<other>[\w./:-]{1,100}) not found",
        "The registry has no such image, or wants a login. Correct args in {file}, or run `docker login`.",
        "args",
    ),
    Rule(
        r"(?P<library>lib[\w.+-]{1,80}\.so[\w.]*): cannot open shared object file",
        "Install the package of the system that has {library} on the machine of the hall, then restart it.",
    ),
    Rule(
        r"(?m)(?:^[^\n]{0,200}env: ['\u2018](?P<program>[\w.+-]{1,80})['\u2019]: No such file"
        r"|^[^\n]{0,200}: (?P<other>[\w.+-]{1,80}): (?:command )?not found$)",
        "Install {program}{other}, or add its folder to PATH in env of {file}. `command -v {program}{other}` "
        "shows where it is.",
        "env",
    ),
    Rule(
        r"(?m)^(?:bridge|sandbox): command not found: '(?P<program>[^'\n]{1,200})'",
        "Install {program}, or give its full path as command in {file}.",
        "command",
    ),
    Rule(
        r"(?i)certificate verify failed|self[- ]signed certificate|unable to (?:verify|get) (?:the first"
        r"|local issuer) cert"
        r"|UNABLE_TO_GET_ISSUER_CERT|UNABLE_TO_VERIFY_LEAF",
        "It connects to a server whose certificate it does not trust. Set `SSL_CERT_FILE`, or "
        "`NODE_EXTRA_CA_CERTS` for "
        "Node.js, in env of {file} to the certificate of the authority.",
        "env",
    ),
    Rule(
        r"ECONNREFUSED (?P<address>[\w.:\[\]-]{3,80})",
        "It cannot connect to {address}. Start what should listen there, or correct the address in env or args "
        "of {file}.",
        "env",
    ),
    Rule(
        r"(?:getaddrinfo (?:ENOTFOUND|EAI_AGAIN)|Name or service not known|nodename nor servname"
        r"|Temporary failure in name)"
        r"(?: (?P<host>[\w.-]{1,100}))?",
        "It cannot look up a host: {host}. Correct it in env or args of {file}, or look at the network of the machine.",
        "env",
    ),
    Rule(
        r"ConnectionRefusedError|(?i:connection refused)",
        "It connects to something that does not run ({place}). Start that, or correct its address in env or args "
        "of {file}.",
        "env",
    ),
)

_REFUSAL = r"(?:(?i:permission denied|operation not permitted|read-only file system)|EACCES|EPERM|EROFS)"
_REFUSED_PATH = (
    rf"{_REFUSAL}[^\n]{{0,100}}?['\"](?P<path>/[^'\"\n]{{1,100}})['\"]"
    rf"|(?P<other>/[^\s'\":]{{1,100}})['\"]?: (?:\[Errno \d{{1,3}}\] )?{_REFUSAL}"
)
REFUSED = (
    Rule(
        _REFUSED_PATH,
        "The user of the hall has no right to {path}{other}. Correct that in args or env of {file}, or give the user "
        "the right if you trust the member with it.",
        "args",
    ),
    Rule(
        _REFUSAL,
        "The user of the hall has no right to a file, a folder or a port. Correct that in args or env of {file}, or "
        "give the user the right if you trust the member with it.",
        "args",
    ),
)
# The sandbox has no exceptions for single paths, so the files come to the member.
REFUSED_BY_SANDBOX = (
    Rule(
        _REFUSED_PATH,
        "Its sandbox keeps it from {path}{other}. If you trust it with that, put it into a folder in {directory}, and "
        "correct its path in args or env of {file}.",
        "args",
    ),
    Rule(
        _REFUSAL,
        "Its sandbox keeps it from a file, a folder or a port. If you trust it with a file, put that into a folder in "
        "{directory}, and correct its path in args or env of {file}.",
        "args",
    ),
)

# The server itself says what it lacks. `os.environ` of Python has only a name.
SETTINGS = (
    Rule(
        rf"(?P<at>KeyError: '(?P<variable>{VARIABLE})')",
        "Set {variable} in env of {file}. If it is a key, store it with `guildhall set_secret {variable} "
        "--members {name}`, and "
        "write `${{secret:{variable}}}` there.",
        "env",
    ),
    Rule(
        rf"(?P<at>\b(?P<variable>{VARIABLE})\b[^\n]{{0,60}}?(?i:{MISSING}))"
        rf"|(?P<two>{BEFORE}[^\n]{{0,60}}?\b(?P<other>{VARIABLE})\b)",
        "Set {variable}{other} in env of {file}. If it is a key, store it with `guildhall set_secret "
        "{variable}{other} "
        "--members {name}`, and write `${{secret:{variable}{other}}}` there.",
        "env",
    ),
    Rule(
        r"(?i)the following arguments are required: (?P<arguments>[\w, /<>=-]{1,100})"
        r"|missing required (?:argument|option)s?:? (?P<other>[\w, /<>='\"-]{1,100})",
        "Add {arguments}{other} to args in {file}.",
        "args",
    ),
    Rule(
        r"(?i)(?P<at>unrecognized arguments?:|unknown (?:option|argument)|invalid choice|no such option)[^\n]{0,100}",
        "Correct args in {file}: the server does not know one of them.",
        "args",
    ),
    Rule(
        r"(?i)(?:invalid|incorrect|expired|missing|no|unauthorized)[^\n]{0,30}\b(?:api[ _-]?key|access token"
        r"|token|credentials)\b"
        r"|\b(?:api[ _-]?key|access token|token|credentials)\b[^\n]{0,40}(?:missing|required|invalid|expired"
        r"|not (?:set|found))",
        "It wants a key. Find its variable in the documentation of the server, and set it in env of {file}, as "
        "`${{secret:NAME}}`.",
        "env",
    ),
)
