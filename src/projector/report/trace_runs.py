"""Several runs side by side: what an iteration does, how it overlaps, at which clock and power.

The figures that compare configurations in Chopper (Kurzynski, Aga, Wu): 4 (breakdown, over that of
the first run), 7 and 9 (overlap and duration by configuration), 13 (clock and power).
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from projector.envelope import envelope, told
from projector.errors import ConfigError
from projector.report.document import Column, Document, Figure, Media, Section, Table, words
from projector.report.figures import figure as fig
from projector.report.figures import trace
from projector.report.figures.figure import Axes
from projector.report.pages import page
from projector.report.terminal.grid import percent
from projector.trace.analysis import TraceAnalysis
from projector.trace.measures.sampled import within
from projector.trace.measures.statistics import Band, band

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

RUN_COLOURS = (*fig.PALETTE, "#999933", "#882255", "#44AA99")

MOST_RUNS = len(RUN_COLOURS)
"""Runs that colours tell apart."""

MOST_OPERATIONS = 6
"""Operations whose overlap is shown; a picture has half of them."""

MOST_POINTS = 5_000
"""Runs of an operation that a figure shows of each run of the program."""

TITLE_CHARACTERS = 32
"""Width of a panel, in characters of its title."""

SAMPLED = {"clock_mhz": "clock, MHz", "power_w": "power, W"}

Operation = tuple[str, str]
"""Name and phase."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is shown of one run."""

    name: str
    ranks: int
    iterations: int
    iteration_ms: Band | None
    """Of the slowest device of each iteration."""
    bars: trace.PhaseBars
    panels: Mapping[Operation, trace.OverlapPanel]
    """Operations that communication overlaps, the longest first."""
    sampled: Mapping[str, Band]
    """Of `SAMPLED`, over the samples of all devices while iterations run."""
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, name: str, analysis: TraceAnalysis) -> "Run":
        """Measure one run."""
        slowest: dict[int, float] = {}
        for row in analysis.summary().to_dict()["iteration_times"]:
            number = row["iteration"]
            slowest[number] = max(slowest.get(number, 0.0), row["span_ns"] / trace.NS_PER_MS)
        return cls(
            name=name,
            ranks=len(analysis.trace.ranks),
            iterations=len(slowest),
            iteration_ms=band(np.array(list(slowest.values()))),
            bars=trace.phase_bars(analysis),
            panels={
                (each.name, each.phase): each for each in trace.overlap_panels(analysis, most=40)
            },
            sampled=_sampled(analysis),
            warnings=tuple(analysis.warnings),
        )

    @property
    def parts_ms(self) -> dict[str, float]:
        """Milliseconds of an iteration by type of operation, with launches, over all phases."""
        return {name: float(sum(values)) for name, values in self.bars.parts.items()}

    @property
    def communication_ms(self) -> dict[str, float]:
        """Milliseconds of hidden and of exposed communication."""
        return {name: float(sum(values)) for name, values in self.bars.communication.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        bars = self.bars
        phases = [
            {"phase": phase, "type": kind, "ms": values[place]}
            for kind, values in (bars.parts | bars.communication).items()
            for place, phase in enumerate(bars.phases)
        ]
        overlaps = [
            {
                "operation": name,
                "phase": phase,
                "overlap": _spread(panel.overlap).to_dict(),
                "duration": _spread(panel.duration).to_dict(),
                "correlation": panel.correlation,
            }
            for (name, phase), panel in self.panels.items()
        ]
        return {
            **told(self, "name ranks iterations iteration_ms parts_ms communication_ms"),
            "phases": phases,
            "overlaps": overlaps,
            **told(self, "sampled"),
        }


def _sampled(analysis: TraceAnalysis) -> dict[str, Band]:
    chosen = analysis.in_time
    if not len(chosen):
        return {}
    begin, end = int(chosen.start_ps.min()), int(chosen.end_ps.max())
    found = {}
    for what in SAMPLED:
        values = [
            np.asarray(each.values, np.float64)[within(each, begin, end)].ravel()
            for each in analysis.trace.samples
            if each.what == what
        ]
        known = np.concatenate(values) if values else np.zeros(0)
        spread = band(known[~np.isnan(known)])
        if spread is not None:
            found[what] = spread
    return found


def _spread(values: Any) -> Band:
    found = band(values)
    assert found is not None  # a panel has runs
    return found


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs beside each other; the first one is what the others are compared with."""

    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        """Refuse more runs than can be told apart, and nothing to compare."""
        names = [run.name for run in self.runs]
        if not 2 <= len(names) <= MOST_RUNS:
            msg = f"trace: from 2 to {MOST_RUNS} runs are compared, got {len(names)}"
            raise ConfigError(msg, key="trace", value=names, allowed=f"2 to {MOST_RUNS} PATHs")
        empty = next((run.name for run in self.runs if not run.bars.phases), None)
        if empty is not None:
            msg = f"trace: nothing of {empty} is left to compare by what was chosen"
            raise ConfigError(msg, key="trace", value=empty, allowed="a trace with iterations")

    @property
    def names(self) -> list[str]:
        """Names of the runs."""
        return [run.name for run in self.runs]

    @property
    def whole_ms(self) -> float:
        """Compute and launches of an iteration of the first run: 1 in the bars."""
        return sum(self.runs[0].parts_ms.values()) or 1.0

    @property
    def phases(self) -> list[str]:
        """Phases that any run has, in the order of the first that has them."""
        return list(dict.fromkeys(phase for run in self.runs for phase in run.bars.phases))

    def operations(self, most: int = MOST_OPERATIONS) -> list[Operation]:
        """Return the operations that are overlapped in most runs, then those that come first."""
        places: dict[Operation, list[int]] = {}
        for run in self.runs:
            for place, operation in enumerate(run.panels):
                places.setdefault(operation, []).append(place)
        return sorted(places, key=lambda name: (-len(places[name]), min(places[name])))[:most]

    def bars(self, phase: str) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Return what a phase takes in each run, and its communication, over the first run."""

        def of(run: Run, values: Sequence[float]) -> float:
            place = run.bars.phases.index(phase) if phase in run.bars.phases else None
            return 0.0 if place is None else values[place] / self.whole_ms

        parts = {
            kind: [of(run, run.bars.parts[kind]) for run in self.runs]
            for kind in (*trace.COMPUTING, "launch")
        }
        talks = {
            kind: [of(run, run.bars.communication[kind]) for run in self.runs]
            for kind in trace.TRAFFIC
        }
        return parts, talks

    def to_dict(self) -> dict[str, Any]:
        """Return the object of JSON."""
        return envelope(self.warnings) | told(self, "runs")

    @property
    def warnings(self) -> list[str]:
        """What to keep in mind, with whose it is."""
        return [f"{run.name}: {text}" for run in self.runs for text in run.warnings]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each run, phase and type: what ``--parquet`` writes."""
        return [
            {"run": run["name"], **row} for run in self.to_dict()["runs"] for row in run["phases"]
        ]


def runs_document(found: Runs) -> Document:
    """Return the report, for terminal and page."""
    title = f"{len(found.runs)} runs side by side"
    lead = "Medians over iterations and devices; the others are compared with the first run."
    text = "Time of a phase over all compute and launches of the first run."
    figures = [(phase, partial(_phase_page, found, phase)) for phase in found.phases]
    phases = Section("Breakdown by phase", text, figures=figures, media=Media.PAGE)
    sections = [_times(found), phases, *_overlaps(found), *_samples(found)]
    if found.warnings:
        sections.append(Section("Mind this", items=found.warnings, media=Media.PAGE))
    return Document(title, lead, sections)


def _times(found: Runs) -> Section:
    runs = found.runs
    spans = [None if run.iteration_ms is None else run.iteration_ms.median for run in runs]
    first = spans[0]
    over = [span / first if span and first else None for span in spans]
    parts, talks = [run.parts_ms for run in runs], [run.communication_ms for run in runs]
    kinds = [kind for kind in parts[0] if any(each[kind] for each in parts)]
    columns = [
        words("run", found.names),
        Column("iteration ms", spans, _ms, digits=3),
        Column("over the first", over, lambda value: f"{value:.3f}", digits=3),
        *(Column(f"{kind} ms", [each[kind] for each in parts], _ms, digits=3) for kind in kinds),
        *(Column(f"{kind} ms", [each[kind] for each in talks], _ms, digits=3) for kind in talks[0]),
        Column("ranks", [run.ranks for run in runs]),
        Column("iterations", [run.iterations for run in runs]),
    ]
    note = "launch: between kernels; hidden, exposed: communication"
    return Section("Where an iteration goes", _sentence(note), Table(columns), note=note)


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}."


def _ms(value: float) -> str:
    return f"{value:,.3f}" if value < 100 else f"{value:,.1f}"


def _overlaps(found: Runs) -> list[Section]:
    operations = found.operations()
    if not operations:
        return []
    rows = [[run.panels.get(operation) for operation in operations] for run in found.runs]
    medians = [[each and _spread(each.overlap).median for each in row] for row in rows]
    related = [[each and each.correlation for each in row] for row in rows]
    columns = [
        words("operation", [name for name, _ in operations]),
        words("phase", [phase for _, phase in operations]),
        *map(partial(Column, write=percent, digits=3), found.names, medians),
        *(
            Column(f"r of {name}", values, digits=2, media=Media.PAGE)
            for name, values in zip(found.names, related, strict=True)
        ),
    ]
    text = (
        "Share of an operation that communication covers, the median over its runs. In the figure "
        "each point is a run; r is the correlation of its overlap and its duration."
    )
    figures = [
        (f"{name}, {phase}", partial(_overlap_page, found, (name, phase)))
        for name, phase in operations
    ]
    note = "share that communication covers, median over the runs of an operation"
    return [Section("Overlap", text, Table(columns), note=note, figures=figures)]


def _samples(found: Runs) -> list[Section]:
    known = [(what, run) for what in SAMPLED for run in found.runs if what in run.sampled]
    if not known:
        return []
    spreads = [run.sampled[what] for what, run in known]
    table = Table([
        words("sampled", [SAMPLED[what] for what, _ in known]),
        words("run", [run.name for _, run in known]),
        *(
            Column(name, [getattr(each, key) for each in spreads], "{:,.0f}".format, digits=1)
            for name, key in _SPREAD.items()
        ),
    ])  # fmt: skip
    figures = [(label, partial(_samples_page, found, what)) for what, label in SAMPLED.items()]
    note = "of all devices, while iterations run"
    return [Section("Clock and power", _sentence(note), table, note=note, figures=figures)]


_SPREAD = {"median": "median", "25 %": "p25", "75 %": "p75", "least": "min", "most": "max"}
_BOX = {"lowerfence": "min", "q1": "p25", "median": "median", "q3": "p75", "upperfence": "max"}
"""Names in the table and of plotly -> those of a band."""


# The page.


def _phase_page(found: Runs, phase: str) -> Figure:
    parts, talks = found.bars(phase)
    data = [
        *page.stacked_bars(found.names, parts, trace.COLOURS),
        *page.stacked_bars(found.names, talks, trace.TRAFFIC, "communication"),
    ]
    layout = page.plain_layout("", f"{phase}, over an iteration of {page.said(found.names[0])}")
    page.named_axis(layout, "xaxis")
    return {"data": data, "layout": layout | {"barmode": "stack"}}


def _overlap_page(found: Runs, operation: Operation) -> Figure:
    data = [
        page.scatter(
            "markers", page.said(run.name), _some(run.panels[operation].overlap),
            _some(run.panels[operation].duration),
            marker={"color": colour, "size": 6, "opacity": 0.6},
        )
        for run, colour in zip(found.runs, RUN_COLOURS, strict=False)
        if operation in run.panels
    ]  # fmt: skip
    layout = page.plain_layout("overlap ratio", "duration over the shortest like it")
    layout["xaxis"]["range"] = [-0.03, 1.03]
    return {"data": data, "layout": layout}


def _some(values: Any) -> Any:
    """Return values of as many runs as a figure shows, at equal distances."""
    return values[:: max(1, len(values) // MOST_POINTS)]


def _samples_page(found: Runs, what: str) -> Figure:
    known = [run for run in found.runs if what in run.sampled]
    spreads = [run.sampled[what] for run in known]
    names = [page.said(run.name) for run in known]
    box = {
        "type": "box", "name": "", "x": names, "showlegend": False,
        **{name: [getattr(each, key) for each in spreads] for name, key in _BOX.items()},
        "marker": {"color": fig.PALETTE[0]},
    }  # fmt: skip
    layout = page.plain_layout("", SAMPLED[what])
    page.named_axis(layout, "xaxis")
    return {"data": [box], "layout": layout}


# The picture.


def runs_picture(found: Runs) -> "Picture":
    """Draw breakdown, overlap, duration against overlap, and what was sampled."""
    shown = found.operations(MOST_OPERATIONS // 2)
    sampled = [what for what in SAMPLED if any(what in run.sampled for run in found.runs)]
    rows: list[list[Callable[[Axes], None]]] = [
        [partial(_draw_phase, found, phase) for phase in found.phases],
        [partial(_draw_boxes, found, operation) for operation in shown],
        [partial(_draw_points, found, operation) for operation in shown],
        [partial(_draw_sampled, found, what) for what in sampled],
    ]
    rows = [row for row in rows if row]
    across = max(map(len, rows))
    figure = fig.new_figure(
        1.6 + 3.6 * across,
        1.2 + 2.9 * len(rows),
        f"Runs side by side: {fig.one_line(', '.join(found.names), 80)}",
        "bars: medians over iterations and devices, over all compute and launches of the first run",
    )
    for row, line in zip(rows, figure.subplots(len(rows), across, squeeze=False), strict=True):
        for axes in line[len(row) :]:
            axes.set_visible(False)
        for draw, axes in zip(row, line, strict=False):
            draw(axes)
            axes.grid(axis="y", color=fig.FAINT)
        # What the panels of a row share stands once, at its end.
        legends: list[Any] = [axes.get_legend_handles_labels() for axes in line]
        known = {name: each for both in legends for each, name in zip(*both, strict=True)}
        if known:
            legend = line[len(row) - 1].legend(
                known.values(), known, frameon=False, loc="upper left",
                bbox_to_anchor=(1.0, 1.0), fontsize=8,
            )  # fmt: skip
            # Beside a short row there is room for it: it moves no panel of the other rows.
            legend.set_in_layout(len(row) == across)
    return figure


def _name_runs(axes: Axes, names: Sequence[str]) -> None:
    short = [fig.one_line(name, 16) for name in names]
    axes.set_xticks(range(len(names)), short, rotation=40, ha="right", fontsize=8)


def _draw_phase(found: Runs, phase: str, axes: Axes) -> None:
    places = np.arange(len(found.runs))
    parts, talks = found.bars(phase)
    # All panels have one legend: what any phase has.
    every = chain.from_iterable(map(found.bars, found.phases))
    used = {name for bars in every for name, values in bars.items() if any(values)}
    for offset, width, bars, colours, suffix in (
        (-0.14, 0.5, parts, trace.COLOURS, ""), (0.27, 0.2, talks, trace.TRAFFIC, " communication"),
    ):  # fmt: skip
        below = np.zeros(len(places))
        for name, values in bars.items():
            if name not in used:
                continue
            axes.bar(
                places + offset, values, width, bottom=below, color=colours[name],
                label=f"{name}{suffix}",
            )  # fmt: skip
            below += np.asarray(values)
    _name_runs(axes, found.names)
    axes.set_title(phase, fontsize=9)


def _draw_boxes(found: Runs, operation: Operation, axes: Axes) -> None:
    known = [run for run in found.runs if operation in run.panels]
    _draw_spreads(axes, known, [_spread(run.panels[operation].overlap) for run in known])
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("overlap ratio")
    _entitle(axes, operation)


def _entitle(axes: Axes, operation: Operation) -> None:
    axes.set_title(f"{_folded(operation[0])}\n{operation[1]}", fontsize=9, linespacing=1.3)


def _folded(name: str) -> str:
    return "\n".join(textwrap.wrap(fig.one_line(name), TITLE_CHARACTERS))


def _draw_spreads(axes: Axes, known: Sequence[Run], spreads: Sequence[Band]) -> None:
    for place, each in enumerate(spreads):
        for low, high, alpha in ((each.min, each.max, 0.25), (each.p25, each.p75, 0.75)):
            axes.bar(place, high - low, 0.5, bottom=low, color=fig.PALETTE[0], alpha=alpha)
        axes.plot([place - 0.3, place + 0.3], [each.median] * 2, color=fig.INK, linewidth=1.4)
    _name_runs(axes, [run.name for run in known])


def _draw_points(found: Runs, operation: Operation, axes: Axes) -> None:
    for run, colour in zip(found.runs, RUN_COLOURS, strict=False):
        if operation in run.panels:
            panel = run.panels[operation]
            axes.scatter(
                _some(panel.overlap), _some(panel.duration), s=12, alpha=0.6, linewidths=0,
                color=colour, label=_folded(run.name),
            )  # fmt: skip
    axes.set_xlim(-0.04, 1.04)
    fig.label(axes, "overlap ratio", "duration over the shortest")
    _entitle(axes, operation)


def _draw_sampled(found: Runs, what: str, axes: Axes) -> None:
    known = [run for run in found.runs if what in run.sampled]
    spreads = [run.sampled[what] for run in known]
    _draw_spreads(axes, known, spreads)
    low, high = min(each.min for each in spreads), max(each.max for each in spreads)
    room = 0.08 * (high - low) or 1.0
    axes.set_ylim(low - room, high + room)
    axes.set_title(SAMPLED[what], fontsize=9)
