"""What a sweep found, in memory or on disk."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.arrays import Array, Flags, Floats, Ints
from projector.envelope import envelope
from projector.errors import ConfigError
from projector.frames import Frame
from projector.projection.bands import AT_RISK, DOES_NOT_FIT, FITS, VERDICTS
from projector.projection.results import BOOL, FLOAT, INT, SCALARS, TEXT
from projector.projection.run import RUN_SCALARS
from projector.sweeps import journal
from projector.sweeps.places import folder_of, readable
from projector.sweeps.points import SLO
from projector.sweeps.store import Part, Plan, Store, part_paths, stored_chunks
from projector.sweeps.table import arrow_column, arrow_types

if TYPE_CHECKING:
    import pyarrow as pa

MAX, MIN = "max", "min"

MORE_IS_BETTER = frozenset(
    [scalar.name for scalar in SCALARS if scalar.more_is_better]
    + [scalar.name for scalar in RUN_SCALARS if scalar.more_is_better]
    + ["tokens_per_s_per_user", "served_tokens_per_s_per_gpu", "max_batch", "replica_rate_per_s"]
    + [SLO]
)
"""Columns that `SweepResult.pareto` makes large where nothing else is said; others small."""

VERDICT_COLUMNS = ("fits", "verdict")
"""Columns that say how a row counts; see `standing`."""

TEXT_COLUMNS = VERDICT_COLUMNS[1:]
"""Those of them that are text."""

BEST_BY = "tokens_per_s_per_gpu"

LISTED = 5
"""Best rows that a sweep remembers, and a terminal lists."""

FEW = 64
"""Rows that are sooner cut out one by one."""

SAMPLE = 1024
"""Of more rows than twice as many, so many say first which can be no front."""

GOLDEN = (5.0**0.5 - 1.0) / 2.0
"""Fractions of its multiples lie everywhere between 0 and 1, however many there are."""

SHOWN = (
    "rows", "does_not_fit", "at_risk", "evaluated", "infeasible", "not_best", "rate_per_s",
    "seconds", "output",
)  # fmt: skip
"""Attributes of a result that ``--json`` prints under their names."""


@dataclass(repr=False)
class SweepResult(Frame):
    """The rows of a sweep, in the order of the space."""

    plan: Plan
    totals: journal.Totals
    seconds: float
    """From the first chunk to the last byte, of this call alone."""
    computed: int
    """Rows that this call computed; the others were there."""
    output: str | None = None
    """Folder of the rows; None where they are in memory."""
    warnings: tuple[str, ...] = ()
    parts: list[Part] = field(default_factory=list)
    """Finished chunks, where they are in memory."""
    leaders: list[dict[str, Any]] | None = None
    """`Part.leaders` of all chunks in order, where this call has computed them all."""
    allow_risk: bool = False
    """Whether `best`, `pareto` and pictures also rank rows at risk: their peak fits, but not the
    upper end of its band."""

    @property
    def rows(self) -> int:
        """Points that are jobs, whether they fit or not."""
        return self.totals.rows

    @property
    def evaluated(self) -> int:
        """Points that were looked at: rows and those left out."""
        return self.totals.points

    @property
    def not_best(self) -> int:
        """Jobs that were left out because another choice of ``best_of`` is better."""
        return self.totals.points - self.totals.rows - sum(self.totals.infeasible.values())

    @property
    def does_not_fit(self) -> int:
        """Rows whose projected peak does not fit."""
        return self.totals.rows - self.totals.fit

    @property
    def at_risk(self) -> int:
        """Rows whose projected peak fits, but not the upper end of its band."""
        return self.totals.at_risk

    @property
    def fit(self) -> int:
        """Rows that fit with the band of their memory."""
        return self.totals.fit - self.totals.at_risk

    @property
    def infeasible(self) -> dict[str, int]:
        """Reason -> points left out for it, the most frequent first."""
        counts = self.totals.infeasible
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @property
    def rate_per_s(self) -> float | None:
        """Rows computed in a second; None where this call computed none."""
        return self.computed / self.seconds if self.computed and self.seconds > 0.0 else None

    @property
    def ranking_columns(self) -> tuple[str, ...]:
        """Columns that say whether a row is ranked."""
        return (*VERDICT_COLUMNS, *([SLO] if SLO in self.plan.kinds else []))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.plan.kinds)

    def to_dict(self) -> dict[str, Any]:
        """Return exactly the object that ``projector sweep --json`` prints."""
        return envelope(self.warnings) | {name: getattr(self, name) for name in SHOWN}

    def to_arrow(self, columns: Sequence[str] | None = None) -> "pa.Table":
        """Return the rows as one Arrow table, all columns or some."""
        import pyarrow as pa

        names = self._names(columns)
        schema = self.plan.schema()
        wanted = pa.schema([schema.field(name) for name in names], schema.metadata)
        tables = [*self.tables(names)]
        # Optional where a part lacks values.
        wanted = pa.unify_schemas([wanted, *(table.schema for table in tables)])
        cast = [table.cast(wanted) for table in tables]
        return pa.concat_tables(cast) if cast else wanted.empty_table()

    def tables(
        self,
        columns: Sequence[str] | None = None,
        rows: Ints | None = None,
        *,
        coded: Sequence[str] = (),
    ) -> Iterator["pa.Table"]:
        """Yield the rows chunk by chunk; on disk only one of them is in memory.

        Given ``rows``, int64[wanted], which rise, these alone; chunks without them are not read.
        Texts of ``coded`` columns come as dictionaries, as they are stored.

        Raises:
            ConfigError: If the files have changed since the sweep.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = self._names(columns)
        begin = 0
        for name, source in self._files():
            table = None
            try:
                with pq.ParquetFile(
                    source, read_dictionary=coded, page_checksum_verification=True
                ) as part:
                    end = begin + part.metadata.num_rows
                    wanted = None if rows is None else rows_within(rows, begin, end)
                    if wanted is None or len(wanted):
                        table = part.read(columns=names).select(names)
            except (MemoryError, OSError, KeyError, pa.ArrowException) as error:
                if journal.is_of_memory(error):
                    raise journal.no_memory(name) from None
                if journal.is_of_the_system(error):
                    raise journal.not_read(name, error) from None
                raise _changed(name, f"it cannot be read ({error})") from None
            begin = end
            if table is not None:
                yield table if wanted is None else picked(table, wanted)
        if begin != self.rows:
            where = folder_of(self.output or "memory")
            raise _changed(where, f"it has {begin:,} rows, not {self.rows:,}")

    def _files(self) -> "Iterator[tuple[Path, Path | pa.BufferReader]]":
        import pyarrow as pa

        if self.output is not None:
            for path in part_paths(folder_of(self.output), self.plan):
                yield path, readable(path)
            return
        for part in self.parts:
            if part.content:
                yield Path(f"chunk {part.chunk}"), pa.BufferReader(part.content)

    def write(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the rows as a Parquet dataset, the same as a sweep to that place.

        Raises:
            ConfigError: If it cannot be written there.
        """
        target = folder_of(path)
        if self.output is not None and target.resolve() == folder_of(self.output).resolve():
            return
        store = Store(target, self.plan, overwrite=overwrite)
        try:
            todo = set(store.todo())
            for part in self._parts():
                if part.chunk in todo:
                    store.put(part)
        finally:
            store.close()

    def _parts(self) -> Iterator[Part]:
        if self.output is None:
            yield from self.parts
            return
        source = folder_of(self.output)
        for number, totals in stored_chunks(source):
            path = journal.part_path(source, number)
            try:
                content = path.read_bytes() if totals.rows else b""
            except FileNotFoundError:
                raise _changed(path, "it is missing") from None
            except OSError as error:
                raise journal.not_read(path, error) from None
            yield Part(number, content, totals)

    def is_ranked(self, table: "pa.Table") -> Flags:
        """Return which rows of a table with ``ranking_columns`` are ranked."""
        worst = AT_RISK if self.allow_risk else FITS
        ranked = np.asarray(standings(table) <= VERDICTS.index(worst))
        return ranked & (numbers(table, SLO) > 0.0) if SLO in self.plan.kinds else ranked

    def best(self, count: int, by: str = BEST_BY) -> list[dict[str, Any]]:
        """Return the ranked rows (fitting, or with ``allow_risk``) with the largest ``by``."""
        self._check_number(by)
        if self.leaders is not None and by == BEST_BY and count <= LISTED and not self.allow_risk:
            ranked = sorted(self.leaders, key=lambda row: -row[by])
            return [{**row} for row in ranked[:count]]
        values, rows = np.zeros(0), np.zeros(0, np.int64)
        begin = 0
        for table in self.tables([by, *self.ranking_columns], coded=TEXT_COLUMNS):
            found = numbers(table, by)
            better = ~np.isnan(found) if len(values) < max(1, count) else found > values[-1]
            chosen = np.flatnonzero(better & self.is_ranked(table) if better.any() else better)
            values = np.concatenate([values, found[chosen]])
            rows = np.concatenate([rows, begin + chosen])
            order = np.argsort(-values, kind="stable")[:count]
            values, rows = values[order], rows[order]
            begin += len(table)
        best: list[dict[str, Any]] = self._take(rows).to_pylist()
        return best

    def pareto(
        self,
        objectives: Sequence[str] | Mapping[str, str] = (BEST_BY, "peak_gib"),
        *,
        fits: bool = True,
    ) -> "pa.Table":
        """Return the rows that no other beats: none is as good in all objectives and better in one.

        Args:
            objectives (sequence of str, or mapping): Columns of numbers, or column -> ``max`` or
                ``min``. Without a direction rates and utilisations are made large, everything else
                small.
            fits (bool): Whether only ranked rows take part, as in `best`.

        Returns:
            pyarrow.Table: the best by the first objective first, then by the next; equal rows as in
                the space.
        """
        import pyarrow as pa

        directions, types = self._directions(objectives), arrow_types()
        values, rows, begin = np.zeros((len(directions), 0)), np.zeros(0, np.int64), 0
        for table in self.tables([*directions, *self.ranking_columns], coded=TEXT_COLUMNS):
            signed = np.stack([numbers(table, name) * sign for name, sign in directions.items()])
            takes_part = ~np.isnan(signed).any(axis=0)
            if fits:
                takes_part &= self.is_ranked(table)
            own = np.flatnonzero(takes_part)
            # The front of a front and what follows is the front of both, and stays small.
            own = own[_unbeaten(signed[:, own], values)]
            own = own[_front(signed[:, own])]
            kept = _unbeaten(values, signed[:, own])
            values = np.concatenate([values[:, kept], signed[:, own]], axis=1)
            rows = np.concatenate([rows[kept], begin + own])
            begin += len(table)
        front = self._take(rows[np.lexsort(values[::-1])])
        fields = [each.with_type(types[self.plan.kinds[each.name]]) for each in front.schema]
        return front.cast(pa.schema(fields, front.schema.metadata))

    def __repr__(self) -> str:
        where = f" in {self.output}" if self.output else ""
        left_out = sum(self.totals.infeasible.values())
        return (
            f"SweepResult({self.rows:,} rows{where}, {self.does_not_fit:,} do not fit, "
            f"{self.at_risk:,} are at risk, "
            f"{left_out:,} points left out)"
        )

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        if columns is None:
            return list(self.plan.kinds)
        for name in columns:
            self._check_column(name)
        return list(dict.fromkeys(columns))

    def _check_column(self, name: str) -> None:
        if name not in self.plan.kinds:
            known = ", ".join(self.plan.kinds)
            msg = f"there is no column {name!r}; there are {known}"
            raise ConfigError(msg, key="columns", value=name, allowed=list(self.plan.kinds))

    def _check_number(self, name: str) -> None:
        self._check_column(name)
        if self.plan.kinds[name] not in {INT, FLOAT, BOOL}:
            msg = f"{name} holds no numbers"
            raise ConfigError(msg, key="objectives", value=name, allowed="columns of numbers")

    def _directions(self, objectives: Sequence[str] | Mapping[str, str]) -> dict[str, float]:
        if isinstance(objectives, str):
            objectives = (objectives,)
        if not isinstance(objectives, Mapping):
            objectives = {name: MAX if name in MORE_IS_BETTER else MIN for name in objectives}
        if not objectives:
            msg = "objectives: name at least one column"
            raise ConfigError(msg, key="objectives", value=[], allowed="columns of numbers")
        for name, direction in objectives.items():
            self._check_number(name)
            if direction not in {MAX, MIN}:
                msg = f"objectives: {name} must be {MAX} or {MIN}, not {direction!r}"
                raise ConfigError(msg, key="objectives", value=direction, allowed=[MAX, MIN])
        return {name: -1.0 if direction == MAX else 1.0 for name, direction in objectives.items()}

    def _take(self, rows: Ints) -> "pa.Table":
        """Return some rows in the given order, texts as dictionaries; a chunk is read at a time."""
        import pyarrow as pa

        if not len(rows):
            return self.plan.schema().empty_table()
        order = np.argsort(rows, kind="stable")
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        texts = [name for name, kind in self.plan.kinds.items() if kind == TEXT]
        tables = self.tables(None, rows[order], coded=texts)
        # Optional where a part lacks values.
        return picked(pa.concat_tables(tables, promote_options="default"), position)


def picked(table: "pa.Table", rows: Ints) -> "pa.Table":
    """Return some rows of a table; what takes many of them loads ``pyarrow.compute``, 0.06 s."""
    import pyarrow as pa

    if not 0 < len(rows) <= FEW:
        return table.take(arrow_column(rows))
    slices = [table.slice(row, 1) for row in rows.tolist()]
    # Copied, as a slice alone keeps the whole table in memory; one chunk would not be copied.
    return pa.concat_tables([table.slice(0, 0), *slices]).combine_chunks()


def rows_within(rows: Ints, begin: int, end: int) -> Ints:
    """Return which of the rows from ``begin`` to before ``end`` some rising rows are."""
    return rows[slice(*np.searchsorted(rows, [begin, end]))] - begin


def standing(row: Mapping[str, Any]) -> str:
    """Return the verdict of a row; it is at risk only if its projected peak fits."""
    return row["verdict"] if row["fits"] else DOES_NOT_FIT


def standings(table: "pa.Table") -> Ints:
    """Return `standing` of each row of a table with `VERDICT_COLUMNS`, as places in `VERDICTS`."""
    (verdict, texts), fits = codes(table, "verdict"), numbers(table, "fits") > 0.0
    doubtful = np.array([text != FITS for text in texts], np.int64)
    return (~fits).astype(np.int64) + doubtful[verdict]


def _changed(path: Path, why: str) -> ConfigError:
    msg = (
        f"{path} has changed since it was swept: {why}; the same sweep with --verify computes "
        "parts that are damaged again, and keeps the others"
    )
    return ConfigError(msg, key="out", value=str(path), allowed="the files of a sweep")


def numbers(table: "pa.Table", name: str) -> Floats:
    """Return a column of numbers, NaN where it is missing."""
    import pyarrow as pa

    def read(chunk: "pa.Array") -> Array:
        # Arrow's own way loads pandas, where there is one, and a cast `pyarrow.compute`.
        if chunk.null_count:
            return np.asarray(chunk.cast(pa.float64()))
        if chunk.type != pa.bool_():
            return np.from_dlpack(chunk)
        bits = np.unpackbits(np.frombuffer(chunk.buffers()[1], np.uint8), bitorder="little")
        return bits[chunk.offset : chunk.offset + len(chunk)]

    return np.concatenate([np.zeros(0), *map(read, table.column(name).chunks)])


def codes(table: "pa.Table", name: str) -> tuple[Ints, list[Any]]:
    """Return a column as positions in a list of its distinct values; None is one of them."""
    import pyarrow as pa

    column = table.column(name).combine_chunks()
    if column.null_count and pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode("encode")
    return np.from_dlpack(column.indices).astype(np.int64), column.dictionary.to_pylist()


def _front(values: Floats) -> Ints:
    """Return which of ``values``, float64[objectives, rows], no other beats; they rise."""
    rows = np.arange(values.shape[1])
    if len(rows) > 2 * SAMPLE:
        few = values[:, :: len(rows) // SAMPLE]
        rows = _unbeaten(values, few[:, _front(few)])
    distinct, number = _distinct(values[:, rows])
    is_front = np.zeros(distinct.shape[1], np.bool_)
    left, rest = np.arange(len(is_front)), distinct[1:]
    while len(left):
        # Nothing beats what is lexically the first; it beats what is nowhere better.
        is_front[left[0]] = True
        better = np.flatnonzero((rest < rest[:, :1]).any(axis=0))
        left, rest = left[better], rest[:, better]
    return rows[is_front[number]]


def _unbeaten(values: Floats, others: Floats) -> Ints:
    """Return which of ``values``, float64[objectives, rows], none of some others beats."""
    rows, others = np.arange(values.shape[1]), _distinct(others)[0].T
    # Neighbours on a front beat much the same: from everywhere first, few are left for most.
    for other in others[np.argsort(np.arange(len(others)) * GOLDEN % 1.0), :, None]:
        no_better = np.flatnonzero(np.logical_and.reduce(other <= values, axis=0))
        beaten = no_better[(other < values[:, no_better]).any(axis=0)]
        if len(beaten):
            kept = np.ones(len(rows), np.bool_)
            kept[beaten] = False
            rows, values = rows[kept], values[:, kept]
    return rows


def _distinct(values: Floats) -> tuple[Floats, Ints]:
    """Return the distinct of ``values``, in lexical order, and which of them each row has."""
    order = np.lexsort(values[::-1])
    ordered = values[:, order]
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(is_new) - 1
    return ordered[:, is_new], number
