"""The findings of Chopper (Kurzynski, Aga, Wu) on our own timelines, exported and read back.

Llama 3 8B under FSDP on eight MI300X, one microbatch a step. Each step is projected, written as a
trace, read and aligned as a trace of a real run is, and measured there. --record stores the table.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import projector as pj
from projector.arrays import Ints
from projector.projection.terms import BREAKDOWN
from projector.projection.timeline.build import build_timeline
from projector.report.exports import write_timeline
from projector.trace.activity import ATTENTION, COMPUTE, FORWARD, PHASES, Activities
from projector.trace.alignment import align
from projector.trace.events import RankTrace
from projector.trace.measures.overlap import overlap_ratios
from projector.trace.measures.times import kernel_times
from projector.trace.read import load_trace

TABLE = Path(__file__).parents[1] / "docs" / "timeline_export.md"
BEGIN, END = "<!-- findings -->\n", "<!-- end of findings -->\n"

CASES = {
    "b1s4": (1, 4096),
    "b2s4": (2, 4096),
    "b4s4": (4, 4096),
    "b1s8": (1, 8192),
    "b2s8": (2, 8192),
}
"""Sequences of one GPU and their length, named as in the study."""


TERM, EXPOSED = "term", "exposed_ps"
"""What the file says of each activity: the term of the step that it adds to, and how much."""


def projected_terms(trace: RankTrace) -> dict[int, dict[str, int]]:
    """Return the ps of each term of the step that the activities of each device add to.

    A projection has a device for each pipeline rank. Files that `write_timeline` did not write give
    nothing.
    """
    known = [row for row, detail in enumerate(trace.details) if EXPOSED in detail]
    terms = sorted({str(trace.details[row][TERM]) for row in known})
    exposed_ps = np.zeros(len(trace.details), np.int64)
    term = np.full(len(trace.details), -1, np.int64)
    for row in known:
        exposed_ps[row] = int(trace.details[row][EXPOSED])
        term[row] = terms.index(str(trace.details[row][TERM]))
    events = trace.events
    rows = np.flatnonzero(events.detail >= 0)
    rows = rows[term[events.detail[rows]] >= 0]
    detail, device = events.detail[rows], events.process[rows]
    result: dict[int, dict[str, int]] = {}
    for number in np.unique(device).tolist():
        sums: Ints = np.zeros(len(terms), np.int64)
        mine = detail[device == number]
        np.add.at(sums, term[mine], exposed_ps[mine])
        result[number] = dict(zip(terms, sums.tolist(), strict=True))
    return result


class Finding(NamedTuple):
    """What one case measures, on the trace that was read back."""

    name: str
    fsdp: int
    step_ms: float
    tokens_per_s_per_gpu: float
    overlap: float
    """Share of the time of compute kernels that communication covers."""
    attention_overlap: float
    """Median over layers of that of the forward's attention."""
    launch: float
    """Bubbles between compute kernels, over them and the kernels (equations 1 to 3)."""
    launch_of: dict[str, float]
    """The same by phase."""
    term_launch: float
    """The term ``launch`` of the breakdown, over the step."""
    returned: bool
    """Whether the breakdown came back to the picosecond."""


def job_of(batch: int, seq_length: int, fsdp: int) -> dict[str, Any]:
    """Return the job of a case."""
    return {
        "model": "llama3_8b",
        "parallelism": {"fsdp": fsdp},
        "training": {
            "micro_batch_size": batch,
            "global_batch_size": 8 * batch,
            "seq_length": seq_length,
            "precision": "bf16",
        },
        "cluster": {"device": "mi300x", "nodes": 1},
    }


def finding(name: str, fsdp: int, folder: Path) -> Finding:
    """Project, write, read, align and measure one case."""
    batch, seq_length = CASES[name]
    result = pj.project_performance(job_of(batch, seq_length, fsdp))
    timeline = build_timeline(result)
    path = folder / f"{name}_fsdp{fsdp}.json.gz"
    write_timeline(result, path, timeline=timeline)
    trace = load_trace(path)
    (terms,) = (projected_terms(rank)[timeline.ending_rank] for rank in trace.ranks)
    expected = dict(zip(BREAKDOWN, timeline.terms_ps.tolist(), strict=True))
    activities = align(trace)
    launch, launch_of = _launch(activities)
    overlap, attention = _overlap(activities)
    return Finding(
        name=name,
        fsdp=fsdp,
        step_ms=result.iteration_time_s * 1e3,
        tokens_per_s_per_gpu=result.tokens_per_s_per_gpu,
        overlap=overlap,
        attention_overlap=attention,
        launch=launch,
        launch_of=launch_of,
        term_launch=result.breakdown["launch"] / result.iteration_time_s,
        returned=all(terms.get(term, 0) == ps for term, ps in expected.items()),
    )


def _launch(activities: Activities) -> tuple[float, dict[str, float]]:
    times = kernel_times(activities)
    preparation, call, known = times.preparation_ps, times.call_ps, times.launch_known
    duration = times.duration_ps

    def share(rows: Any) -> float:
        bubbles = int((preparation + call)[rows].sum())
        whole = bubbles + int(duration[rows].sum())
        return bubbles / whole if whole else 0.0

    by_phase = {
        name: share(known & (activities.phase == phase)) for phase, name in enumerate(PHASES[:3])
    }
    return share(known), by_phase


def _overlap(activities: Activities) -> tuple[float, float]:
    ratio = overlap_ratios(activities)
    duration = (activities.end_ps - activities.start_ps).astype(np.float64)
    compute = (activities.klass == COMPUTE) & (duration > 0)
    attends = compute & (activities.type == ATTENTION) & (activities.phase == FORWARD)
    return (
        float((ratio * duration)[compute].sum() / duration[compute].sum()),
        float(np.median(ratio[attends])),
    )


def lines(findings: list[Finding]) -> list[str]:
    """Return the table."""
    best = {
        f.fsdp: max(g.tokens_per_s_per_gpu for g in findings if g.fsdp == f.fsdp) for f in findings
    }
    head = (
        "case", "FSDP", "step", "tokens/s/GPU", "below the best", "overlap", "of attention",
        "launch", "forward", "backward", "optimizer", "term `launch`",
    )  # fmt: skip
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    rows += [
        f"| {f.name} | {f.fsdp} | {f.step_ms:,.0f} ms | {f.tokens_per_s_per_gpu:,.0f} | "
        f"{1 - f.tokens_per_s_per_gpu / best[f.fsdp]:.1%} | {f.overlap:.1%} | "
        f"{f.attention_overlap:.0%} | {f.launch:.1%} | "
        + " | ".join(f"{f.launch_of[phase]:.1%}" for phase in PHASES[:3])
        + f" | {f.term_launch:.1%} |"
        for f in findings
    ]
    return rows


def main() -> None:
    """Print the table, and store it where asked."""
    with tempfile.TemporaryDirectory() as folder:
        findings = [finding(name, fsdp, Path(folder)) for fsdp in (1, 2) for name in CASES]
    table = lines(findings)
    print("\n".join(table))
    assert all(f.returned for f in findings), "a breakdown did not come back"
    if "--record" in sys.argv[1:]:
        text = TABLE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        whole = before + BEGIN + "\n" + "\n".join(table) + "\n\n" + END + after
        TABLE.write_text(whole, encoding="utf-8")


if __name__ == "__main__":
    main()
