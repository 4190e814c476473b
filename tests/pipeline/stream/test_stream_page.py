"""The page of a stream: what it says, that it is bounded, and that it is whole at each moment."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from purgatory.cli.main import main
from purgatory.pipeline.errors import OutputError, PipelineError
from purgatory.pipeline.stream.sinks import LiveJobs, Parts, open_places
from purgatory.pipeline.stream.stream_page import StreamReport
from purgatory.pipeline.stream.totals import (
    MOST_BUCKETS,
    MOST_NAMES,
    MOST_ROWS,
    OTHERS,
    ToldSoFar,
    duration_text,
    happened_so_far,
)
from tests.pipeline.stream.told_rows import aside, case, window

EVIL = "</script><img src=x onerror=alert(1)>"
SECOND_US = 1_000_000
ROOT = Path(__file__).parents[3]


def _report(tmp_path: Path) -> StreamReport:
    return StreamReport(tmp_path / "live.html", "live", LiveJobs(tmp_path / "out", tmp_path / "c"))


def _texts(told: ToldSoFar, **until_us: int) -> list[str]:
    return [one.text for one in happened_so_far(told, until_us)]


def test_nothing_is_known_at_first() -> None:
    assert _texts(ToldSoFar(SECOND_US)) == ["Nothing is known yet: no window is closed."]


def test_what_is_well_is_said_as_far_as_it_is_known() -> None:
    told = ToldSoFar(10 * SECOND_US)
    told.add("waits", window(0, pending=3))
    told.add("waits", window(10, wait_max_us=12_000, wait_mean_us=4_000.0))
    assert _texts(told, order=5) == [
        "Nothing went wrong so far: all 180 produces were answered in time, and no record was "
        "found doubled, missing or out of order.",
        "Produces waited 3.0 ms on average, and 12.0 ms at most, in the window that begins at "
        "12:00:10.",
    ]
    assert "no record" not in _texts(told)[0], "sends and reads may not be published"


def test_what_went_wrong_leads_with_how_bad_when_and_why() -> None:
    told = ToldSoFar(10 * SECOND_US)
    for at_s, expired in ((0, 0), (10, 4), (20, 30), (30, 0)):
        told.add("waits", window(at_s, expired=expired))
        told.add("waits", window(at_s, expired=expired // 4, purgatory="Fetch", kind="consumer"))
    for at_s in (12, 29):
        told.add("order", case("duplicate", at_s))
    told.add("order", case("lost_ack_duplicate", 12))
    told.add("order", case("sequence_gap", 100, count=3, doubt="readers stand at 7"))
    told.add("aside", aside("late", 2))
    told.add("aside", aside("bad row: no JSON", 1))
    assert _texts(told)[:5] == [
        "3 rows changed no result: 2 came later than rows may, 1 is no row of a run.",
        "34 of 394 produces (8.6 %) timed out. They ended between 12:00:10 and 12:00:30 UTC on "
        "2026-11-24, the most of them, 30, in the 10 s from 12:00:20; none of them in the newest "
        "window, which ends at 12:00:40.",
        "2 records are stored more than once, 1 of them sent again after an answer that did not "
        "come, between 12:00:12 and 12:00:29 UTC on 2026-11-24, while produces timed out.",
        "3 records are missing between stored ones, at 12:01:40 UTC on 2026-11-24. Of 3 of them "
        "readers did not get far enough to be sure.",
        "8 of 368 fetches (2.2 %) got fewer bytes than they asked for, at their limit. They ended "
        "between 12:00:10 and 12:00:30 UTC on 2026-11-24, the most of them, 7, in the 10 s from "
        "12:00:20; none of them in the newest window, which ends at 12:00:40.",
    ]


def test_what_goes_on_is_told_to_go_on() -> None:
    told = ToldSoFar(10 * SECOND_US)
    told.add("waits", window(0, expired=3))
    told.add("order", case("lost_ack_duplicate", 8, count=5))
    told.add("order", case("lost_ack_duplicate", 20, count=2))
    found = _texts(told)
    assert found[0].endswith("; 3 of them in the newest window, which ends at 12:00:10.")
    assert found[1] == (
        "7 records were sent again after answers that got lost, and are stored twice, between "
        "12:00:08 and 12:00:20 UTC on 2026-11-24; in a part of that time produces timed out."
    )


def test_memory_and_page_stay_small_however_long_it_runs(tmp_path: Path) -> None:
    report = _report(tmp_path)
    told = report._told
    sizes = []
    for number in range(6_000):
        wide = 86_400 if number == 3_000 else 10  # as of a start with another --window
        name = "Produce" if number % 2 else f"p{number}"
        report.add("waits", window(number * 40, length_s=wide, expired=1, purgatory=name))
        report.add("order", case("duplicate", number, group=f"g{number}", topic="t" * 9_000))
        report.add("aside", aside(f"bad row: {number}", 1, example="x" * 9_000))
        if number % 1_500 == 1_499:
            report.refresh()
            sizes.append((tmp_path / "live.html").stat().st_size)
    assert len(told.buckets) <= MOST_BUCKETS
    assert sum(one.expired for b in told.buckets.values() for one in b.values()) == 6_000
    assert sum(one.operations for one in told.waits.values()) == 6_000 * 91
    for names in (told.waits, told.anomalies, told.aside):
        assert len(names) <= MOST_NAMES + 1
        assert any(OTHERS in name for name in names)
    assert {len(rows) for rows in told.newest.values()} == {MOST_ROWS}
    assert max(sizes[1:]) < 1.1 * sizes[0]


def test_buckets_keep_what_is_far_apart() -> None:
    told = ToldSoFar(1_000)
    for at_s in (*range(200), 10**9):
        told.add("waits", window(at_s, length_s=0.001))
    assert sum(b["Produce"].waited for b in told.buckets.values()) == 201 * 90
    assert len(told.buckets) <= MOST_BUCKETS


@pytest.mark.parametrize(
    ("duration_us", "text"),
    [
        (1_500, "1.5 ms"),
        (1_000_000, "1 s"),
        (10_000_000, "10 s"),
        (90_000_000, "90 s"),
        (160_000_000, "2.67 min"),
        (7_200_000_000, "2 h"),
        (864_000_000_000, "10 days"),
    ],
)
def test_durations_in_words(duration_us: int, text: str) -> None:
    assert duration_text(duration_us) == text


def test_links_lead_to_what_is_there_and_nothing_else(tmp_path: Path) -> None:
    report = _report(tmp_path)
    report.add("waits", window(0, expired=2))
    report.add("order", case("duplicate", 1))
    Parts(tmp_path / "out" / "waits").write(0, window(0))
    report.refresh()
    page = (tmp_path / "live.html").read_text(encoding="utf-8")
    assert 'href="out/waits/">Parquet' in page
    assert "out/order" not in page, "it is not there"
    for target in re.findall(r'href="#([^"]+)"', page):
        assert f'id="{target}"' in page
    assert page.count('href="#') == 5, (
        "plot and rows of two sentences on waits, rows of one on order"
    )
    assert "Plotly.newPlot" not in page
    assert len(page) < 60_000


def test_no_case_is_shown_twice(tmp_path: Path) -> None:
    report = _report(tmp_path)
    for at_s in range(3):
        report.add("order", case("duplicate", at_s, value_id=at_s, offset=at_s))
    report.add("order", case("lost_ack_duplicate", 1, value_id=1, offset=1))
    report.refresh()
    page = (tmp_path / "live.html").read_text(encoding="utf-8")
    assert "<td>duplicate, 1 after a lost answer</td>" in page
    assert page.count("<td>duplicate</td>") == 3, "the newest cases"
    assert "<td>lost ack duplicate" not in page


def test_names_are_text(tmp_path: Path) -> None:
    report = StreamReport(tmp_path / "live.html", EVIL, LiveJobs(tmp_path, tmp_path / "c"))
    report.add("waits", window(0, expired=2, purgatory=EVIL, run_id=EVIL, kind=EVIL))
    report.add("order", case(EVIL, 1, group=EVIL, topic=EVIL, doubt=EVIL))
    report.add("aside", aside(EVIL, 1, source=EVIL, example=EVIL))
    report.refresh()
    page = (tmp_path / "live.html").read_text(encoding="utf-8")
    assert "<img" not in page
    assert "&lt;img" in page


def test_it_is_written_when_there_is_something_new_and_says_how_it_ended(tmp_path: Path) -> None:
    file = tmp_path / "live.html"
    report, stop = _report(tmp_path), threading.Event()
    with report.kept(stop):
        assert ">running</span>" in file.read_text()
        file.unlink()
        report.refresh()
        assert not file.exists(), "nothing is new"
        watermark = {"eventTime": {"watermark": "2026-11-24T12:00:30.500Z"}}
        report.batch_done("waits", watermark, 1)
        report.batch_done("order", {"eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}}, 0)
        report.refresh()
        assert "the waits up to 2026-11-24 12:00:30.500 UTC." in file.read_text()
        stop.set()
    page = file.read_text()
    assert ">stopped</span>" in page
    assert "location.reload" not in page
    with pytest.raises(PipelineError), report.kept(stop):
        raise PipelineError(EVIL)
    assert '<span class="mark broken">failed: &lt;/script&gt;' in file.read_text()
    assert [one.name for one in tmp_path.iterdir()] == ["live.html"]


def test_a_restart_goes_on_with_what_is_in_parquet(tmp_path: Path) -> None:
    jobs = LiveJobs(tmp_path / "out", tmp_path / "out" / "checkpoint")
    Parts(tmp_path / "out" / "waits").write(0, window(0, expired=2))
    Parts(tmp_path / "out" / "waits").write(3, window(10, expired=1))
    Parts(tmp_path / "out" / "order").write(1, case("duplicate", 5))
    report = StreamReport(tmp_path / "live.html", "live", jobs)
    for places in open_places(jobs).values():
        for table, rows in places.earlier():
            report.add(table, rows)
    report.refresh()
    page = (tmp_path / "live.html").read_text(encoding="utf-8")
    assert "3 of 183 produces (1.6 %) timed out." in page
    assert "One record is stored more than once, at 12:00:05 UTC" in page


_WRITES = """
import itertools, sys
from pathlib import Path
from purgatory.pipeline.stream.sinks import LiveJobs
from purgatory.pipeline.stream.stream_page import StreamReport
from tests.pipeline.stream.told_rows import window
folder = Path(sys.argv[1])
report = StreamReport(folder / "live.html", "live", LiveJobs(folder / "out", folder / "c"))
for number in itertools.count():
    report.add("waits", window(10 * number, expired=number))
    report.refresh()
    if not number:
        print("begun", flush=True)
"""


def test_the_page_is_whole_whenever_it_is_killed(tmp_path: Path) -> None:
    for _ in range(3):
        command = [sys.executable, "-c", _WRITES, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            for _ in range(100):
                assert (tmp_path / "live.html").read_text().endswith("</html>\n")
            process.send_signal(signal.SIGKILL)
        assert (tmp_path / "live.html").read_text().endswith("</html>\n")
    assert {one.name for one in tmp_path.iterdir()} <= {"live.html", ".live.html.part"}
    report = _report(tmp_path)
    report.refresh()
    assert [one.name for one in tmp_path.iterdir()] == ["live.html"]


def test_what_can_not_be_written_is_told(tmp_path: Path) -> None:
    report = StreamReport(tmp_path / "no" / "live.html", "live", LiveJobs(tmp_path, tmp_path))
    with pytest.raises(OutputError, match=r"--report .*live\.html: can't be written: .*No such"):
        report.refresh()


def test_a_failure_is_told_though_the_page_can_not_be_written_any_more(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    report = StreamReport(tmp_path / "gone" / "live.html", "live", LiveJobs(tmp_path, tmp_path))

    def fail() -> None:
        shutil.rmtree(tmp_path / "gone")
        raise PipelineError("the query order failed")

    with pytest.raises(PipelineError, match="the query"), report.kept(threading.Event()):
        fail()


def test_only_the_page_of_a_stream_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "live.html"
    command = ["stream", "--bootstrap", "127.0.0.1:1", "--out", str(tmp_path / "out")]
    # Behind the page, the next mistake is found: it is no page that is in the way.
    command += ["--client", "acks.of=1", "--report", str(file)]
    file.write_text("a letter")
    assert main(command) == 2
    assert "is there already, and is no page of a stream" in capsys.readouterr().err
    assert file.read_text() == "a letter"
    file.unlink()
    _report(tmp_path).refresh()
    assert main(command) == 2
    assert "acks.of" in capsys.readouterr().err
