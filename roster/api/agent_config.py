"""The configuration of agents' clients over REST, with a new token or with a placeholder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from django.contrib.auth.models import User
from rest_framework import serializers, status
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control.tokens import NewToken, make_token
from roster import agent_config
from roster.api.base import REFUSED, HallView, Strict, body_of, query_of
from roster.api.described import extend_schema
from roster.api.permissions import MayMakeTokens, principal_of
from roster.api.tokens import TokenSerializer
from roster.client_formats import CLIENTS, PLACEHOLDER
from roster.models import Token


class AgentConfigFilters(serializers.Serializer[Any]):
    """`for` is a keyword of Python, so the field is added below."""

    members = serializers.CharField(
        required=False, default="", help_text="Names separated by commas. If empty, all members."
    )
    tool_set = serializers.CharField(required=False, default="", help_text="If it is given, only this tool set.")
    direct = serializers.BooleanField(
        required=False, default=False, help_text="Connect to the endpoint of each member, not to the gateway."
    )
    search_mode = serializers.BooleanField(
        required=False, default=False, help_text="The client lists three tools that find and call all others."
    )

    def get_fields(self) -> dict[str, Any]:
        return {"for": _for_field(), **super().get_fields()}

    def validate_members(self, text: str) -> list[str]:
        return [name.strip() for name in text.split(",") if name.strip()]


class AgentConfigRequest(Strict):
    """The body that makes a token and the configuration with it."""

    members = serializers.ListField(child=serializers.CharField(), required=False, default=list)
    tool_set = serializers.CharField(required=False, default="", allow_blank=True)
    direct = serializers.BooleanField(required=False, default=False)
    search_mode = serializers.BooleanField(required=False, default=False)
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)

    def get_fields(self) -> dict[str, Any]:
        return {"for": _for_field(), **super().get_fields()}


def _for_field() -> serializers.ChoiceField:
    return serializers.ChoiceField(choices=list(CLIENTS), help_text="The client.")


class CostSerializer(serializers.Serializer[Any]):
    tools = serializers.IntegerField()
    characters = serializers.IntegerField(help_text="The length of their definitions as JSON.")
    tokens = serializers.IntegerField(help_text="An estimate: characters divided by 4.")


class AgentConfigSerializer(serializers.Serializer[Any]):
    place = serializers.CharField(help_text="The client's file for this text.")
    config = serializers.CharField(help_text="The text for this file.")
    token = TokenSerializer(allow_null=True, help_text="The token that was created for it. `config` contains it.")
    cost = CostSerializer(help_text="The part of a model's context that the definitions of all the tools take.")
    cost_by_member = serializers.DictField(child=CostSerializer())


class AgentConfigView(HallView):
    """The configuration with which an agent's client reaches the hall."""

    permission_classes = (IsAuthenticated, MayMakeTokens)

    @extend_schema(parameters=[AgentConfigFilters], responses={200: AgentConfigSerializer, 404: REFUSED, 409: REFUSED})
    def get(self, request: Request) -> Response:
        """The configuration with a placeholder for the token. A GET creates nothing. A POST creates a token."""
        return Response(self._config(request, query_of(AgentConfigFilters, request), None, PLACEHOLDER))

    @extend_schema(
        request=AgentConfigRequest,
        responses={201: AgentConfigSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request) -> Response:
        """Create a token for this client and these members, and return the configuration. `direct` needs no token."""
        values, principal = body_of(AgentConfigRequest, request.data), principal_of(request)
        _require_one_choice(values)
        agent_config.select_members(principal, values["members"])
        row, token = None, ""
        if not values["direct"]:
            new_token = NewToken(
                values["for"],
                values["members"],
                tool_set=values["tool_set"],
                expires_at=values["expires_at"],
                search_mode=values["search_mode"],
            )
            row, token = make_token(cast(User, request.user), new_token, maker=principal)
        return Response(self._config(request, values, row, token), status=status.HTTP_201_CREATED)

    @staticmethod
    def _config(request: Request, values: dict[str, Any], row: Token | None, token: str) -> dict[str, Any]:
        # The new token has its own mode, also if the request comes with a token.
        principal = replace(principal_of(request), searches=values["search_mode"], pinned=frozenset())
        names, direct = values["members"], values["direct"]
        # The address of its set is the best one for a token that is for a tool set.
        tool_set = values["tool_set"] or ("" if names or direct else principal.tool_set or "")
        _require_one_choice({**values, "tool_set": tool_set})
        members = agent_config.select_members(principal, names)
        if direct:
            entries = agent_config.direct_entries(members, require_all=bool(names))
        else:
            entries = agent_config.gateway_entries(names, token, tool_set)
        client = CLIENTS[values["for"]]
        if tool_set:
            costs = agent_config.costs_of_set(principal, tool_set)
        else:
            costs = agent_config.costs(principal, members, direct=direct)
        return {
            "place": client.plain_place,
            "config": client.write(entries),
            "token": TokenSerializer(row).data if row else None,
            "cost": CostSerializer(sum(costs.values(), agent_config.Cost())).data,
            "cost_by_member": {name: CostSerializer(cost).data for name, cost in costs.items()},
        }


def _require_one_choice(values: Mapping[str, Any]) -> None:
    agent_config.require_one_choice(
        values["members"], values["tool_set"], direct=values["direct"], search_mode=values["search_mode"]
    )
