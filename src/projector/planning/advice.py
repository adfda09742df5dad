"""What would do where nothing does: every entry was projected."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from projector.errors import ConfigError
from projector.planning.choice import MEETS, Choice
from projector.planning.numbers import days_number, number, usd
from projector.planning.question import Question, stating
from projector.planning.ranking import COST, spend_of, status_of, value_of
from projector.planning.reading import ClusterKind
from projector.planning.survey import PRICE, Site, Skipped, Surveyor, climb, fewest_that_fit

DEADLINE, BUDGET, GPUS, TOKENS = "deadline_days", "budget_usd", "gpus", "tokens"
HOURLY = "usd_per_gpu_hour"

DIGITS = 3
"""Digits of what is advised; the last is rounded to the safe side."""

TRIES = 4
"""Projections of a shorter run until one keeps the limits."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change of the question that would give it an answer."""

    key: str
    """``deadline_days``, ``budget_usd``, ``usd_per_gpu_hour``, ``gpus`` or ``tokens``."""
    value: float
    choice: Choice
    """What would answer."""

    @property
    def text(self) -> str:
        """The remedy as a sentence."""
        run, name = self.choice.run, self.choice.name
        days = f"{days_number(run.days)} days, up to {days_number(run.days_high)}"
        cost = "" if run.cost_usd is None else f", {usd(run.cost_usd)}"
        if self.key == DEADLINE:
            return f"A deadline of {days_number(self.value)} days: {name} takes {days}{cost}."
        if self.key == BUDGET:
            return f"A budget of {usd(self.value)}: {name} takes {days}{cost}."
        if self.key == GPUS:
            return f"{name}: {days}{cost}."
        if self.key == HOURLY:
            return f"{self.value:,.2f} USD for an hour of a GPU: {name} takes {days}{cost}."
        return f"{number(self.value)} tokens: {name} takes {days}{cost}."

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of ``plan --json``."""
        return {
            "key": self.key,
            "value": self.value,
            "text": self.text,
            "choice": self.choice.to_dict(),
        }


def remedies(
    surveyor: Surveyor, ranked: Sequence[Choice], skipped: list[Skipped]
) -> tuple[Remedy, ...]:
    """Return what would do where no choice keeps the limits with its bands; else nothing."""
    question = surveyor.question
    if any(each.fits and each.status == MEETS for each in ranked):
        return ()
    found: list[Remedy] = []
    fitting = [each for each in ranked if each.fits]
    if question.gpus:
        found += _other_sizes(surveyor, question, skipped, fits=bool(fitting))
    if question.deadline_days is not None and fitting:
        found += _later(question, fitting)
    if question.budget_usd is not None and fitting:
        found += _dearer(question, fitting)
    limited = question.deadline_days is not None or question.budget_usd is not None
    if limited and fitting:
        found += _shorter(question, fitting)
    return tuple(found)


def _other_sizes(
    surveyor: Surveyor, question: Question, skipped: list[Skipped], *, fits: bool
) -> Iterator[Remedy]:
    """Search sizes that were not offered; yield the best that keeps the limits."""
    known = set(surveyor.sites)
    surveyor.question = replace(question, gpus=())
    limited = question.deadline_days is not None or question.budget_usd is not None
    search_sizes = _climb if limited or fits else fewest_that_fit
    for kind in question.kinds:
        if not any(
            each.label == kind.label and each.gpus[1] == question.settings.most_gpus
            for each in skipped
        ):
            search_sizes(surveyor, kind)
    surveyor.question = question
    sites: list[Site] = [site for key, site in surveyor.sites.items() if key not in known]
    answers = [
        replace(choice, status=MEETS)
        for site in sites
        for choice in site.choices
        if choice.fits and status_of(question, choice) == MEETS
    ]
    for key in known.symmetric_difference(surveyor.sites):
        surveyor.sites.pop(key)
    if answers:
        spend = spend_of(answers)
        fewest = min(answers, key=lambda each: (each.gpus, value_of(each, spend)))
        yield Remedy(GPUS, fewest.gpus, fewest)
        best = min(answers, key=lambda each: value_of(each, spend))
        if best is not fewest:
            yield Remedy(GPUS, best.gpus, best)


def _climb(surveyor: Surveyor, kind: ClusterKind) -> None:
    climb(surveyor, kind, [])


def _later(question: Question, fitting: Sequence[Choice]) -> Iterator[Remedy]:
    """Yield the earliest deadline that some choice keeps, within the budget if there is one."""
    without = replace(question, deadline_days=None)
    paid = [each for each in fitting if status_of(without, each) == MEETS]
    if paid:
        fastest = min(paid, key=lambda each: each.run.days_high)
        yield Remedy(DEADLINE, _up(fastest.run.days_high), replace(fastest, status=MEETS))


def _dearer(question: Question, fitting: Sequence[Choice]) -> Iterator[Remedy]:
    """Yield the least budget that some choice keeps, within the deadline if there is one."""
    without = replace(question, budget_usd=None)
    timely = [each for each in fitting if status_of(without, each) == MEETS]
    priced = [each for each in timely if each.run.cost_usd is not None]
    if priced:
        cheapest = min(priced, key=lambda each: each.run.of_high(value_of(each, COST)))
        most_usd = cheapest.run.of_high(value_of(cheapest, COST))
        yield Remedy(BUDGET, _up(most_usd), replace(cheapest, status=MEETS))
        price = cheapest.job.run.cost.usd_per_gpu_hour
        assert question.budget_usd is not None
        if price is not None:
            lower = _down(price * question.budget_usd / most_usd)
            trial = _changed(question, cheapest, {PRICE: lower}) if lower > 0.0 else None
            if trial is not None and status_of(question, trial) == MEETS:
                yield Remedy(HOURLY, lower, replace(trial, status=MEETS))


def _shorter(question: Question, fitting: Sequence[Choice]) -> Iterator[Remedy]:
    """Yield the longest run that the limits allow, projected."""

    def share(each: Choice) -> float:
        run, shares = each.run, [1.0]
        if question.deadline_days is not None:
            shares.append(question.deadline_days / run.days_high)
        if question.budget_usd is not None and run.cost_usd is not None:
            shares.append(question.budget_usd / run.of_high(run.cost_usd))
        return min(shares)

    choice = max(fitting, key=share)
    tokens = question.tokens * share(choice)
    for _ in range(TRIES):
        tokens = _down(tokens)
        if tokens < question.tokens_per_step:
            return
        trial = _changed(question, choice, stating(tokens))
        if trial is None:
            return
        if status_of(question, trial) == MEETS:
            yield Remedy(TOKENS, tokens, replace(trial, status=MEETS))
            return
        tokens *= share(trial)


def _changed(question: Question, choice: Choice, changes: Mapping[str, Any]) -> Choice | None:
    """Project a choice with some fields changed; return None where its run cannot be."""
    try:
        job = question.model.load(choice.job, changes)
        return replace(choice, job=job, run=question.model.run(job))
    except ConfigError:
        return None


def _up(value: float) -> float:
    return _rounded(value, up=True)


def _down(value: float) -> float:
    return _rounded(value, up=False)


def _rounded(value: float, *, up: bool) -> float:
    """Round to `DIGITS` digits, upwards or downwards; nothing above 0 becomes 0 or less."""
    unit = 10.0 ** (math.floor(math.log10(value)) - DIGITS + 1)
    count = value / unit
    whole = math.ceil(count - 1e-9) if up else math.floor(count + 1e-9)
    return float(f"{whole * unit:.{DIGITS}e}")
