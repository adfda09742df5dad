"""Write the table and charts of docs/schedules.md; --check only says whether they are current.

The description of a chart says what it shows. A chart that is out of date is therefore noticed
without drawing it.
"""

import io
import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from projector.schedule.registry import SCHEDULES
from projector.schedule.replay.run import PipelineRun
from projector.schedule.simulate import pipeline_run

PAGE = Path(__file__).with_name("schedules.md")
FIGURES = Path(__file__).with_name("figures") / "schedules"

REFERENCE = 8, 32
"""Ranks and microbatches of the figures in the table."""
SIZES = (REFERENCE, (2, 8), (4, 16), (6, 24), (16, 64))
"""Where closed forms are compared with the replay."""
CHART = 4, 8
COLOURS = 96
ROUNDING = 1e-9
HEAD = (
    "| schedule | chunks | microbatches | held at most | bubble | makespan | span | peak | source |"
)

EQUAL, UNEQUAL = (1.0, 1.0, 1.0), (1.0, 1.2, 0.8)


class Case(NamedTuple):
    """A pipeline; F, B and W are those of a rank and microbatch, all chunks together."""

    pp: int
    vpp: int
    microbatches: int
    f: float
    b: float
    w: float


Form = Callable[[Case], float]


class Facts(NamedTuple):
    """What the page says about a schedule."""

    microbatches: str
    held: str
    held_form: Form | None
    """Most microbatches that a rank holds."""
    bubble: str
    bubble_form: Form | None
    """Makespan beyond the work of a rank."""
    source: str
    caption: str
    chunks: tuple[int, ...] = (1,)
    """Chunks of a rank in the table; the first of them in the chart."""
    limit: float | None = None
    """Memory limit of the chart."""


def _v(mode: str, held: str, form: Form, bubble: str, idle: Form | None, caption: str) -> Facts:
    source = f"{mode}, [2405.15362](https://arxiv.org/abs/2405.15362)"
    return Facts("any", held, form, bubble, idle, source, caption, (2,))


ZERO_BUBBLE = "[2401.10241](https://arxiv.org/abs/2401.10241)"
FACTS = {
    "gpipe": Facts(
        "any",
        "M",
        lambda s: s.microbatches,
        "(PP - 1)(F + B + W)",
        lambda s: (s.pp - 1) * (s.f + s.b + s.w),
        "Huang et al., [1811.06965](https://arxiv.org/abs/1811.06965)",
        "No B starts before the last F of the last rank: every rank holds all microbatches.",
    ),
    "1f1b": Facts(
        "any",
        "PP",
        lambda s: s.pp,
        "(PP - 1)(F + B + W)",
        lambda s: (s.pp - 1) * (s.f + s.b + s.w),
        "Narayanan et al., [2006.09503](https://arxiv.org/abs/2006.09503)",
        "The bubble is as long as GPipe's, in other places. Rank 0 holds PP microbatches, the last "
        "rank one.",
    ),
    "interleaved": Facts(
        "multiple of PP",
        "PP + (PP - 1) / VPP",
        lambda s: s.pp + (s.pp - 1) / s.vpp,
        "(PP - 1)(F + B + W) / VPP",
        lambda s: (s.pp - 1) * (s.f + s.b + s.w) / s.vpp,
        "Narayanan et al., [2104.04473](https://arxiv.org/abs/2104.04473)",
        "Ramps are shorter because they are made of chunks. The longer warm-up holds more.",
        (2, 4),
    ),
    "1f1b-v": Facts(
        "any",
        "⌊2 PP / 3⌋ + 1",
        lambda s: 2 * s.pp // 3 + 1,
        "2 to 2.5 (PP - 1) F at F = B = W",
        None,
        "1F1B-V, [2405.15362](https://arxiv.org/abs/2405.15362)",
        "B is whole, as in 1F1B, so nothing fills the gaps of both ramps. All ranks hold as much: "
        "three quarters of what rank 0 of 1F1B holds here, two thirds with many ranks.",
        (2,),
    ),
    "zerobubble": Facts(
        "any",
        "PP",
        lambda s: s.pp,
        "(PP - 1)(F + B - W)",
        lambda s: (s.pp - 1) * (s.f + s.b - s.w),
        f"ZB-H1, {ZERO_BUBBLE}",
        "Postponed W's fill the end of the later ranks. The remaining waits lie before the first "
        "B's. Every rank holds as much as only rank 0 does in 1F1B.",
    ),
    "zerobubble-h2": Facts(
        "any",
        "2 PP - 1",
        lambda s: 2 * s.pp - 1,
        "(PP - 1) F at F = B = W; none within a rank",
        lambda s: (s.pp - 1) * s.f,
        f"ZB-H2, {ZERO_BUBBLE}",
        "No rank waits between its first and its last operation, but each rank starts and ends "
        "later than the one before. A step that ends for all ranks at once gains nothing.",
    ),
    "zbv-formatted": Facts(
        "any",
        "PP",
        lambda s: s.pp,
        "(PP - 1) F / 2 at F = B = W; none within a rank",
        lambda s: (s.pp - 1) * s.f / 2,
        f"ZB-V, {ZERO_BUBBLE}",
        "Chunk 0 (dark) runs down the ranks and chunk 1 (light) back up, so rank 0 has the loss "
        "and the first B. No rank waits within its span, and all ranks hold the same.",
        (2,),
    ),
    "zbv-greedy-min": _v(
        "V-Min",
        "⌈(PP + 2) / 3⌉",
        lambda s: -(-(s.pp + 2) // 3),
        "planned",
        None,
        "It holds half as much as 1F1B here, and a third with many ranks. The price is the waits "
        "after the first F's and before the last B's.",
    ),
    "zbv-greedy-half": _v(
        "V-Half",
        "⌈PP / 2⌉ + 1",
        lambda s: -(-s.pp // 2) + 1,
        "planned",
        None,
        "One microbatch more than V-Min closes nearly all gaps of the drain, but not those of the "
        "warm-up.",
    ),
    "zbv-greedy-zb": _v(
        "V-ZB",
        "PP",
        lambda s: s.pp,
        "(PP - 1) F / 2 at F = B = W",
        lambda s: (s.pp - 1) * s.f / 2,
        "It is as fast as ZB-V at equal times. Its search also adapts to unequal times.",
    ),
    "dualpipe": Facts(
        "even, at least 2 PP",
        "PP + 1",
        lambda s: s.pp + 1,
        "(PP / 2 - 1) F at F = B = W",
        lambda s: (s.pp / 2 - 1) * s.f,
        "DeepSeek-V3, [2412.19437](https://arxiv.org/abs/2412.19437)",
        "Dark microbatches enter on rank 0. Light ones, of the other copy, enter on the last rank, "
        "so both ends are busy from the start. Numbers count the microbatches of one copy.",
    ),
    "seaailab": Facts(
        "any",
        "the limit, at most M",
        None,
        "planned",
        None,
        f"automatic search, {ZERO_BUBBLE}",
        "The limit is 5 microbatches, between the 4 of ZB-H1 and the 7 of ZB-H2. The longest span "
        "is 26, between their 27 and 24.",
        limit=5.0,
    ),
    "seaailab-ilp": Facts(
        "any",
        "the limit, at most M",
        None,
        "searched for",
        None,
        f"integer program, {ZERO_BUBBLE}",
        "The limit is 3 microbatches, less than 1F1B holds. The order takes 31, and no order takes "
        "less. `seaailab` alone plans 38.",
        limit=3.0,
    ),
}


def run_of(name: str, case: Case, limit: float | None = None) -> PipelineRun:
    """Replay a schedule without latency."""
    times = (each / case.vpp for each in case[3:])
    return pipeline_run(name, case.pp, case.vpp, case.microbatches, *times, 0.0, memory_limit=limit)


def check_forms() -> None:
    """Raise where a closed form of the page is not what the replay gives."""
    for name, facts in FACTS.items():
        every = "F = B = W" not in facts.bubble and facts.bubble_form is not None
        for size, vpp, times in itertools.product(
            SIZES, facts.chunks, (EQUAL, UNEQUAL) if every else (EQUAL,)
        ):
            case = Case(size[0], vpp, size[1], *times)
            run = run_of(name, case)
            found = {
                "held": (facts.held_form, max(run.peak_in_flight) / vpp),
                "bubble": (facts.bubble_form, run.makespan_s - case.microbatches * sum(times)),
                "wait": (
                    (lambda _: 0.0) if "none within a rank" in facts.bubble else None,
                    run.period_s - case.microbatches * sum(times),
                ),
            }
            for what, (form, value) in found.items():
                if form is not None and abs(form(case) - value) > ROUNDING:
                    msg = f"{what} of {name} in {case} is {value}"
                    raise ValueError(msg)


def table() -> list[str]:
    """Return the table of all schedules."""
    lines = [
        HEAD,
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in SCHEDULES:
        facts = FACTS[name]
        for position, chunks in enumerate(facts.chunks):
            run = run_of(name, Case(REFERENCE[0], chunks, REFERENCE[1], *EQUAL))
            several = len(facts.chunks) > 1
            said = (
                f"`{name}`",
                f"{chunks}, any from {facts.chunks[0]} on" if several else f"{chunks}",
                facts.microbatches,
                facts.held,
                facts.bubble,
            )
            cells = (
                *(said if position == 0 else ("", f"{chunks}", "", "", "")),
                *(f"{each:g}" for each in (run.makespan_s, run.period_s)),
                f"{max(run.peak_in_flight) / chunks:g}",
                facts.source if position == 0 else "",
            )
            lines.append(f"| {' | '.join(cells)} |")
    ideal = f"{3 * REFERENCE[1]}"
    return [*lines, f"| work of a rank alone | | | | 0 | {ideal} | {ideal} | | |"]


def gallery() -> list[str]:
    """Return the charts with their captions."""
    lines = []
    for name in SCHEDULES:
        path = f"figures/schedules/{name}.png"
        lines += [f"**{name}**: {FACTS[name].caption}", "", f"![Gantt chart of {name}]({path})", ""]
    return lines[:-1]


def chart_run(name: str) -> PipelineRun:
    """Return what the chart of a schedule shows."""
    facts = FACTS[name]
    return run_of(name, Case(CHART[0], facts.chunks[0], CHART[1], *EQUAL), facts.limit)


def description(run: PipelineRun) -> str:
    """Return what a chart says about itself."""
    order = run.order
    peaks = " ".join(f"{each:g}" for each in run.peak_bytes)
    return (
        f"{run.schedule}, PP {order.pp}, {order.microbatches * order.directions} microbatches, "
        f"makespan {run.makespan_s:g}, span {run.period_s:g}, peaks {peaks}"
    )


def draw(name: str) -> None:
    """Write the chart of a schedule, in few colours."""
    from PIL import Image, PngImagePlugin

    from projector.report.figures.gantt import write_gantt

    run = chart_run(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chart.png"
        write_gantt(run, path)
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            few = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    note = PngImagePlugin.PngInfo()
    note.add_text("Description", description(run))
    FIGURES.mkdir(exist_ok=True)
    few.save(FIGURES / f"{name}.png", optimize=True, pnginfo=note)


def stale_charts() -> list[str]:
    """Return the schedules whose chart is missing or shows something else."""
    from PIL import Image

    stale = []
    for name in SCHEDULES:
        path = FIGURES / f"{name}.png"
        said = None
        if path.exists():
            with Image.open(path) as image:
                said = image.info.get("Description")
        if said != description(chart_run(name)):
            stale.append(name)
    return stale


def page() -> str:
    """Return the page with its generated parts."""
    text = PAGE.read_text(encoding="utf-8")
    for marker, lines in (("table", table()), ("charts", gallery())):
        begin, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->\n"
        head, rest = text.split(begin)
        _, tail = rest.split(end)
        body = "\n".join(["", *lines, ""])
        text = f"{head}{begin}{body}\n{end}{tail}"
    return text


def main() -> int:
    """Write or check; return the exit code."""
    unknown = SCHEDULES.keys() - FACTS.keys()
    if unknown:
        print(f"docs/make_schedules.py knows nothing about {', '.join(sorted(unknown))}")
        return 1
    check_forms()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
        for name in SCHEDULES:
            draw(name)
        return 0
    stale = stale_charts()
    if stale:
        print(f"charts out of date: {', '.join(stale)}")
    return int(bool(stale) or PAGE.read_text(encoding="utf-8") != page())


if __name__ == "__main__":
    sys.exit(main())
