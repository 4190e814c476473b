"""The view in a real browser: what is drawn is what is there, and each control does its work."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, expect

from purgatory.settings.typed_duration import duration_text
from purgatory.view.wheel import walk
from tests.browser.view.chromium import axe_widths, chromium, opened, told, until
from tests.browser.view.made_view import MARKUP, MadeTrace, MadeView, Server, served
from tests.browser.view.shown_state import assert_shows, at
from tests.browser.view.taught_wheel import runs_of_listing

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def trace() -> Iterator[Server]:
    with served(MadeTrace()) as server:
        yield server


@pytest.fixture
def live() -> Iterator[Server]:
    with served(MadeView(300)) as server:
        yield server


def test_live_changes_lead_to_the_current_state(browser: Browser, live: Server) -> None:
    with opened(browser, live.address) as page:
        until(lambda: live.view.now_ms > 5_000)
        live.rate_per_s = 0
        until(lambda: at(page) == live.view.now_ms * 1000)
        assert_shows(page, live.view.state())
        live.drops += 1  # the connection breaks, and comes back
        until(lambda: live.connections == 2)
        expect(page.locator("#note")).to_be_hidden()
        assert_shows(page, live.view.state())
        expect(page.locator("#mode")).to_have_text("live")
        page.get_by_text("The oldest operations").first.click()
        page.locator(".oldest button").first.click()
        expect(page.locator(".chosen").first).to_contain_text("Circled: ")
        page.get_by_text("The wheel as a table").first.click()
        expect(page.locator("caption", has_text="20 buckets on each level").first).to_be_visible()
        middle = told(
            page, "[...model.operations.values()].find(one => one.broker === 0 && one.level === 3)"
        )
        page.locator("canvas").first.hover(position={"x": middle["x"], "y": middle["y"]})
        expect(page.locator(".tip").first).to_contain_text("level 3, bucket")
        assert page.locator("img").count() == 0
        assert MARKUP in page.title()
        assert MARKUP in page.locator("#partitions").inner_text()


def test_durations_are_shown_as_by_python(browser: Browser, live: Server) -> None:
    chance = Random(1)
    edges = [1, 1_000, 10_625, 10**6, 12 * 10**7, 72 * 10**8]
    values = [edge + by for edge in edges for by in (-1, 0, 1)]
    values += [int(10 ** chance.uniform(0, 15)) for _ in range(20_000)]
    values += [625 * chance.randrange(10**7) for _ in range(20_000)]  # ties among them
    with opened(browser, live.address) as page:
        shown = page.evaluate(
            "async values => { const { duration } = await import('/page/units.js');"
            " return values.map(duration); }",
            values,
        )
    assert shown == [duration_text(us) for us in values]


def test_any_partition_is_found(browser: Browser, live: Server) -> None:
    more = """{
        const topic = [...model.topics.values()].find((one) => !one.internal);
        const [first] = topic.partitions;
        for (let number = 100; number < 200; number += 1) {
            topic.partitions.push({...first, partition: number});
        }
    }"""
    live.rate_per_s = 0
    with opened(browser, live.address) as page:
        until(lambda: told(page, "model.topics.size") > 0)
        told(page, f"(() => {more})()")
        name = told(page, "[...model.topics.values()].find((one) => !one.internal).name")
        note, shown = page.locator("#partitions-note"), page.locator("#partitions h3")
        page.get_by_label("with internal topics").check()
        expect(note).to_contain_text("The first 40 of 1")
        expect(shown).to_have_count(40)
        page.get_by_role("searchbox", name="Only with").fill(f"{name}-17")
        expect(shown).to_have_count(10)
        expect(note).to_have_text("")
        assert all(f"{name}-17" in one for one in shown.all_inner_texts())
        page.get_by_role("searchbox").fill("none of them")
        expect(note).to_have_text("None with this in its name.")
        expect(shown).to_have_count(0)


def test_sampled_operations_are_marked_as_a_sample(browser: Browser) -> None:
    class Sampled(MadeView):
        def shown(self) -> int:
            return 10

        def state(self) -> dict[str, Any]:
            whole = super().state()
            return whole | {"operations": whole["operations"][:10]}

    with served(Sampled(50)) as live:
        live.rate_per_s = 0
        with opened(browser, live.address) as page:
            expect(page.locator("#sampled")).to_contain_text("10 of 50 operations are shown")


def test_faults_begin_and_end_by_buttons_with_the_token(browser: Browser) -> None:
    with served(MadeView(), token="open sesame") as live:
        live.rate_per_s = 0
        with opened(browser, live.address, expected_errors=("401",)) as page:
            field = page.locator("#token input")
            field.fill("wrong")
            page.get_by_role("button", name="Go on").click()
            expect(field).to_be_empty()
            field.fill("open sesame")
            page.get_by_role("button", name="Go on").click()
            page.get_by_role("button", name="stall follower 2").click()
            expect(page.locator("#faults")).to_contain_text(f"stall {MARKUP} (since")
            page.get_by_role("button", name="Revive broker 2").click()
            expect(page.get_by_role("button", name="Revive")).to_have_count(0)
            page.get_by_role("button", name="Heal", exact=True).click()
            expect(page.locator("#faults-note")).to_have_text("None is in force.")
            expect(page.get_by_role("button", name="Heal all")).to_be_disabled()
            pressed = [{"kind": "stall_follower", "broker": 2}, {"revive": "2"}, {"heal": "1"}]
            assert live.view.pressed == pressed
        with opened(browser, f"{live.address}#token=open+sesame") as page:
            assert "sesame" not in page.url
            expect(page.locator("#mode")).to_have_text("live")


def test_missing_request_traces_are_requested_again(browser: Browser, live: Server) -> None:
    live.has_request_traces = False
    with opened(browser, live.address, expected_errors=("404",)) as page:
        note = page.locator("#trace-note")
        expect(note).to_have_text("No request traces: nobody looked", timeout=60_000)
        live.has_request_traces = True
        expect(note).to_be_empty(timeout=60_000)
        expect(page.locator("#trace-drawing svg")).to_be_visible()


def test_all_controls_of_a_trace_lead_to_the_state_of_their_moment(
    browser: Browser, trace: Server
) -> None:
    view = trace.view
    assert isinstance(view, MadeTrace)
    begin, end, apart = view.begin_us, view.end_us, view.apart_us
    with opened(browser, trace.address, expected_errors=("404",)) as page:
        steps: list[tuple[Callable[[], object], int]] = [
            (lambda: page.keyboard.press("ArrowRight"), begin + apart),
            (lambda: page.keyboard.press("."), begin + 2 * apart),
            (lambda: page.get_by_role("button", name="Next event").click(), begin + 3 * apart),
            (lambda: page.keyboard.press(","), begin + 2 * apart),
            (lambda: page.keyboard.press("ArrowLeft"), begin + apart),
            (lambda: page.get_by_role("button", name="Previous event").click(), begin),
            (lambda: page.keyboard.press("End"), end),
            (lambda: page.keyboard.press("Home"), begin),
            (lambda: page.get_by_role("button", name="To the end").click(), end),
            (lambda: page.get_by_role("button", name="To the beginning").click(), begin),
            (
                lambda: page.locator("#slider").fill(str(begin + 40 * apart + 7)),
                begin + 40 * apart + 7,
            ),
            (lambda: page.keyboard.press("ArrowRight"), begin + 41 * apart),
        ]
        for act, expected in steps:
            act()
            until(lambda expected=expected: at(page) == expected)  # type: ignore[misc]
            expect(page.locator("#slider")).to_have_value(str(expected))
            until(lambda: told(page, "model.operations.size") > 0)
            assert_shows(page, view.state_at(expected))
        page.get_by_text("Find a record").click()
        page.get_by_role("button", name="To the longest wait").click()
        until(lambda: at(page) == begin + 50 * apart)
        expect(page.locator("#bookmark-note")).to_contain_text(MARKUP)
        expect(page.get_by_role("button", name="To the first anomaly")).to_be_disabled()
        expect(page.locator("#bookmarks")).to_contain_text("the audit needs DuckDB")
        page.locator("input[name=topic]").fill("payments")
        page.get_by_role("button", name="Go").click()
        expect(page.locator("#bookmark-note")).to_have_text("the topics are: orders")
        page.locator("input[name=topic]").fill("orders")
        page.locator("input[name=offset]").fill("17")
        page.locator("input[name=offset]").press("Enter")
        expect(page.locator("#bookmark-note")).to_contain_text("appended here")
        expect(page.locator("#trace-drawing svg")).to_have_attribute(
            "aria-label", expected_request_trace()
        )
        page.locator("#main").focus()
        page.keyboard.press("?")
        expect(page.get_by_role("heading", name="Keys")).to_be_visible()
        page.keyboard.press("Escape")


def expected_request_trace() -> Any:
    return re.compile(r"record 17 to .*: acknowledged\. created at the client .* answered at the")


def test_trace_plays_at_the_chosen_speed(browser: Browser, trace: Server) -> None:
    view = trace.view
    assert isinstance(view, MadeTrace)
    with opened(browser, f"{trace.address}#at={view.begin_us + 500_001}") as page:
        assert at(page) == view.begin_us + 500_001
        assert_shows(page, view.state_at(view.begin_us + 500_001))
        for _ in range(20):
            page.keyboard.press("-")
        assert page.locator("#speed").input_value() == "0.01"
        page.keyboard.press(" ")
        until(lambda: at(page) > view.begin_us + 500_001)
        expect(page.locator("#play")).to_have_text("Pause")
        page.locator("#speed").select_option("1")
        until(lambda: at(page) > view.begin_us + 700_000)
        page.locator("#play").click()
        expect(page.locator("#play")).to_have_text("Play")
        moment = at(page)
        assert_shows(page, view.state_at(moment))
        until(lambda: page.evaluate("location.hash") == f"#at={moment}")
        page.keyboard.press("+")
        assert page.locator("#speed").input_value() == "2"
        page.locator("#speed").select_option("100")
        page.locator("#play").click()
        until(lambda: at(page) == view.end_us)
        expect(page.locator("#play")).to_have_text("Play")
        assert_shows(page, view.state_at(view.end_us))
        page.evaluate(f"location.hash = '#at={view.begin_us + 5_000}'")
        until(lambda: at(page) == view.begin_us + 5_000)


CUT_OFF = """() => [...document.querySelectorAll('.counts, .counts table')]
    .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"""
"""Counts of which a part is not to be seen."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible(browser: Browser, trace: Server, live: Server, scheme: Any) -> None:
    live.rate_per_s = 0
    pages = [live.address, trace.address, f"{live.address}wheel.html"]
    for axe_width, url in zip(axe_widths(scheme), pages, strict=False):
        with opened(browser, url, scheme=scheme) as page:
            page.locator("h1").wait_for()
            page.evaluate(
                "document.querySelectorAll('details').forEach(one => { one.open = true; })"
            )
            page.set_viewport_size({"width": axe_width, "height": 900})
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            for width in (390, 768, 1_024, 1_920, 2_560):
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, url
                assert page.evaluate(CUT_OFF) == [], (url, width)


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_marks_respect_reduced_motion(browser: Browser, live: Server, motion: Any) -> None:
    moving = "[...model.operations.values()].some((one) => one.moving)"
    with opened(browser, live.address, motion=motion) as page:
        seen = page.evaluate(
            f"""() => new Promise((done) => {{
                const {{ model }} = purgatoryView;
                let frames = 0;
                const look = () => {{
                    if ({moving}) done(true);
                    else if ((frames += 1) > 60) done(false);
                    else requestAnimationFrame(look);
                }};
                look();
            }})"""
        )
        assert seen == (motion == "no-preference")


def test_the_wheel_is_walked_both_ways_with_its_code(browser: Browser, live: Server) -> None:
    with opened(browser, f"{live.address}wheel.html", expected_errors=("400",)) as page:
        steps = list(walk(1_000, 3, 0, [n * 1_000 for n in range(1, 8)]))
        where = page.locator("#where")
        marked = []
        for number, step in enumerate(steps):
            expect(where).to_contain_text(f"Step {number} of {len(steps) - 1}:")
            held = sum(
                len(one["tasks"]) for level in step["state"]["levels"] for one in level["buckets"]
            )
            assert told(page, "model.marks") == {"0": held}
            until(lambda held=held: told(page, "drawn") == {"0": held})  # type: ignore[misc]
            marked.append(set(told(page, RUN_LINES)))
            page.keyboard.press("ArrowRight")
        assert marked == runs_of_listing("\n".join(page.evaluate("purgatoryView.listing")), steps)
        page.keyboard.press("ArrowLeft")
        expect(where).to_contain_text(f"Step {len(steps) - 2} of")
        page.keyboard.press("Home")
        page.get_by_role("button", name="Forward").click()
        expect(page.locator("#happened")).to_have_text(
            "Task 1 comes, due at 1 s. Level 1 reaches so far: it goes into bucket 1 of level 1."
        )
        page.get_by_role("button", name="Back").click()
        page.locator("#step").fill("5")
        expect(where).to_contain_text("Step 5 of")
        page.locator("#step").press(" ")
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        page.locator("input[name=delays]").fill("soon")
        page.get_by_role("button", name="Walk").click()
        expect(page.locator("#note")).to_contain_text("soon")
        page.locator("input[name=delays]").fill("0ms,90ms,5s")
        page.locator("input[name=tick]").fill("10ms")
        page.get_by_role("button", name="Walk").click()
        page.keyboard.press("Tab")
        page.locator("#listing").focus()
        expect(where).to_contain_text("Step 0 of")
        page.keyboard.press("End")
        expect(page.locator("#held")).to_have_text("nothing")


RUN_LINES = """[...document.querySelectorAll("#code li")].flatMap(
    (one, at) => one.matches(".runs") ? [at] : []
)"""


def heap_after(page: Page, seconds: float) -> tuple[float, float]:
    """The bytes and the nodes in use, without garbage, after so long."""
    page.wait_for_timeout(seconds * 1000)
    tools = page.context.new_cdp_session(page)
    tools.send("HeapProfiler.collectGarbage")
    bytes_used = tools.send("Runtime.getHeapUsage")["usedSize"]
    page.wait_for_timeout(200)
    tools.send("HeapProfiler.collectGarbage")
    return bytes_used, tools.send("Memory.getDOMCounters")["nodes"]


@pytest.mark.parametrize(
    ("first_s", "then_s"),
    [
        pytest.param(3, 5, id="8 s"),
        pytest.param(
            60, 540, id="10 min", marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)]
        ),
    ],
)
def test_a_live_page_does_not_grow(
    browser: Browser, live: Server, first_s: int, then_s: int
) -> None:
    live.rate_per_s = 2_000
    with opened(browser, live.address) as page:
        bytes_before, nodes_before = heap_after(page, first_s)
        bytes_after, nodes_after = heap_after(page, then_s)
        assert bytes_after < bytes_before + 2_000_000
        assert nodes_after < nodes_before + 1_000
        assert told(page, "model.log.length") <= 600
