"""The public page of an invitation, where the invited person makes an account.

Only a POST spends the invitation, because chat programs and mail scanners fetch links to show a preview. All links that
are not open have the same answer, so that nobody learns why.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import admin
from django.contrib.auth import login
from django.contrib.auth.forms import UserCreationForm
from django.contrib.auth.models import User
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from roster import invitations
from roster.login_backends import local_backend

TEMPLATE = "roster/invitation.html"


def without_path_in_referrer(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Send only the origin as the referrer, never the path, which has the secret.

    With `no-referrer`, browsers send `Origin: null` with the form, and the hall would refuse it as that of a stranger.
    """

    @wraps(view)
    def wrapped(*args: Any, **kwargs: Any) -> HttpResponse:
        response = view(*args, **kwargs)
        is_form = response.status_code == 200
        response.headers["Referrer-Policy"] = "strict-origin" if is_form else "no-referrer"
        return response

    return wrapped


@never_cache
@without_path_in_referrer
@sensitive_post_parameters("password1", "password2")
@require_http_methods(["GET", "HEAD", "POST"])
def invitation(request: HttpRequest, link_secret: str) -> HttpResponse:
    try:
        open_invitation = invitations.find(link_secret)
        form: UserCreationForm[User] = UserCreationForm(request.POST if request.method == "POST" else None)
        if form.is_valid():
            user = form.save(commit=False)  # hashes the password, before the transaction begins
            try:
                invitations.accept(link_secret, user)
            except IntegrityError:  # a user of this name was made a moment ago
                form.add_error("username", "A user with that username already exists.")
            else:
                login(request, user, backend=local_backend())
                return redirect("admin:index")
    except invitations.GoneError:
        return _page(request, "This link cannot be used", status=410)
    return _page(request, "Welcome to Guild Hall", form=form, invitation=open_invitation)


def _page(request: HttpRequest, title: str, *, status: int = 200, **context: Any) -> HttpResponse:
    names = {"title": title, "site_title": admin.site.site_title, "site_header": admin.site.site_header}
    return render(request, TEMPLATE, {**names, **context}, status=status)


urlpatterns = [path("invitations/<str:link_secret>/", invitation, name="invitation")]
