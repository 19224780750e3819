"""Contracts over REST: which versions members list, what changed, and approvals of changes that are held."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control import contracts
from roster.api.base import REFUSED, HallView, Strict, body_of, query_of
from roster.api.described import extend_schema
from roster.api.permissions import approvable_member, principal_of
from roster.models import Contract, ContractVersion

KINDS = "tool, prompt, resourceTemplate or instructions."
NAME = "The name of the tool or prompt, or the URI template. Empty for instructions."


class ContractSerializer(serializers.ModelSerializer[Contract]):
    kind = serializers.CharField(help_text=KINDS)

    class Meta:
        model = Contract
        fields = [
            *("kind", "name", "version", "approved_version", "is_held", "grade", "reason"),
            *("changed_at", "approver", "approved_at"),
        ]


class ContractVersionSerializer(serializers.ModelSerializer[ContractVersion]):
    findings = serializers.ListField(child=serializers.DictField())

    class Meta:
        model = ContractVersion
        fields = ["version", "grade", "findings", "score", "created_at"]


class ChangeSerializer(serializers.Serializer[Any]):
    grade = serializers.CharField()
    place = serializers.CharField(help_text="A JSON pointer into the definition.")
    sentence = serializers.CharField()


class ReviewSerializer(serializers.Serializer[Any]):
    contract = ContractSerializer()
    before = ContractVersionSerializer(allow_null=True, help_text="The agreed version. If null, none is agreed.")
    after = ContractVersionSerializer(help_text="The version in the last list.")
    changes = ChangeSerializer(many=True, help_text="The changes between them, the worst first.")
    diff = serializers.ListField(
        child=serializers.CharField(), help_text="The lines of a diff of both definitions as JSON in ASCII."
    )
    history = ContractVersionSerializer(many=True, help_text="The stored versions, the newest first.")


class ContractsSerializer(serializers.Serializer[Any]):
    contracts = ContractSerializer(many=True)


class ContractFilters(serializers.Serializer[Any]):
    held = serializers.BooleanField(default=False, help_text="Only contracts that wait for an approval.")


class ReviewFilters(serializers.Serializer[Any]):
    name = serializers.CharField(allow_blank=True, help_text=NAME)
    kind = serializers.CharField(default=Contract.Kind.TOOL.value, help_text=KINDS)
    before = serializers.CharField(default="", help_text="Another version than the agreed one: its first characters.")
    after = serializers.CharField(default="", help_text="Another version than the listed one: its first characters.")


class ApprovalOptions(Strict):
    name = serializers.CharField(required=False, allow_blank=True, help_text=f"{NAME} Not with all.")
    kind = serializers.CharField(default=Contract.Kind.TOOL.value, help_text=KINDS)
    version = serializers.CharField(required=False, help_text="The whole version that you have read. Needed with name.")
    all = serializers.BooleanField(default=False, help_text="Approve all held contracts of the member.")

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        values = super().validate(values)
        if values["all"] == ("name" in values) or ("name" in values) != ("version" in values):
            raise serializers.ValidationError("Give name and version, or all.")
        return values


class ContractsView(HallView):
    @extend_schema(parameters=[ContractFilters], responses={200: ContractsSerializer, 403: REFUSED, 404: REFUSED})
    def get(self, request: Request, name: str) -> Response:
        """The contracts of what the member lists. It needs the permission roster.approve_contract."""
        rows = contracts.contracts_of(approvable_member(request, name))
        if query_of(ContractFilters, request)["held"]:
            rows = rows.filter(is_held=True)
        return Response({"contracts": ContractSerializer(rows, many=True).data})


class ContractReviewView(HallView):
    @extend_schema(
        parameters=[ReviewFilters], responses={200: ReviewSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED}
    )
    def get(self, request: Request, name: str) -> Response:
        """What changed in one contract, with its history. Read it before you approve the change."""
        approvable_member(request, name)
        query = query_of(ReviewFilters, request)
        contract = contracts.find_contract(name, query["kind"], query["name"])
        review = contracts.review(contract, query["before"], query["after"])
        values = {**vars(review), "history": contracts.history(contract)}
        return Response(ReviewSerializer(values).data)


class ContractApprovalView(HallView):
    @extend_schema(
        request=ApprovalOptions,
        responses={200: ContractsSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request, name: str) -> Response:
        """Approve a held version that you have read, or all held ones of the member. Returns what was approved."""
        row = approvable_member(request, name)
        options = body_of(ApprovalOptions, request.data)
        user, principal = cast(User, request.user), principal_of(request)
        approver = principal.name + (f" ({principal.token_name})" if principal.token_name else "")
        if options["all"]:
            rows = contracts.approve_all(row, user, approver)
        else:
            rows = [contracts.find_contract(name, options["kind"], options["name"])]
            contracts.approve(rows[0], options["version"], user, approver)
        for contract in rows:
            contract.refresh_from_db()
        return Response({"contracts": ContractSerializer(rows, many=True).data})
