"""Sign-ins of the hall at the authorization servers of members: the tokens, and tries that a person began."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from roster.json_field import JsonField
from roster.models.members import GuildMember


class SignIn(models.Model):
    """What the hall has at the authorization server of a member, and what the member asks for.

    `mcp_runtime.members.credentials` is the only code that writes it. `encrypted` has the tokens and the secret of the
    client, encrypted as secrets are. They are for `url` alone: with another url they are forgotten.
    """

    PERSON = "authorization_code"  # a way, see `way`
    MAX_STEP_UPS = 3  # requests for more scopes, until somebody signs out or signs in without such a request

    url = models.CharField(max_length=2048, editable=False, help_text="The url of the member that the tokens are for.")
    version = models.BigIntegerField(db_default=0, default=0, editable=False, help_text="Changes with the tokens.")

    # What the member asked for when it refused a request.
    resource_metadata = models.TextField(blank=True, editable=False)
    challenge_scopes = JsonField(default=list, editable=False)
    wanted_scopes = JsonField(default=list, editable=False, help_text="Scopes that calls needed and the token lacks.")
    step_ups = models.PositiveIntegerField(default=0, editable=False)

    # What the authorization server gave.
    issuer = models.CharField(max_length=2048, blank=True, editable=False)
    # Beside its endpoints, `way` says how the hall got the tokens. Nodes of earlier versions do not write it.
    server = JsonField(default=dict, editable=False, help_text="Its endpoints, as at the last sign-in.")
    client_id = models.CharField(max_length=2048, blank=True, editable=False)
    client_method = models.CharField(max_length=40, blank=True, editable=False)
    client_source = models.CharField(max_length=20, blank=True, editable=False, help_text="How the hall got the id.")
    redirect = models.CharField(max_length=2048, blank=True, editable=False, help_text="For which the id was given.")
    encrypted = models.TextField(blank=True, editable=False)
    has_tokens = models.BooleanField(default=False, editable=False)
    scopes = JsonField(default=list, editable=False)
    expires_at = models.DateTimeField(null=True, editable=False, help_text="The end of the access token, if known.")
    signed_in_at = models.DateTimeField(null=True, editable=False)
    signed_in_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )

    # The refresh. One process at a time may ask the token endpoint.
    refresh_lease = models.UUIDField(null=True, editable=False, help_text="The refresh that is in progress.")
    refresh_until = models.DateTimeField(null=True, editable=False, help_text="When it counts as lost.")
    refresh_failures = models.PositiveIntegerField(default=0, editable=False)
    next_refresh_at = models.DateTimeField(null=True, editable=False, help_text="The next try after a failure.")

    class Meta:
        abstract = True
        default_permissions = ()  # those of the member decide

    @property
    def way(self) -> str:
        """How the hall got the tokens, see `members.unattended.way_of`. Empty if nothing says it."""
        return str(self.server.get("way") or (self.PERSON if self.signed_in_at else ""))

    def came_by(self, way: str) -> bool:
        """Whether the hall has what it got in this way, or has nothing."""
        return not self.encrypted or self.way == way or (not self.way and way != self.PERSON)

    def is_of(self, issuer: str) -> bool:
        """Whether a sign-in of a person may be used if the manifest names this issuer. Empty means that it names none.

        The issuer stays in the row when the tokens end, so that it still says why.
        """
        return not issuer or not self.issuer or self.issuer == issuer


class MemberSignIn(SignIn):
    """The sign-in that everybody who may use the member uses."""

    member = models.OneToOneField(GuildMember, on_delete=models.CASCADE, primary_key=True, related_name="sign_in")

    class Meta(SignIn.Meta):
        pass

    def __str__(self) -> str:
        return f"sign-in of {self.member_id}"


class UserSignIn(SignIn):
    """The sign-in of one user at a member where each user has an own one.

    Without a `user` it is for the requests of the hall itself, which read the lists. Another table than that of
    MemberSignIn, so that a node of an earlier version never uses these tokens for everybody.
    """

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, related_name="user_sign_ins", editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.CASCADE, related_name="member_sign_ins"
    )
    # The tokens are of the account of this person, so they end with the person.
    signed_in_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.CASCADE, related_name="+"
    )

    class Meta(SignIn.Meta):
        constraints = (
            models.UniqueConstraint(fields=["member", "user"], name="one_sign_in_of_a_user"),
            models.UniqueConstraint(fields=["member"], condition=Q(user=None), name="one_sign_in_for_lists"),
        )

    def __str__(self) -> str:
        return f"sign-in of user {self.user_id} at {self.member_id}"


class SignInAttempt(models.Model):
    """A try of a person to sign in at a member. Only this person can finish it, once, and within LIFETIME."""

    LIFETIME = timedelta(minutes=10)
    MAX_OPEN = 20  # of one member. The oldest are deleted

    state_digest = models.CharField(max_length=64, unique=True, editable=False, help_text="The SHA-256 of the state.")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", editable=False)
    session_digest = models.CharField(
        max_length=64, blank=True, editable=False, help_text="Of the browser's session. Empty if it began over REST."
    )
    url = models.CharField(max_length=2048, editable=False)
    encrypted = models.TextField(editable=False, help_text="All that is needed to finish it.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        abstract = True
        default_permissions = ()


class MemberSignInAttempt(SignInAttempt):
    """A try to sign a member in for everybody."""

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, related_name="sign_in_attempts", editable=False)

    class Meta(SignInAttempt.Meta):
        pass

    def __str__(self) -> str:
        return f"attempt of {self.user_id} for {self.member_id}"


class UserSignInAttempt(SignInAttempt):
    """A try for the user alone, or `for_lists` of the hall. A node of an earlier version cannot finish it wrongly."""

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, related_name="+", editable=False)
    for_lists = models.BooleanField(default=False, editable=False)

    class Meta(SignInAttempt.Meta):
        pass

    def __str__(self) -> str:
        return f"attempt of {self.user_id} for {self.member_id}, own or for lists"
