"""Which values are certainly no secrets, so that a manifest may contain them.

A value of env or headers is a secret unless its name does not sound like one, and it is visibly harmless:

- a switch, a number of at most six digits, or a common word such as info or production
- a path, or an address without user, password and query
- words under a name that ends as names of ordinary settings do, such as REGION or LOG_LEVEL

Whatever has the form of a token is a secret. A harmless value that becomes a secret costs nothing, so the rule is
narrow. Arguments are the other way round: they are clear, unless their flag sounds like a secret or they have the form
of a token.
"""

from __future__ import annotations

import re

SWITCHES = re.compile(r"(?i)true|false|yes|no|on|off|0|1|none|null|auto")
_NUMBER = re.compile(r"[+-]?\d{1,6}(\.\d{1,6})?")
_WORD = re.compile(
    r"(?i)trace|debug|info|warn|warning|error|critical|fatal|silent|verbose|quiet|production|development|staging|test"
    r"|local|prod|dev|stdio|http|https|sse|streamable-http|json|text|utf-?8|read|write|readonly|read-only"
)
_PATH = re.compile(r"(?:~|\.{1,2})?(?:/[\w.@+ -]+)+/?|[A-Za-z]:(?:[\\/]+[\w.@+ -]+)+[\\/]*")
_ADDRESS = re.compile(r"(?:https?|wss?)://[\w.-]+(?::\d{1,5})?(?:/[\w./~-]*)?|[a-z][a-z0-9.-]*:\d{2,5}")
_WORDS = re.compile(r"[\w.,:@/ +*-]{1,100}")
_PASSWORD = re.compile(r":[^/]*@")  # of an address without a scheme, such as user:password@host
_ORDINARY_NAME = re.compile(
    r"(?i)(?:^|[_-])(?:level|mode|region|zone|host|hostname|port|dirs?|path|paths|file|env|environment|lang|language"
    r"|locale|tz|timezone|timeout|format|model|models|name|user|username|email|version|tools|toolsets?|features|output"
    r"|encoding|color|theme|type|transport|size|limit|retries|interval|project|branch|org|organization|workspace)$"
)
_SECRET_NAME = re.compile(
    r"(?i)token|secret|passw|passphrase|pwd|cred|key|auth|cookie|session|signature|bearer|jwt|dsn|webhook|salt|cert"
    r"|private|otp|license|connection|conn[_-]?str|(?:^|[_-])(?:pass|pat|pin|sig|code|id)(?:$|[_-])"
)
_FILE_NAME = re.compile(r"(?i)[_-](?:path|file|dir|directory)$|^google_application_credentials$")
_KNOWN_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:sk|pk|rk)[-_][\w-]{12,}|(?<![A-Za-z0-9])(?:gh[oprsu]|github_pat|hf|ntn|figd|sbp|whsec|shpat|npm"
    r"|lin_api|glsa|dop_v1|dapi|secret|pat)_\w{12,}|glpat-[\w-]{12,}|xox[a-z]-[\w-]{8,}|(?:AKIA|ASIA)[0-9A-Z]{12,}"
    r"|AIza[\w-]{20,}|ya29\.[\w-]{10,}|eyJ[\w-]{8,}|tvly-[\w-]{12,}"
)
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RUN = re.compile(r"[A-Za-z0-9]{16,}")
_COMMIT = re.compile(r"(?i)[@#][0-9a-f]{40}(?=$|#)|@sha256:[0-9a-f]{64}$")
_SOURCE_CODE = re.compile(r"git\+|github:|gitlab:|bitbucket:|https://github\.com/")


def sounds_secret(name: str) -> bool:
    """Whether the name of a variable, header, flag or parameter sounds like that of a secret."""
    return _SECRET_NAME.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)) is not None


def is_clear(name: str, value: str) -> bool:
    """Whether a value of env or headers is certainly no secret."""
    if SWITCHES.fullmatch(value):
        return True
    if has_token(value):
        return False
    if sounds_secret(name):
        return _FILE_NAME.search(name) is not None and _PATH.fullmatch(value) is not None
    if any(pattern.fullmatch(value) for pattern in (_NUMBER, _WORD, _PATH, _ADDRESS)):
        return True
    is_ordinary = _ORDINARY_NAME.search(name) is not None and _WORDS.fullmatch(value) is not None
    return is_ordinary and not _PASSWORD.search(value)


def has_token(text: str) -> bool:
    """Whether some part of the text has the form of a token. The commit of a package is none."""
    if _SOURCE_CODE.match(text):
        text = _COMMIT.sub("", text)
    if _KNOWN_TOKEN.search(text) or _UUID.search(text):
        return True
    return any(_looks_random(run[0]) for run in _RUN.finditer(text))


def _looks_random(run: str) -> bool:
    """Whether a run of letters and digits is no word. Long words in CamelCase have few digits."""
    digits = sum(character.isdigit() for character in run)
    if digits == len(run):
        return len(run) > 20
    return digits >= 2 or len(run) >= 32
