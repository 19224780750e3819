"""The forms for the values that a server of a registry or a bundle needs, one form for each way to run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from django import forms

from mcp_runtime.protocol.errors import RequestRefusedError, SourceError
from mcp_runtime.sources.server_json import Field, Filled, Way

PREFIX = "value-"
AGAIN = "Enter it again, because no page shows a secret."


class WayForm(forms.Form):
    """The values for one way to run a server. The reader validates them, see `note_refusal`."""

    required_css_class = "required"

    name = forms.CharField(
        max_length=64, required=False, label="Name", help_text="The name of the member. Empty: its own name."
    )

    def __init__(self, way: Way, data: Mapping[str, str] | None = None) -> None:
        super().__init__(data, auto_id=f"way-{way.number}-%s")
        self.way = way
        titles = Counter(field.title for field in way.fields)
        for field in way.fields:
            label = field.title or field.key
            if titles[field.title] > 1 and field.title:
                label = f"{field.title} ({field.key})"
            self.fields[PREFIX + field.key] = _form_field(field, label)

    def note_refusal(self, refusal: RequestRefusedError) -> None:
        """Show each fault at the field that it is about. The values stay, except for secrets, which come in again."""
        self.full_clean()
        faults = refusal.faults if isinstance(refusal, SourceError) else [("", str(refusal))]
        for place, reason in faults:
            name = next((name for name in (PREFIX + place, place) if name in self.fields), None)
            self.add_error(name, _sentence(reason if name or not place else f"{place}: {reason}"))
        for field in self.way.fields:
            if field.is_secret and self.data.get(PREFIX + field.key) and PREFIX + field.key not in self.errors:
                self.add_error(PREFIX + field.key, AGAIN)
        first = next(name for name in (*self.errors, "name") if name in self.fields)
        self.fields[first].widget.attrs["autofocus"] = True


def filled_of(way: Way, data: Mapping[str, str]) -> Filled:
    """What a user has filled in. A browser ends lines with CR LF. An empty secret is none."""
    values = {}
    for field in way.fields:
        text = data.get(PREFIX + field.key)
        if text is not None and (text or not field.is_secret):
            values[field.key] = text.replace("\r\n", "\n")
    return Filled(way.number, values)


class _Value(forms.CharField):
    """A value that only the reader validates. That it is required is shown."""

    def validate(self, value: Any) -> None:
        """Accept everything."""


def _form_field(field: Field, label: str) -> forms.Field:
    is_needed = field.is_required and not field.is_secret  # a secret can be set later
    attributes = {"placeholder": field.placeholder, "autocomplete": "off", "spellcheck": "false"}
    widget: forms.Widget
    if field.choices:
        empty = [] if is_needed and field.default else [("", "")]
        widget = forms.Select(choices=[*empty, *((choice, choice) for choice in field.choices)])
    elif field.is_secret:
        widget = forms.PasswordInput(attrs={**attributes, "autocomplete": "new-password", "class": "vTextField"})
    elif field.is_repeated:
        widget = forms.Textarea(attrs={**attributes, "rows": 3, "class": "vLargeTextField"})
    else:
        widget = forms.TextInput(attrs={**attributes, "class": "vTextField"})
    result = _Value(required=is_needed, strip=False, label=label, initial=field.default, widget=widget)
    result.help_text = _help(field)
    return result


def _help(field: Field) -> str:
    texts = [field.description]
    if field.is_secret:
        texts.append("It becomes a secret of the hall.")
        texts.append("You can also set it later." if field.is_required else "")
    if field.is_repeated:
        texts.append("One value on each line.")
    return " ".join(text for text in texts if text)


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}" + ("" if reason[-1:] in ".!?" else ".")
