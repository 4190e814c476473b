"""Regular expressions over topics' names: as Python's `re` matches, without its worst cases."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.kafka.groups.subscription import PatternError, TopicPattern

_ATOMS = ["a", "b", "-", r"\.", ".", "[ab]", "[^a]", "[a-c-]", r"\d", r"\w", r"\W", "^", "(?i:A)"]
_patterns = st.recursive(
    st.sampled_from([*_ATOMS, r"\x61", "[]a]"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join).map("(?:{})".format),
        st.tuples(
            inner.map("({})".format), st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0}", "*?"])
        ).map("".join),
    ),
    max_leaves=8,
)


@given(_patterns, st.lists(st.text("abcA-.1", max_size=6), min_size=5, max_size=5))
@settings(max_examples=200)
def test_matches_are_those_of_python(pattern: str, names: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        expected = [re.fullmatch(pattern, name) is not None for name in names]
    ours = TopicPattern(pattern)
    assert [ours.matches(name) for name in names] == expected


@given(st.text(r"ab()[]{}*+?|\^$.-,:=<>!0129iPQE", max_size=12), st.text("ab", max_size=3))
@settings(max_examples=300)
def test_topic_pattern_takes_or_refuses_any_text(text: str, name: str) -> None:
    with suppress(PatternError):
        assert TopicPattern(text).matches(name) in (True, False)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("", "", True),
        ("a", "ab", False),
        ("b", "ab", False),
        ("^a.*|^b$", "b", True),
        (r"\Aa\z", "a", True),
        ("a$b", "ab", False),
        (r"\Qa.b\E.", "a.bc", True),
        (r"\Qa.b\E.", "axbc", False),
        (r"\Qa+", "a+", True),
        ("(?i)abc|d", "D", True),
        ("a(?i)b(?-i)c", "aBc", True),
        ("a(?i)b(?-i)c", "aBC", False),
        ("((?i)a)b", "AB", False),
        ("(?P<name>a)(?<other>b)", "ab", True),
        ("[[:alpha:]_]+[[:^digit:]]", "ab_-", True),
        ("a{", "a{", True),
        ("a{x}", "a{x}", True),
        ("a{,2}", "a{,2}", True),
        ("a{2,}", "aaa", True),
        ("(?i)[a-c]", "B", True),
        (r"[\d.]+", "1.5", True),
        ("((a|b)*c{1,2})?", "ababcc", True),
        (r"\pL+", "ab", True),
    ],
)
def test_the_syntax_is_that_of_re2(pattern: str, name: str, matches: bool) -> None:
    assert TopicPattern(pattern).matches(name) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        "(", "a)", "[", "[a-", "[[:",
        "*a", "a**", "a++", "(?", "(?i", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)",
        "(?>a)", "(?P=a)", "(?P<>a)", "(?<", r"(a)\1", r"\x1", "\\", "[b-a]",
        "[[:x:]]", "a{3,2}", "a{1001}", "((a{1000}){1000})",
    ],
)  # fmt: skip
def test_syntax_that_re2_lacks_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError, match=r".{10}"):
        TopicPattern(pattern)


def test_worst_patterns_take_linear_time() -> None:
    # Python's `re` would take longer than the universe has been there.
    assert not TopicPattern("(a+)+$").matches("a" * 248 + "!")
    assert not TopicPattern("(a|a)*(a|aa){20}b").matches("a" * 249)


@pytest.mark.own_process
def test_nested_groups_take_no_memory() -> None:
    depth = 16_000
    program = (
        "from purgatory.kafka.groups.subscription import TopicPattern\n"
        f"pattern = TopicPattern('(' * {depth} + 'a' + ')' * {depth})\n"
        "assert pattern.matches('a') and not pattern.matches('b')\n"
        # Not getrusage: its maximum of a child begins at that of its parent.
        "print(*[row.split()[1] for row in open('/proc/self/status') if 'VmHWM' in row])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(ran.stdout) < 300_000, "KiB"


def test_error_does_not_repeat_a_long_expression() -> None:
    with pytest.raises(PatternError) as refused:
        TopicPattern("(" + "a" * 100_000)
    assert len(str(refused.value)) < 400
