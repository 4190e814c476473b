"""The page over a traced run, in a real browser: each way to a moment leads to its whole state.

The run is a simulation whose brokers are paused and die.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from purgatory.simulation import Simulation, parse_scenario
from purgatory.view.time_travel import TracedRun
from tests.browser.view.chromium import chromium, opened, told, until
from tests.browser.view.own_loop import own_loop
from tests.browser.view.picture import replaying
from tests.browser.view.shown_state import assert_shows, at
from tests.unit.view.test_state import PAUSES

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

PATIENT_S = 90


@dataclass
class Replay:
    """A traced run, and where it is shown."""

    run: TracedRun
    address: str

    def state(self, at_us: int) -> dict[str, Any]:
        """The state of a moment, as it comes over the wire."""
        state: dict[str, Any] = json.loads(json.dumps(self.run.state(at_us)))
        return state


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replay]:
    folder = tmp_path_factory.mktemp("run") / "trace"
    text = PAUSES.format(tick_ms=1, wheel_size=20)
    Simulation(parse_scenario(text, "pauses", Path()), trace_folder=folder).run()
    run = TracedRun(folder)

    with own_loop(lambda: replaying(run)) as address:
        yield Replay(run, address)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def comes_to(page: Page, at_us: int) -> None:
    """Wait until a moment is shown, and all of it."""
    until(lambda: at(page) == at_us, PATIENT_S)
    until(lambda: told(page, "model.brokers.size") == 3, PATIENT_S)


def pause(page: Page) -> None:
    """Press Pause, if that is what the button is: at the end it is Play, and begins anew."""
    page.evaluate(
        "() => { const play = document.getElementById('play');"
        " if (play.textContent === 'Pause') play.click(); }"
    )


def test_run_has_each_state_to_compare(replay: Replay) -> None:
    states = [replay.run.state(ms * 1_000) for ms in range(0, replay.run.end_us // 1_000, 50)]
    brokers = [broker for state in states for broker in state["brokers"]]
    assert {broker["alive"] for broker in brokers} == {True, False}
    assert {broker["paused"] for broker in brokers} == {True, False}
    assert max(len(state["operations"]) for state in states) > 10
    assert {fault["active"] for state in states for fault in state["faults"]} == {True, False}


def test_each_way_to_a_moment_leads_to_its_state(browser: Browser, replay: Replay) -> None:
    run = replay.run
    with opened(browser, replay.address) as page:
        page.keyboard.press("End")
        comes_to(page, run.end_us)
        assert_shows(page, replay.state(run.end_us))
        page.keyboard.press("Home")
        comes_to(page, 0)
        assert_shows(page, replay.state(0))
        # Before a broker dies, while it is dead, and when it is back.
        for seek_us in (1_600_123, 3_499_000, 3_600_000, 4_299_000):
            page.locator("#slider").fill(str(seek_us))
            comes_to(page, seek_us)
            until(lambda: told(page, "model.topics.size") > 0, PATIENT_S)
            shown(page, replay, seek_us)
            here_us = seek_us
            for key, go in [("ArrowRight", run.next)] * 5 + [("ArrowLeft", run.previous)] * 5:
                here_us = next_of(go(here_us))
                page.keyboard.press(key)
                shown(page, replay, here_us)


def next_of(at_us: int | None) -> int:
    """A moment that is there."""
    assert at_us is not None
    return at_us


def shown(page: Page, replay: Replay, at_us: int) -> None:
    """Wait until the page shows a moment; then that it is the state that the run has there."""
    comes_to(page, at_us)
    expected = replay.state(at_us)
    until(lambda: told(page, "model.shown") == expected["shown"], PATIENT_S)
    assert_shows(page, expected)


@pytest.mark.parametrize("speed", ["1", "10"])
def test_playback_stops_at_the_state_of_its_moment(
    browser: Browser, replay: Replay, speed: str
) -> None:
    with opened(browser, f"{replay.address}#at=3300000") as page:
        comes_to(page, 3_300_000)
        until(lambda: told(page, "model.topics.size") > 0, PATIENT_S)
        page.locator("#speed").select_option(speed)
        # Over a death, a return, and the end of a pause.
        for stop_us in (3_450_000, 3_700_000, 4_500_000):
            begun_us = at(page)
            if begun_us >= replay.run.end_us:
                break  # the machine was slow to pause; from here it would begin anew
            page.locator("#play").click()
            # The replay may be beyond the stop already: then it plays one more frame.
            there_us = max(stop_us, begun_us + 1)
            until(lambda there_us=there_us: at(page) >= there_us, PATIENT_S)  # type: ignore[misc]
            pause(page)
            expect(page.locator("#play")).to_have_text("Play")
            moment = at(page)
            assert_shows(page, replay.state(moment))
            assert at(page) == moment
        if at(page) < replay.run.end_us:
            page.locator("#speed").select_option("100")
            page.locator("#play").click()
        comes_to(page, replay.run.end_us)
        expect(page.locator("#play")).to_have_text("Play")
        assert_shows(page, replay.state(replay.run.end_us))


def test_bookmarks_are_offered_once_they_are_found(browser: Browser, replay: Replay) -> None:
    with opened(browser, replay.address, expected_errors=("404",)) as page:
        page.get_by_text("Find a record").click()
        expect(page.locator("#bookmarks")).not_to_contain_text(
            "earching", timeout=PATIENT_S * 1_000
        )
        page.get_by_role("button", name="To the longest wait").click()
        expect(page.locator("#bookmark-note")).to_contain_text("waited")
        completed = replay.run.timeline.completed
        longest = max(range(len(completed.wait_us)), key=lambda row: completed.wait_us[row])
        shown(page, replay, completed.time_us[longest] - completed.wait_us[longest])
        page.locator("input[name=topic]").fill("none")
        page.get_by_role("button", name="Go").click()
        expect(page.locator("#bookmark-note")).to_contain_text("events")
        page.locator("input[name=topic]").fill("events")
        page.locator("input[name=offset]").fill("3")
        page.get_by_role("button", name="Go").click()
        expect(page.locator("#bookmark-note")).to_contain_text("appended here")
        stages = replay.run.request_traces.find_by_record("events", 0, 3)["stages"]
        [appended] = [one["at_us"] for one in stages if one["name"] == "appended"]
        shown(page, replay, appended)
        expect(page.locator("#trace-drawing svg circle")).to_have_count(len(stages))


@pytest.mark.parametrize("width", [390, 1_280])
def test_page_opens_at_the_worst_moment_with_its_description(
    browser: Browser, replay: Replay, width: int
) -> None:
    overview = replay.run.overview
    worst = overview["worst"]
    with opened(browser, replay.address, width=width) as page:
        shown(page, replay, worst["at_us"])
        expect(page.locator("#bookmark-note")).to_have_text(worst["text"])
        until(lambda: worst["operation"] in told(page, "Object.values(circled)"), PATIENT_S)
        assert f"timed out or failed: {sum(overview['failed'])}" in (
            page.locator("#band-title").text_content() or ""
        )
        expect(page.locator("#band .fault")).to_have_count(len(overview["faults"]))
        expect(page.locator("#band .waiting")).to_have_css("fill-opacity", "1")
        expect(page.locator("#band .waiting")).to_have_css("stroke", "none")
        expect(page.locator("#diagnosis li").first).to_contain_text("events-")
        wheel = page.locator("canvas").first.bounding_box()
        assert wheel is not None and wheel["y"] < 844, "a wheel is on the first screen"
        page.get_by_role("button", name="What the wheels show").click()
        expect(page.get_by_text("Each bucket holds")).to_be_visible()


def test_marks_are_reached_by_keys(browser: Browser, replay: Replay) -> None:
    moment, broker = busiest(replay)
    operations = [one for one in replay.run.state(moment)["operations"] if one[1] == broker]
    dues = sorted((one[6] is None, one[6] or 0, one[0]) for one in operations)
    with opened(browser, f"{replay.address}#at={moment}") as page:
        shown(page, replay, moment)
        wheel = page.locator(f"section[aria-label='Broker {broker}'] canvas")
        circled: Callable[[], Any] = lambda: told(page, f"circled[{broker}]")  # noqa: E731
        wheel.focus()
        walked = []
        for _ in dues:
            page.keyboard.press("ArrowRight")
            walked.append(circled())
        assert walked == [due[2] for due in dues]
        page.keyboard.press("ArrowRight")
        assert circled() == dues[-1][2]
        page.keyboard.press("ArrowLeft")
        assert circled() == dues[-2][2]
        expect(wheel).to_have_attribute("aria-valuenow", str(len(dues) - 1))
        page.keyboard.press("Home")
        assert circled() == dues[0][2]
        expect(page.locator(f"section[aria-label='Broker {broker}'] .tip")).to_be_visible()
        page.keyboard.press("Escape")
        assert circled() is None
        assert at(page) == moment  # the keys were the wheel's
        page.keyboard.press("?")
        expect(page.get_by_text("to the next event")).to_be_visible()


def busiest(replay: Replay) -> tuple[int, int]:
    """A moment and a broker at which more than two operations wait."""
    for at_us in range(1_000_000, replay.run.end_us, 10_000):
        parked = [one[1] for one in replay.run.state(at_us)["operations"]]
        for broker in set(parked):
            if parked.count(broker) > 2:
                return at_us, broker
    raise AssertionError("nothing waits")
