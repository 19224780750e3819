"""The form of a call, with the places of its errors, and the arguments that it begins with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django import forms

from roster import calls

# The answer to the first one was lost, and then the arguments were changed.
SENT_OTHERWISE = (
    "You already sent this form with other arguments. The list of calls shows that call. Press Call again to make a "
    "second call, with these arguments."
)

Path = tuple[str | int, ...]


class CallForm(forms.Form):
    # The key of the form as shown, so that pressing the button twice does not call twice.
    call_key = forms.UUIDField(required=False)
    arguments = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 14, "cols": 60, "class": "json", "spellcheck": "false"}),
    )
    # The page has faults already, and asks the server for its errors. The tool is not called. Cleaned before
    # `confirmed`, because a check needs no confirmation.
    only_check = forms.BooleanField(required=False)
    confirmed = forms.BooleanField(required=False)

    def __init__(self, *args: Any, must_confirm: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.must_confirm = must_confirm
        self.argument_errors: list[tuple[Path, str]] = []
        self.is_key_used = False

    def clean_arguments(self) -> Any:
        try:
            return calls.parse_arguments(self.cleaned_data["arguments"])
        except ValueError as error:
            self.argument_errors = [((), str(error))]
            raise forms.ValidationError(str(error)) from error

    def clean_confirmed(self) -> bool:
        confirmed = bool(self.cleaned_data["confirmed"])
        if self.must_confirm and not confirmed and not self.cleaned_data["only_check"]:
            raise forms.ValidationError("This tool may delete or overwrite data. Confirm the call.")
        return confirmed

    def refuse(self, errors: tuple[tuple[Path, str], ...]) -> None:
        self.argument_errors = list(errors)
        for place, reason in errors:
            self.add_error("arguments", f"{_dotted(place)}: {reason}" if place else reason)

    def refuse_key(self) -> None:
        """Note that another call has its key, so that the next press gets a new key."""
        self.is_key_used = True
        self.add_error(None, SENT_OTHERWISE)

    def complaints(self) -> list[dict[str, Any]]:
        """All errors, with their places in the arguments."""
        other_errors = [word for name, words in self.errors.items() if name != "arguments" for word in words]
        return [
            *({"path": list(place), "reason": reason} for place, reason in self.argument_errors),
            *({"path": [], "reason": str(word)} for word in other_errors),
        ]


def _dotted(place: Path) -> str:
    return ".".join(str(part) for part in place)


@dataclass
class Beginning:
    """The first arguments of a form, and the messages about them."""

    arguments: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def note_missing_secrets(self, places: list[str]) -> None:
        if places:
            self.notes.append(f"Secrets are not stored. Enter them again: {', '.join(places)}.")
