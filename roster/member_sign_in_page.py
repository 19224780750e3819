"""Where browsers come back from the authorization servers of members, and the document about the hall there."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from mcp_runtime.control import sign_in_clients, sign_ins
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.security import principals
from roster.addresses import web_address
from roster.models import GuildMember

LOG_IN = "Log in, open the page of the member and sign in again, in the browser in which you are logged in."


@never_cache
@require_safe
def come_back(request: HttpRequest) -> HttpResponse:
    """Finish the sign-in that this user began in this browser. The address has the code, so no page is shown here."""
    if not request.user.is_authenticated:
        messages.error(request, LOG_IN)
        return redirect("admin:index")  # which shows the form of the login
    user = request.user
    principal = principals.principal_of_user(user)
    answer = {name: request.GET.getlist(name) for name in ("code", "state", "iss", "error")}

    def may_finish(member: GuildMember, is_own: bool) -> bool:
        if is_own:
            return principal.may_see(member.name)
        return principal.controls and principal.may_control(member.name)

    try:
        member, is_own = sign_ins.finish(answer, user, str(request.session.session_key or ""), may_finish)
    except RequestRefusedError as refusal:
        messages.error(request, f"Not signed in: {refusal}")
        return redirect("admin:index")
    if is_own:
        messages.success(request, f"You are signed in at {member.name}. Your calls use this account from now on.")
        return redirect("admin:roster_guildmember_own_sign_in", member.pk)
    messages.success(request, f"{member.name} is signed in, and connects now.")
    return redirect("admin:roster_guildmember_change", member.pk)


@require_safe
def own(request: HttpRequest, member_id: int) -> HttpResponse:
    """The short address in errors. The page that follows needs a login, and is about the user who logged in."""
    return redirect("admin:roster_guildmember_own_sign_in", member_id)


@require_safe
def document(request: HttpRequest) -> HttpResponse:
    """The hall as a client, for authorization servers that read such documents. They need an https address."""
    if not web_address().startswith("https:"):
        raise Http404("the hall has no public address")
    return JsonResponse(sign_in_clients.document(web_address()))


urlpatterns = [
    path("members/sign-in/", come_back, name="member-sign-in-callback"),
    path("members/<int:member_id>/own-sign-in/", own, name="member-own-sign-in"),
    path("members/sign-in/client.json", document, name="member-sign-in-client"),
]
