"""Choices of forms that grow with the hall. A form has the chosen rows and the first others. A search finds the rest.

Each field has an Offer, which says what a user may choose. The form, its check and the search read the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from roster import ranking
from roster.admin import finding, live
from roster.models import Tool

MAX_OTHERS = 20  # rows that a form offers without a search
MAX_FOUND = 50
GONE = "Something that you chose is not there any more, or you may not use it. It was removed. Save again without it."


@dataclass(frozen=True)
class Choice:
    value: str
    label: str
    is_chosen: bool = False


@dataclass(frozen=True)
class Offer:
    """What a field offers. `find` gets the words of a search, which may be none, and returns at most MAX_FOUND."""

    name: str
    noun: str  # for example `tools`
    is_open: Callable[[HttpRequest], bool]  # whether the user may open the form
    find: Callable[[HttpRequest, Sequence[str]], Iterable[Choice]]
    label: Callable[[Any], str] = str  # of a row

    @property
    def address(self) -> str:
        return reverse("admin:choices", args=[self.name])


_OFFERS: dict[str, Offer] = {}


def register(offer: Offer) -> Offer:
    _OFFERS[offer.name] = offer
    return offer


def choices_view(request: HttpRequest, offer: str) -> HttpResponse:
    """What the search `q` finds, for static/roster/choices.js. Raises PermissionDenied like the form of the field."""
    chosen = _OFFERS.get(offer)
    if chosen is None:
        raise Http404(f"no form offers {offer}")
    if not chosen.is_open(request):
        raise PermissionDenied
    words = ranking.words_of(request.GET.get("q", ""))
    return live.part(request, "roster/choices_found.html", lambda: {"choices": list(chosen.find(request, words))})


# Rows -------------------------------------------------------------------------------------------------------------


def label_of_tool(tool: Tool) -> str:
    return f"{tool.member.name}/{tool.name}"


def rows_offer(
    name: str,
    noun: str,
    *,
    is_open: Callable[[HttpRequest], bool],
    rows: Callable[[HttpRequest], QuerySet[Any]],
    label: Callable[[Any], str] = str,
    key: str = "pk",
) -> Offer:
    """An offer of members or of tools. `key` is the column whose value the form sends."""

    def find(request: HttpRequest, words: Sequence[str]) -> list[Choice]:
        offered = rows(request)
        found = _best(offered, words) if words else offered[:MAX_FOUND]
        return [Choice(str(getattr(row, key)), label(row)) for row in found]

    return register(Offer(name, noun, is_open, find, label))


def _best(rows: QuerySet[Any], words: Sequence[str]) -> list[Any]:
    """The best matches first, in the order of the searches elsewhere."""
    is_of_tools = rows.model is Tool
    texts, any_text = (
        (finding.texts_of, finding.any_text_of_tool)
        if is_of_tools
        else (finding.member_texts, finding.any_text_of_member)
    )
    for word in words:
        rows = rows.filter(any_text(word))
    if is_of_tools:
        rows = rows.defer(None)  # the texts are in the definitions
    scored = ((ranking.score(words, texts(row)), row) for row in rows[: finding.MAX_ROWS])
    return [row for points, row in nlargest(MAX_FOUND, scored, key=lambda pair: pair[0]) if points]


# The field --------------------------------------------------------------------------------------------------------


class SearchedChoices(forms.CheckboxSelectMultiple):
    """Checkboxes of the chosen rows and of the first others, with a field that searches all."""

    template_name = "roster/choices.html"

    def __init__(self, offer: Offer, attrs: Any = None) -> None:
        super().__init__(attrs)
        self.offer = offer

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        # Not that of the class above, which has an entry for each row.
        context = forms.Widget.get_context(self, name, value, attrs)
        field: Any = self.choices.field  # type: ignore[attr-defined]  # of ModelChoiceIterator
        key = field.to_field_name or "pk"
        sent = _possible(field.queryset.model, key, context["widget"]["value"] or [])
        chosen = list(field.queryset.filter(**{f"{key}__in": sent}))
        others = list(field.queryset.exclude(pk__in=[row.pk for row in chosen])[: MAX_OTHERS + 1])
        context["offer"] = self.offer
        context["chosen"] = [self._choice(row, key, is_chosen=True) for row in chosen]
        context["others"] = [self._choice(row, key) for row in others[:MAX_OTHERS]]
        context["has_more"] = len(others) > MAX_OTHERS
        context["max_found"] = MAX_FOUND
        return context

    def _choice(self, row: Any, key: str, *, is_chosen: bool = False) -> Choice:
        label = self.choices.field.label_from_instance(row)  # type: ignore[attr-defined]
        return Choice(str(getattr(row, key)), label, is_chosen)


def _possible(model: Any, key: str, values: Iterable[Any]) -> list[Any]:
    """The values that the column can have. The form refuses the others, and they must not break its page."""
    column = model._meta.pk if key == "pk" else model._meta.get_field(key)
    possible = []
    for value in values:
        try:
            if "\0" not in str(value):
                possible.append(column.clean(value, None))  # also refuses numbers that the database cannot have
        except ValidationError:
            continue
    return possible


class SearchedField(forms.ModelMultipleChoiceField):  # type: ignore[type-arg]  # as for ModelAdmin
    """A choice of rows that are found by a search."""

    default_error_messages = {"invalid_choice": GONE, "invalid_pk_value": GONE}

    def __init__(self, queryset: Any, *, offer: Offer, **options: Any) -> None:
        super().__init__(queryset, **{"widget": SearchedChoices(offer), **options})
        self._offer = offer

    def label_from_instance(self, row: Any) -> str:
        return self._offer.label(row)

    def clean(self, value: Any) -> Any:
        rows: Any = self.queryset
        if len(_possible(rows.model, self.to_field_name or "pk", value or [])) < len(value or []):
            raise ValidationError(GONE, code="invalid_choice")
        return super().clean(value)
