"""What the assumptions that decide are worth: the first choice, with one of them moved."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from projector.config.run import run_default
from projector.planning.choice import Choice
from projector.planning.ranking import spend_of, value_of
from projector.planning.survey import Surveyor, changed

MOVED = {
    "run.failures.gpu_mtbf_hours": ("MTBF of a GPU, hours", 0.5),
    "run.failures.node_mtbf_hours": ("MTBF of a node, hours", 0.5),
    "run.checkpoint.write_gb_per_s_per_node": ("checkpoints, GB/s a node", 0.5),
    "run.stragglers.slowdown": ("slowdown by stragglers", 2.0),
}
"""Fields of a run that a plan assumes: what they are called, and by which factor one is moved."""

DEARER, LEAST = 0.1, 0.005
"""By which share a price is moved; share of days and money below which nothing is decided."""


@dataclass(frozen=True, slots=True)
class Worth:
    """One assumption moved, and how days and money of the first choice change with it."""

    name: str
    value: str
    """What is assumed."""
    moved: str
    days: float
    """Share of the days that are added."""
    spend: float
    """The same of money, or of GPU-hours where a price is missing."""


def worths(surveyor: Surveyor, ranked: Sequence[Choice]) -> tuple[Worth, ...]:
    """Return the assumptions that change the first choice, the largest change first."""
    found = _moved(surveyor, ranked[0], spend_of(ranked)) if ranked else ()
    sized = [(max(abs(each.days), abs(each.spend)), each) for each in found]
    sized.sort(key=lambda entry: -entry[0])
    return tuple(each for size, each in sized if size >= LEAST)


def _moved(surveyor: Surveyor, first: Choice, spend: str) -> Iterator[Worth]:
    question, run = surveyor.question, first.run

    def worth(name: str, value: float, moved: float, other: Choice | None) -> Iterator[Worth]:
        if other is not None:
            days, more = other.run.days / run.days, value_of(other, spend) / value_of(first, spend)
            yield Worth(name, f"{value:,g}", f"{moved:,g}", days - 1.0, more - 1.0)

    if run.has_band:
        more = run.days_high / run.days - 1.0
        yield Worth("step time", "middle of its band", "upper end", more, more)
    kind = next(each for each in question.kinds if each.label == first.label)
    for batch in {question.batches[0], question.batches[-1]} - {first.batch}:
        site = surveyor.with_batch(kind, first.job.cluster.nodes, batch)
        yield from worth("global batch", first.batch, batch, site.best)
    if run.cost_usd is not None:
        price = run.cost_usd / run.gpu_hours
        dearer = f"{(1.0 + DEARER) * price:,.2f}"
        yield Worth("an hour of a GPU, USD", f"{price:,.2f}", dearer, 0.0, DEARER)
    for field, (name, factor) in MOVED.items():
        if any(text.startswith(f"{field} ") for text in run.assumptions):
            value = run_default(field.rpartition(".")[2])
            moved = factor * value
            yield from worth(name, value, moved, changed(question, first, {field: moved}))
