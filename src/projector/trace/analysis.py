"""A run as its trace shows it: what a user asks of `projector.load_trace`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.arrays import Flags
from projector.envelope import envelope, told
from projector.errors import ConfigError
from projector.frames import Frame, html_table, to_pandas
from projector.trace.activity import COMPUTE, Activities
from projector.trace.alignment import align
from projector.trace.counters import counters_of_details
from projector.trace.events import NONE, ON_DEVICE, RankTrace, Trace
from projector.trace.measures import iterations as per_iteration
from projector.trace.measures.breakdown import Part, breakdown
from projector.trace.measures.collectives import (
    communication_rows,
    rank_spreads,
    sharding_times,
    stragglers,
)
from projector.trace.measures.links import link_times
from projector.trace.measures.overlap import operation_overlaps
from projector.trace.measures.sampled import CPU_PERCENT, cpu_use, sampled
from projector.trace.measures.statistics import in_iterations, plain
from projector.trace.measures.times import KernelTimes, kernel_times
from projector.trace.parquet import activity_table, row_table, write_parquet
from projector.trace.rank import rank_ranges
from projector.trace.read import load_trace as read_trace
from projector.trace.select import Selection, chosen, take
from projector.trace.sources import BREAKS_OFF, COULD_BE_READ, CUT_OFF, LEFT_OUT
from projector.trace.work import Works, works_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TOGETHER = {"operation": ("operation", "phase", "type", "recompute"), "layer": ("layer", "phase")}
"""What a granularity by itself is broken down by further."""


@dataclass(frozen=True, repr=False)
class TraceResult(Frame):
    """What was found: `to_dict` is exactly what ``--json`` prints."""

    title: str
    found: Mapping[str, Any]
    rows_key: str
    """Key of the list in ``found`` that is the result's table."""

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The rows of the table."""
        return list(self.found[self.rows_key])

    @property
    def warnings(self) -> list[str]:
        """What to keep in mind when reading it."""
        return list(self.found["warnings"])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as ``--json`` prints them."""
        return dict(self.found)

    def tables(self) -> "Iterator[pa.Table]":
        """Yield the rows as one table of Arrow."""
        yield row_table(self.rows)

    def write_parquet(self, path: str | Path) -> None:
        """Write the rows as a file of Parquet."""
        write_parquet(self.to_arrow(), path)

    def __repr__(self) -> str:
        return f"<{self.title}: {len(self.rows)} {self.rows_key}>"

    def _repr_html_(self) -> str:
        return html_table(self.title, self.rows)


@dataclass(frozen=True, repr=False)
class TraceAnalysis:
    """The traces of a run, aligned when first asked for.

    Args:
        trace (Trace): What was read.
        selection (Selection): What the questions are about. What depends on neighbours, such as
            overlap and launch overhead, is measured before anything is left out.
    """

    trace: Trace
    selection: Selection = field(default_factory=Selection)

    @cached_property
    def everything(self) -> Activities:
        """All activities of the trace, whatever the selection is."""
        return align(self.trace)

    @cached_property
    def rows(self) -> Flags:
        """bool[activities]: which of `everything` are selected."""
        return chosen(self.everything, self.selection)

    @cached_property
    def activities(self) -> Activities:
        """The selected activities."""
        return take(self.everything, self.rows)

    @cached_property
    def in_time(self) -> Activities:
        """The activities of the selected ranks and iterations, of every phase and type."""
        return take(self.everything, chosen(self.everything, self.selection.in_time))

    def select(self, **choices: Any) -> "TraceAnalysis":
        """Return the same trace with another selection.

        Args:
            **choices: Fields of `projector.trace.select.Selection`: ``ranks``, ``iterations``,
                ``skip_warmup``, ``phases``, ``types``; those left out stay as they are.

        Raises:
            ConfigError: If a phase or type does not exist.
        """
        # Sequences of any kind are taken, so that range(3, 6) and [0] may be written.
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, Iterable) else value
            for name, value in choices.items()
        }
        return self.with_selection(replace(self.selection, **plain))

    def with_selection(self, selection: Selection) -> "TraceAnalysis":
        """Return the same trace with this selection; what was aligned stays."""
        other = TraceAnalysis(self.trace, selection)
        if "everything" in self.__dict__:
            other.__dict__["everything"] = self.everything
        return other

    def summary(self, tokens: float | None = None) -> TraceResult:
        """Return where the time went: ranks to the nanosecond, iterations, phases, collectives.

        Args:
            tokens (float, optional): Tokens of one iteration of the whole job, for the throughput
                by the slowest rank.

        Raises:
            ConfigError: If the tokens are not positive.
        """
        everything = self.everything
        where = chosen(everything, self.selection.in_time) & in_iterations(everything)
        found = overview(self.trace, everything, self.in_time, self._times, where, tokens)
        return self._result("summary of a trace", "ranks", files=self.files, **found)

    def operations(self, by: str | Sequence[str] = "operation") -> TraceResult:
        """Return count, durations, launch overhead and overlap of every operation.

        Args:
            by (str or sequence of str): ``operation``, ``layer``, ``phase``, ``type``, ``kernel``,
                ``iteration`` or another name of `projector.trace.measures.breakdown.GRANULARITIES`;
                several together, as a sequence or with commas, go by each combination.

        Raises:
            ConfigError: If there is no such granularity.
        """
        names = _granularities(by)
        found = [part.to_dict() for part in self._breakdown(names)]
        title = f"activities by {', '.join(names)}"
        return self._result(title, "operations", by=list(names), operations=found)

    def launch(self, by: str | Sequence[str] = "operation") -> TraceResult:
        """Return what the bubbles before kernels cost, the largest first.

        Equations 1 to 3 of Chopper: a bubble is preparation, while the host had not yet called, and
        call, while the launch was under way. ``by`` is that of `operations`.
        """
        names = _granularities(by)
        parts = self._breakdown(names)
        found = [part.to_dict() for part in parts if part.launch_ns.max > 0]
        found.sort(key=lambda row: -row["launch_ns"]["median"])
        ranks = self._breakdown(("rank", "device"))
        return self._result(
            f"launch overhead by {', '.join(names)}", "operations", by=list(names),
            ranks=[part.to_dict() for part in ranks], operations=found,
        )  # fmt: skip

    def overlap(self, *, cdf: bool = False) -> TraceResult:
        """Return how much communication covers each operation, and what that does to it.

        Section V-C and equation 9 of Chopper: overlap ratios, their correlation with the duration,
        and D50 over D0.

        Args:
            cdf (bool): Whether each row has the curve that D50 is read from: ``duration``, over the
                shortest of its kind, and ``cumulative`` overlap from 0 to 1.
        """
        found = [
            row.to_dict() | ({"cdf": row.curve.to_dict()} if cdf else {})
            for row in operation_overlaps(self.everything, self._times, self.sampled)
        ]
        return self._result("overlap with communication", "operations", operations=found)

    def _breakdown(self, by: Sequence[str]) -> list[Part]:
        return breakdown(self.everything, by, self._times, self.sampled, self._works)

    @cached_property
    def _works(self) -> Works:
        """What all activities compute, as far as extents tell."""
        return works_of(self.everything)

    @cached_property
    def _times(self) -> KernelTimes:
        return kernel_times(self.everything)

    @cached_property
    def sampled(self) -> Flags:
        """bool[activities]: the selected ones of `everything` within iterations, if it has any."""
        return self.rows & in_iterations(self.everything)

    @property
    def files(self) -> list[dict[str, Any]]:
        """What was read, one mapping a file."""
        return [_file(rank) for rank in self.trace.ranks]

    @cached_property
    def warnings(self) -> list[str]:
        """What to keep in mind when reading any result."""
        chosen_ranks = self.selection.ranks is not None
        found = caveats(self.trace, self.everything, chosen_ranks=chosen_ranks)
        if len(self.everything) and not self.sampled.any():
            asked = ", ".join(f"{name} {value}" for name, value in self.selection.to_dict().items())
            found.append(
                f"nothing of the trace is left by what was chosen ({asked or 'iterations'})"
            )
        return found

    def to_arrow(self) -> "pa.Table":
        """Return the selected activities as a table of Arrow."""
        chosen_ones = self.activities
        counted = counters_of_details(chosen_ones.details, chosen_ones.detail)
        return activity_table(chosen_ones, counted)

    def to_pandas(self) -> "pd.DataFrame":
        """Return the selected activities as a data frame."""
        return to_pandas(self.to_arrow())

    def write_parquet(self, path: str | Path) -> None:
        """Write the selected activities as a file of Parquet."""
        write_parquet(self.to_arrow(), path)

    def __repr__(self) -> str:
        events = sum(len(rank.events) for rank in self.trace.ranks)
        return f"<trace of {len(self.trace.ranks)} ranks, {events:,} events>"

    def _result(self, title: str, rows_key: str, **found: Any) -> TraceResult:
        numbers = np.unique(self.in_time.iteration)
        return TraceResult(
            title,
            {
                **envelope(self.warnings),
                "problems": [told(each, "path where text") for each in self.trace.problems],
                "selection": self.selection.to_dict(),
                **told(self.everything, "on_host frameworks clocks"),
                "iterations": [int(each) for each in numbers[numbers >= 0]],
                **found,
            },
            rows_key,
        )


def load_trace(
    *paths: str | Path,
    counters: Sequence[str | Path] = (),
    samples: Sequence[str | Path] = (),
    ranks: Iterable[int] | None = None,
    progress: Callable[[int, int, int], None] | None = None,
) -> TraceAnalysis:
    """Read the traces of a run.

    Args:
        *paths (str or Path): Files, folders or patterns: Kineto (Chrome) JSON, rocprofv3 and
            rocprof JSON and CSV, plain or compressed with gzip. One file a rank.
        counters (sequence of str or Path): Tables of hardware counters, of serialised runs of the
            same program.
        samples (sequence of str or Path): What was sampled beside the run: utilisation of cores,
            clocks, power.
        ranks (iterable of int, optional): Ranks to keep; others are left out as soon as they are
            read.
        progress (callable, optional): Called with the bytes read, the bytes to read and the events
            found.

    Returns:
        TraceAnalysis

    Raises:
        ConfigError: If a file does not exist, or holds nothing that is known, or a rank has no
            file.
    """
    only = None if ranks is None else tuple(ranks)
    trace = read_trace(*paths, counters=counters, samples=samples, progress=progress, only=only)
    found = {rank.rank for rank in trace.ranks}
    for rank in only or ():
        if rank not in found:
            msg = f"ranks: no file is the trace of rank {rank}"
            raise ConfigError(msg, key="ranks", value=rank, allowed=sorted(found))
    return TraceAnalysis(trace, Selection(ranks=only))


def _granularities(by: str | Sequence[str]) -> tuple[str, ...]:
    split = [name.strip() for name in by.split(",")] if isinstance(by, str) else by
    names = tuple(dict.fromkeys(split))
    return TOGETHER.get(names[0], names) if len(names) == 1 else names


def _file(rank: RankTrace) -> dict[str, Any]:
    kinds = rank.events.kind
    return {
        **told(rank, "path format rank world_size vendor devices"),
        "events": len(rank.events),
        "device_events": int(np.isin(kinds, ON_DEVICE).sum()),
        "left_out": dict(rank.skipped),
    }


_LAUNCHES = ("launch_ps", "launch_end_ps")
_TIMES = ("start_ps", "end_ps", *_LAUNCHES)


def overview(
    trace: Trace,
    everything: Activities,
    in_time: Activities,
    times: KernelTimes,
    where: Flags,
    tokens: float | None,
) -> dict[str, Any]:
    """Return the parts of a summary, as JSON has them.

    What neighbours decide is of `everything`, of which `where` was chosen; `in_time` are the
    activities of the chosen ranks and iterations. `tokens` are those of one iteration of the whole
    job.
    """
    iterations = per_iteration.iteration_times(everything, times, where)
    alone = on_own_clocks(in_time)
    found = {
        "ranks": per_iteration.rank_summaries(alone),
        "phases": breakdown(everything, ("phase", "type"), times, where),
        "iteration_times": iterations,
        "throughput": None if tokens is None else per_iteration.throughput(iterations, tokens),
        "communication": communication_rows(everything, times, where),
        "stragglers": stragglers(everything, times, where, iterations),
        "rank_spreads": rank_spreads(everything, times, where),
        "links": link_times(everything, times, where),
        "gaps": per_iteration.idle_times(alone),
        "sharding": sharding_times(everything, where),
        **_beside(trace, in_time, iterations),
    }
    return {name: plain(measured) for name, measured in found.items()}


def on_own_clocks(activities: Activities) -> Activities:
    """Return activities at the times of their files: whole nanoseconds of their ranks."""
    columns = {name: getattr(activities, name).copy() for name in _TIMES}
    drifting = [clock for clock in activities.clocks if clock.drift]
    for clock in drifting:
        mine = activities.rank == clock.rank
        for name, values in columns.items():
            known = mine & (values != NONE) if name in _LAUNCHES else mine
            values[known] = clock.own(values[known])
    return replace(activities, **columns) if drifting else activities


def _beside(
    trace: Trace, in_time: Activities, iterations: list[per_iteration.IterationTimes]
) -> dict[str, list[Any]]:
    if not trace.samples or not len(in_time):
        return {"cores": [], "sampled": []}
    begin, end = int(in_time.start_ps.min()), int(in_time.end_ps.max())
    cores = [cpu_use(each, begin, end) for each in trace.samples if each.what == CPU_PERCENT]
    others = sampled(trace.samples, iterations, begin, end)
    return {"cores": [each for each in cores if each is not None], "sampled": others}


MOST_NAMED = 10
"""Ranks that a sentence names."""


def caveats(trace: Trace, activities: Activities, *, chosen_ranks: bool = False) -> list[str]:
    """Return what to keep in mind when reading a trace; who chose ranks does not miss others."""
    cut = [*_cut(trace, activities)]
    missing = [] if chosen_ranks else [*_missing_ranks(trace)]
    # Another file may lie in a folder of a whole trace.
    left_out = [*_left_out(trace)] if cut or missing else []
    half = bool(cut or left_out)
    told = [*_problems(trace, but=half), *_contents(activities), *activities.notes]
    if half:
        return [f"half a trace: {'; '.join([*cut, *left_out, *missing])}", *told]
    return [*told, *(f"the trace has {text}" for text in missing)]


def _cut(trace: Trace, activities: Activities) -> Iterator[str]:
    every = activities.iteration[activities.iteration >= 0]
    for rank in trace.ranks:
        cut = [each for each in rank.problems if each.text in _CUT and each.path == rank.path]
        if not cut:
            continue
        own = activities.iteration[(activities.rank == rank.rank) & (activities.iteration >= 0)]
        read = next((e.text for e in rank.problems if e.text.endswith(COULD_BE_READ)), "")
        told = [f"{read.removesuffix(COULD_BE_READ)}events are read"] if read else []
        if len(every):
            has = rank_ranges(np.unique(own).tolist()) or "none"
            told.append(f"iterations {has} of {rank_ranges(np.unique(every).tolist())}")
        where = f"{rank.path} at {cut[0].where}"
        yield f"rank {rank.rank} breaks off ({', '.join([where, *told])})"


def _left_out(trace: Trace) -> Iterator[str]:
    for each in trace.problems:
        if each.text.startswith(LEFT_OUT):
            yield f"{each.text.removeprefix(LEFT_OUT)} and is left out"


_CUT = (CUT_OFF, BREAKS_OFF)


def _problems(trace: Trace, *, but: bool) -> Iterator[str]:
    """Tell what was wrong with files, `but` what the sentence of half a trace says."""
    cut = {each.path for each in trace.problems if each.text in _CUT}
    for each in trace.problems:
        counts = each.text.endswith(COULD_BE_READ) and each.path in cut
        if but and (each.text in _CUT or counts or each.text.startswith(LEFT_OUT)):
            continue
        where = f" at {each.where}" if each.where else ""
        yield f"{each.path}{where}: {each.text}"


def _contents(activities: Activities) -> Iterator[str]:
    count = len(activities)
    if not count:
        yield "the trace has no kernels, no copies and no operators"
        return
    if activities.on_host:
        yield "the trace has no kernels of a device: operators of the host stand for them"
    inside = activities.iteration >= 0
    outside = int(np.count_nonzero(~inside))
    if outside == count:
        yield "the trace has no annotated iterations: it is shown as one"
        inside = ~inside
    elif outside:
        yield (
            f"{outside:,} of {count:,} activities lie outside iterations: the spans of the summary "
            "hold them, medians and shares of operations do not"
        )
    computing = inside & (activities.klass == COMPUTE)
    unknown = int(np.count_nonzero(computing & (activities.launch_ps == NONE)))
    if unknown and not activities.on_host:
        yield (
            f"{unknown:,} of {int(np.count_nonzero(computing)):,} kernels that compute have no "
            "launch in the trace: what delayed them is not known"
        )


def _missing_ranks(trace: Trace) -> Iterator[str]:
    ranks = sorted({rank.rank for rank in trace.ranks})
    world = max((rank.world_size for rank in trace.ranks), default=0)
    if world > len(ranks):
        named = ", ".join(map(str, ranks[:MOST_NAMED]))
        named += " ..." if len(ranks) > MOST_NAMED else ""
        word = "rank" if len(ranks) == 1 else "ranks"
        yield (f"{len(ranks)} of {world} ranks ({word} {named}): how the others did is not known")
