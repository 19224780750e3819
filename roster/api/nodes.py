"""Nodes over REST: their list, and the verbs that move members between them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rest_framework import serializers, status
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control.nodes import (
    MOVES_AT_A_TIME,
    NODE_VERBS,
    all_nodes,
    find_node,
    move_member,
    rebalance,
    remove_node,
)
from mcp_runtime.security import access
from roster.api.base import REFUSED, HallView, Strict, body_of
from roster.api.described import extend_schema
from roster.api.members import MemberDetailSerializer, member_detail
from roster.api.permissions import MayControl, MayViewNodes, controlled_member, principal_of

MAX_MOVES = 1000


class NodeSerializer(serializers.Serializer[Any]):
    """A node. The values after `holds_lease` are null while no runtime is alive on it."""

    name = serializers.CharField()
    is_alive = serializers.BooleanField(help_text="Whether its runtime is alive.")
    since = serializers.DateTimeField(
        allow_null=True, help_text="The start of its runtime, or its last heartbeat if it is not alive."
    )
    host = serializers.CharField()
    version = serializers.CharField(help_text="The version of Guild Hall.")
    url = serializers.CharField(help_text="Where other nodes reach its gateway. Empty if they cannot.")
    capacity = serializers.IntegerField(allow_null=True, help_text="The number of calls that can run at the same time.")
    labels = serializers.ListField(child=serializers.CharField())
    is_draining = serializers.BooleanField(help_text="Whether it gives its members away and gets no others.")
    holds_lease = serializers.BooleanField(
        help_text="Whether it is not alive and still holds its lease, because its fence was off. No other node takes "
        "its members until it starts again or is removed."
    )
    sandbox_gaps = serializers.DictField(
        child=serializers.CharField(),
        allow_null=True,
        help_text="Why its machine cannot enforce a protection of a sandbox, by the name of the protection. Null until "
        "a runtime has started.",
    )
    pid = serializers.IntegerField(allow_null=True, help_text="The process id of the worker.")
    members = serializers.IntegerField(allow_null=True, help_text="Its connected members.")
    calls_per_minute = serializers.IntegerField(allow_null=True, help_text="Its calls that ended in the last minute.")
    cpu_percent = serializers.FloatField(allow_null=True, help_text="Of one core.")
    memory_bytes = serializers.IntegerField(allow_null=True)


class NodesSerializer(serializers.Serializer[Any]):
    nodes = NodeSerializer(many=True)


class NodesView(HallView):
    permission_classes = (IsAuthenticated, MayViewNodes)

    @extend_schema(operation_id="nodes_list", responses={200: NodesSerializer, 403: REFUSED})
    def get(self, request: Request) -> Response:
        """The machines that run the hall, and those that ran it."""
        return Response({"nodes": NodeSerializer([asdict(node) for node in all_nodes()], many=True).data})


class DrainingSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    is_draining = serializers.BooleanField()


class NodeVerbView(HallView):
    """Let a node give its members away and take no others, or let it take members again.

    It needs a token that is not for some members or tools alone.
    """

    verb = ""
    permission_classes = (IsAuthenticated, MayControl)

    @extend_schema(request=None, responses={202: DrainingSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED})
    def post(self, request: Request, node: str) -> Response:
        access.require_control_of_all(principal_of(request))
        row = find_node(node)
        NODE_VERBS[self.verb](row)
        return Response(DrainingSerializer(row).data, status=status.HTTP_202_ACCEPTED)


class RemovalOptions(Strict):
    force = serializers.BooleanField(
        required=False, default=False, help_text="Remove the node even if local state of members stays on its machine."
    )


class RemovalSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    members = serializers.IntegerField(help_text="The number of members that have no node now, and start on others.")


class NodeRemoveView(HallView):
    permission_classes = (IsAuthenticated, MayControl)

    @extend_schema(
        request=RemovalOptions,
        responses={200: RemovalSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request, node: str) -> Response:
        """Remove a node that is gone for ever. The other nodes take its members."""
        access.require_control_of_all(principal_of(request))
        row = find_node(node)
        count = remove_node(row, force=body_of(RemovalOptions, request.data)["force"])
        return Response(RemovalSerializer({"name": row.name, "members": count}).data)


class RebalanceOptions(Strict):
    limit = serializers.IntegerField(
        required=False,
        default=MOVES_AT_A_TIME,
        min_value=1,
        max_value=MAX_MOVES,
        help_text="The maximum number of members that are moved.",
    )


class MoveSerializer(serializers.Serializer[Any]):
    member = serializers.CharField()
    from_node = serializers.CharField(help_text="The node that owns it.")
    to_node = serializers.CharField(help_text="The node that it goes to.")


class MovesSerializer(serializers.Serializer[Any]):
    moves = MoveSerializer(many=True)


class RebalanceView(HallView):
    permission_classes = (IsAuthenticated, MayControl)

    @extend_schema(request=RebalanceOptions, responses={202: MovesSerializer, 400: REFUSED, 403: REFUSED})
    def post(self, request: Request) -> Response:
        """Move members to the nodes where a hall that starts now would place them, a few at a time.

        The answer omits members that do not exist for you. Repeat the request until it has no moves.
        """
        principal = principal_of(request)
        access.require_control_of_all(principal)
        moves = rebalance(body_of(RebalanceOptions, request.data)["limit"])
        visible = [asdict(move) for move in moves if principal.reaches(move.member)]
        return Response({"moves": MoveSerializer(visible, many=True).data}, status=status.HTTP_202_ACCEPTED)


class MoveOptions(Strict):
    node = serializers.CharField(help_text="The name of the node that gets the member.")
    force = serializers.BooleanField(
        required=False, default=False, help_text="Move the member even if its local state stays behind."
    )


class MemberMoveView(HallView):
    permission_classes = (IsAuthenticated, MayControl)

    @extend_schema(
        request=MoveOptions,
        responses={202: MemberDetailSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED, 409: REFUSED},
    )
    def post(self, request: Request, name: str) -> Response:
        """Request that the node which owns the member gives it to another one."""
        row = controlled_member(request, name)
        options = body_of(MoveOptions, request.data)
        move_member(row, find_node(options["node"]), force=options["force"])
        return Response(member_detail(row, principal_of(request)), status=status.HTTP_202_ACCEPTED)
