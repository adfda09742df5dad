"""The order of choices: who keeps the limits, at what price, and who cannot be told apart."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from projector.arrays import Floats, front_rows
from projector.planning.choice import MEETS, MISSES, UNCERTAIN, Choice
from projector.planning.question import Question, days_number
from projector.projection.bands import ratio_band
from projector.searches.ranking import noise_groups, pair_noise

COST, GPU_HOURS, DAYS = "cost_usd", "gpu_hours", "days"
"""What choices may be ranked by."""

_STATUSES = (MEETS, UNCERTAIN, MISSES)

LEAST_POINTS = 3
"""Points of a front that can have a knee."""


def spend_of(choices: Sequence[Choice]) -> str:
    """Return what choices spend: money where every one has a price, else GPU-hours."""
    priced = bool(choices) and all(choice.run.cost_usd is not None for choice in choices)
    return COST if priced else GPU_HOURS


def objective_of(question: Question, choices: Sequence[Choice]) -> str:
    """Return what the best choice has least of, among those that keep the limits."""
    if question.budget_usd is not None and question.deadline_days is None:
        return DAYS
    return spend_of(choices)


def value_of(choice: Choice, name: str) -> float:
    """Return the days, GPU-hours or USD of a choice."""
    value = getattr(choice.run, name)
    return float("inf") if value is None else float(value)


def rank(question: Question, choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return the choices in order, with status, group, front, knee and remark.

    Those that keep deadline and budget with the upper end of their bands come first, then those
    that keep them with the middle alone, then those at risk by their memory, last those that miss;
    each by money (or GPU-hours), with a budget alone by days. Without limits the knee of the front
    comes first, then the front, then the others.
    """
    if not choices:
        return ()
    objective, spend = objective_of(question, choices), spend_of(choices)
    judged = _with_front([replace(each, status=status_of(question, each)) for each in choices])
    if question.deadline_days is None and question.budget_usd is None:
        ordered = sorted(
            judged,
            key=lambda each: (
                not each.fits,
                not each.is_knee,
                not each.on_front,
                value_of(each, spend),
            ),
        )
        ordered = _grouped(_with_beaten(ordered, spend), DAYS, by_size=True)
        return tuple(_explained(question, ordered, spend))

    def place(each: Choice) -> tuple[bool, bool, int, float, float]:
        misses = each.status == MISSES
        # What misses is ordered by how far it is off.
        off = excess(question, each) if misses else 0.0
        return (misses, not each.fits, _STATUSES.index(each.status), off, value_of(each, objective))

    ordered = _with_beaten(sorted(judged, key=place), spend)
    return tuple(_explained(question, _grouped(ordered, objective), objective))


def status_of(question: Question, choice: Choice) -> str:
    """Say whether a choice keeps both limits: with its band, with its middle, or not."""
    run = choice.run
    pairs = [(question.deadline_days, run.days, run.days_high)]
    if question.budget_usd is not None:
        cost = float("inf") if run.cost_usd is None else run.cost_usd
        pairs.append((question.budget_usd, cost, run.of_high(cost)))
    limited = [(limit, middle, high) for limit, middle, high in pairs if limit is not None]
    if any(middle > limit for limit, middle, _ in limited):
        return MISSES
    return UNCERTAIN if any(high > limit for limit, _, high in limited) else MEETS


def excess(question: Question, choice: Choice) -> float:
    """Return by which share the middle of a choice exceeds its limits, added up."""
    run, total = choice.run, 0.0
    if question.deadline_days is not None:
        total += max(0.0, run.days / question.deadline_days - 1.0)
    if question.budget_usd is not None and run.cost_usd is not None:
        total += max(0.0, run.cost_usd / question.budget_usd - 1.0)
    return total


def _with_front(choices: list[Choice]) -> list[Choice]:
    """Mark the choices that no other beats in days and money, and the knee among them."""
    rows = [row for row, each in enumerate(choices) if each.fits] or list(range(len(choices)))
    spend = spend_of(choices)
    days = np.array([choices[row].run.days for row in rows])
    spent = np.array([value_of(choices[row], spend) for row in rows])
    front = front_rows(days, spent)
    knee = knee_of(days[front], spent[front])
    marked = list(choices)
    for place, index in enumerate(front.tolist()):
        row = rows[index]
        marked[row] = replace(choices[row], on_front=True, is_knee=place == knee)
    return marked


def _with_beaten(ordered: list[Choice], spend: str) -> list[Choice]:
    """Name for each choice the first that beats it in days and money."""

    def beats(other: Choice, each: Choice) -> bool:
        return (
            other.fits >= each.fits
            and _STATUSES.index(other.status) <= _STATUSES.index(each.status)
            and other.run.days < each.run.days
            and other.run.days_high < each.run.days_high
            and value_of(other, spend) < value_of(each, spend)
        )

    return [
        replace(each, beaten_by=next((one.name for one in ordered if beats(one, each)), ""))
        for each in ordered
    ]


def knee_of(days: Floats, spent: Floats) -> int | None:
    """Return the place of the knee of a front, None where it has fewer than three points.

    Both axes are taken as logarithms and scaled to 0 … 1; the knee is the point that lies farthest
    below the line from one end of the front to the other, after Satopää and others, Finding a
    Kneedle in a Haystack (ICDCS workshops 2011; from memory, not looked up again).
    """
    if len(days) < LEAST_POINTS:
        return None
    x, y = (_scaled(np.log(values)) for values in (days, spent))
    # From (0, 1) to (1, 0); the distance to that line grows with what is missing to 1.
    below = 1.0 - x - y
    place = int(np.argmax(below))
    return place if below[place] > 0.0 else None


def _scaled(values: Floats) -> Floats:
    low, high = float(values.min()), float(values.max())
    return np.asarray((values - low) / (high - low))


def _grouped(ordered: list[Choice], objective: str, *, by_size: bool = False) -> list[Choice]:
    """Give choices of one standing the number of the group that noise keeps them in."""
    widest = max((choice.band for choice in ordered), key=lambda band: band.relative or 0.0)
    apart = (ratio_band(None, widest, widest).high_68 or 1.0) - 1.0

    def noise(fields: Collection[str]) -> float:
        return apart if "cluster.device" in fields else pair_noise(fields)

    group_of: dict[int, int] = {}
    standings = [(each.status, each.fits, each.gpus if by_size else 0) for each in ordered]
    last = 0
    for standing in dict.fromkeys(standings):
        members = [
            each for each, other in zip(ordered, standings, strict=True) if other == standing
        ]
        rising = sorted(members, key=lambda each: value_of(each, objective))
        values = np.array([value_of(each, objective) for each in rising], np.float64)
        groups = noise_groups(values, [_settings(each) for each in rising], noise)
        group_of |= {
            id(each): last + int(group) for each, group in zip(rising, groups, strict=True)
        }
        last += int(groups.max())
    # Groups are numbered as they come.
    numbers = {
        group: place + 1
        for place, group in enumerate(dict.fromkeys(group_of[id(each)] for each in ordered))
    }
    return [replace(each, group=numbers[group_of[id(each)]]) for each in ordered]


def _settings(choice: Choice) -> dict[str, object]:
    layout = {
        key: value
        for key, value in choice.overrides.items()
        if key.startswith(("parallelism.", "training."))
    }
    return {**layout, "cluster.nodes": choice.job.cluster.nodes, "cluster.device": choice.label}


def _explained(question: Question, ordered: list[Choice], objective: str) -> list[Choice]:
    first = ordered[0]
    return [
        replace(each, remark=_remark(question, each, first, objective, is_first=place == 0))
        for place, each in enumerate(ordered)
    ]


_NAMES = {COST: "cost", GPU_HOURS: "GPU-hours", DAYS: "days"}


def _remark(
    question: Question, choice: Choice, first: Choice, objective: str, *, is_first: bool
) -> str:
    run, parts = choice.run, []
    if question.deadline_days is not None:
        if run.days > question.deadline_days:
            parts.append(f"{days_number(run.days - question.deadline_days)} days late")
        elif run.days_high > question.deadline_days:
            late = days_number(run.days_high - question.deadline_days)
            parts.append(f"may be {late} days late")
    if question.budget_usd is not None and run.cost_usd is not None:
        high = run.of_high(run.cost_usd)
        if run.cost_usd > question.budget_usd:
            parts.append(f"{_percent(run.cost_usd / question.budget_usd - 1.0)} over the budget")
        elif high > question.budget_usd:
            parts.append(f"may be {_percent(high / question.budget_usd - 1.0)} over the budget")
    if not choice.fits:
        parts.append("memory at risk")
    if is_first:
        return "; ".join(["first", *parts]) if parts else "first"
    if not parts or choice.status == first.status == MISSES:
        more = value_of(choice, objective) / value_of(first, objective) - 1.0
        days = choice.run.days / first.run.days - 1.0
        parts.append(f"{_NAMES[objective]} {_signed(more)}")
        if objective != DAYS:
            parts.append(f"days {_signed(days)}")
    if choice.group == first.group and choice.status != MISSES:
        parts.append("within noise of the first")
    if choice.is_knee:
        parts.append("the knee")
    return "; ".join(parts)


def _signed(share: float) -> str:
    return f"{100.0 * share:+.0f} %"


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"
