"""A hall in which another user has a row of every kind, each with its own word that must not leak."""

from __future__ import annotations

import json
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.test import Client
from django.utils import timezone

from mcp_runtime.control import secrets
from mcp_runtime.members import logs
from mcp_runtime.rows import lease
from mcp_runtime.secrets import values
from mcp_runtime.security import principals
from roster import invitations, roles
from roster.models import (
    Agent,
    AgentEvent,
    AgentMessage,
    AuditEntry,
    Call,
    GuildMember,
    ManifestEdit,
    MemberExtras,
    MemberProposal,
    Node,
    PortAllocation,
    Preset,
    Role,
    SavedFilter,
    Secret,
    StatusChange,
    Token,
    TokenClient,
    Tool,
    ToolSet,
    TrashedMember,
)

# A word for each kind of row of another user, and the permissions that show it. Superusers may see all.
NOBODY: frozenset[str] = frozenset()
WORDS: dict[str, Set[str]] = {
    "word-of-arguments": {"view_call", "change_call"},
    "word-of-result": {"view_call", "change_call"},
    "word-of-failure": {"view_call", "change_call"},
    "word-of-prompt": {"view_agent", "change_agent"},
    "word-of-transcript": {"view_agent", "change_agent"},
    "word-of-agent": {"view_agent", "change_agent"},
    "word-of-log": {"view_guildmember", "change_guildmember"},
    "word-of-manifest": {"view_guildmember", "change_guildmember"},
    "word-of-error-lines": {"view_guildmember", "change_guildmember"},
    "word-of-change": {"view_guildmember", "change_guildmember", "view_statuschange", "change_statuschange"},
    "word-of-token": {"view_call", "change_call"},  # calls have the name of their token
    "word-of-client": NOBODY,
    "word-of-set": NOBODY,
    "word-of-secret-name": {"view_secret", "change_secret", "delete_secret", "view_auditentry"},
    "word-of-secret-value": NOBODY,
    "word-of-proposal": {"approve_member"},
    "word-of-edit": {"view_guildmember", "change_guildmember"},
    "word-of-invitation": {"add_user", "view_auditentry"},  # the note of an invitation
    "word-of-audit": {"view_auditentry"},
    "word-of-hidden-member": NOBODY,  # a member that is reserved for a group
    "word-of-hidden-tool": NOBODY,
}
MODELS = (
    "guildmember",
    "tool",
    "call",
    "statuschange",
    "portallocation",
    "node",
    "agent",
    "token",
    "user",
    "group",
    "secret",
)
VERBS = ("view", "change", "add", "delete")
PERMISSIONS = (
    "invoke_tool",
    "control_member",
    "approve_member",
    "view_auditentry",
    *(f"{verb}_{model}" for model in MODELS for verb in VERBS),
)


@dataclass
class Who:
    """A principal: its session or token, and its permissions. `is_known`: whether it has access at all."""

    name: str
    permissions: frozenset[str] = frozenset()
    is_known: bool = True
    is_superuser: bool = False
    is_narrowed: bool = False
    session: Client | None = None  # the session of a browser
    token: Client | None = None

    def may_read(self, word: str) -> bool:
        if self.is_superuser:
            return True
        if self.is_narrowed:  # only its own calls and agents
            return "view_guildmember" in WORDS[word]
        return bool(self.permissions & WORDS[word])


@dataclass
class World:
    member: GuildMember
    hidden: GuildMember
    ids: dict[str, Any] = field(default_factory=dict)  # ids of another user's rows, by their names in routes
    hidden_ids: dict[str, Any] = field(default_factory=dict)


def make(data_dir: Path) -> World:
    lease.hall()
    olga = User.objects.create_user("olga")
    group = Group.objects.create(name="circle")
    olga.groups.add(group)
    notes, hidden = _member("notes", data_dir), _member("word-of-hidden-member", data_dir)
    hidden.groups.add(group)
    world = World(notes, hidden)
    secret = secrets.set_secret("word-of-secret-name", "word-of-secret-value", olga)
    for member in (notes, hidden):
        secrets.allow_secret(secret, member, olga)
    text = json.dumps({"name": "word-of-proposal", "version": "1", "transport": "stdio", "command": "serve"})
    MemberProposal.objects.create(name="word-of-proposal", text=text, digest="0" * 64, source="word-of-proposal")
    trashed = TrashedMember.objects.create(name="word-of-trash", directory="word-of-trash", nodes={"main": ""})
    tool_set = ToolSet.objects.create(name="writing")
    for member in (notes, hidden):
        tool_set.entries.create(member=member)
    shared: dict[str, Any] = {"secret": secret.pk, "secret_id": secret.pk, "toolset": tool_set.pk, "number": trashed.pk}
    shared["offer"] = "token-tools"
    world.ids = {**_belongings(notes, "add", olga), **shared}
    world.hidden_ids = {**_belongings(hidden, "word-of-hidden-tool", olga), **shared}
    return world


def _member(name: str, data_dir: Path) -> GuildMember:
    manifest = {
        **{
            "name": name,
            "version": "1",
            "transport": "stdio",
            "command": "python",
            "args": ["word-of-manifest"],
            "env": {"WORD": "word-of-manifest"},
        },
        **{"enabled": True, "start_timeout": 5, "timeout": 5, "tool_timeouts": {}, "restart": "never"},
        "max_concurrency": 1,
    }
    log = logs.path_of(data_dir, name)
    log.parent.mkdir(exist_ok=True)
    log.write_text("word-of-log\n")
    last_error = f"it exited{GuildMember.TAIL_MARK}word-of-error-lines"
    member = GuildMember.objects.create(
        name=name, directory=name, manifest=manifest, status="error", last_error=last_error, exit_code=3
    )
    member.capabilities = {"prompts": {}, "resources": {"subscribe": True}, "completions": {}}
    member.save()
    word = "word-of-hidden-tool" if name == "word-of-hidden-member" else "its words"
    MemberExtras.objects.create(
        member=member,
        prompts=[{"name": "greet", "description": word}],
        resources=[{"uri": "file:///a", "name": word}],
        resource_templates=[{"uriTemplate": "file:///{b}", "name": word}],
    )
    return member


def _belongings(member: GuildMember, tool_name: str, owner: User) -> dict[str, Any]:
    definition = {"name": tool_name, "inputSchema": {"type": "object"}}
    tool = Tool.objects.create(member=member, name=tool_name, definition=definition)
    token = Token.make(user=owner, name="word-of-token", scope=Token.Scope.MEMBERS, members=[member])[0]
    now = timezone.now()
    TokenClient.objects.create(token=token, name="word-of-client", first_seen_at=now, last_seen_at=now)
    call = Call.objects.create(
        **{"member": member, "tool_name": tool_name, "timeout": 5, "source": "rest", "status": "failed"},
        **{"requested_by": owner, "token": token, "arguments": {"text": "word-of-arguments"}, "error_kind": "tool"},
        **{"error_message": "word-of-failure", "started_at": now - timedelta(seconds=1), "finished_at": now},
        result={"content": [{"type": "text", "text": "word-of-result"}], "isError": True},
        idempotency_key="key",
    )
    agent = Agent.objects.create(name=f"word-of-agent {member.name}", created_by=owner, made_with=token)
    agent.members.add(member)
    message = AgentMessage.objects.create(
        agent=agent, prompt="word-of-prompt", timeout=5, source="rest", requested_by=owner, status="succeeded"
    )
    AgentEvent.objects.create(message=message, kind="text", data={"text": "word-of-transcript"})
    content = [{"type": "text", "text": "word-of-transcript"}]
    event = AgentEvent.objects.create(
        message=message, kind="tool_result", data={"id": "t", "content": content, "is_error": False}
    )
    change = StatusChange.objects.create(
        member=member, old="connected", new="error", cause="exit", message="exit", log_tail="word-of-change"
    )
    word = "word-of-edit" if member.name != "word-of-hidden-member" else "word-of-hidden-tool"
    edit = ManifestEdit.objects.create(
        member=member,
        changes=[{"path": ["args"], "before": member.manifest["args"], "after": [word]}],
        identity_before=values.identity(member.manifest),
        created_by=owner,
    )
    port = PortAllocation.objects.create(member=member, port=20000 + member.pk)
    saved_filter = SavedFilter.objects.create(user=owner, name=f"word-of-set {tool.pk}", query="q=word-of-set")
    preset = Preset.objects.create(user=owner, tool=tool, name="word-of-set", arguments={"text": "word-of-set"})
    viewer = Role.objects.get(name="viewer")
    link = invitations.invite(viewer, inviter=None, note="word-of-invitation")[1]
    details = {"note": "word-of-audit", "members": [member.name], "tools": [f"{member.name}/{tool_name}"]}
    AuditEntry.record(AuditEntry.Kind.TOKEN_CREATED, "token", before=details, after=details)
    AuditEntry.record(AuditEntry.Kind.MEMBER_STARTED, f"member {member.name}", member=member.name, after=details)
    content = ContentType.objects.get_for_model(GuildMember)
    LogEntry.objects.create(user=owner, content_type=content, object_id=member.pk, action_flag=CHANGE)
    return {
        **{"member_id": member.pk, "tool_id": tool.pk, "call_id": call.pk, "agent_id": agent.pk},
        "event_id": event.pk,
        **{
            "token_id": token.pk,
            "preset_id": preset.pk,
            "filter_id": saved_filter.pk,
            "name": member.name,
            "tool": tool_name,
        },
        **{"call": call.pk, "agent": agent.pk, "token": token.pk},  # `pk` in routes of the API
        **{"statuschange": change.pk, "portallocation": port.pk, "guildmember": member.pk},
        "edit": edit.pk,
        "auditentry": AuditEntry.objects.latest("pk").pk,
        **{"node": Node.objects.get_or_create(name="main")[0].pk},
        **{"link_secret": link.split("/")[-2]},
        **{"user": owner.pk, "group": owner.groups.values_list("pk", flat=True).last()},
    }


def own_ids(principal: Who, data_dir: Path) -> dict[str, Any]:
    """The ids of rows of the principal, and of a user and a group that have no rights."""
    owner = User.objects.get(username=principal.name)
    ids = _belongings(_member(f"member-{owner.pk}", data_dir), "add", owner)
    lesser = User.objects.create_user(f"less than {owner.pk}")
    shared: dict[str, Any] = {  # they are nobody's own
        "secret": Secret.objects.get().pk,
        "secret_id": Secret.objects.get().pk,
        "toolset": ToolSet.objects.get().pk,
        "number": TrashedMember.objects.get().pk,
        "offer": "token-tools",
    }
    return {
        **ids,
        **shared,
        "user": lesser.pk,
        "id": lesser.pk,
        "group": Group.objects.create(name=f"empty {owner.pk}").pk,
    }


# Principals -------------------------------------------------------------------------------------------------------


def _user(name: str, permissions: Iterable[str] = (), **columns: Any) -> User:
    user = User.objects.create_user(name, **columns)
    rows = Permission.objects.filter(codename__in=permissions, content_type__app_label__in=("roster", "auth"))
    user.user_permissions.set(rows)
    assert rows.count() == len(list(permissions))
    return user


def _session(user: User) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return client


def with_token(text: str) -> Client:
    """A client with a token that was used a moment ago, as in most requests."""
    principals.touch(*Token.objects.filter(digest=Token.digest_of(text)).values_list("pk", flat=True))
    return Client(raise_request_exception=False, headers={"Authorization": f"Bearer {text}"})


class People:
    """Principals with access, and principals whose access has ended."""

    def __init__(self, world: World) -> None:
        self._of_permissions: dict[frozenset[str], Who] = {}
        full = _user("full", PERMISSIONS)
        self.full = _with_session_and_token(full, frozenset(PERMISSIONS))
        self.nothing = _with_session_and_token(_user("nothing"), frozenset())
        self.root = _with_session_and_token(
            User.objects.create_superuser("root"), frozenset(PERMISSIONS), is_superuser=True
        )
        self.anonymous = Who("anonymous", is_known=False, session=Client(raise_request_exception=False))
        past = timezone.now() - timedelta(hours=1)
        invalid = [
            _with_invalid_token(full, "revoked", revoked_at=past),
            _with_invalid_token(full, "expired", expires_at=past),
        ]
        with_roles = [_with_role(role) for role in Role.objects.all()]
        self.with_all_rights_of_roles = [self.nothing, *with_roles, self.root]
        self.everybody = [self.nothing, self.full, self.root, self.anonymous, _inactive(), *with_roles, *invalid]
        scopes: list[dict[str, Any]] = [
            {"scope": "members", "members": [world.member]},
            {"scope": "tools", "tools": list(world.member.tools.all())},
            {"scope": "members"},
        ]
        self.narrowed = [_with_narrow_token(full, **scope) for scope in scopes]

    def with_permissions(self, permissions: set[str]) -> Who:
        key = frozenset(permissions)
        if key not in self._of_permissions:
            user = _user(f"user-{len(self._of_permissions)}", key)
            self._of_permissions[key] = _with_session_and_token(user, key)
        who = self._of_permissions[key]
        labels = sorted(key) if len(key) < 4 else ["all", "but", *sorted(set(PERMISSIONS) - key)]
        who.name = " ".join(labels)
        return who


def _with_role(role: Role) -> Who:
    user = _user(f"a {role}")
    roles.set_role(user, role)
    permissions = frozenset(permission.partition(".")[2] for permission in roles.permissions_of_role(role.name))
    return _with_session_and_token(user, permissions)


def _with_narrow_token(user: User, **scope: Any) -> Who:
    name = f"a token for {', '.join(scope)}"
    token = with_token(Token.make(user=user, **scope)[1])
    return Who(name, frozenset(PERMISSIONS), is_narrowed=True, token=token)


def _with_invalid_token(user: User, name: str, **columns: Any) -> Who:
    row, text = Token.make(user=user)
    Token.objects.filter(pk=row.pk).update(**columns)
    return Who(name, is_known=False, token=with_token(text))


def _inactive() -> Who:
    user = _user("inactive", PERMISSIONS)
    text, session = Token.make(user=user)[1], _session(user)
    User.objects.filter(pk=user.pk).update(is_active=False)
    return Who("inactive", is_known=False, session=session, token=with_token(text))


def _with_session_and_token(user: User, permissions: frozenset[str], **more: Any) -> Who:
    token = with_token(Token.make(user=user)[1])
    return Who(user.username, permissions, session=_session(user), token=token, **more)
