"""The values of secrets: encrypt one for its row, and decrypt it for a member that may use it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings

from mcp_runtime.protocol.errors import KeyFileError, RequestRefusedError, SecretError, SecretKeyError
from mcp_runtime.rows import lease
from mcp_runtime.secrets.key_file import KeyFile
from mcp_runtime.secrets.references import MAX_LINES, MAX_SECRET, OF_OAUTH, secret_names
from roster.models import (
    GuildMember,
    Hall,
    Identity,
    MemberSignIn,
    MemberSignInAttempt,
    Secret,
    SecretUse,
    SignIn,
    UserSignIn,
    UserSignInAttempt,
)

# What a member is. If one of these changes, somebody must allow the member again to use its secrets. Variables count
# too, because PATH or NODE_OPTIONS decide what a command runs.
IDENTITY_KEYS = ("transport", "command", "args", "url")
NEW_OAUTH_KEYS = ("idp_issuer", "idp_client_id")  # that earlier versions do not have
PERSON = SignIn.PERSON  # the default of `oauth.grant`
COPY_OF_KEY = "copy the key file of the node that set the secret to this path, or set the secret again"
SHORT_DIGEST = 16  # characters of the digest of one part


def key_file() -> KeyFile:
    return KeyFile(settings.GUILD_HALL_SECRETS_KEY_FILE)


def require_usable(value: str) -> None:
    """Raise SecretError if it cannot be the value of a secret."""
    if not value.strip():
        raise SecretError("a secret must not be empty")
    if "\0" in value or len(value) > MAX_SECRET or value.count("\n") >= MAX_LINES:
        reason = f"NUL characters, more than {MAX_SECRET:,} characters or more than {MAX_LINES} lines"
        raise SecretError(f"a secret must not hold {reason}")


def encrypt(value: str) -> str:
    """The text for the row. Call it in the transaction that writes the row, after `lock`. Raises SecretError.

    The first secret of the hall creates the key file.
    """
    require_usable(value)
    require_writable()
    keys = key_file()
    keys.create()
    return keys.cipher().encrypt(value.encode()).decode()


def require_writable() -> None:
    """Raise KeyFileError if this machine would encrypt with a key that other nodes do not have.

    A hall with one node may have lost its key file. Then it makes another, and its secrets are set again one by one.
    """
    keys = key_file()
    newest = Secret.objects.order_by("-changed_at").first()
    sign_in = next(iter(sign_ins()), None) if newest is None else None
    login = Identity.objects.exclude(id_token="").order_by("-last_login_at").first()
    if (newest is None and sign_in is None and login is None) or not lease.has_other_nodes():
        return
    if not keys.path.exists():
        raise KeyFileError(
            f"this machine has no key file {keys.path}, and the hall has secrets: copy the file from a node that has "
            "it, or set GUILD_HALL_SECRETS_KEY_FILE to the path of a copy. If no node has it, delete all secrets"
        )
    if newest is not None:
        decrypt(newest)
    elif sign_in is not None:
        decrypt_sign_in(sign_in)
    elif login is not None:
        decrypt_text(login.id_token, "the ID token of a user was")


def lock() -> None:
    """Let no other process set a secret or change the keys until the end of the transaction."""
    Hall.objects.select_for_update(no_key=True).filter(pk=1).first()


def decrypt(secret: Secret) -> str:
    """Raises KeyFileError, also if the key is not in the file."""
    return decrypt_text(secret.encrypted, f"the secret {secret.name!r} was")


def decrypt_text(encrypted: str, subject: str) -> str:
    """The text of a row. `subject` begins the sentence of an error. Raises KeyFileError."""
    from cryptography.fernet import InvalidToken  # see key_file

    try:
        return key_file().cipher().decrypt(encrypted).decode()
    except InvalidToken:
        path = settings.GUILD_HALL_SECRETS_KEY_FILE
        raise KeyFileError(f"{subject} encrypted with a key that is not in {path}; {COPY_OF_KEY}") from None


def decrypt_sign_in(row: SignIn) -> str:
    """The tokens of a member behind OAuth, as JSON. Raises KeyFileError."""
    return decrypt_text(row.encrypted, "the tokens of the member were")


def identity(manifest: Mapping[str, Any]) -> str:
    """The digest of what the member runs or calls. `manifest` has JSON values, as in the member's row."""
    return _digest(_identifying_values(manifest))


def parts(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Short digests of the values of which `identity` is made, by their keys in the manifest. They say what changed."""
    return {key: _digest(value)[:SHORT_DIGEST] for key, value in _identifying_values(manifest).items()}


def _identifying_values(manifest: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: manifest[key] for key in IDENTITY_KEYS if manifest.get(key)}
    values["sandbox"] = manifest.get("sandbox") or "off"
    if manifest.get("packages", "fetched") != "fetched":
        values["packages"] = manifest["packages"]
    if headers := manifest.get("headers"):
        values["headers"] = sorted(headers)
    oauth = {key: value for key, value in (manifest.get("oauth") or {}).items() if key in ("client_id", "issuer")}
    oauth |= _destinations(manifest)
    if any(oauth.values()):
        values["oauth"] = oauth
    # An empty variable counts: an empty PATH decides what a command runs.
    return values | {f"env.{name}": value for name, value in (manifest.get("env") or {}).items()}


def _destinations(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What decides to whom the hall sends which secret, for a member behind OAuth.

    Its secrets go to its url, its authorization server or an identity provider, and a private key to nobody. So a
    secret must not move to another key. What is empty is left out, so that the digests of other members stay as they
    were in earlier versions. With `client_secret` as the only place for a secret, there is no other key to move it to.
    """
    oauth = manifest.get("oauth") or {}
    found: dict[str, Any] = {key: oauth[key] for key in NEW_OAUTH_KEYS if oauth.get(key)}
    if oauth.get("grant", PERSON) != PERSON:  # then nobody sees the address of the authorization server first
        found["grant"] = oauth["grant"]
    used, headers = [key for key in OF_OAUTH if oauth.get(key)], manifest.get("headers") or {}
    if used and (headers or used != ["client_secret"]):
        places = {key: sorted(secret_names([oauth[key]])) for key in used}
        found["secrets"] = places | {"headers": sorted(secret_names(headers.values()))}
    return found


def fingerprints(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a SecretUse that say for which member, as in this manifest, it holds."""
    return {"digest": identity(manifest), "parts": parts(manifest)}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def names_in(manifest: Mapping[str, Any]) -> set[str]:
    """The names of the secrets to which the manifest refers."""
    values = [*(manifest.get("args") or ()), *(manifest.get("env") or {}).values()]
    oauth = manifest.get("oauth") or {}
    proofs = [oauth.get(key) or "" for key in OF_OAUTH]
    return secret_names([*values, *(manifest.get("headers") or {}).values(), *proofs])


class MemberSecrets:
    """The secrets that a member may use, while it is as in this manifest."""

    def __init__(self, member: GuildMember, manifest: Mapping[str, Any]) -> None:
        self._member = member
        self._identity = identity(manifest)

    def __call__(self, name: str) -> str:
        """The value. Raises SecretError, which says what to do."""
        if fault := self.fault(name):
            raise SecretError(fault)
        return decrypt(Secret.objects.get(name=name))

    def fault(self, name: str) -> str:
        """Why the member cannot have the secret. Empty if it can."""
        if not Secret.objects.filter(name=name).exists():
            return f"the secret {name!r} does not exist; set it in the admin or with guildhall set_secret {name}"
        how = f"guildhall allow_secret {name} {self._member.name}"
        use = SecretUse.objects.filter(secret__name=name, member=self._member.pk).first()
        if use is None:
            return f"the member may not use the secret {name!r}; allow it in the admin or with {how}"
        if use.digest != self._identity:
            return (
                f"what the member runs or calls has changed since it was allowed to use the secret {name!r}; check the "
                f"manifest, and allow it again in the admin or with {how}"
            )
        return ""


# The keys ---------------------------------------------------------------------------------------------------------


def encrypt_again() -> int:
    """Encrypt all secrets with the first key of the file. Return how many there are. Call it after `lock`.

    Raises KeyFileError.
    """
    cipher, rows = key_file().cipher(), list(Secret.objects.all())
    for row in rows:
        row.encrypted = cipher.encrypt(decrypt(row).encode()).decode()
        row.save(update_fields=["encrypted"])
    for sign_in in sign_ins():
        text = cipher.encrypt(decrypt_sign_in(sign_in).encode()).decode()
        # A refresh may write new tokens meanwhile, with the first key of the file.
        type(sign_in).objects.filter(pk=sign_in.pk, version=sign_in.version).update(encrypted=text)
    MemberSignInAttempt.objects.all().delete()  # they live for minutes
    UserSignInAttempt.objects.all().delete()
    return len(rows)


def sign_ins() -> Iterator[MemberSignIn | UserSignIn]:
    """All sign-ins at members, of everybody and of single users."""
    yield from MemberSignIn.objects.exclude(encrypted="").select_related("member").order_by("-signed_in_at")
    yield from UserSignIn.objects.exclude(encrypted="").select_related("member").order_by("-signed_in_at")


def need_old_keys() -> list[str]:
    """The names of the secrets that the first key of the file cannot decrypt. Raises KeyFileError."""
    from cryptography.fernet import InvalidToken

    cipher, names = key_file().cipher_of_first(), []
    for row in Secret.objects.all():
        try:
            cipher.decrypt(row.encrypted)
        except InvalidToken:
            names.append(row.name)
    for sign_in in sign_ins():
        try:
            cipher.decrypt(sign_in.encrypted)
        except InvalidToken:
            names.append(f"the sign-in of {sign_in.member.name}")
    return names


def require_same_keys() -> None:
    """Raise SecretKeyError if the hall has other nodes, and this machine cannot decrypt its newest secret.

    With one node, only the members that need a secret do not start. Their pages say why.
    """
    newest = Secret.objects.order_by("-changed_at").first()
    if newest is None or not lease.has_other_nodes():
        return
    try:
        decrypt(newest)
    except KeyFileError as error:
        raise SecretKeyError(str(error)) from error


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Raise RequestRefusedError in place of SecretError."""
    try:
        yield
    except SecretError as error:
        raise RequestRefusedError(str(error)) from error
