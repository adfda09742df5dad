"""Points of a space become rows: the numbers of a projection, or the reason why there is none."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.config.space import OtherSpace, Space
from projector.errors import ProjectorError
from projector.kernels.grouping import best_of_groups
from projector.projection.bands import FITS
from projector.sweeps.jobs import JobPoints
from projector.sweeps.journal import Totals
from projector.sweeps.points import Points
from projector.sweeps.result import BEST_BY, LISTED, SweepResult, numbers, picked
from projector.sweeps.store import Part, Plan, encode, write_draft
from projector.sweeps.table import (
    Tables,
    arrow_column,
    column_kinds,
    count_text,
    results_of,
    sample,
)

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_REASON = 200

LEARNED = 32
"""One in so many points of a chunk's number teaches what most chunks need, in an eighth of its
time."""


@dataclass(slots=True)
class Batch:
    """Rows of some points of a space, in order."""

    points: int
    table: "pa.Table"
    infeasible: dict[str, int] = field(default_factory=dict)
    """Reason -> points left out for it."""

    @property
    def rows(self) -> int:
        """Points that are jobs."""
        return len(self.table)

    @property
    def fit(self) -> int:
        """Rows whose projected peak fits."""
        return sum(chunk.true_count for chunk in self.table.column("fits").chunks)

    @property
    def at_risk(self) -> int:
        """Rows whose projected peak fits, but not the upper end of its band."""
        return self.fit - count_text(self.table.column("verdict"), FITS)


class Projector:
    """Projects points of one space; what one chunk has taught serves the next."""

    def __init__(self, space: Space, axes: Mapping[str, str]) -> None:
        """Begin with nothing known; ``axes`` are those of `axis_kinds`."""
        self._points: Points = space.points() if isinstance(space, OtherSpace) else JobPoints(space)
        self._choices = space.choices
        self._tables = Tables(column_kinds(axes, results_of(space)))

    def project(self, points: Ints, *, best: bool = True) -> Batch:
        """Project some points, int64[points]; what can be no job is counted by reason.

        Unless ``best`` is false, of the choices of a point only the best is a row; points rise.
        """
        import pyarrow as pa

        batch = self._points.reader.read(points)
        reasons: dict[str, int] = {}

        def refuse(error: ProjectorError, count: int) -> None:
            _count(reasons, reason_of(error), count)

        for why, count in batch.left_out:
            _count(reasons, why if isinstance(why, str) else reason_of(why), count)
        tables, merits = [], list[Merits]()
        group = points[batch.rows] // self._choices if best and self._choices > 1 else None
        found = self._points.evaluated(batch, refuse, group) if len(batch.rows) else ()
        for rows, results in found:
            if group is not None:
                all_merits = Merits(group[rows], *results.merits())
                kept = all_merits.best()
                merits.append(all_merits.take(kept))
                rows, results = rows[kept], results.take(kept)  # noqa: PLW2901  # those kept
            tables.append(self._tables.table(batch.columns, rows, results.columns()))
        whole = pa.concat_tables(tables or [pa.Table.from_batches([], self._tables.schema)])
        if len(merits) > 1:
            # What was evaluated apart has a best row each.
            joined = Merits(*map(np.concatenate, zip(*merits, strict=True)))
            whole = whole.take(arrow_column(joined.best()))
        return Batch(len(points), whole, dict(sorted(reasons.items())))


class Merits(NamedTuple):
    """What of rows decides which of a group is the best."""

    group: Ints
    fits: Flags
    safe: Flags
    """Fits with the band of its memory."""
    rate: Floats
    """Tokens per second and device."""
    peak: Floats

    def take(self, rows: Ints) -> "Merits":
        """Return those of some rows."""
        columns: tuple[Any, ...] = self
        return Merits(*(column[rows] for column in columns))

    def best(self) -> Ints:
        """Return the best row of each group, in the order of the groups, which may be mixed.

        What fits with the band of its memory goes before what is at risk, and that before what does
        not fit. Of rows that fit or are at risk the fastest by tokens per second and device is the
        best, of others the one that needs least memory; then what leaves more memory, then the
        first.
        """
        if (np.diff(self.group) < 0).any():
            order = np.argsort(self.group, kind="stable")
            return order[self.take(order).best()]
        best = np.empty(len(self.group), np.int64)
        return best[: best_of_groups(*self, best)]


class Sweeper:
    """Projects the chunks of one sweep."""

    def __init__(
        self, space: Space, axes: Mapping[str, str], chunk_points: int, drafts: Path | None = None
    ) -> None:
        """Begin with nothing known; rows go to ``drafts``, of a `Store`, or parts carry them."""
        self.drafts, self._space = drafts, space
        self._plan = Plan.of(space, column_kinds(axes, results_of(space)), chunk_points)
        self.chunks = self._plan.chunks
        self._projector = Projector(space, axes)
        self._schema = self._plan.schema()
        self._is_ranked = SweepResult(self._plan, Totals(), 0.0, 0).is_ranked
        self._least = -np.inf

    def learn(self) -> None:
        """Project a few points from everywhere and keep nothing but what they teach."""
        count = -(-self._plan.chunk_points // LEARNED)
        self._projector.project(np.sort(sample(self._space, count)), best=False)

    def part(self, chunk: int) -> Part:
        """Project one chunk."""
        points = self._plan.chunk(chunk)
        batch = self._projector.project(np.arange(points.start, points.stop))
        totals = Totals(batch.points, batch.rows, batch.fit, batch.infeasible, batch.at_risk)
        leaders = self._leaders(batch.table) if batch.rows else []
        content = encode(batch.table, self._schema)
        if self.drafts is None or not content:
            return Part(chunk, bytes(content), totals, leaders=leaders)
        return Part(chunk, b"", totals, write_draft(self.drafts, chunk, content), leaders)

    def _leaders(self, table: "pa.Table") -> list[dict[str, Any]]:
        rate = np.where(self._is_ranked(table), numbers(table, BEST_BY), np.nan)
        rows = np.flatnonzero(rate >= self._least)
        rows = rows[np.argsort(-rate[rows], kind="stable")[:LISTED]]
        if len(rows) == LISTED:
            # So many are no worse. Rows of later chunks may be of earlier ones elsewhere.
            self._least = max(self._least, rate[rows[-1]])
        led: list[dict[str, Any]] = picked(table, rows).to_pylist() if len(rows) else []
        return led


def reason_of(error: ProjectorError) -> str:
    """Say why a point is no legal job, without numbers and way out: alike for all like it."""
    text = error.message.split("; ", maxsplit=1)[0]
    if error.key and not text.startswith(error.key):
        text = f"{error.key}: {text}"
    text = _LIST.sub("N, ...", _NUMBER.sub("N", " ".join(text.split())))
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 3]}..."


_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w)")
_LIST = re.compile(r"\bN(?:, N)+\b")


def _count(reasons: dict[str, int], reason: str, count: int) -> None:
    reasons[reason] = reasons.get(reason, 0) + count
