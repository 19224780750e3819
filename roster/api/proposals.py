"""Proposed members over REST: propose, look at, approve, discard. Nothing runs before an approval."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

import msgspec
from django.contrib.auth.models import User
from django.http import QueryDict
from rest_framework import serializers, status
from rest_framework.generics import ListAPIView
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control import bundles, proposals
from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.sources.server_json import Filled
from roster import template
from roster.api.base import REFUSED, HallView, NewestFirst, ProblemSerializer, Strict, body_of
from roster.api.described import extend_schema
from roster.api.errors import problem
from roster.api.permissions import MayApproveMembers
from roster.api.registry import WaySerializer
from roster.models import MemberProposal
from roster.proposals import described

MAX_SOURCE = 262_144


class InputSerializer(serializers.Serializer[Any]):
    secret = serializers.CharField(help_text="The name of the secret.")
    label = serializers.CharField(  # type: ignore[assignment]
        help_text="The name of the variable or input in the source."
    )
    description = serializers.CharField()
    options = serializers.ListField(child=serializers.CharField())


class BundleSerializer(serializers.Serializer[Any]):
    sha256 = serializers.CharField(help_text="Of the bytes of the bundle.")
    size = serializers.IntegerField(help_text="Of the bundle, in bytes.")
    unpacked_size = serializers.IntegerField(help_text="Of all its files together, in bytes.")
    file_count = serializers.IntegerField()
    files = serializers.ListField(child=serializers.CharField(), help_text="The names of its first files.")
    author = serializers.CharField(help_text="As the bundle claims.")
    homepage = serializers.CharField(help_text="As the bundle claims.")


class ProposalSerializer(serializers.Serializer[Any]):
    """A proposed member. It contains references to secrets, and never their values."""

    name = serializers.CharField()
    digest = serializers.CharField(
        help_text="The SHA-256 of guild-member.json, and of its bundle. An approval is for this digest."
    )
    source = serializers.CharField(help_text="What the member was read from, such as mcp.json of VS Code.")  # type: ignore[assignment]
    version = serializers.CharField()
    argv = serializers.ListField(child=serializers.CharField(), help_text="The program and its arguments.")
    command_line = serializers.CharField(help_text="argv in one line, quoted as for a shell.")
    env = serializers.DictField(child=serializers.CharField())
    url = serializers.CharField(help_text="The address of a remote server. Empty for a program.")
    headers = serializers.DictField(child=serializers.CharField())
    sandbox = serializers.CharField()
    packages = serializers.CharField(help_text="locked, if they are installed once from a lock. Otherwise empty.")
    missing_secrets = serializers.ListField(
        child=serializers.CharField(), help_text="Secrets that somebody must set before the approval."
    )
    inputs = InputSerializer(many=True)
    notes = serializers.ListField(child=serializers.CharField(), help_text="What to know before the approval.")
    manifest = serializers.DictField(help_text="The content of guild-member.json.")
    bundle = BundleSerializer(allow_null=True, help_text="Null for a member without a bundle.")

    def to_representation(self, instance: Any) -> dict[str, Any]:
        return described(instance)


class ProposedSerializer(serializers.Serializer[Any]):
    source = serializers.CharField()  # type: ignore[assignment]
    proposals = ProposalSerializer(many=True)
    refused = serializers.ListField(
        child=serializers.CharField(), help_text="Why other servers of the source cannot be members."
    )


class ProposalBody(Strict):
    source = serializers.CharField(  # type: ignore[assignment]
        required=False,
        default="",
        max_length=MAX_SOURCE,
        trim_whitespace=False,
        help_text="The configuration of a client in JSON or TOML, a server.json, a command line, a url, or the name of "
        "a server in the registry, such as io.github.anna/weather@1.2.0.",
    )
    name = serializers.CharField(required=False, default="", allow_blank=True, help_text="For a single server.")
    way = serializers.IntegerField(
        required=False, default=0, min_value=0, help_text="Which way to run the server. 0: the first that is possible."
    )
    values = serializers.DictField(
        child=serializers.CharField(allow_blank=True, trim_whitespace=False),
        required=False,
        default=dict,
        help_text="The values of the fields of the way, by their keys.",
    )

    template = serializers.CharField(
        required=False,
        default="",
        help_text="In place of a source: the name of a member that begins with the template.",
    )

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        values = super().validate(values)
        if bool(values["source"]) == bool(values["template"]):
            raise serializers.ValidationError({"source": ["Either a source or a template is required."]})
        if values["template"] and (values["name"] or values["way"] or values["values"]):
            raise serializers.ValidationError({"template": ["It takes no name, way and values."]})
        return values


class BundleBody(Strict):
    """The form with a bundle."""

    bundle = serializers.FileField(help_text="A bundle (.mcpb) of at most 50 MB.")
    name = serializers.CharField(required=False, default="", allow_blank=True, help_text="Empty: its own name.")
    way = serializers.IntegerField(required=False, default=0, min_value=0, max_value=1)
    values = serializers.CharField(
        required=False,
        default="{}",
        max_length=MAX_SOURCE,
        help_text="The values that the bundle needs, by their keys, as a JSON object.",
    )

    def validate_values(self, text: str) -> dict[str, str]:
        try:
            return msgspec.json.decode(text, type=dict[str, str])
        except (msgspec.DecodeError, RecursionError):
            raise serializers.ValidationError("It must be a JSON object whose values are texts.") from None


class ApprovalBody(Strict):
    digest = serializers.CharField(max_length=64, help_text="That of the proposal which you have seen.")


class UnusableSerializer(ProblemSerializer):
    """A source that cannot be used. For a bundle it has the values that it needs."""

    ways = WaySerializer(many=True, required=False)


PROPOSE = extend_schema(
    operation_id="members_propose",
    request={"application/json": ProposalBody, "multipart/form-data": BundleBody},
    responses={201: ProposedSerializer, 400: UnusableSerializer, 403: REFUSED, 409: REFUSED, 413: REFUSED},
)


def propose(request: Request) -> Response:
    """Propose the members that the source describes, the one in a bundle, or one that begins with the template."""
    if isinstance(request.data, QueryDict):  # a form
        return _propose_bundle(request)
    body, user = body_of(ProposalBody, request.data), cast(User, request.user)
    if name := body["template"]:
        reading, rows = proposals.propose_template(name, template.files_of(name), user)
    else:
        filled = Filled(body["way"], body["values"])
        reading, rows = proposals.propose(body["source"], user, name=body["name"], filled=filled)
    return _proposed(reading.source, rows, [str(refusal) for refusal in reading.refusals])


def _propose_bundle(request: Request) -> Response:
    body, user = body_of(BundleBody, request.data), cast(User, request.user)
    file = body["bundle"].file
    try:
        filled = Filled(body["way"], body["values"])
        reading, rows = proposals.propose_bundle(file, user, name=body["name"], filled=filled)
    except SourceError as error:
        ways = [asdict(way) for way in bundles.ways(file) if way.fields]
        return problem(error, **({"ways": ways} if ways else {}))
    return _proposed(reading.source, rows, [])


def _proposed(source: str, rows: list[MemberProposal], refused: list[str]) -> Response:
    values = {"source": source, "proposals": [described(row) for row in rows], "refused": refused}
    return Response(values, status=status.HTTP_201_CREATED)


class ProposalsView(HallView, ListAPIView[MemberProposal]):
    """The proposed members that nobody has approved yet."""

    serializer_class = ProposalSerializer
    pagination_class = NewestFirst
    queryset = MemberProposal.objects.filter(approved_at=None).select_related("bundle")
    permission_classes = (IsAuthenticated, MayApproveMembers)


class ProposalView(HallView):
    permission_classes = (IsAuthenticated, MayApproveMembers)

    @extend_schema(responses={200: ProposalSerializer, 403: REFUSED, 404: REFUSED})
    def get(self, request: Request, proposal: str) -> Response:
        """A proposed member, with everything that an approval is about."""
        return Response(described(proposals.find_proposal(proposal)))

    @extend_schema(responses={204: None, 403: REFUSED, 404: REFUSED})
    def delete(self, request: Request, proposal: str) -> Response:
        """Discard it, and delete the secrets that came with it."""
        proposals.discard(proposal)
        return Response(status=status.HTTP_204_NO_CONTENT)


class ApprovalView(HallView):
    permission_classes = (IsAuthenticated, MayApproveMembers)

    @extend_schema(
        request=ApprovalBody,
        responses={202: ProposalSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request, proposal: str) -> Response:
        """Approve it. The runtime creates the folder of the member, and starts it."""
        digest = body_of(ApprovalBody, request.data)["digest"]
        row = proposals.approve(proposal, digest, cast(User, request.user))
        return Response(described(row), status=status.HTTP_202_ACCEPTED)
