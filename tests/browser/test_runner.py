"""The tool runner in a real browser, over a gallery of schemas and of results."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.rig import BrowserHall, Visitor, until
from tests.conftest import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

GALLERY = ROOT / "tests" / "support" / "servers" / "gallery.py"
AXE = ROOT / "tests" / "browser" / "axe.min.js"
BLINK = """() => {
  const schema = JSON.parse(document.getElementById("input-schema").textContent);
  const value = JSON.parse(document.getElementById("id_arguments").value);
  const began = performance.now();
  try {
    new SchemaForm(document.createElement("div"), schema, () => 0).show(value);
  } catch (error) {
    if (!(error instanceof SchemaForm.CannotShow)) throw error;
  }
  return performance.now() - began;
}"""
TYPE_THEN_CHANGE = """(json, typed) => {
  const city = [...document.querySelectorAll("#fields .sf-text")].find((field) => field.value === "A");
  for (const [control, value] of [[json, typed], [city, "B"]]) {
    control.value = value;
    control.dispatchEvent(new Event("input", { bubbles: true }));
  }
}"""
FINDINGS = """axe.run().then((report) =>
  report.violations.map((found) => [found.impact, found.id, found.nodes[0].html]))"""


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    folder = new_hall.add("gallery", display_name="Gallery")
    shutil.copy(GALLERY, folder / "server.py")
    new_hall.bring_up("gallery")
    return new_hall


@pytest.fixture(scope="module")
def numbers(hall: BrowserHall) -> dict[str, int]:
    """The tools' rows, by name."""
    rows = "dict(Tool.objects.values_list('name', 'pk'))"
    said = hall.run(f"import json; from roster.models import Tool; print(json.dumps({rows}))")
    found: dict[str, int] = json.loads(said.splitlines()[-1])
    return found


class Runner:
    """The page of one tool."""

    def __init__(self, page: Page, numbers: dict[str, int]) -> None:
        self.page, self.numbers = page, numbers

    def open(self, tool: str, more: str = "") -> Runner:
        self.page.goto("about:blank")  # another fragment alone would not load the page anew
        self.page.goto(f"/admin/roster/tool/{self.numbers[tool]}/call/{more}")
        return self

    @property
    def json(self) -> Locator:
        return self.page.get_by_label("Arguments as JSON", exact=True)

    def arguments(self) -> Any:
        return json.loads(self.json.input_value())

    def field(self, label: str, **options: Any) -> Locator:
        return self.page.locator("#fields").get_by_label(re.compile(rf"^{label}\b"), **options)

    def group(self, legend: str) -> Locator:
        found = self.page.locator("fieldset.sf-group").filter(has=self.page.locator(f"legend:has-text('{legend}')"))
        return found.last

    def write(self, value: Any) -> None:
        self.json.fill(value if isinstance(value, str) else json.dumps(value))

    def holds(self, expected: Any) -> None:
        until(self.page, lambda: self.arguments() == expected, what=f"{expected}, not {self.json.input_value()}")

    def press(self) -> None:
        self.page.get_by_role("button", name="Call", exact=True).click()

    def ends_as(self, status: str) -> Locator:
        expect(self.page.locator("#outcome-status")).to_have_text(status)
        return self.page.locator("#outcome")

    def told(self) -> Any:
        """What the tool says it was given."""
        self.ends_as("succeeded")
        self.page.locator("#outcome").get_by_text("Whole result as JSON").click()
        whole = json.loads(self.page.locator("#outcome .result > .result-source pre").inner_text())
        return json.loads(whole["content"][0]["text"])


@pytest.fixture
def runner(page: Page, numbers: dict[str, int]) -> Runner:
    return Runner(page, numbers)


# Form and JSON in step --------------------------------------------------------------------------------------------


def test_nested_objects_are_filled_in_and_called(runner: Runner) -> None:
    runner.open("nested")
    runner.field("Title of the event").fill("Feast\nof all")
    runner.field("city").fill("Ghent")
    runner.page.get_by_role("button", name="Add Position").click()
    runner.field("lat").fill("51.05")
    runner.field("lon").fill("-3.7")
    expected = {"title": "Feast\nof all", "place": {"city": "Ghent", "position": {"lat": 51.05, "lon": -3.7}}}
    runner.holds(expected)
    runner.press()
    assert runner.told() == expected


def test_lists_grow_move_and_shrink_and_the_focus_follows(runner: Runner) -> None:
    runner.open("lists")
    people = runner.group("people")
    people.get_by_role("button", name="Add an item").click()
    expect(runner.field("name")).to_be_focused()
    runner.field("name").fill("Ada")
    people.get_by_role("button", name="Add an item").click()
    runner.field("name").nth(1).fill("Bob")
    runner.page.get_by_role("button", name="Move 2 up").click()
    runner.holds({"people": [{"name": "Bob"}, {"name": "Ada"}]})
    runner.page.get_by_role("button", name="Remove 1").click()
    runner.page.get_by_label("Tue").check()
    runner.page.get_by_role("button", name="Add pair").click()
    runner.page.get_by_role("button", name="Add tags").click()
    runner.holds({"people": [{"name": "Ada"}], "days": ["Tue"], "pair": [""], "tags": [""]})
    runner.group("tags").get_by_role("button", name="Remove tags").click()
    runner.holds({"people": [{"name": "Ada"}], "days": ["Tue"], "pair": [""]})


def test_choices_are_of_the_types_that_the_schema_gives_them(runner: Runner) -> None:
    runner.open("choices")
    runner.field("color").select_option("blue")
    runner.field("level").select_option("high")
    for label, value in [("1", 1), ("null", None), ("yes", True), ("a", "a")]:
        runner.field("mixed").select_option(label)
        runner.holds({"color": "blue", "level": 2, "mixed": value})
    runner.field("mixed").select_option("not sent")
    runner.holds({"color": "blue", "level": 2})


def test_alternatives_show_the_fields_of_the_one_that_is_chosen(runner: Runner) -> None:
    runner.open("union")
    runner.field("Card number").fill("4111")
    runner.page.get_by_label("Type of payment").select_option("By bank")
    expect(runner.field("Card number")).to_have_count(0)
    runner.field("IBAN").fill("BE68")
    runner.field("Note").fill("soon")
    runner.page.get_by_label("Type of amount").select_option("1: number")
    runner.field("Value").fill("12.5")
    runner.holds({"payment": {"kind": "bank", "iban": "BE68"}, "note": "soon", "amount": 12.5})
    runner.press()
    assert runner.told()["payment"] == {"kind": "bank", "iban": "BE68"}


def test_the_alternative_is_found_by_what_the_json_holds(runner: Runner) -> None:
    runner.open("union")
    runner.write({"payment": {"kind": "bank", "iban": "BE1"}, "either": 5})
    expect(runner.field("IBAN")).to_have_value("BE1")
    expect(runner.page.get_by_label("Type of payment").locator("option:checked")).to_have_text("By bank")
    expect(runner.page.get_by_label("Type of either").locator("option:checked")).to_have_text("2: integer")


def test_defaults_are_there_and_can_be_left_out(runner: Runner) -> None:
    runner.open("defaults")
    runner.holds({"text": "hello", "times": 3, "loud": True, "options": {"color": "red"}})
    runner.field("text").fill("")
    runner.field("times").fill("")
    runner.field("loud").select_option("no")
    runner.group("options").get_by_role("button", name="Remove options").click()
    runner.holds({"loud": False})
    expect(runner.field("times")).to_have_attribute("placeholder", "default: 3")


def test_references_and_allof_make_fields(runner: Runner) -> None:
    runner.open("references")
    runner.field("name").fill("Ada")
    runner.field("age").fill("36")
    runner.holds({"owner": {"name": "Ada", "age": 36}})


def test_a_schema_that_refers_to_itself_grows_as_far_as_one_goes(runner: Runner) -> None:
    runner.open("recursive")
    deeper = runner.page.get_by_role("button", name="Add children")
    expect(deeper).to_have_count(1)
    while deeper.count():
        deeper.last.click()
    depth, node = 0, runner.arguments()["tree"]
    while "children" in node:
        depth, node = depth + 1, node["children"][0]
    assert depth >= 3
    expect(
        runner.page.locator("#fields").get_by_text("This value is nested too deeply for fields.").first
    ).to_be_visible()


def test_a_schema_without_end_is_cut_and_the_page_lives(runner: Runner) -> None:
    runner.open("exploding")
    expect(runner.page.get_by_role("button", name="Add left").first).to_be_visible()
    assert runner.page.locator("#fields fieldset").count() <= 400


@pytest.mark.parametrize("tool", ["endless", "branching"])
def test_a_schema_that_branches_without_end_costs_no_more_than_a_blink(runner: Runner, tool: str) -> None:
    page = runner.open(tool).page
    expect(page.locator("#form-note:visible, #fields button:visible, #fields select:visible").first).to_be_visible()
    for _ in range(5):
        for button in page.locator("#fields button:visible").all()[:1]:
            button.click()
        assert page.evaluate(BLINK) < 3000, "milliseconds to draw the form"
    runner.write({"a": "x"})
    expect(page.locator("#json-status")).to_be_empty()


def test_too_many_fields_fall_back_to_json_and_the_page_says_so(runner: Runner) -> None:
    runner.open("wide")
    expect(runner.page.get_by_text("This tool has no form: it would have more than 400 fields.")).to_be_visible()
    runner.write({"field_7": "x"})
    runner.press()
    assert runner.told() == {"field_7": "x"}


def test_a_map_takes_entries_with_names_of_ones_own(runner: Runner) -> None:
    runner.open("map")
    for name in ("apples", "__proto__"):
        runner.page.get_by_label("Name of the new entry").fill(name)
        runner.page.get_by_role("button", name="Add entry").click()
    runner.field("apples").fill("3")
    runner.holds({"apples": 3, "__proto__": 0})
    runner.page.get_by_role("button", name="Remove apples").click()
    runner.holds({"__proto__": 0})


def test_what_has_no_field_is_json_in_its_place(runner: Runner) -> None:
    runner.open("anything")
    runner.field("value").fill('{"any": [1]')
    expect(runner.page.get_by_text("is not valid JSON")).to_be_visible()
    runner.press()
    expect(runner.field("value")).to_be_focused()
    runner.field("value").fill('{"any": [1]}')
    runner.holds({"value": {"any": [1]}})


def test_the_form_follows_the_json_and_waits_while_it_is_none(runner: Runner) -> None:
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


def test_json_that_was_just_typed_is_not_overwritten_by_a_change_in_the_form(runner: Runner) -> None:
    runner.open("nested")
    runner.write({"title": "old", "place": {"city": "A"}})
    expect(runner.field("city")).to_have_value("A")
    runner.json.evaluate(TYPE_THEN_CHANGE, '{"title": "new", "place": {"city": "A"}}')
    runner.holds({"title": "new", "place": {"city": "B"}})
    expect(runner.field("Title of the event")).to_have_value("new")

    runner.write({"title": "old", "place": {"city": "A"}})
    expect(runner.field("city")).to_have_value("A")
    runner.json.evaluate(TYPE_THEN_CHANGE, '{"title": "half')
    expect(runner.json).to_have_value('{"title": "half')
    expect(runner.page.get_by_text("This is not valid JSON")).to_be_visible()


def test_numbers_that_a_page_would_round_are_left_to_the_json(runner: Runner) -> None:
    runner.open("anything")
    runner.write('{"value": 12345678901234567890}')
    expect(runner.page.get_by_text("more digits than the form can hold")).to_be_visible()
    runner.press()
    runner.ends_as("succeeded")
    assert "12345678901234567890" in runner.page.locator("#outcome").inner_text()


def test_a_field_takes_no_number_that_it_would_round(runner: Runner) -> None:
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


def test_bounds_are_told_while_typing_and_by_the_server_at_each_field(runner: Runner) -> None:
    runner.open("numbers")
    runner.field("percent").fill("101")
    expect(runner.page.get_by_text("must be 100 or less")).to_be_visible()
    runner.field("dice").fill("9")
    runner.press()
    expect(runner.page.get_by_text("101 is greater than the maximum of 100")).to_be_visible()
    expect(runner.page.get_by_text("9 is greater than the maximum of 6")).to_be_visible()
    expect(runner.field("percent")).to_have_attribute("aria-invalid", "true")
    expect(runner.page.get_by_role("alert")).to_contain_text("The call was not made")
    runner.field("percent").fill("10")
    runner.field("dice").fill("6")
    runner.press()
    assert runner.told() == {"dice": 6, "percent": 10}
    expect(runner.page.get_by_role("alert")).to_be_empty()


def test_a_required_date_that_is_empty_is_asked_for(runner: Runner) -> None:
    runner.open("formats")
    runner.press()
    expect(runner.page.locator(".sf-error:visible")).to_have_text(["is required", "is required"])
    runner.field("date").first.fill("2026-01-31")
    runner.field("email").fill("nobody")
    expect(runner.page.get_by_text("must be an e-mail address")).to_be_visible()
    runner.field("email").fill("a@example.org")
    runner.press()
    assert runner.told() == {"date": "2026-01-31", "email": "a@example.org"}


def test_a_validation_error_without_a_field_is_shown_above(runner: Runner) -> None:
    runner.open("wide")
    runner.write({"field_1": 5})
    runner.press()
    expect(runner.page.get_by_role("alert")).to_contain_text("field_1: 5 is not of type 'string'")


# The call and its end ---------------------------------------------------------------------------------------------


def test_a_tool_without_arguments_is_one_click(runner: Runner) -> None:
    runner.open("nothing")
    expect(runner.page.get_by_text("This tool takes no arguments.")).to_be_visible()
    runner.press()
    assert runner.told() == {}


def test_a_long_call_shows_progress_and_time_and_is_cancelled_without_leaving(runner: Runner) -> None:
    runner.open("slow")
    address = runner.page.url
    runner.press()
    bar = runner.page.get_by_role("progressbar")
    until(runner.page, lambda: float(bar.get_attribute("value") or 0) > 5, what="progress")
    clock = runner.page.locator(".outcome-elapsed")
    seen = clock.inner_text()
    until(runner.page, lambda: clock.inner_text() != seen, within=0.7, what="the time ticks between two looks")
    runner.page.get_by_role("button", name="Cancel").click()
    runner.ends_as("cancelled")
    expect(bar).to_have_count(0)
    assert runner.page.url == address


def test_on_a_phone_what_a_button_says_does_not_cover_what_it_speaks_of(runner: Runner) -> None:
    page = runner.page
    page.set_viewport_size({"width": 390, "height": 2000})
    runner.open("slow").press()
    cancel = page.get_by_role("button", name="Cancel")
    pressed = cancel.bounding_box()
    assert pressed is not None
    page.set_viewport_size({"width": 390, "height": int(pressed["y"] + pressed["height"] + 50)})
    cancel.click()
    said = page.locator("#live-messages p")
    expect(said).to_contain_text("Cancellation requested")
    runner.ends_as("cancelled")
    message, status = said.bounding_box(), page.locator("#outcome-status").bounding_box()
    assert message is not None
    assert status is not None
    assert message["y"] + message["height"] < status["y"] or status["y"] + status["height"] < message["y"]


def test_after_a_lost_answer_changed_arguments_are_called_with_the_next_press(runner: Runner, visitor: Visitor) -> None:
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
    assert runner.told() == {"value": 2}


def test_what_may_destroy_asks_once(runner: Runner) -> None:
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
    assert runner.told() == {"what": "the vase"}


def test_results_are_shown_for_what_they_are(runner: Runner) -> None:
    runner.open("media").press()
    outcome = runner.ends_as("succeeded")
    expect(outcome.get_by_role("heading", name="Report")).to_be_visible()
    expect(outcome.get_by_role("cell", name="links")).to_be_visible()
    picture = outcome.locator("img")
    expect(picture).to_have_count(1)
    until(runner.page, lambda: picture.evaluate("(image) => image.naturalWidth") == 160, what="the picture is drawn")
    sound = outcome.locator("audio")
    until(runner.page, lambda: sound.evaluate("(audio) => audio.duration") > 0, what="the sound can be played")
    expect(outcome.get_by_role("link", name="data.csv")).to_have_attribute("rel", re.compile("noopener"))
    expect(outcome.get_by_text("deep: true")).to_be_visible()


@pytest.mark.parametrize(
    ("tool", "status", "words"),
    [
        ("weather", "succeeded", "matches the output schema"),
        ("broken_promise", "succeeded", "count: 'many' is not of type 'integer'"),
        ("fail", "failed", "What to do: The tool ran and reported an error."),
    ],
)
def test_ends_say_what_they_mean(runner: Runner, tool: str, status: str, words: str) -> None:
    runner.open(tool).press()
    expect(runner.ends_as(status)).to_contain_text(words)


# Sets, links, texts to copy ---------------------------------------------------------------------------------------


def test_a_set_is_saved_used_and_deleted_without_its_secret(runner: Runner) -> None:
    runner.open("secret")
    runner.field("user").fill("ada")
    runner.field("key").fill("s3cret")
    runner.page.get_by_label("Save as").fill("ada's")
    runner.page.get_by_label("Save as").press("Enter")
    expect(runner.page.get_by_text("Saved the preset “ada's”. Its secrets are not stored: key.")).to_be_visible()
    assert runner.arguments() == {"user": "ada", "key": "s3cret"}
    runner.page.get_by_role("link", name="ada's", exact=True).click()
    expect(runner.page.get_by_text("Secrets are not stored. Enter them again: key.")).to_be_visible()
    assert runner.arguments() == {"user": "ada"}
    runner.page.get_by_role("button", name="Delete the preset ada's").click()
    expect(runner.page.get_by_role("link", name="ada's", exact=True)).to_have_count(0)


def test_a_link_carries_the_arguments_but_no_secret_and_calls_nothing(
    visitor: Visitor, numbers: dict[str, int]
) -> None:
    page = visitor.window(permissions=["clipboard-read", "clipboard-write"])
    runner = Runner(page, numbers).open("secret")
    runner.write({"user": "ü & <b>#%", "key": "s3cret"})
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied, without key")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert "s3cret" not in link
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto("about:blank")
    page.goto(link)
    expect(page.get_by_text("These arguments come from the link.")).to_be_visible()
    expect(runner.field("user")).to_have_value("ü & <b>#%")
    expect(page.locator("#outcome-status")).to_have_count(0)
    assert not [url for url in requested if "args" in url]


@pytest.mark.parametrize("fragment", ["#args=nonsense", "#args=[1]", "#args=" + quote("[" * 5000), "#args=%zz", "#x"])
def test_a_broken_link_is_told_and_does_no_harm(runner: Runner, fragment: str) -> None:
    runner.open("nested", fragment)
    if "args" in fragment:
        expect(runner.page.get_by_text("The arguments in the link are not valid.")).to_be_visible()
    expect(runner.page.locator("#schema-form")).to_be_visible()


def test_an_earlier_call_is_called_again_with_its_arguments(runner: Runner) -> None:
    runner.open("nested")
    runner.write({"title": "First", "place": {"city": "Here"}})
    runner.press()
    runner.ends_as("succeeded")
    number = runner.page.locator("#outcome a", has_text="call ").inner_text().removeprefix("call ")
    runner.open("nested", f"?from={number}")
    expect(runner.page.get_by_text(f"These are the arguments of call {number}.")).to_be_visible()
    expect(runner.field("city")).to_have_value("Here")


def test_texts_to_copy_follow_the_arguments(visitor: Visitor, numbers: dict[str, int]) -> None:
    page = visitor.window(permissions=["clipboard-read", "clipboard-write"])
    runner = Runner(page, numbers).open("nested")
    page.get_by_text("Copy as curl, Python or command").click()
    runner.field("city").fill("it's here")
    expect(page.locator("[data-snippet=curl]")).to_contain_text("""it'"'"'s here""")
    page.get_by_role("button", name="Copy", exact=True).first.click()
    page.get_by_role("button", name="Copied").click()
    assert page.evaluate("navigator.clipboard.readText()").startswith("curl ")
    expect(page.get_by_role("button", name="Copied")).to_have_count(0)  # pressed twice, it has its own word again


# Everybody --------------------------------------------------------------------------------------------------------


def test_keys_alone_fill_in_and_call(runner: Runner) -> None:
    page = runner.open("references").page
    expect(runner.field("name")).to_be_visible()
    until(page, lambda: _tab(page) == "name", what="the first field by Tab")
    page.keyboard.type("Ada")
    page.keyboard.press("Tab")
    page.keyboard.type("ada@example.org")
    page.keyboard.press("Enter")  # no call by accident
    expect(page.locator("#outcome-status")).to_have_count(0)
    page.keyboard.press("Control+Enter")
    assert runner.told() == {"owner": {"name": "Ada", "email": "ada@example.org"}}


def _tab(page: Page) -> str:
    page.keyboard.press("Tab")
    said: str = page.evaluate("document.activeElement.labels?.[0]?.querySelector('.sf-title')?.textContent ?? ''")
    return said


def test_without_scripts_it_is_json_and_a_button(visitor: Visitor, numbers: dict[str, int]) -> None:
    page = visitor.window(java_script_enabled=False)
    runner = Runner(page, numbers).open("nested")
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


def test_hostile_words_stay_words(runner: Runner, numbers: dict[str, int]) -> None:
    evil = next(name for name in numbers if name.startswith("<script>"))
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
def test_it_is_readable_by_everybody(
    visitor: Visitor, numbers: dict[str, int], tool: str, width: int, scheme: str
) -> None:
    page = visitor.window(width=width, scheme=scheme, bypass_csp=True)
    runner = Runner(page, numbers).open(tool)
    if tool in ("lists", "media", "weather"):
        runner.press()
        expect(page.locator(".errornote, #outcome .result").first).to_be_visible()
    page.get_by_text("Copy as curl, Python or command").click()
    page.add_script_tag(path=AXE)
    found = page.evaluate(FINDINGS)
    assert [fault for fault in found if fault[0] in ("serious", "critical")] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than its window"


def test_the_page_is_light(visitor: Visitor, numbers: dict[str, int]) -> None:
    page = visitor.window()
    sizes: list[int] = []
    page.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))
    Runner(page, numbers).open("lists").press()
    expect(page.locator(".errornote")).to_be_visible()
    assert 0 < sum(sizes) < 300_000
