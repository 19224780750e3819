"""The tool runner in a real browser, over a gallery of schemas and of results."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.rig import BrowserHall, Visitor, until
from tests.conftest import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

GALLERY = ROOT / "tests" / "support" / "servers" / "gallery.py"
AXE = ROOT / "tests" / "browser" / "axe.min.js"
DRAW_MILLISECONDS = """() => {
  const schema = JSON.parse(document.getElementById("input-schema").textContent);
  const value = JSON.parse(document.getElementById("id_arguments").value);
  const start = performance.now();
  try {
    new SchemaForm(document.createElement("div"), schema, () => 0).show(value);
  } catch (error) {
    if (!(error instanceof SchemaForm.CannotShow)) throw error;
  }
  return performance.now() - start;
}"""
TYPE_THEN_CHANGE = """(json, typed) => {
  const city = [...document.querySelectorAll("#fields .sf-text")].find((field) => field.value === "A");
  for (const [control, value] of [[json, typed], [city, "B"]]) {
    control.value = value;
    control.dispatchEvent(new Event("input", { bubbles: true }));
  }
}"""
RUN_AXE = """axe.run().then((report) =>
  report.violations.map(({ impact, id, nodes }) => [impact, id, nodes[0].html]))"""


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    folder = new_hall.add("gallery", display_name="Gallery")
    shutil.copy(GALLERY, folder / "server.py")
    new_hall.bring_up("gallery")
    return new_hall


@pytest.fixture(scope="module")
def tool_ids(hall: BrowserHall) -> dict[str, int]:
    """The ids of the rows of the tools, by name."""
    rows = "dict(Tool.objects.values_list('name', 'pk'))"
    output = hall.run(f"import json; from roster.models import Tool; print(json.dumps({rows}))")
    ids: dict[str, int] = json.loads(output.splitlines()[-1])
    return ids


class Runner:
    """The page of one tool."""

    def __init__(self, page: Page, tool_ids: dict[str, int]) -> None:
        self.page, self.tool_ids = page, tool_ids

    def open(self, tool: str, more: str = "") -> Runner:
        self.page.goto("about:blank")  # otherwise a change of the fragment alone would not load the page again
        self.page.goto(f"/admin/roster/tool/{self.tool_ids[tool]}/call/{more}")
        return self

    @property
    def json(self) -> Locator:
        return self.page.get_by_label("Arguments as JSON", exact=True)

    def arguments(self) -> Any:
        return json.loads(self.json.input_value())

    def field(self, label: str, **options: Any) -> Locator:
        return self.page.locator("#fields").get_by_label(re.compile(rf"^{label}\b"), **options)

    def group(self, legend: str) -> Locator:
        groups = self.page.locator("fieldset.sf-group").filter(has=self.page.locator(f"legend:has-text('{legend}')"))
        return groups.last

    def write(self, value: Any) -> None:
        self.json.fill(value if isinstance(value, str) else json.dumps(value))

    def wait_for_arguments(self, expected: Any) -> None:
        until(self.page, lambda: self.arguments() == expected, what=f"{expected}, not {self.json.input_value()}")

    def press(self) -> None:
        self.page.get_by_role("button", name="Call", exact=True).click()

    def wait_for_status(self, status: str) -> Locator:
        expect(self.page.locator("#outcome-status")).to_have_text(status)
        return self.page.locator("#outcome")

    def received_arguments(self) -> Any:
        """The arguments that the tool received, from its result."""
        self.wait_for_status("succeeded")
        self.page.locator("#outcome").get_by_text("Whole result as JSON").click()
        result = json.loads(self.page.locator("#outcome .result-whole pre").inner_text())
        return json.loads(result["content"][0]["text"])


@pytest.fixture
def runner(page: Page, tool_ids: dict[str, int]) -> Runner:
    return Runner(page, tool_ids)


# Form and JSON together -------------------------------------------------------------------------------------------


def test_nested_objects_are_filled_in_and_called(runner: Runner) -> None:
    runner.open("nested")
    runner.field("Title of the event").fill("Feast\nof all")
    runner.field("city").fill("Ghent")
    runner.page.get_by_role("button", name="Add Position").click()
    runner.field("lat").fill("51.05")
    runner.field("lon").fill("-3.7")
    expected = {"title": "Feast\nof all", "place": {"city": "Ghent", "position": {"lat": 51.05, "lon": -3.7}}}
    runner.wait_for_arguments(expected)
    runner.press()
    assert runner.received_arguments() == expected


def test_lists_grow_move_and_shrink_and_the_focus_follows(runner: Runner) -> None:
    runner.open("lists")
    people = runner.group("people")
    people.get_by_role("button", name="Add an item").click()
    expect(runner.field("name")).to_be_focused()
    runner.field("name").fill("Ada")
    people.get_by_role("button", name="Add an item").click()
    runner.field("name").nth(1).fill("Bob")
    runner.page.get_by_role("button", name="Move 2 up").click()
    runner.wait_for_arguments({"people": [{"name": "Bob"}, {"name": "Ada"}]})
    runner.page.get_by_role("button", name="Remove 1").click()
    runner.page.get_by_label("Tue").check()
    runner.page.get_by_role("button", name="Add pair").click()
    runner.page.get_by_role("button", name="Add tags").click()
    runner.wait_for_arguments({"people": [{"name": "Ada"}], "days": ["Tue"], "pair": [""], "tags": [""]})
    runner.group("tags").get_by_role("button", name="Remove tags").click()
    runner.wait_for_arguments({"people": [{"name": "Ada"}], "days": ["Tue"], "pair": [""]})


def test_choices_have_the_types_of_the_schema(runner: Runner) -> None:
    runner.open("choices")
    runner.field("color").select_option("blue")
    runner.field("level").select_option("high")
    for label, value in [("1", 1), ("null", None), ("yes", True), ("a", "a")]:
        runner.field("mixed").select_option(label)
        runner.wait_for_arguments({"color": "blue", "level": 2, "mixed": value})
    runner.field("mixed").select_option("not sent")
    runner.wait_for_arguments({"color": "blue", "level": 2})


def test_the_chosen_alternative_shows_its_fields(runner: Runner) -> None:
    runner.open("union")
    runner.field("Card number").fill("4111")
    runner.page.get_by_label("Type of payment").select_option("By bank")
    expect(runner.field("Card number")).to_have_count(0)
    runner.field("IBAN").fill("BE68")
    runner.field("Note").fill("soon")
    runner.page.get_by_label("Type of amount").select_option("1: number")
    runner.field("Value").fill("12.5")
    runner.wait_for_arguments({"payment": {"kind": "bank", "iban": "BE68"}, "note": "soon", "amount": 12.5})
    runner.press()
    assert runner.received_arguments()["payment"] == {"kind": "bank", "iban": "BE68"}


def test_a_json_with_a_union_selects_the_alternative_that_fits_it(runner: Runner) -> None:
    runner.open("union")
    runner.write({"payment": {"kind": "bank", "iban": "BE1"}, "either": 5})
    expect(runner.field("IBAN")).to_have_value("BE1")
    expect(runner.page.get_by_label("Type of payment").locator("option:checked")).to_have_text("By bank")
    expect(runner.page.get_by_label("Type of either").locator("option:checked")).to_have_text("2: integer")


def test_defaults_are_filled_in_and_can_be_removed(runner: Runner) -> None:
    runner.open("defaults")
    runner.wait_for_arguments({"text": "hello", "times": 3, "loud": True, "options": {"color": "red"}})
    runner.field("text").fill("")
    runner.field("times").fill("")
    runner.field("loud").select_option("no")
    runner.group("options").get_by_role("button", name="Remove options").click()
    runner.wait_for_arguments({"loud": False})
    expect(runner.field("times")).to_have_attribute("placeholder", "default: 3")


def test_references_and_allof_make_fields(runner: Runner) -> None:
    runner.open("references")
    runner.field("name").fill("Ada")
    runner.field("age").fill("36")
    runner.wait_for_arguments({"owner": {"name": "Ada", "age": 36}})


def test_a_recursive_schema_has_fields_up_to_a_maximum_depth(runner: Runner) -> None:
    runner.open("recursive")
    button = runner.page.get_by_role("button", name="Add children")
    expect(button).to_have_count(1)
    while button.count():
        button.last.click()
    depth, node = 0, runner.arguments()["tree"]
    while "children" in node:
        depth, node = depth + 1, node["children"][0]
    assert depth >= 3
    expect(
        runner.page.locator("#fields").get_by_text("This value is nested too deeply for fields.").first
    ).to_be_visible()


def test_an_endless_schema_is_cut_and_the_page_works(runner: Runner) -> None:
    runner.open("exploding")
    expect(runner.page.get_by_role("button", name="Add left").first).to_be_visible()
    assert runner.page.locator("#fields fieldset").count() <= 400


@pytest.mark.parametrize("tool", ["endless", "branching"])
def test_a_schema_with_endless_branches_is_drawn_quickly(runner: Runner, tool: str) -> None:
    page = runner.open(tool).page
    expect(page.locator("#form-note:visible, #fields button:visible, #fields select:visible").first).to_be_visible()
    for _ in range(5):
        for button in page.locator("#fields button:visible").all()[:1]:
            button.click()
        assert page.evaluate(DRAW_MILLISECONDS) < 3000, "milliseconds to draw the form"
    runner.write({"a": "x"})
    expect(page.locator("#json-status")).to_be_empty()


def test_a_schema_with_too_many_fields_has_only_json_and_a_note(runner: Runner) -> None:
    runner.open("wide")
    expect(runner.page.get_by_text("This tool has no form: it would have more than 400 fields.")).to_be_visible()
    runner.write({"field_7": "x"})
    runner.press()
    assert runner.received_arguments() == {"field_7": "x"}


def test_a_map_accepts_entries_with_any_name(runner: Runner) -> None:
    runner.open("map")
    for name in ("apples", "__proto__"):
        runner.page.get_by_label("Name of the new entry").fill(name)
        runner.page.get_by_role("button", name="Add entry").click()
    runner.field("apples").fill("3")
    runner.wait_for_arguments({"apples": 3, "__proto__": 0})
    runner.page.get_by_role("button", name="Remove apples").click()
    runner.wait_for_arguments({"__proto__": 0})


def test_a_value_without_a_field_is_entered_as_json(runner: Runner) -> None:
    runner.open("anything")
    runner.field("value").fill('{"any": [1]')
    expect(runner.page.get_by_text("is not valid JSON")).to_be_visible()
    runner.press()
    expect(runner.field("value")).to_be_focused()
    runner.field("value").fill('{"any": [1]}')
    runner.wait_for_arguments({"value": {"any": [1]}})


def test_the_form_follows_the_json_and_is_inert_while_the_json_is_invalid(runner: Runner) -> None:
    runner.open("nested")
    runner.write({"title": "A", "place": {"city": "B"}, "more": 1})
    expect(runner.field("city")).to_have_value("B")
    expect(runner.field("more")).to_have_value("1")
    runner.write('{"title": "A", ')
    expect(runner.page.get_by_text("This is not valid JSON")).to_be_visible()
    expect(runner.page.locator("#fields")).to_have_attribute("inert", "")
    runner.write({"title": "C", "place": {"city": "D"}})
    expect(runner.field("Title of the event")).to_have_value("C")
    expect(runner.page.get_by_text("This is not valid JSON")).to_have_count(0)


def test_a_change_in_the_form_does_not_overwrite_new_json(runner: Runner) -> None:
    runner.open("nested")
    runner.write({"title": "old", "place": {"city": "A"}})
    expect(runner.field("city")).to_have_value("A")
    runner.json.evaluate(TYPE_THEN_CHANGE, '{"title": "new", "place": {"city": "A"}}')
    runner.wait_for_arguments({"title": "new", "place": {"city": "B"}})
    expect(runner.field("Title of the event")).to_have_value("new")

    runner.write({"title": "old", "place": {"city": "A"}})
    expect(runner.field("city")).to_have_value("A")
    runner.json.evaluate(TYPE_THEN_CHANGE, '{"title": "half')
    expect(runner.json).to_have_value('{"title": "half')
    expect(runner.page.get_by_text("This is not valid JSON")).to_be_visible()


def test_long_numbers_in_the_json_are_not_rounded(runner: Runner) -> None:
    runner.open("anything")
    runner.write('{"value": 12345678901234567890}')
    expect(runner.page.get_by_text("more digits than the form can hold")).to_be_visible()
    runner.press()
    runner.wait_for_status("succeeded")
    assert "12345678901234567890" in runner.page.locator("#outcome").inner_text()


def test_a_field_refuses_numbers_that_it_would_round(runner: Runner) -> None:
    runner.open("defaults")
    runner.field("times").fill("12345678901234567")
    expect(runner.page.get_by_text("has more digits than a field can hold. Change it in the JSON")).to_be_visible()
    runner.press()
    expect(runner.field("times")).to_be_focused()
    expect(runner.page.locator("#outcome-status")).to_have_count(0)
    runner.field("times").fill("9007199254740991")
    expect(runner.page.get_by_text("has more digits than a field can hold. Change it in the JSON")).to_have_count(0)
    assert runner.arguments()["times"] == 9007199254740991


# Errors -----------------------------------------------------------------------------------------------------------


def test_bounds_are_checked_while_typing_and_by_the_server(runner: Runner) -> None:
    runner.open("numbers")
    runner.field("percent").fill("101")
    expect(runner.page.get_by_text("must be 100 or less")).to_be_visible()
    runner.field("dice").fill("9")
    runner.press()
    expect(runner.page.get_by_role("alert")).to_contain_text("Correct the 2 marked fields")
    expect(runner.page.get_by_text("must be 100 or less")).to_be_visible()
    expect(runner.page.get_by_text("must be 6 or less")).to_be_visible()
    expect(runner.field("percent")).to_have_attribute("aria-invalid", "true")
    expect(runner.page.get_by_role("alert")).to_contain_text("The call was not made")
    runner.field("percent").fill("10")
    runner.field("dice").fill("6")
    runner.press()
    assert runner.received_arguments() == {"dice": 6, "percent": 10}
    expect(runner.page.get_by_role("alert")).to_be_empty()


def test_an_empty_required_date_is_an_error(runner: Runner) -> None:
    runner.open("formats")
    runner.press()
    expect(runner.page.locator(".sf-error:visible")).to_have_text(["is required", "is required"])
    runner.field("date").first.fill("2026-01-31")
    runner.field("email").fill("nobody")
    expect(runner.page.get_by_text("must be an e-mail address")).to_be_visible()
    runner.field("email").fill("a@example.org")
    runner.press()
    assert runner.received_arguments() == {"date": "2026-01-31", "email": "a@example.org"}


def test_arguments_that_the_server_accepts_are_not_refused_by_the_form(runner: Runner) -> None:
    page = runner.open("tolerant").page
    written = {"moment": "2026-01-31T13:30:00", "site": "example.org", "day": "today", "count": 1.5, "size": 150}
    runner.write(written)
    runner.press()
    assert runner.received_arguments() == written
    runner.field("site").fill("example.com")
    expect(page.get_by_text("must be an address: https://example.org/")).to_be_visible()
    page.get_by_label("Type of count").select_option("1: integer")
    runner.field("Value").first.fill("2.5")
    expect(page.get_by_text("must be a whole number")).to_be_visible()
    changed = {**written, "site": "example.com", "count": 2.5}
    runner.wait_for_arguments(changed)
    runner.press()
    expect(page.locator(".sf-error:visible")).to_have_count(0)
    runner.wait_for_status("succeeded")
    expect(page.locator("#outcome")).to_contain_text("example.com")
    runner.write({"moment": "", "size": 50, "count": "many"})
    runner.press()
    expect(page.locator(".errornote")).to_have_text("The call was not made. Correct the 3 marked fields below.")
    expect(page.locator(".sf-error:visible").filter(has_text="is required")).to_have_count(1)


def test_all_faults_are_marked_at_once_and_the_banner_counts_them(runner: Runner) -> None:
    page = runner.open("letter").page
    expect(runner.field("to")).to_be_focused()
    expect(runner.field("to")).to_have_attribute("placeholder", "for example Ada Lovelace")
    expect(runner.field("pages")).to_have_attribute("placeholder", "for example 3")
    runner.wait_for_arguments({"to": "", "sent": "", "copies": [], "stamp": "first"})
    runner.write({"to": 5, "sent": "", "copies": [], "stamp": "third"})
    runner.press()
    expect(page.locator(".errornote")).to_have_text("The call was not made. Correct the 5 marked fields below.")
    marks = page.locator(".sf-error:visible")
    expect(marks.filter(has_text="is required")).to_have_count(2)
    expect(marks.filter(has_text="must have 1 item or more")).to_have_count(1)
    runner.write({"to": "Ada", "sent": "", "copies": [], "stamp": "first"})
    runner.press()
    expect(page.locator(".errornote")).to_contain_text("Correct the 3 marked fields")
    page.get_by_role("button", name="Add an item").click()
    expect(page.locator(".errornote")).to_contain_text("Correct the 2 marked fields")
    expect(marks).to_have_text(["is required", "is required"])
    runner.field("pages").fill("2")
    expect(page.locator(".errornote")).to_contain_text("Correct the marked field below")
    runner.field("sent").fill("2026-01-31T13:30:05")
    expect(page.get_by_role("alert")).to_be_empty()


def test_a_date_and_time_and_a_file_are_picked(runner: Runner) -> None:
    page = runner.open("letter").page
    runner.field("sent").fill("2026-01-31T13:30:05")
    expect(page.get_by_text("sent as 2026-01-31T13:30:05")).to_be_visible()
    assert re.fullmatch(r"2026-01-31T13:30:05[+-]\d\d:\d\d", runner.arguments()["sent"])
    runner.write({"sent": "2026-01-31T13:30:05.25Z"})
    expect(runner.field("sent")).to_have_attribute("type", "text")
    picker = page.get_by_label("File for scan")
    expect(picker).to_have_attribute("accept", "image/png")
    picker.set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": b"hello\0\xff"})
    until(page, lambda: runner.arguments().get("scan") == "aGVsbG8A/w==", what="the file as base64")
    picker.set_input_files({"name": "b.png", "mimeType": "image/png", "buffer": b"x" * 1_500_001})
    expect(page.get_by_text("the file has 1,500,001 bytes")).to_be_visible()
    assert runner.arguments()["scan"] == "aGVsbG8A/w=="


def test_the_button_stays_in_sight_on_a_long_form(runner: Runner) -> None:
    page = runner.page
    page.set_viewport_size({"width": 390, "height": 600})
    runner.open("letter")
    button = page.get_by_role("button", name="Call", exact=True)
    expect(button).to_be_in_viewport()
    page.evaluate("window.scrollTo(0, 300)")
    expect(button).to_be_in_viewport()


def test_a_validation_error_without_a_field_is_shown_above(runner: Runner) -> None:
    runner.open("wide")
    runner.write({"field_1": 5})
    runner.press()
    expect(runner.page.get_by_role("alert")).to_contain_text("field_1: 5 is not of type 'string'")


# The call and its end ---------------------------------------------------------------------------------------------


def test_a_tool_without_arguments_needs_one_click(runner: Runner) -> None:
    runner.open("nothing")
    expect(runner.page.get_by_text("This tool takes no arguments.")).to_be_visible()
    runner.press()
    assert runner.received_arguments() == {}


def test_a_long_call_shows_progress_and_time_and_can_be_cancelled(runner: Runner) -> None:
    runner.open("slow")
    address = runner.page.url
    runner.press()
    bar = runner.page.get_by_role("progressbar")
    until(runner.page, lambda: float(bar.get_attribute("value") or 0) > 5, what="progress")
    clock = runner.page.locator(".outcome-elapsed")
    old_text = clock.inner_text()
    until(runner.page, lambda: clock.inner_text() != old_text, within=0.7, what="the time ticks between two looks")
    runner.page.get_by_role("button", name="Cancel").click()
    runner.wait_for_status("cancelled")
    expect(bar).to_have_count(0)
    assert runner.page.url == address


def test_on_a_phone_the_message_does_not_cover_the_status(runner: Runner) -> None:
    page = runner.page
    page.set_viewport_size({"width": 390, "height": 2000})
    runner.open("slow").press()
    cancel = page.get_by_role("button", name="Cancel")
    box = cancel.bounding_box()
    assert box is not None
    page.set_viewport_size({"width": 390, "height": int(box["y"] + box["height"] + 50)})
    cancel.click()
    notice = page.locator("#live-messages p")
    expect(notice).to_contain_text(re.compile("Cancellation requested|Cancelled"))  # the call may still be queued
    runner.wait_for_status("cancelled")
    notice_box, status_box = notice.bounding_box(), page.locator("#outcome-status").bounding_box()
    assert notice_box is not None
    assert status_box is not None
    assert (
        notice_box["y"] + notice_box["height"] < status_box["y"]
        or status_box["y"] + status_box["height"] < notice_box["y"]
    )


def test_after_a_lost_response_changed_arguments_need_a_second_press(runner: Runner, visitor: Visitor) -> None:
    visitor.faults.allow("ERR_FAILED")
    page = runner.open("anything").page
    runner.write({"value": 1})

    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    page.route("**/call/", lose, times=1)
    runner.press()
    expect(page.get_by_role("alert")).to_contain_text("It is safe to press Call again")
    runner.write({"value": 2})
    runner.press()
    expect(page.get_by_role("alert")).to_contain_text("with other arguments")
    runner.press()
    assert runner.received_arguments() == {"value": 2}


def test_a_destructive_tool_asks_for_confirmation(runner: Runner) -> None:
    runner.open("destroy")
    runner.field("what").fill("the vase")
    runner.press()
    dialog = runner.page.get_by_role("dialog")
    expect(dialog).to_contain_text("may delete or overwrite data")
    dialog.get_by_role("button", name="Do not call").click()
    expect(dialog).to_be_hidden()
    expect(runner.page.locator("#outcome-status")).to_have_count(0)
    runner.press()
    dialog.get_by_role("button", name="Call it").click()
    assert runner.received_arguments() == {"what": "the vase"}


def test_results_are_shown_by_their_content_type(runner: Runner) -> None:
    runner.open("media").press()
    outcome = runner.wait_for_status("succeeded")
    expect(outcome.get_by_role("heading", name="Report")).to_be_visible()
    expect(outcome.get_by_role("cell", name="links")).to_be_visible()
    picture = outcome.locator("img")
    expect(picture).to_have_count(1)
    until(runner.page, lambda: picture.evaluate("(image) => image.naturalWidth") == 160, what="the picture is drawn")
    sound = outcome.locator("audio")
    until(runner.page, lambda: sound.evaluate("(audio) => audio.duration") > 0, what="the sound can be played")
    expect(outcome.get_by_role("link", name="data.csv")).to_have_attribute("href", re.compile(r"/resource/\?uri="))
    expect(outcome.get_by_text("deep: true")).to_be_visible()


def test_a_result_is_copied_downloaded_and_shown_whole(visitor: Visitor, tool_ids: dict[str, int]) -> None:
    page = visitor.window(permissions=["clipboard-read", "clipboard-write"])
    Runner(page, tool_ids).open("long").press()
    words, tree = page.locator("#outcome .result-item").nth(0), page.locator("#outcome .result-item").nth(1)
    expect(words.get_by_text("only the beginning")).to_be_visible()
    words.get_by_role("button", name="Copy").click()
    expect(words.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "word " * 200_000
    words.get_by_role("button", name="Show all").click()
    expect(words.get_by_text("only the beginning")).to_have_count(0)
    assert words.locator("pre").evaluate("(block) => block.textContent.length") == 1_000_000
    with page.expect_download() as download:
        tree.get_by_role("link", name="Download").click()
    assert len(json.loads(Path(download.value.path()).read_text())["items"]) == 12_000


def test_a_megabyte_of_json_can_be_searched_and_folded(runner: Runner) -> None:
    page = runner.open("long").page
    runner.press()
    tree = page.locator("#outcome .result-item").nth(1)
    field = tree.get_by_label("Search this JSON")
    field.fill("item 1199")
    expect(tree.get_by_text("1 of 11")).to_be_visible()
    expect(tree.locator(".json-hit")).to_have_text('name: "item 1199"')
    field.press("Shift+Enter")
    expect(tree.locator(".json-hit")).to_have_text('name: "item 11999"')
    expect(tree.locator(".json-hit")).to_be_in_viewport()
    field.fill("12345678901234567890")
    expect(tree.locator(".json-hit")).to_have_text("last: 12345678901234567890")
    field.fill("nowhere to be seen")
    expect(tree.get_by_text("no matches")).to_be_visible()
    tree.get_by_role("button", name="Collapse").click()
    expect(tree.locator(".json-tree details[open]")).to_have_count(1)
    tree.get_by_role("button", name="Expand").click()
    expect(tree.locator(".json-tree").get_by_text('name: "item 3"', exact=True)).to_be_visible()


def test_files_of_a_result_leave_as_attachments(runner: Runner) -> None:
    runner.open("files").press()
    outcome = runner.wait_for_status("succeeded")
    names = []
    for link in outcome.get_by_role("link", name="Download").all():
        with runner.page.expect_download() as download:
            link.click()
        names.append(re.sub(r"\d+(?=[-.])", "N", download.value.suggested_filename))
    assert names == ["annual_report.pdf", "files-N-N.svg", "files-N-N.csv", "files-N.json"]


@pytest.mark.parametrize(
    ("tool", "status", "text"),
    [
        ("rows", "succeeded", "The table shows the first 200 of 250 rows."),
        ("colors", "succeeded", "✓ passed 12 tests"),
        ("broken_promises", "succeeded", "name: 5 is not of type 'string'"),
        ("weather", "succeeded", "matches the output schema"),
        ("broken_promise", "succeeded", "count: 'many' is not of type 'integer'"),
        ("fail", "failed", "What to do: The tool ran and reported an error."),
    ],
)
def test_each_outcome_has_an_explanation(runner: Runner, tool: str, status: str, text: str) -> None:
    runner.open(tool).press()
    expect(runner.wait_for_status(status)).to_contain_text(text)


# Presets, links and snippets --------------------------------------------------------------------------------------


def test_a_preset_is_saved_without_its_secret_used_and_deleted(runner: Runner) -> None:
    runner.open("secret")
    runner.field("user").fill("ada")
    runner.field("key").fill("s3cret")
    runner.page.get_by_label("Save the arguments as").fill("ada's")
    runner.page.get_by_label("Save the arguments as").press("Enter")
    expect(runner.page.get_by_text("Saved the preset “ada's”. Its secrets are not stored: key.")).to_be_visible()
    assert runner.arguments() == {"user": "ada", "key": "s3cret"}
    runner.page.get_by_role("link", name="ada's", exact=True).click()
    expect(runner.page.get_by_text("Secrets are not stored. Enter them again: key.")).to_be_visible()
    assert runner.arguments() == {"user": "ada"}
    runner.page.get_by_role("button", name="Delete the preset ada's").click()
    expect(runner.page.get_by_role("link", name="ada's", exact=True)).to_have_count(0)


def test_a_link_contains_the_arguments_without_secrets_and_calls_nothing(
    visitor: Visitor, tool_ids: dict[str, int]
) -> None:
    page = visitor.window(permissions=["clipboard-read", "clipboard-write"])
    runner = Runner(page, tool_ids).open("secret")
    runner.write({"user": "ü & <b>#%", "key": "s3cret"})
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied, without key")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert "s3cret" not in link
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.goto("about:blank")
    page.goto(link)
    expect(page.get_by_text("These arguments come from the link.")).to_be_visible()
    expect(runner.field("user")).to_have_value("ü & <b>#%")
    expect(page.locator("#outcome-status")).to_have_count(0)
    assert not [url for url in urls if "args" in url]


@pytest.mark.parametrize("fragment", ["#args=nonsense", "#args=[1]", "#args=" + quote("[" * 5000), "#args=%zz", "#x"])
def test_a_broken_link_shows_an_error_and_the_form(runner: Runner, fragment: str) -> None:
    runner.open("nested", fragment)
    if "args" in fragment:
        expect(runner.page.get_by_text("The arguments in the link are not valid.")).to_be_visible()
    expect(runner.page.locator("#schema-form")).to_be_visible()


def test_an_earlier_call_is_called_again_with_its_arguments(runner: Runner) -> None:
    runner.open("nested")
    runner.write({"title": "First", "place": {"city": "Here"}})
    runner.press()
    runner.wait_for_status("succeeded")
    number = runner.page.locator("#outcome a", has_text="call ").inner_text().removeprefix("call ")
    runner.open("nested", f"?from={number}")
    expect(runner.page.get_by_text(f"These are the arguments of call {number}.")).to_be_visible()
    expect(runner.field("city")).to_have_value("Here")


def test_snippets_follow_the_arguments(visitor: Visitor, tool_ids: dict[str, int]) -> None:
    page = visitor.window(permissions=["clipboard-read", "clipboard-write"])
    runner = Runner(page, tool_ids).open("nested")
    page.get_by_text("Copy as curl, Python or command").click()
    runner.field("city").fill("it's here")
    expect(page.locator("[data-snippet=curl]")).to_contain_text("""it'"'"'s here""")
    page.get_by_role("button", name="Copy", exact=True).first.click()
    page.get_by_role("button", name="Copied").click()
    assert page.evaluate("navigator.clipboard.readText()").startswith("curl ")
    expect(page.get_by_role("button", name="Copied")).to_have_count(
        0
    )  # after the second press it has its old label again


# Accessibility ----------------------------------------------------------------------------------------------------


def test_the_keyboard_alone_fills_in_and_calls(runner: Runner) -> None:
    page = runner.open("references").page
    expect(runner.field("name")).to_be_visible()
    until(page, lambda: _tab(page) == "name", what="the first field by Tab")
    page.keyboard.type("Ada")
    page.keyboard.press("Tab")
    page.keyboard.type("ada@example.org")
    page.keyboard.press("Enter")  # Enter alone does not call
    expect(page.locator("#outcome-status")).to_have_count(0)
    page.keyboard.press("Control+Enter")
    assert runner.received_arguments() == {"owner": {"name": "Ada", "email": "ada@example.org"}}


def _tab(page: Page) -> str:
    page.keyboard.press("Tab")
    label: str = page.evaluate("document.activeElement.labels?.[0]?.querySelector('.sf-title')?.textContent ?? ''")
    return label


def test_without_scripts_the_page_has_json_and_a_button(visitor: Visitor, tool_ids: dict[str, int]) -> None:
    page = visitor.window(java_script_enabled=False)
    runner = Runner(page, tool_ids).open("nested")
    expect(page.locator("#schema-form")).to_be_hidden()
    runner.json.fill('{"title": 5}')
    runner.press()
    expect(page.get_by_text("place: 'place' is a required property")).to_be_visible()
    runner.json.fill('{"title": "T", "place": {"city": "C"}}')
    runner.press()
    expect(page).to_have_url(re.compile(r"/call/\d+/change/"))
    runner.open("destroy")
    runner.press()
    expect(page.get_by_text("Confirm the call")).to_be_visible()
    page.get_by_label("Call it anyway").check()
    runner.json.fill('{"what": "x"}')
    runner.press()
    expect(page).to_have_url(re.compile(r"/call/\d+/change/"))


def test_hostile_text_is_shown_as_text(runner: Runner, tool_ids: dict[str, int]) -> None:
    evil = next(name for name in tool_ids if name.startswith("<script>"))
    for tool in ("hostile", "evil_result", "slow", evil):
        page = runner.open(tool).page
        for button in page.locator("#fields button:visible").all():
            button.click()
        if tool == "hostile":
            page.get_by_label("Type of either").select_option(index=1)
            runner.field("regex").fill("a" * 40 + "!")
        page.get_by_text("Copy as curl, Python or command").click()
        runner.press()
        expect(page.locator("#outcome-status")).to_be_visible()
        until(page, lambda page=page, tool=tool: tool == "slow" or page.locator("#outcome .result").count(), what="end")
        assert page.evaluate("window.pwned") is None
        expect(page.locator(".injected")).to_have_count(0)
        for link in page.locator("#content-main a").all():
            assert re.match(r"https?://|/admin/", link.get_attribute("href") or "")
    runner.page.get_by_text("Whole result as JSON")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (360, "light"), (390, "dark")])
@pytest.mark.parametrize("tool", ["union", "lists", "media", "destroy", "weather", "wide"])
def test_the_runner_has_no_serious_accessibility_problems(
    visitor: Visitor, tool_ids: dict[str, int], tool: str, width: int, scheme: str
) -> None:
    page = visitor.window(width=width, scheme=scheme, bypass_csp=True)
    runner = Runner(page, tool_ids).open(tool)
    if tool in ("lists", "media", "weather"):
        runner.press()
        expect(page.locator(".errornote, #outcome .result").first).to_be_visible()
    page.get_by_text("Copy as curl, Python or command").click()
    page.add_script_tag(path=AXE)
    violations = page.evaluate(RUN_AXE)
    assert [violation for violation in violations if violation[0] in ("serious", "critical")] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than its window"


def test_the_runner_page_transfers_less_than_300_kb(visitor: Visitor, tool_ids: dict[str, int]) -> None:
    page = visitor.window()
    sizes: list[int] = []
    page.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))
    Runner(page, tool_ids).open("lists").press()
    expect(page.locator(".errornote")).to_be_visible()
    assert 0 < sum(sizes) < 300_000


def test_descriptions_of_fields_are_laid_out_from_markdown_and_lead_only_to_the_web(runner: Runner) -> None:
    runner.open("described")
    city, code, plan = (runner.page.locator("#fields > .sf-field").nth(number) for number in range(3))
    expect(city.locator(".sf-help code")).to_have_text("GET /cities")
    expect(city.locator(".sf-help strong")).to_have_text("Not")
    link = city.get_by_role("link", name="the list")
    expect(link).to_have_attribute("href", "https://example.org/cities")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(code.locator(".sf-help")).to_have_text("<b>A code</b>, [not a link](javascript:alert(1))")
    expect(code.locator(".sf-help a, .sf-help b")).to_have_count(0)
    plan.locator("summary").click()
    expect(plan.locator(".sf-help li code")).to_have_text(["fast", "slow"])
