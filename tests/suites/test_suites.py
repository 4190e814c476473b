"""The runner of other projects' suites reads their cases, reports and messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.suites.beside import worse_here
from tests.suites.go_tests import chosen_by, names_in, read_events, why_of
from tests.suites.kafka_python_suite import read_report
from tests.suites.librdkafka_suite import SHORT, Case, cases_in, why_not
from tests.suites.outcomes import Count, Outcome, Reason, Verdict, count, read_expected
from tests.suites.pytest_suites import put_address
from tests.suites.sources import MissingError, checkout

_TEST_C = """
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0000_unittests,
          TEST_F_LOCAL,
          _THRES(.ucpu = 100.0)),
    _TEST(0001_multiobj, 0),
    _TEST(0028_long_topicnames,
          TEST_F_KNOWN_ISSUE,
          TEST_BRKVER(0, 9, 0, 0),
          .extra = "an issue"),
    _TEST(0055_producer_latency, TEST_F_KNOWN_ISSUE_WIN32),
#if WITH_SOCKEM
    _TEST(0049_consume_conn_close, TEST_F_SOCKEM, TEST_BRKVER(0, 9, 0, 0)),
#endif
    _TEST(0107_topic_recreate,
          0,
          TEST_BRKVER(0, 9, 0, 0),
          .scenario = "noautocreate"),
    _TEST(8000_idle, TEST_F_MANUAL),
"""

_REPORT = """<testsuites><testsuite name="pytest">
<testcase classname="test.integration.test_a" name="test_x[gzip]" time="1.5"/>
<testcase classname="test.integration.test_ssl.TestSSL" name="test_y" time="0.1">
<error message="no broker&#10;more">text</error></testcase>
<testcase classname="test.integration.test_a" name="test_z" time="0">
<skipped message="not now">text</skipped></testcase>
</testsuite></testsuites>"""


def test_cases_in_finds_those_that_use_a_cluster() -> None:
    assert cases_in(_TEST_C) == [
        Case("0001_multiobj", "default"),
        Case("0055_producer_latency", "default"),
        Case("0049_consume_conn_close", "default"),
        Case("0107_topic_recreate", "noautocreate"),
    ]


def test_reason_of_a_failure_is_one_line() -> None:
    output = (
        '\x1b[31m### Test "0001" failed at a.c:7:main() at Mon Nov 23: ###\nno "such" thing\nmore\n'
    )
    assert why_not(output) == 'a.c:7:main() no "such" thing'
    assert why_not("%7|SKIPPING TEST: set A_VARIABLE\nmore") == "set A_VARIABLE"
    assert why_not("it ended") == ""


def test_report_has_names_by_which_cases_can_be_repeated(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(_REPORT)
    passed, failed, skipped = read_report(report)
    assert (passed.case, passed.verdict, passed.took_s) == (
        "test/integration/test_a.py::test_x[gzip]",
        Verdict.PASSED,
        1.5,
    )
    assert failed.case == "test/integration/test_ssl.py::TestSSL::test_y"
    assert (failed.verdict, failed.why) == (Verdict.FAILED, "no broker")
    assert (skipped.verdict, skipped.why) == (Verdict.SKIPPED, "not now")


def test_failures_with_a_reason_count_as_expected() -> None:
    verdicts = [*Verdict, Verdict.FAILED]
    outcomes = [Outcome("s", f"c{n}", verdict, 1.0) for n, verdict in enumerate(verdicts)]
    counts = count(outcomes, {"c1": Reason("a reason")})
    assert counts == {"s": Count(1, 1, 1, 0, 1, 4.0)}
    assert counts["s"].share == pytest.approx(1 / 3)
    with_tool = count(outcomes, {"c1": Reason("a reason", needs_tool=True)})
    assert with_tool["s"].share == pytest.approx(1 / 2)
    assert Count(0, 0, 0, 0, 2, 1.0).share == 1.0


def test_each_expected_failure_has_a_reason(tmp_path: Path) -> None:
    assert read_expected()
    wrong = tmp_path / "wrong.toml"
    for text in ('reason = "because"', 'reason = "it is of the environment, not ours"\n' * 1):
        wrong.write_text(f'[[case]]\nname = "a"\n{text}\n[[case]]\nname = "a"\n{text}\n')
        with pytest.raises(ValueError, match="a: once, and with its reason"):
            read_expected(wrong)


def test_no_case_of_the_short_selection_is_expected_to_fail() -> None:
    assert not [name for name in read_expected() if name.startswith(SHORT)]


def test_address_takes_the_place_of_the_usual_one() -> None:
    text = "connect('localhost', port='9092')"
    replaced = {"'localhost'": "'{host}'", "'9092'": "'{port}'"}
    assert put_address(text, replaced, "127.0.0.1:1234") == "connect('127.0.0.1', port='1234')"


def test_checkout_says_how_to_get_it() -> None:
    with pytest.raises(
        MissingError, match=r"git clone --branch v0 https://.*/a/b build/suites/c-0"
    ):
        checkout("c", "0", "a/b", "v0")


def test_case_is_worse_here_if_it_passed_there_alone() -> None:
    def outcomes(*verdicts: Verdict) -> list[Outcome]:
        return [Outcome("a", f"{n}", verdict, 1.0) for n, verdict in enumerate(verdicts)]

    passed, failed, skipped = Verdict
    theirs = outcomes(passed, passed, passed, failed, skipped)
    ours = outcomes(passed, failed, skipped, failed, failed)
    assert [one.case for one in worse_here(theirs, ours)] == ["1", "2"]


_GO_TESTS = """package kafka
func newClient(t *testing.T) {}
func TestProduce(t *testing.T) {
    newClient(t)
}
func TestMurmur(t *testing.T) {}
"""


def test_tests_in_finds_go_tests_that_use_a_client(tmp_path: Path) -> None:
    (tmp_path / "a_test.go").write_text(_GO_TESTS)
    (tmp_path / "b.go").write_text(_GO_TESTS.replace("Produce", "Other"))
    assert names_in(tmp_path, "*_test.go", "newClient") == ["TestProduce"]
    assert names_in(tmp_path, "*_test.go", "") == ["TestProduce", "TestMurmur"]


def _go_events(*events: tuple[str, str, str]) -> list[str]:
    names = ("Action", "Test", "Output")
    return [json.dumps(dict(zip(names, event, strict=True))) for event in events]


def test_go_events_become_outcomes_of_parts() -> None:
    lines = _go_events(
        ("run", "TestA", ""),
        ("run", "TestA/one", ""),
        ("output", "TestA/one", "    a_test.go:7: no broker\n"),
        ("fail", "TestA/one", ""),
        ("run", "TestA/two", ""),
        ("pass", "TestA/two", ""),
        ("fail", "TestA", ""),
        ("run", "TestB", ""),
        ("run", "TestB/one", ""),
        ("pass", "TestB/one", ""),
        ("fail", "TestB", ""),
        ("run", "TestC", ""),
        ("output", "TestC", "panic: nil\n"),
    )
    outcomes = [(one.case, one.verdict, one.why) for one in read_events("s", ["no event", *lines])]
    assert outcomes == [
        ("TestA/one", Verdict.FAILED, "a_test.go:7: no broker"),
        ("TestA/two", Verdict.PASSED, ""),
        ("TestB/one", Verdict.PASSED, ""),
        ("TestB", Verdict.FAILED, ""),
        ("TestC", Verdict.FAILED, "panic: nil"),
    ]


def test_reason_of_a_go_failure_is_the_last_line_told() -> None:
    assert why_of(["    a_test.go:7: first\n", "    b_test.go:9: last\n", "--- FAIL"]) == (
        "b_test.go:9: last"
    )
    assert why_of(["nothing"]) == ""


def test_pattern_chooses_a_part_of_a_go_test_alone() -> None:
    assert chosen_by("TestA/one/two=#01") == r"^TestA$/^one$/^two=\#01$"
