"""The forms for the values that a server of a registry needs, one form for each way to run it."""

from __future__ import annotations

from collections.abc import Mapping

from django import forms

from mcp_runtime.sources.server_json import Field, Filled, Way

PREFIX = "value-"


class WayForm(forms.Form):
    """The values for one way to run a server. Only `Filled` is validated, by the reader."""

    required_css_class = "required"

    name = forms.CharField(
        max_length=64, required=False, label="Name", help_text="The name of the member. Empty: its own name."
    )

    def __init__(self, way: Way, data: Mapping[str, str] | None = None) -> None:
        super().__init__(data, auto_id=f"way-{way.number}-%s")
        self.way = way
        for field in way.fields:
            self.fields[PREFIX + field.key] = _form_field(field)


def filled_of(way: Way, data: Mapping[str, str]) -> Filled:
    """What a user has filled in. A browser ends lines with CR LF. An empty secret is none."""
    values = {}
    for field in way.fields:
        text = data.get(PREFIX + field.key)
        if text is not None and (text or not field.is_secret):
            values[field.key] = text.replace("\r\n", "\n")
    return Filled(way.number, values)


def _form_field(field: Field) -> forms.Field:
    is_needed = field.is_required and not field.is_secret  # a secret can be set later
    description = field.description
    if field.is_secret:
        description += " It becomes a secret of the hall." + (
            " You can also set it later." if field.is_required else ""
        )
    if field.is_repeated:
        description += " One value on each line."
    attributes = {"placeholder": field.placeholder, "autocomplete": "off", "spellcheck": "false"}
    result: forms.Field
    if field.choices:
        choices = [*([] if is_needed and field.default else [("", "")]), *((each, each) for each in field.choices)]
        result = forms.ChoiceField(choices=choices)
    elif field.is_secret:
        result = forms.CharField(widget=forms.PasswordInput(attrs={**attributes, "autocomplete": "new-password"}))
    elif field.is_repeated:
        result = forms.CharField(widget=forms.Textarea(attrs={**attributes, "rows": 3}))
    else:
        result = forms.CharField(widget=forms.TextInput(attrs={**attributes, "class": "vTextField"}))
    result.label, result.help_text = field.key, description.strip()
    result.required, result.initial = field.is_required, field.default
    return result
