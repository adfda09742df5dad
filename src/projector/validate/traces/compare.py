"""A run beside the models: every operation projected and measured, and why they differ."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from projector.arrays import Flags, Ints
from projector.config.job import Job
from projector.config.model import refuse_diffusion
from projector.errors import ConfigError
from projector.operations.table import CATEGORIES
from projector.projection.comparison import Pair, shape_of
from projector.projection.terms import BREAKDOWN
from projector.trace import activity
from projector.trace.analysis import TraceAnalysis
from projector.trace.groups import Groups, group
from projector.trace.intervals import Intervals, difference, union
from projector.trace.select import take
from projector.trace.work import Works, works_of
from projector.units import MEGA, PICOSECOND
from projector.validate.traces import result as results
from projector.validate.traces.expected import Expected, ExpectedRow, Name, expect
from projector.validate.traces.matching import WAYS, Matching, match
from projector.validate.traces.sides import Sums, counted_kernels, known, sums_of

OWN = "projector"
"""Format of a trace that is the timeline of a projection."""


class Compared:
    """Selected ranks and iterations of a run, matched with the models rank by rank."""

    def __init__(self, analysis: TraceAnalysis, job: Job) -> None:
        refuse_diffusion(job.model, "its operations are not known in traces")
        activities = whole_steps(analysis.in_time)
        self.analysis = analysis
        own = [rank.format == OWN for rank in analysis.trace.ranks]
        if own and all(own):
            # A device of our own timeline is a rank of the pipeline.
            activities = replace(activities, rank=activities.device)
            stages = activities.device
        else:
            # The pipeline rank of each rank; pipelines are the outermost degree.
            gpus = max(job.cluster.nodes * job.cluster.gpus_per_node, 1)
            pp = job.parallelism.pp
            stages = np.minimum(activities.rank * pp // gpus, pp - 1)
        # The pipeline rank that ends the step, or where some are not there the last of the others.
        present = np.unique(stages).tolist()
        last = None if len(present) == job.parallelism.pp else int(present[-1])
        self.expected = expect(job, last)
        others = f"ranks of pipeline stage {self.expected.rank} are compared; choose those of "
        self.warnings = [] if len(present) == 1 else [f"{others}another with --ranks"]
        self.activities = take(activities, stages == self.expected.rank)
        self.works = works_of(self.activities)
        self.ranks = tuple(np.unique(self.activities.rank).tolist())
        self.steps = sum(len(np.unique(part.iteration)) for _, part in self._by_rank())
        of = np.full(len(self.activities), -1, np.int64)
        way = np.zeros(len(self.activities), np.int64)
        found: Matching | None = None
        for rows, part in self._by_rank():
            all_ = self.works
            works = Works(all_.works, all_.of[rows], all_.main[rows], all_.part[rows])
            found = match(part, works, self.expected, len(np.unique(part.iteration)))
            of[rows], way[rows] = found.of, found.way
        assert found is not None
        self.matching = replace(found, of=of, way=way)

    def _by_rank(self) -> Iterator[tuple[Flags, activity.Activities]]:
        for rank in self.ranks:
            rows = self.activities.rank == rank
            yield rows, take(self.activities, rows)

    def result(self) -> results.TraceComparison:
        """Return the comparison."""
        model = self.expected.job.model.name
        return results.TraceComparison(
            title=f"{model}: a run beside its projection",
            names=results.Names(),
            operations=tuple(sorted(self._operations(), key=lambda each: -abs(each.difference_s))),
            only_first=tuple(sorted(self._not_measured(), key=lambda each: -each.time_s)),
            only_second=unmatched(self.activities, self.matching.of < 0, self.steps),
            step=paired(self._step(), self.expected),
            iterations=len(np.unique(self.activities.iteration)),
            ranks=self.ranks,
            tokens=self.matching.tokens,
            warnings=(*self._on_host(), *self.analysis.warnings, *self.warnings, *self._doubts()),
        )

    def _on_host(self) -> Iterator[str]:
        """Say first where the run had no device and the job has one."""
        device = self.expected.job.cluster.device
        if self.analysis.everything.on_host and device.vendor != "other":
            yield (
                f"the trace is of a run on a CPU, and the job is projected for {device.name}: "
                "ratios compare these two machines"
            )

    def _step(self) -> dict[str, float]:
        total: dict[str, float] = defaultdict(float)
        for rows, part in self._by_rank():
            own = replace(self.matching, of=self.matching.of[rows], way=self.matching.way[rows])
            steps = len(np.unique(part.iteration))
            terms = _terms(part, own, self.expected)
            for name, seconds in added_terms(part, terms, steps).items():
                total[name] += seconds / len(self.ranks)
        return dict(total)

    def _operations(self) -> Iterator[results.Difference]:
        matching, rows = self.matching, _rows_by_name(self.expected)
        causal = any(
            row.key.causal
            for row in self.expected.rows
            if row.kind == "attention" and row.key is not None
        )
        device = self.expected.job.cluster.device
        counted, _ = counted_kernels(self.analysis, self.activities, device)
        sums = sums_of(
            self.activities, self.works, matching.of, len(matching.names), self.steps,
            self.analysis.trace.samples, causal=causal, counted=counted,
        )  # fmt: skip
        present = np.bincount(matching.of[matching.of >= 0], minlength=len(matching.names)) > 0
        for number in np.flatnonzero(present).tolist():
            if sums.time_s[number] > 0.0:
                name = matching.names[number]
                yield self._difference(number, name, rows[name], sums)

    def _difference(
        self, number: int, name: Name, rows: Sequence[ExpectedRow], sums: Sums
    ) -> results.Difference:
        matching, kind = self.matching, rows[0].kind
        projected_s = sum(row.runs * row.time_s for row in rows)
        first, second = _sides(rows, projected_s, number, sums, matching, self._peak(rows[0]))
        ways = Counter(matching.way[matching.of == number].tolist())
        key = rows[0].key
        return results.Difference(
            operation=name.label,
            phase=name.phase,
            kind=kind,
            pair=Pair(float(sums.time_s[number]), projected_s),
            low_s=float(sums.low_s[number]),
            high_s=float(sums.high_s[number]),
            runs=sums.runs(number),
            expected_runs=sum(row.runs * (row.launches if key else 1.0) for row in rows),
            factors=results.explain(first, second),
            matched_by={WAYS[way]: count for way, count in ways.most_common()},
            shape=shape_of(key) if key is not None else "",
        )

    def _peak(self, row: ExpectedRow) -> float:
        """Return the peak FLOP/s of a row's matrix type at the clock that the models assume."""
        if row.key is None or not row.key.dtype:
            return 0.0
        peak_hz = self.expected.job.cluster.device.peak_clock_mhz * MEGA
        return self.expected.peak_flop_per_s[row.key.dtype] * row.clock_hz / peak_hz

    def _not_measured(self) -> Iterator[results.Unmatched]:
        found = set(np.unique(self.matching.of).tolist())
        rows = _rows_by_name(self.expected)
        for number, name in enumerate(self.matching.names):
            if number not in found:
                own = rows[name]
                yield results.Unmatched(
                    operation=name.label,
                    phase=name.phase,
                    kind=own[0].kind,
                    time_s=sum(row.runs * row.time_s for row in own),
                    runs=sum(row.runs for row in own),
                )

    def _doubts(self) -> Iterator[str]:
        if not self.works.works:
            yield (
                "the trace has no extents of operators: record it with record_shapes=True, so that "
                "matrix products can be told apart"
            )
        if self.matching.tokens != 1.0:
            yield (
                f"a micro-batch of the run has {self.matching.tokens:g} times the tokens of the "
                "job's: check its micro-batch and sequence length"
            )
        recomputes = any(name.phase == "recompute" for name in self.expected.names)
        if not recomputes and self.activities.recompute.any():
            yield "the run recomputes activations in the backward, and the job does not say so"


def whole_steps(activities: activity.Activities) -> activity.Activities:
    """Return the activities of annotated iterations, all of them where nothing is annotated."""
    if not len(activities):
        msg = "trace: it has no kernels, copies or operators to compare"
        raise ConfigError(msg, key="trace", allowed="a trace of a run")
    inside: Flags = np.asarray(activities.iteration >= 0)
    return take(activities, inside) if inside.any() else activities


def _rows_by_name(expected: Expected) -> Mapping[Name, list[ExpectedRow]]:
    rows: dict[Name, list[ExpectedRow]] = defaultdict(list)
    for row in expected.rows:
        rows[row.name].append(row)
    return rows


def _sides(
    rows: Sequence[ExpectedRow], projected_s: float, number: int, sums: Sums, matching: Matching,
    peak_flop_per_s: float,
) -> tuple[results.Side, results.Side]:  # fmt: skip
    name, kind = rows[0].name, rows[0].kind
    runs = sum(row.runs for row in rows)
    measured = sums.side(number)
    if kind in ("gemm", "attention") and measured.work:
        flop = sum(row.runs * row.flop for row in rows)
        projected = results.Side(
            time_s=projected_s,
            runs=runs * matching.parts.get(name, 1.0),
            work=flop,
            instruction=1.0,
            utilisation=known(flop / projected_s / peak_flop_per_s) if peak_flop_per_s else None,
            overlap=1.0,
            clock_hz=known(rows[0].clock_hz),
        )
        return projected, measured
    if kind == "collective":
        # How many buckets data parallelism makes is the framework's choice; the bytes are not.
        counted = None if rows[0].key is None else runs
        moved = sum(row.runs * row.bytes for row in rows)
        return results.Side(time_s=projected_s, runs=counted, work=moved, waiting=1.0), measured
    scale, tokens = matching.scale.get(name.phase), matching.tokens
    plain = results.Side(time_s=measured.time_s, overlap=measured.overlap)
    if scale is None:
        return results.Side(time_s=projected_s, overlap=1.0), plain
    return (
        results.Side(time_s=projected_s, runs=1.0, work=1.0, overlap=1.0),
        replace(plain, runs=scale, work=scale * tokens),
    )


class Key(NamedTuple):
    """What makes operations of two runs one."""

    operation: str
    """The name of the kernel where no operation is known."""
    phase: str
    kind: str


def by_operation(activities: activity.Activities, rows: Ints) -> tuple[Groups, list[Key]]:
    """Group activities that are one operation of one name, phase, type and recomputation."""
    operation = activities.operation[rows]
    # The name of the kernel, behind all operations, where none is known.
    names = len(activities.operations) + activities.name[rows]
    columns = (operation, activities.phase[rows], activities.type[rows],
               np.asarray(activities.recompute[rows], np.int64),
               np.where(operation >= 0, operation, names))  # fmt: skip
    same = group(*columns)
    texts = (*activities.operations, *activities.names)
    keys = [
        Key(texts[text], "recompute" if again else activity.PHASES[phase], activity.TYPES[kind])
        for _, phase, kind, again, text in zip(*(c.tolist() for c in same.keys), strict=True)
    ]
    return same, keys


def unmatched(
    activities: activity.Activities, rows: Flags, steps: int
) -> tuple[results.Unmatched, ...]:
    """Return what some activities add up to, by operation (or kernel), phase and type."""
    kept = np.flatnonzero(rows)
    same, keys = by_operation(activities, kept)
    duration_ps = activities.end_ps[kept] - activities.start_ps[kept]
    time_ps, counts = same.sums(duration_ps), same.sizes()
    # The longest activity of each names its kernel.
    longest = np.lexsort((duration_ps, same.of))
    kernels = activities.name[kept[longest[np.cumsum(counts) - 1]]]
    found = [
        results.Unmatched(
            **key._asdict(),
            time_s=float(time_ps[number]) * PICOSECOND / steps,
            runs=float(counts[number]) / steps,
            kernel=activities.names[int(kernels[number])],
        )
        for number, key in enumerate(keys)
    ]
    return tuple(sorted(found, key=lambda each: -each.time_s))


def compare_runs(first: TraceAnalysis, second: TraceAnalysis) -> results.TraceComparison:
    """Put two runs side by side, operation by operation, such as one job under FSDP 1 and 2."""
    runs = (_Run(first), _Run(second))
    both = [key for key in runs[0].keys if key in runs[1].place]
    operations = [_between(key, *runs) for key in both]
    return results.TraceComparison(
        title="two runs",
        names=results.Names("first", "second"),
        operations=tuple(sorted(operations, key=lambda each: -abs(each.difference_s))),
        only_first=runs[0].without(set(both)),
        only_second=runs[1].without(set(both)),
        step=in_pairs(runs[1].step(), runs[0].step()),
        iterations=min(run.iterations for run in runs),
        ranks=tuple(sorted({rank for run in runs for rank in run.ranks})),
        warnings=tuple(
            f"{name}: {text}"
            for name, analysis in (("first", first), ("second", second))
            for text in analysis.warnings
        ),
    )


class _Run:
    def __init__(self, analysis: TraceAnalysis) -> None:
        table = self.activities = whole_steps(analysis.in_time)
        self.ranks = np.unique(table.rank).tolist()
        self.iterations = len(np.unique(table.iteration))
        self.steps = sum(len(np.unique(table.iteration[table.rank == r])) for r in self.ranks)
        same, keys = by_operation(table, np.arange(len(table)))
        self.keys = list(dict.fromkeys(keys))
        self.place = {key: number for number, key in enumerate(self.keys)}
        self.of = np.array([self.place[key] for key in keys], np.int64)[same.of]
        works = works_of(table)
        self.sums = sums_of(
            table, works, self.of, len(self.keys), self.steps, analysis.trace.samples
        )

    def step(self) -> dict[str, float]:
        """Return the terms of the mean step, over the ranks."""
        total: dict[str, float] = defaultdict(float)
        for rank in self.ranks:
            part = take(self.activities, self.activities.rank == rank)
            # No job is needed: communication is one term.
            terms = (
                *_computing(part),
                (ALL_COMM, np.flatnonzero(part.klass == activity.COMMUNICATION)),
                (COPIES, np.flatnonzero(part.klass == activity.MEMCPY)),
            )
            for name, seconds in added_terms(part, terms, self.steps).items():
                total[name] += seconds
        return dict(total)

    def without(self, both: set[Key]) -> tuple[results.Unmatched, ...]:
        """Return what the other run does not have."""
        lone = [number for number, key in enumerate(self.keys) if key not in both]
        return unmatched(self.activities, np.isin(self.of, lone), self.steps)


def _between(key: Key, first: _Run, second: _Run) -> results.Difference:
    before, after = (run.sums.side(run.place[key]) for run in (first, second))
    number = second.place[key]
    timed = before.time_s > 0.0 and after.time_s > 0.0
    return results.Difference(
        **key._asdict(),
        pair=Pair(after.time_s, before.time_s),
        low_s=float(second.sums.low_s[number]),
        high_s=float(second.sums.high_s[number]),
        runs=after.runs or 0.0,
        expected_runs=before.runs or 0.0,
        factors=results.explain(before, after) if timed else (),
        matched_by={"name": int(np.count_nonzero(second.of == number))},
    )


IDLE, COPIES, OTHER_COMM, ALL_COMM = "idle", "copies", "other_comm", "communication"
"""Terms that a projection does not have: it knows why a device is idle."""

_IDLE_TERMS = ("pp_bubble", "launch", "stragglers")
_EXPOSED = (*CATEGORIES[3:], "pp_comm", "dp_comm", OTHER_COMM)


def added_terms(
    activities: activity.Activities, parts: Iterable[tuple[str, Ints]], iterations: int
) -> dict[str, float]:
    """Return the seconds of each term of a rank's mean step; they add up to its span.

    What computes counts once where several streams compute; of communication only what no compute
    hides, of copies what neither hides. The rest of the span is idle.
    """
    if not len(activities):
        return {}
    # The span begins with the first activity and ends with the last.
    span_ps = int(activities.end_ps.max() - activities.start_ps.min())
    terms, busy_ps = {}, 0
    covered = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))
    for name, rows in parts:
        own = union(activities.start_ps[rows], activities.end_ps[rows])
        length_ps = difference(own, covered).length_ps
        covered = union(
            np.concatenate([covered.start, own.start]), np.concatenate([covered.end, own.end])
        )
        busy_ps += length_ps
        terms[name] = length_ps * PICOSECOND / iterations
    terms[IDLE] = (span_ps - busy_ps) * PICOSECOND / iterations
    terms["total"] = span_ps * PICOSECOND / iterations
    return terms


def _terms(
    activities: activity.Activities, matching: Matching, expected: Expected
) -> Iterator[tuple[str, Ints]]:
    """Yield the activities of each term; those of an earlier one hide those of a later one."""
    category = {row.name: row.category for row in expected.rows}
    of_name = [category[name] for name in matching.names]
    yield from _computing(activities)
    communicates = activities.klass == activity.COMMUNICATION
    for term in _EXPOSED:
        names = [number for number, own in enumerate(of_name) if own == term]
        wanted = np.isin(matching.of, names) if term != OTHER_COMM else matching.of < 0
        yield term, np.flatnonzero(communicates & wanted)
    yield COPIES, np.flatnonzero(activities.klass == activity.MEMCPY)


def _computing(activities: activity.Activities) -> Iterator[tuple[str, Ints]]:
    computes = activities.klass == activity.COMPUTE
    update = activities.phase == activity.OPTIMIZER
    gemm, attention = activities.type == activity.GEMM, activities.type == activity.ATTENTION
    yield "compute_gemm", np.flatnonzero(computes & ~update & gemm)
    yield "compute_attention", np.flatnonzero(computes & ~update & attention)
    yield "compute_other", np.flatnonzero(computes & ~update & ~gemm & ~attention)
    yield "optimizer", np.flatnonzero(computes & update)


def paired(measured: Mapping[str, float], expected: Expected) -> dict[str, Pair]:
    """Return the terms of the measured step beside those of the projected one.

    Bubbles, launches and stragglers are all idle time to a device.
    """
    projected = {name: expected.performance.breakdown_s[name] for name in BREAKDOWN}
    projected[IDLE] = sum(projected.pop(name) for name in _IDLE_TERMS)
    projected["total"] = expected.performance.iteration_time_s
    return in_pairs(measured, projected)


def in_pairs(measured: Mapping[str, float], projected: Mapping[str, float]) -> dict[str, Pair]:
    """Return the terms that either side has, the total last."""
    names = dict.fromkeys((*projected, *measured))
    pairs = {name: Pair(measured.get(name, 0.0), projected.get(name, 0.0)) for name in names}
    total = pairs.pop("total")
    shown = {
        name: pair
        for name, pair in pairs.items()
        if pair.measured_s > 0.0 or pair.simulated_s > 0.0
    }
    return {**shown, "total": total}
