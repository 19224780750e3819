"""Secrets for members: set and delete them, and choose the members that may use them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Case, OuterRef, Q, QuerySet, Subquery, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from mcp_runtime.control.members import members_of_roster, set_desired_state
from mcp_runtime.control.nodes import read_liveness
from mcp_runtime.members import kept_id_tokens, secret_uses
from mcp_runtime.protocol.errors import RequestRefusedError, UnknownSecretError
from mcp_runtime.rows import lease
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.secrets import values
from mcp_runtime.secrets.references import MASK, REFERENCE, SECRET_NAME
from mcp_runtime.sources.clear import is_clear
from roster.models import AuditEntry, GuildMember, MemberProposal, Secret, SecretUse, StatusChange

Kind = AuditEntry.Kind

KEY_STEPS = ("add", "use", "drop")
SCHEMES = ("bearer", "basic", "token")  # of a header, before the secret


@dataclass(frozen=True)
class SecretNeed:
    """A secret to which the manifest of a member refers."""

    name: str
    fault: str  # why the member cannot have it. Empty if it can
    exists: bool
    changed_parts: list[str]  # of the manifest, by key, since the member was allowed to use it


def find_secret(name: str) -> Secret:
    """Raises UnknownSecretError."""
    row = Secret.objects.filter(name=name).first()
    if row is None:
        raise UnknownSecretError(f"the hall has no secret {name!r}")
    return row


def set_secret(name: str, value: str, by: User | None) -> Secret:
    """Set the value of a new or an existing secret. Its members get it when they start the next time.

    Raises RequestRefusedError.
    """
    if not SECRET_NAME.fullmatch(name):
        raise RequestRefusedError(f"{name[:80]!r} must be 1 to 64 letters, digits, '.', '-' and '_'")
    with short_transaction(), values.refusals():
        values.lock()
        columns = {"encrypted": values.encrypt(value), "changed_at": timezone.now(), "changed_by": by}
        secret, is_new = Secret.objects.update_or_create(name=name, defaults=columns)
        AuditEntry.record(Kind.SECRET_SET, _name(secret), after={"is_new": is_new})
    _try_again(GuildMember.objects.filter(secret_uses__secret=secret))
    return secret


def require_usable(value: str) -> None:
    """Raise RequestRefusedError if it cannot be the value of a secret, or if the key file cannot be used."""
    with values.refusals():
        values.require_usable(value)
        values.require_writable()
        if values.key_file().path.exists():
            values.key_file().cipher()


def delete_secret(secret: Secret) -> None:
    """Delete it. Members that have its value keep it until they end."""
    secret_uses.delete(secret)


def reserved_names() -> set[str]:
    """Names that a new secret may not have, because they exist or because a proposal waits for them."""
    names = set(Secret.objects.values_list("name", flat=True))
    for proposal in MemberProposal.objects.filter(approved_at=None):
        names |= values.names_in(proposal.manifest)
    return names


def unset_names(names: Collection[str]) -> list[str]:
    """Those of these names that no secret has, sorted."""
    return sorted(set(names) - set(Secret.objects.filter(name__in=names).values_list("name", flat=True)))


def allow_secret(secret: Secret, member: GuildMember, by: User | None, *, identity: str | None = None) -> None:
    """Allow the member, as it is now, to use the secret.

    `identity` is that of the manifest which the user has seen. Raises RequestRefusedError if it is not this any more.
    """
    if identity is not None and identity != values.identity(member.manifest):
        raise RequestRefusedError(f"the manifest of {member.name!r} has just changed; look at it again")
    columns = {**values.fingerprints(member.manifest), "allowed_at": timezone.now(), "allowed_by": by}
    with short_transaction():
        SecretUse.objects.update_or_create(secret=secret, member=member, defaults=columns)
        AuditEntry.record(Kind.SECRET_ALLOWED, _name(secret), member=member.name, after={"members": [member.name]})
    _try_again(GuildMember.objects.filter(pk=member.pk))


def forbid_secret(secret: Secret, member: GuildMember) -> None:
    """Do not allow the member any more to use the secret. It keeps the value until it ends."""
    with short_transaction():
        if SecretUse.objects.filter(secret=secret, member=member).delete()[0]:
            before = {"members": [member.name]}
            AuditEntry.record(Kind.SECRET_FORBIDDEN, _name(secret), member=member.name, before=before)


def choose_members(secret: Secret, members: Iterable[GuildMember], by: User | None, *, of: Collection[str]) -> None:
    """Allow these members, and forbid all others. `of` has the names of all members that may be chosen or removed.

    Members that are allowed and unchanged stay as they are, so that this does not allow a changed member by accident.
    """
    chosen = {member.pk: member for member in members if member.name in of}
    with short_transaction():
        uses = SecretUse.objects.filter(secret=secret, member__name__in=of)
        for use in uses.exclude(member__in=chosen).select_related("member"):
            forbid_secret(secret, use.member)
        for pk in set(chosen) - set(uses.values_list("member_id", flat=True)):
            allow_secret(secret, chosen[pk], by)


def members_with_old_value(secret: Secret) -> list[GuildMember]:
    """The members that run with a value from before the secret was last set, by name. A restart gives them the new one.

    A member reads the value just after it gets its port, and a remote server when the hall begins to connect. So a
    member that is starting and has no port yet will read the new value.
    """
    running = (GuildMember.Status.STARTING, GuildMember.Status.CONNECTED)
    begins = StatusChange.objects.filter(member=OuterRef("pk"), new=GuildMember.Status.STARTING).order_by("-pk")
    # The row of an automatic restart is written at its end.
    start = Case(When(status=GuildMember.Status.STARTING, then="status_changed_at"))
    read_at = Coalesce("port_allocation__allocated_at", start, Subquery(begins.values("created_at")[:1]), "started_at")
    members = members_of_roster().filter(status__in=running, node__in=read_liveness().live_ids)
    members = members.exclude(Q(server_url="") & Q(port_allocation=None)).annotate(read_at=read_at)
    old = members.filter(read_at__lt=secret.changed_at).order_by("name")
    return [member for member in old if secret.name in values.names_in(member.manifest)]


def needs_of(member: GuildMember) -> list[SecretNeed]:
    """The secrets to which its manifest refers, by name."""
    names = values.names_in(member.manifest)
    if not names:
        return []
    existing = set(Secret.objects.filter(name__in=names).values_list("name", flat=True))
    uses = {use.secret.name: use for use in SecretUse.objects.filter(member=member.pk).select_related("secret")}
    secrets = values.MemberSecrets(member, member.manifest)
    return [
        SecretNeed(
            name, secrets.fault(name), name in existing, changed_parts(uses[name], member) if name in uses else []
        )
        for name in sorted(names)
    ]


def is_current(use: SecretUse) -> bool:
    """Whether the member is still what it was when it was allowed to use the secret."""
    return use.digest == values.identity(use.member.manifest)


def changed_parts(use: SecretUse, member: GuildMember) -> list[str]:
    """The keys of the manifest whose values changed since the member was allowed to use the secret."""
    parts = values.parts(member.manifest)
    return sorted(key for key in parts.keys() | use.parts.keys() if parts.get(key) != use.parts.get(key))


def shown_text(name: str, value: Any) -> Any:
    """A value of env or headers for people. It is masked if it could be a secret. References are none."""
    if not isinstance(value, str):
        return value if value is None else MASK
    rest = REFERENCE.sub("", value).replace("${PORT}", "").strip()
    return value if not rest or rest.lower() in SCHEMES or is_clear(name, rest) else MASK


def identity_of(member: GuildMember) -> str:
    """The digest of what the member runs or calls, for `allow_secret`."""
    return values.identity(member.manifest)


# The keys ---------------------------------------------------------------------------------------------------------


def has_other_nodes() -> bool:
    return lease.has_other_nodes()


def rotate_key(steps: Collection[str]) -> int:
    """Take some of KEY_STEPS, in this order. Return how many secrets are encrypted with the first key of the file.

    add   a new key into the file, which does not encrypt yet
    use   the new key for all secrets
    drop  the old keys from the file, if no secret needs them

    Raises RequestRefusedError. Steps before the one that is refused stay.
    """
    with values.refusals():
        if not values.key_file().path.exists():
            raise RequestRefusedError(f"there is no key file {values.key_file().path}: the first secret makes it")
        for step in (step for step in KEY_STEPS if step in steps):
            with short_transaction():
                values.lock()
                _STEPS[step]()
                AuditEntry.record(Kind.SECRETS_KEY_ROTATED, "the key file", after={"step": step})
    return Secret.objects.count()


def _add_key() -> None:
    for secret in Secret.objects.all():  # else the next step fails, and each try would add a key
        values.decrypt(secret)
    for sign_in in values.sign_ins():
        values.decrypt_sign_in(sign_in)
    values.key_file().add()


def _use_key() -> None:
    if not values.key_file().use_new() and not values.need_old_keys():
        raise RequestRefusedError("no new key was added, and no secret needs an old one; run --step add first")
    values.encrypt_again()
    kept_id_tokens.encrypt_again()


def _drop_keys() -> None:
    if names := values.need_old_keys():
        raise RequestRefusedError(f"an old key is still needed, for example for {names[0]!r}; run --step use first")
    values.key_file().drop_old()


_STEPS = {"add": _add_key, "use": _use_key, "drop": _drop_keys}


def _name(secret: Secret) -> str:
    return f"secret {secret.name}"


def _try_again(members: QuerySet[GuildMember]) -> None:
    """Start members at once that are in status `error`, perhaps because a secret was missing."""
    wanted = {"enabled": True, "desired_state": GuildMember.DesiredState.RUNNING, "manifest_error": ""}
    for member in members.filter(status=GuildMember.Status.ERROR, **wanted):
        set_desired_state(member, restart_requested_at=timezone.now())
