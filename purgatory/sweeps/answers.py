"""Answers to a sweep's questions: the smallest timeout with an expiry ratio under x, and the like.

A value is good when the measure keeps the bound at every point with that value: of the parameters
that a question does not name, the worst value counts. An answer is confirmed when the bound is kept
with the confidence of the question, by Student's t over the seeds of each point. If the seeds of
the worst point do not differ, their spread is unknown, and nothing is confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from purgatory.pipeline.confidence_intervals import t_quantile
from purgatory.pipeline.engines.spark.connect import local_table
from purgatory.pipeline.engines.spark.frames import run_chain
from purgatory.pipeline.jobs.chain import Statement, literal, quoted, read_chain
from purgatory.pipeline.result_rows import Row, text
from purgatory.sweeps.heatmaps import level_sql
from purgatory.sweeps.plan import Parameter, Plan
from purgatory.sweeps.sweep_file import Question


@dataclass(frozen=True)
class Candidate:
    """One value of the setting that is asked for, and what was measured with it.

    Args:
        label: the value in words, a bin of values if there are too many.
        points: how many points have it, of which `failed` failed with every seed.
        mean: the worst point's mean over its seeds; None if nothing was measured.
        sd: that point's standard deviation between seeds; None with one seed, 0 if all agree.
        seeds: how many seeds that point has.
        limit: a bound on the mean of every point, with the question's confidence; None if unknown,
        as
            it is without an `sd` above 0.
        kept: how many scenarios keep the bound themselves, of `measured`.
        good: whether all means keep the bound.
        confirmed: whether `limit` does.
    """

    label: str
    points: int
    failed: int
    mean: float | None
    sd: float | None
    seeds: int
    limit: float | None
    kept: int
    measured: int
    good: bool
    confirmed: bool


@dataclass(frozen=True)
class Answer:
    """The answer to a question, for one value of each setting that it is asked per.

    Args:
        question: of the sweep file.
        per: the values of these settings, by path.
        candidates: all values, the most wanted first.
    """

    question: Question
    per: Mapping[str, str]
    candidates: Sequence[Candidate]

    @property
    def value(self) -> str | None:
        """The answer: the first value that is good enough; None if none is."""
        return next((candidate.label for candidate in self.candidates if candidate.good), None)

    @property
    def confirmed(self) -> str | None:
        """The first value that is good enough with the asked confidence; None if none is."""
        return next((candidate.label for candidate in self.candidates if candidate.confirmed), None)

    def words(self) -> str:
        """The answer as a paragraph, with the neighbours that justify it."""
        return " ".join(_sentences(self))

    def plain(self) -> dict[str, Any]:
        """The answer as plain data."""
        return {
            "question": self.question.model_dump(mode="json", exclude_none=True),
            "per": dict(self.per),
            "value": self.value,
            "confirmed": self.confirmed,
            "words": self.words(),
            "candidates": [dict(vars(candidate)) for candidate in self.candidates],
        }


def answers(points: DataFrame, plan: Plan) -> list[Answer]:
    """The answers to all questions of a sweep, in their order.

    Args:
        points: the table of that name.
        plan: the sweep's.
    """
    questions = plan.sweep.questions
    rows = _candidates(points, plan) if questions else []
    return [
        answer
        for number, question in enumerate(questions)
        for answer in _answers([row for row in rows if row["question"] == number], plan, question)
    ]


def _answers(rows: Sequence[Row], plan: Plan, question: Question) -> list[Answer]:
    find = plan.parameter(question.find)
    groups: dict[int, dict[int, Candidate]] = {}
    for row in rows:
        of_group = groups.setdefault(row["per_level"], {})
        of_group[row["level"]] = _candidate(row, find, question)
    return [
        Answer(
            question,
            _labels(plan, question, group),
            [candidates[at] for at in sorted(candidates, reverse=question.want == "largest")],
        )
        for group, candidates in sorted(groups.items())
    ]


def _candidates(points: DataFrame, plan: Plan) -> list[Row]:
    """A row per question, value of the setting asked for and of those it is asked per."""
    questions = list(enumerate(plan.sweep.questions))
    # With one seed, the spread between seeds is unknown.
    quantiles = [
        (number, seeds, t_quantile(question.confidence, seeds - 1))
        for number, question in questions
        for seeds in range(2, plan.sweep.repetitions + 1)
    ]
    selects = [
        f"select {number} as question, point, error, "
        f"cast({quoted([question.measure])} as double) * {literal(_sign(question))} as measured, "
        f"{literal(_sign(question) * question.bound)} as bound, "
        f"{level_sql(plan.parameter(question.find))} as level, "
        f"{_per_level_sql(plan, question)} as per_level from points"
        for number, question in questions
    ]
    inputs = {
        "points": points,
        "t_quantiles": local_table(
            points.sparkSession, quantiles, "question int, seeds bigint, quantile double"
        ),
    }
    chain = [
        Statement("question_points", False, " union all ".join(selects)),
        *read_chain("sweeps/candidates.sql"),
    ]
    rows: list[Row] = run_chain(inputs, chain, ["candidates"])[0].toArrow().to_pylist()
    return rows


def _sign(question: Question) -> float:
    """The factor with which worse is greater, whichever side the bound is on."""
    return 1.0 if question.above is None else -1.0


def _per_level_sql(plan: Plan, question: Question) -> str:
    """The levels of the settings that a question is asked per, as one number."""
    number = "cast(0 as bigint)"
    for path in question.per:
        parameter = plan.parameter(path)
        number = f"({number} * {len(parameter.levels())} + {level_sql(parameter)})"
    return number


def _labels(plan: Plan, question: Question, per_level: int) -> dict[str, str]:
    """The values of these settings by their paths, from that number."""
    labels = {}
    for path in reversed(question.per):
        levels = plan.parameter(path).levels()
        per_level, index = divmod(per_level, len(levels))
        labels[path] = levels[index].label
    return {path: labels[path] for path in question.per}


def _candidate(row: Row, find: Parameter, question: Question) -> Candidate:
    sign = _sign(question)
    bound = sign * question.bound
    mean, sd, limit = row["worst_mean"], row["worst_sd"], row["upper_limit"]
    is_measured = mean is not None and row["failed"] == 0
    has_limit = is_measured and row["of_one_seed"] == 0 and sd > 0
    good = is_measured and mean < bound
    return Candidate(
        label=find.levels()[row["level"]].label,
        points=row["points"],
        failed=row["failed"],
        mean=None if mean is None else sign * mean,
        sd=sd,
        seeds=row["worst_seeds"],
        limit=sign * limit if has_limit else None,
        kept=row["kept"],
        measured=row["measured"],
        good=good,
        confirmed=good and has_limit and limit < bound,
    )


def _sentences(answer: Answer) -> list[str]:
    question = answer.question
    side = "below" if question.above is None else "above"
    bound = f"{question.measure} {side} {text(float(question.bound))}"
    where = ", ".join(f"{path} = {label}" for path, label in answer.per.items())
    start = f"With {where}: " if where else ""
    if answer.value is None:
        return _no_value(answer, start, bound)
    index = next(n for n, candidate in enumerate(answer.candidates) if candidate.good)
    chosen = answer.candidates[index]
    sentences = [
        f"{start}{chosen.label} is the {question.want} {question.find} with {bound}.",
        _result_sentence(chosen, question),
    ]
    if index == 0:
        sentences.append(f"No {_more(question)} value was tried.")
    else:
        before = answer.candidates[index - 1]
        sentences.append(
            f"The next {_more(question)} value, {before.label}, has {_figure(before)}."
        )
    sentences += _caveats(answer, index)
    return sentences


def _no_value(answer: Answer, start: str, bound: str) -> list[str]:
    question, candidates = answer.question, answer.candidates
    measured = [candidate for candidate in candidates if candidate.mean is not None]
    none = "none" if start else "None"
    tried = f"{start}{none} of the {len(candidates)} values tried of {question.find} has {bound}"
    if not measured:
        return [f"{tried}: nothing was measured."]
    sign = 1.0 if question.above is None else -1.0
    best = min(measured, key=lambda candidate: sign * (candidate.mean or 0.0))
    return [f"{tried}; the best is {best.label} with {_figure(best)}."]


def _result_sentence(candidate: Candidate, question: Question) -> str:
    worst = f" at the worst of its {candidate.points:,} points" if candidate.points > 1 else ""
    result = f"It has {_figure(candidate)}{worst}"
    if candidate.seeds == 1:
        return f"{result}, from a single seed: more repetitions would give a confidence bound."
    if candidate.sd == 0:
        return (
            f"{result}, the same with each of {candidate.seeds} seeds, which gives no confidence "
            "bound."
        )
    spread = f", over {candidate.seeds} seeds with a standard deviation of {text(candidate.sd)}"
    percent = f"{100 * question.confidence:g} % confidence"
    side = "at most" if question.above is None else "at least"
    share = f"{candidate.kept:,} of {candidate.measured:,} scenarios keep the bound"
    if candidate.limit is None:
        return f"{result}{spread}; {share}."
    verdict = "confirmed" if candidate.confirmed else "not confirmed"
    limit = f"with {percent} {side} {text(candidate.limit)}"
    return f"{result}{spread}; {limit}: {verdict}. {share.capitalize()}."


def _caveats(answer: Answer, index: int) -> list[str]:
    """Reservations to know before using the answer."""
    question, further = answer.question, answer.candidates[index + 1 :]
    sentences = []
    if not answer.candidates[index].confirmed and answer.candidates[index].seeds > 1:
        sure = answer.confirmed
        sentences.append("No value is confirmed." if sure is None else f"Confirmed is {sure}.")
    bad = [candidate for candidate in further if not candidate.good]
    if bad:
        values = ", ".join(f"{candidate.label} ({_figure(candidate)})" for candidate in bad)
        beyond = "larger" if question.want == "smallest" else "smaller"
        sentences.append(f"But not every {beyond} value is good enough: {values}.")
    return sentences


def _figure(candidate: Candidate) -> str:
    if candidate.failed:
        return f"{candidate.failed:,} of {candidate.points:,} points that failed"
    return "no such measure" if candidate.mean is None else text(float(candidate.mean))


def _more(question: Question) -> str:
    return "smaller" if question.want == "smallest" else "larger"
