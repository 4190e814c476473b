r"""Regular expressions over topics' names, in RE2's syntax, matched in linear time.

A backtracking engine would let one subscription stop the broker: `(a+)+$` takes it hours. So a
pattern becomes an automaton whose states are followed all at once, as in RE2; and what RE2 has no
linear time for (back references, looking around) is refused, as by Kafka. All of a name has to
match.

Served: literals, `.`, classes with ranges, negation, `[:alpha:]` and the like, `\d \w \s` and
their negations, `\Q...\E`, groups (named, too), `|`, `* + ? {n,m}` (lazy ones match the same),
`^ $ \A \z`, and `(?i)` for all that follows or for a group. Names have no line ends and no
letters beyond ASCII, so the other flags change nothing, and `\p{..}` is not served.


The topics that the members of a group subscribe to, by name or by regular expression.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from purgatory.kafka.groups.consumer_group_member import Principal, Subscription
from purgatory.kafka.topic_partition import Partitions, TopicIdPartition

_MOST_STATES = 20_000
_MOST_REPEATS = 1_000
_MOST_DEPTH = 100
_Chars: TypeAlias = frozenset[str]
_ALL: _Chars = frozenset(map(chr, range(128)))
_WORD: _Chars = frozenset(string.ascii_letters + string.digits + "_")

_CLASSES: dict[str, _Chars] = {
    "d": frozenset(string.digits),
    "w": _WORD,
    "s": frozenset("\t\n\f\r "),
}

_NAMED_CLASSES: dict[str, _Chars] = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": _ALL,
    "blank": frozenset("\t "),
    "digit": frozenset(string.digits),
    "graph": frozenset(map(chr, range(33, 127))),
    "lower": frozenset(string.ascii_lowercase),
    "print": frozenset(map(chr, range(32, 127))),
    "punct": frozenset(string.punctuation),
    "space": frozenset(string.whitespace),
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}

_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_BEGIN, _END = "begin", "end"


class PatternError(Exception):
    """What is no pattern; the message says what would be."""


class _State:
    """A state: what leads on from it."""

    __slots__ = ("anchor", "chars", "nexts")

    def __init__(self) -> None:
        self.chars: _Chars | None = None
        """One of these leads on; None: nothing is read."""
        self.anchor = ""
        """Where alone it leads on, without reading."""
        self.nexts: list[_State] = []


class _Piece(NamedTuple):
    """A part of the automaton: where it begins and ends."""

    first: _State
    last: _State


_Build: TypeAlias = Callable[[], _Piece]
"""Makes a part anew: what is repeated is there several times."""


class TopicPattern:
    """A regular expression over topics' names.

    Raises:
        PatternError: the text is no pattern.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._whole = _Parser(text).parsed()()

    def matches(self, name: str) -> bool:
        """Whether all of a name matches. O(length of the name * length of the pattern)."""
        last = len(name)
        states = _reached([self._whole.first], at_begin=True, at_end=not name)
        for at, char in enumerate(name, 1):
            after = [
                following
                for state in states
                if state.chars is not None and char in state.chars
                for following in state.nexts
            ]
            states = _reached(after, at_begin=False, at_end=at == last)
            if not states:
                return False
        return self._whole.last in states


def _reached(states: Sequence[_State], at_begin: bool, at_end: bool) -> set[_State]:
    """Return the states that are reached without reading anything."""
    reached: set[_State] = set()
    to_look_at = list(states)
    while to_look_at:
        state = to_look_at.pop()
        if state in reached:
            continue
        reached.add(state)
        holds = {"": True, _BEGIN: at_begin, _END: at_end}[state.anchor]
        if state.chars is None and holds:
            to_look_at += state.nexts
    return reached


class _Parser:
    """Reads a pattern from left to right; what it returns makes the automaton."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ignores_case = False
        self._states = 0
        self._depth = 0

    def parsed(self) -> _Build:
        build = self._alternatives()
        if self._at < len(self._text):
            raise self._error("a ) that closes nothing")
        return build

    def _error(self, what: str) -> PatternError:
        return PatternError(f"{what}, at character {self._at + 1} of {self._text!r}")

    # Reading.

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise self._error("the pattern ends too early")
        self._at += 1
        return char

    def _skip(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _alternatives(self) -> _Build:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise self._error(f"more than {_MOST_DEPTH} groups in each other")
        ignores_case = self._ignores_case
        ways = [self._sequence()]
        while self._skip("|"):
            ways.append(self._sequence())
        self._ignores_case = ignores_case
        self._depth -= 1
        return ways[0] if len(ways) == 1 else lambda: self._any_of(ways)

    def _sequence(self) -> _Build:
        parts: list[_Build] = []
        while self._peek() not in ("", "|", ")"):
            if self._skip("\\Q"):
                quoted, found, _ = self._text[self._at :].partition("\\E")
                self._at += len(quoted) + len(found)
                parts += [self._one_of(frozenset(char)) for char in quoted]
                continue
            part = self._atom()
            if part is not None:
                parts.append(self._repeated(part))
        return lambda: self._in_turn(parts)

    def _atom(self) -> _Build | None:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return self._one_of(self._class())
        if char == ".":
            return self._one_of(_ALL)
        if char in "*+?":
            raise self._error(f"a {char} that repeats nothing")
        if char in "^$":
            return self._anchor(_BEGIN if char == "^" else _END)
        if char == "\\":
            if self._peek() in ("A", "z"):
                return self._anchor(_BEGIN if self._take() == "A" else _END)
            return self._one_of(self._escape())
        return self._one_of(frozenset(char))

    def _group(self) -> _Build | None:
        ignores_case = self._ignores_case
        if self._skip("?"):
            looks_around = self._text.startswith(("<=", "<!"), self._at)
            if self._skip("P<") or (not looks_around and self._skip("<")):
                self._name()
            elif not self._flags():
                return None
        build = self._alternatives()
        if not self._skip(")"):
            raise self._error("a ( that is not closed")
        self._ignores_case = ignores_case
        return build

    def _name(self) -> None:
        name, found, _ = self._text[self._at :].partition(">")
        if not found or not name or not set(name) <= _WORD:
            raise self._error("a group's name is of letters, digits and underscores, and ends in >")
        self._at += len(name) + 1

    def _flags(self) -> bool:
        """Take flags; return whether a group follows that they are for."""
        sets = True
        while True:
            char = self._take()
            if char == "-":
                sets = False
            elif char == "i":
                self._ignores_case = sets
            elif char in ")":
                return False
            elif char == ":":
                return True
            elif char not in "smU":
                raise self._error("a group that RE2 doesn't have")

    def _repeated(self, part: _Build) -> _Build:
        repeated = False
        while (char := self._peek()) and char in "*+?{":
            least, most = self._counts()
            if most == 0 and least is None:
                return part  # a { that is one
            if repeated:
                raise self._error("a repetition of a repetition: put it into ( )")
            repeated = True
            self._skip("?")  # lazy
            part = self._times(part, least or 0, most)
        return part

    def _counts(self) -> tuple[int | None, int | None]:
        """Take how often something comes: at least and at most, None for any number of times; or
        (None, 0) where a { begins no such count."""
        char = self._take()
        if char != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        inside, found, _ = self._text[self._at :].partition("}")
        least, comma, most = inside.partition(",")
        if not found or not least.isdecimal() or not (most == "" or most.isdecimal()):
            self._at -= 1
            return None, 0
        self._at += len(inside) + 1
        at_least = int(least)
        at_most = None if comma and not most else int(most or least)
        if max(at_least, at_most or 0) > _MOST_REPEATS or at_least > (at_most or at_least):
            raise self._error(f"a repetition of {{n,m}} with n <= m <= {_MOST_REPEATS}")
        return at_least, at_most

    def _class(self) -> _Chars:
        negated = self._skip("^")
        chars: set[str] = set()
        first = True
        while first or self._peek() != "]":
            first = False
            if self._skip("[:"):
                chars |= self._named_class()
                continue
            begin = self._class_part()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._take()
                end = self._class_part()
                if len(begin) != 1 or len(end) != 1 or min(begin) > min(end):
                    raise self._error("a range that ends before it begins")
                begin = frozenset(map(chr, range(ord(min(begin)), ord(min(end)) + 1)))
            chars |= begin
        self._take()
        if self._ignores_case:
            chars = {either for char in chars for either in (char.lower(), char.upper())}
        return _ALL - chars if negated else frozenset(chars)

    def _class_part(self) -> _Chars:
        char = self._take()
        return self._escape() if char == "\\" else frozenset(char)

    def _named_class(self) -> _Chars:
        name, found, _ = self._text[self._at :].partition(":]")
        negated = name.startswith("^")
        chars = _NAMED_CLASSES.get(name.removeprefix("^"))
        if not found or chars is None:
            raise self._error(f"a class of {', '.join(_NAMED_CLASSES)}, as in [[:alpha:]]")
        self._at += len(name) + 2
        return _ALL - chars if negated else chars

    def _escape(self) -> _Chars:
        char = self._take()
        if char.lower() in _CLASSES:
            chars = _CLASSES[char.lower()]
            return chars if char.islower() else _ALL - chars
        if char in _CONTROLS:
            return frozenset(_CONTROLS[char])
        if char == "x":
            digits = self._text[self._at : self._at + 2]
            if len(digits) == 2 and set(digits) <= set(string.hexdigits):
                self._at += 2
                return frozenset(chr(int(digits, 16)))
        if char.isascii() and not char.isalnum():
            return frozenset(char)
        raise self._error(f"\\{char} is not served")

    # Making the automaton.

    def _state(self) -> _State:
        self._states += 1
        if self._states > _MOST_STATES:
            raise PatternError(f"{self._text!r} is too long, with its repetitions written out")
        return _State()

    def _one_of(self, chars: _Chars) -> _Build:
        if self._ignores_case:
            chars = frozenset(either for char in chars for either in (char.lower(), char.upper()))

        def build() -> _Piece:
            first, last = self._state(), self._state()
            first.chars = chars
            first.nexts.append(last)
            return _Piece(first, last)

        return build

    def _anchor(self, where: str) -> _Build:
        def build() -> _Piece:
            first, last = self._state(), self._state()
            first.anchor = where
            first.nexts.append(last)
            return _Piece(first, last)

        return build

    def _in_turn(self, parts: Sequence[_Build]) -> _Piece:
        first = last = self._state()
        for part in parts:
            piece = part()
            last.nexts.append(piece.first)
            last = piece.last
        return _Piece(first, last)

    def _any_of(self, ways: Sequence[_Build]) -> _Piece:
        first, last = self._state(), self._state()
        for way in ways:
            piece = way()
            first.nexts.append(piece.first)
            piece.last.nexts.append(last)
        return _Piece(first, last)

    def _times(self, part: _Build, least: int, most: int | None) -> _Build:
        def build() -> _Piece:
            first, last = self._state(), self._state()
            at = first
            for _ in range(least):
                piece = part()
                at.nexts.append(piece.first)
                at = piece.last
            at.nexts.append(last)
            if most is None:
                piece = part()
                at.nexts.append(piece.first)
                piece.last.nexts += [piece.first, last]
            for _ in range(least, most or 0):
                piece = part()
                at.nexts.append(piece.first)
                at = piece.last
                at.nexts.append(last)
            return _Piece(first, last)

        return build


class KnownTopic(Protocol):
    """A topic, as groups see it."""

    @property
    def topic_id(self) -> UUID:
        """By what members are assigned its partitions."""

    @property
    def partitions(self) -> Sequence[object]:
        """As many as it has."""


class KnownTopics(Protocol):
    """The topics of the cluster."""

    @property
    def topics(self) -> Mapping[str, KnownTopic]:
        """By name."""

    @property
    def topics_version(self) -> int:
        """Another number whenever topics or partitions came or went, or who sees them."""

    def sees(self, viewer: Principal, topic: str) -> bool:
        """Whether somebody may know of a topic."""


_STALE = -1
_Wish: TypeAlias = tuple[tuple[str, ...], str | None, Principal | None]
"""Names and an expression, and whose."""


class SubscribedTopics:
    """What a group's subscriptions come to, as the topics are now.

    Args:
        known: the topics of the cluster.
    """

    def __init__(self, known: KnownTopics) -> None:
        self._known = known
        self._version = _STALE
        self._matched: set[str] = set()
        self._patterns: dict[str, TopicPattern] = {}
        self._topic_ids: dict[_Wish, frozenset[UUID]] = {}
        self.partition_counts: Mapping[UUID, int] = {}
        """Of all topics that anybody subscribes to."""

    @property
    def are_stale(self) -> bool:
        """Whether topics or partitions came or went since ``refresh``. O(1)."""
        return self._version != self._known.topics_version

    def refresh(self, subscriptions: Iterable[Subscription], at_once: bool = False) -> bool:
        """Look up the topics of all members; return whether there are others, or more partitions.

        Kafka matches an expression that is new to a group beside the heartbeat that brought it,
        and the topics come with a later one: here with the next ``refresh``, which is due.
        O(members + topics * different subscriptions).

        Args:
            subscriptions: of all members.
            at_once: match new expressions now; a former coordinator did so before.
        """
        topics = self._known.topics
        self._version = self._known.topics_version
        wishes = set(map(_wish_of, subscriptions))
        matched, self._matched = self._matched, {regex for _, regex, _ in wishes if regex}
        if not at_once and self._matched - matched:
            self._version = _STALE
        names = {
            (named, regex, viewer): self._names(
                named, regex if at_once or regex in matched else None, viewer
            )
            for named, regex, viewer in wishes
        }
        self._patterns = {
            text: pattern
            for text, pattern in self._patterns.items()
            if any(text == regex for _, regex, _ in wishes)
        }
        former_ids, former_counts = self._topic_ids, self.partition_counts
        self._topic_ids = {
            wish: frozenset(topics[name].topic_id for name in found if name in topics)
            for wish, found in names.items()
        }
        self.partition_counts = {
            topics[name].topic_id: len(topics[name].partitions)
            for name in sorted(set[str]().union(*names.values()))
            if name in topics
        }
        return self.partition_counts != former_counts or any(
            former_ids.get(wish, found) != found for wish, found in self._topic_ids.items()
        )

    def keep_matched(self, subscriptions: Iterable[Subscription]) -> None:
        """Forget the expressions that no member has any more: they are new when they come again.

        O(members), where there are any.
        """
        if self._matched:
            self._matched &= {one.topic_regex for one in subscriptions if one.topic_regex}

    def topic_ids(self, subscription: Subscription) -> frozenset[UUID]:
        """Return the topics of one member, as of the last ``refresh``. O(1)."""
        return self._topic_ids[_wish_of(subscription)]

    @property
    def partitions(self) -> Partitions:
        """All partitions that anybody subscribes to. O(these)."""
        return frozenset(
            TopicIdPartition(topic_id, number)
            for topic_id, count in self.partition_counts.items()
            for number in range(count)
        )

    def names(self, subscription: Subscription) -> set[str]:
        """Return the topics of one member as they are now, by name. O(topics of the cluster)."""
        return self._names(*_wish_of(subscription))

    def _names(
        self, names: tuple[str, ...], regex: str | None, viewer: Principal | None
    ) -> set[str]:
        found = set(names)
        if regex:
            pattern = self._patterns.get(regex)
            if pattern is None:
                pattern = self._patterns[regex] = TopicPattern(regex)
            matching = filter(pattern.matches, self._known.topics)
            found.update(name for name in matching if viewer is None or self._sees(viewer, name))
        return found

    def _sees(self, viewer: Principal, topic: str) -> bool:
        return self._known.sees(viewer, topic)


def _wish_of(subscription: Subscription) -> _Wish:
    return subscription.topic_names, subscription.topic_regex, subscription.viewer
