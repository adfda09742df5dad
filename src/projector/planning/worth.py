"""What the assumptions that decide are worth: the first choice, with one of them moved."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from projector.config.run import run_default
from projector.planning.choice import Choice, RunFigures
from projector.planning.ranking import spend_of, value_of
from projector.planning.survey import Surveyor

MOVED = {
    "run.failures.gpu_mtbf_hours": ("MTBF of a GPU, hours", 0.5),
    "run.failures.node_mtbf_hours": ("MTBF of a node, hours", 0.5),
    "run.checkpoint.write_gb_per_s_per_node": ("checkpoints, GB/s a node", 0.5),
    "run.stragglers.slowdown": ("slowdown by stragglers", 2.0),
}
"""Fields of a run that a plan assumes: what they are called, and by which factor one is moved."""

DEARER = 0.1
"""By which share a price is moved."""

LEAST = 0.005
"""Share of days and money below which nothing is decided."""


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
    if not ranked:
        return ()
    found = _moved(surveyor, ranked[0], spend_of(ranked))
    deciding = [each for each in found if max(abs(each.days), abs(each.spend)) >= LEAST]
    return tuple(sorted(deciding, key=lambda each: -max(abs(each.days), abs(each.spend))))


def _moved(surveyor: Surveyor, first: Choice, spend: str) -> Iterator[Worth]:
    question, run = surveyor.question, first.run
    spent = value_of(first, spend)

    def worth(name: str, value: str, moved: str, other: RunFigures) -> Worth:
        more = getattr(other, spend) / spent - 1.0
        return Worth(name, value, moved, other.days / run.days - 1.0, more)

    if run.has_band:
        more = run.days_high / run.days - 1.0
        yield Worth("step time", "middle of its band", "upper end", more, more)
    least, most = question.batches[0], question.batches[-1]
    for batch in {least, most} - {first.batch}:
        kind = next(each for each in question.kinds if each.label == first.label)
        site = surveyor.with_batch(kind, first.job.cluster.nodes, batch)
        if site.best is not None:
            yield worth("global batch", f"{first.batch:,}", f"{batch:,}", site.best.run)
    if run.cost_usd is not None:
        price = run.cost_usd / run.gpu_hours
        moved = f"{(1.0 + DEARER) * price:,.2f}"
        yield Worth("an hour of a GPU, USD", f"{price:,.2f}", moved, 0.0, DEARER)
    for field, (name, factor) in MOVED.items():
        if any(text.startswith(f"{field} ") for text in run.assumptions):
            value = run_default(field.rpartition(".")[2])
            job = question.model.load(first.job, {field: factor * value})
            yield worth(name, f"{value:,g}", f"{factor * value:,g}", question.model.run(job))
