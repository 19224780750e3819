"""The values of secrets: encrypt one for its row, and decrypt it for a member that may use it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from django.conf import settings

from mcp_runtime.protocol.errors import KeyFileError, SecretError, SecretKeyError
from mcp_runtime.rows import lease
from mcp_runtime.secrets.key_file import KeyFile
from mcp_runtime.secrets.references import MAX_LINES, MAX_SECRET, secret_names
from roster.models import GuildMember, Hall, Secret, SecretUse

# What a member is. If one of these changes, somebody must allow the member again to use its secrets. Variables count
# too, because PATH or NODE_OPTIONS decide what a command runs.
IDENTITY_KEYS = ("transport", "command", "args", "url")
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
    if newest is None or not lease.has_other_nodes():
        return
    if not keys.path.exists():
        raise KeyFileError(
            f"this machine has no key file {keys.path}, and the hall has secrets: copy the file from a node that has "
            "it, or set GUILD_HALL_SECRETS_KEY_FILE to the path of a copy. If no node has it, delete all secrets"
        )
    decrypt(newest)


def lock() -> None:
    """Let no other process set a secret or change the keys until the end of the transaction."""
    Hall.objects.select_for_update(no_key=True).filter(pk=1).first()


def decrypt(secret: Secret) -> str:
    """Raises KeyFileError, also if the key is not in the file."""
    from cryptography.fernet import InvalidToken  # see key_file

    try:
        return key_file().cipher().decrypt(secret.encrypted).decode()
    except InvalidToken:
        path = settings.GUILD_HALL_SECRETS_KEY_FILE
        raise KeyFileError(
            f"the secret {secret.name!r} was encrypted with a key that is not in {path}; {COPY_OF_KEY}"
        ) from None


def identity(manifest: Mapping[str, Any]) -> str:
    """The digest of what the member runs or calls. `manifest` has JSON values, as in the member's row."""
    return _digest(_identifying_values(manifest))


def parts(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Short digests of the values of which `identity` is made, by their keys in the manifest. They say what changed."""
    return {key: _digest(value)[:SHORT_DIGEST] for key, value in _identifying_values(manifest).items()}


def _identifying_values(manifest: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: manifest[key] for key in IDENTITY_KEYS if manifest.get(key)}
    values["sandbox"] = manifest.get("sandbox") or "off"
    if headers := manifest.get("headers"):
        values["headers"] = sorted(headers)
    # An empty variable counts: an empty PATH decides what a command runs.
    return values | {f"env.{name}": value for name, value in (manifest.get("env") or {}).items()}


def fingerprints(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a SecretUse that say for which member, as in this manifest, it holds."""
    return {"digest": identity(manifest), "parts": parts(manifest)}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def names_in(manifest: Mapping[str, Any]) -> set[str]:
    """The names of the secrets to which the manifest refers."""
    values = [*(manifest.get("args") or ()), *(manifest.get("env") or {}).values()]
    return secret_names([*values, *(manifest.get("headers") or {}).values()])


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
            return f"the secret {name!r} does not exist; set it in the admin or with manage.py set_secret {name}"
        how = f"manage.py allow_secret {name} {self._member.name}"
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
    return len(rows)


def need_old_keys() -> list[str]:
    """The names of the secrets that the first key of the file cannot decrypt. Raises KeyFileError."""
    from cryptography.fernet import InvalidToken

    cipher, names = key_file().cipher_of_first(), []
    for row in Secret.objects.all():
        try:
            cipher.decrypt(row.encrypted)
        except InvalidToken:
            names.append(row.name)
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
