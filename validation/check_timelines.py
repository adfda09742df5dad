"""Compare what other tools read in written timelines with the projection's own terms, rank by rank.

``python validation/check_timelines.py`` writes five steps, a file a rank, and reads them with those
of HolisticTraceAnalysis (``hta``) and TraceLens that are installed. It ends with 1 where a rank
differs by more than `MOST`. Recorded in ``docs/timeline_export.md``: hta 0.5, TraceLens 171dd747.
"""

import contextlib
import io
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

import projector as pj
from projector.projection.timeline import columns
from projector.trace.intervals import Intervals, difference, union

EXAMPLES = Path(__file__).parents[1] / "examples"

JOBS = {
    "PP 1": ("llama3.1_8b_fp8_mi325x.yaml", {}),
    "PP 8, EP 8": ("mixtral_8x22b_mi355x.yaml", {"parallelism.pp": 8, "parallelism.vpp": 1}),
    "FSDP 2": ("llama3.1_70b_fsdp_mi325x.yaml", {}),
    "VPP 2, EP 8": ("mixtral_8x22b_mi355x.yaml", {}),
    "LoRA": ("llama3.3_70b_lora_h100.yaml", {}),
}

MOST = 1e-6
"""Share of a rank's time by which a term may differ: tools carry microseconds in floats."""

US_PS = 1e6


def own_terms(timeline: columns.Timeline, rank: int) -> dict[str, float]:
    """Return milliseconds of a pipeline rank by what runs on its device."""
    mine = (timeline.rank == rank) & (timeline.duration_ps > 0)
    start, end = timeline.start_ps, timeline.start_ps + timeline.duration_ps

    def runs(*tracks: int) -> Intervals:
        chosen = mine & np.isin(timeline.track, tracks)
        return union(start[chosen], end[chosen])

    compute = runs(columns.COMPUTE, columns.OPTIMIZER)
    exchange = runs(columns.TP, columns.CP, columns.EP, columns.DP, columns.PP)
    busy = runs(*(track for track in range(columns.WAIT)))
    span = busy.end.max() - busy.start.min()
    terms_ps = {
        "compute": compute.length_ps,
        "communication": exchange.length_ps,
        "exposed communication": difference(exchange, compute).length_ps,
        "idle": span - busy.length_ps,
        "span": span,
    }
    return {name: ps / 1e9 for name, ps in terms_ps.items()}


def of_hta(folder: Path) -> dict[int, dict[str, float]]:
    """Return what HolisticTraceAnalysis reads, by rank; nothing where it is not installed."""
    # Else it cuts times to microseconds.
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    try:
        from hta.trace_analysis import TraceAnalysis
    except ImportError:
        return {}
    logging.disable(logging.CRITICAL)
    analysis = TraceAnalysis(trace_dir=str(folder))
    times = analysis.get_temporal_breakdown(visualize=False)
    return {
        int(row["rank"]): {
            "compute": row["compute_time(us)"] / 1e3,
            "exposed communication": row["non_compute_time(us)"] / 1e3,
            "idle": row["idle_time(us)"] / 1e3,
            "span": row["kernel_time(us)"] / 1e3,
        }
        for _, row in times.iterrows()
    }


def of_tracelens(folder: Path) -> dict[int, dict[str, float]]:
    """Return what TraceLens reads, by rank; nothing where it is not installed."""
    try:
        from TraceLens import TreePerfAnalyzer
    except ImportError:
        return {}
    found = {}
    for path in folder.iterdir():
        frame = TreePerfAnalyzer.from_file(str(path)).get_df_gpu_timeline()
        ms = dict(zip(frame["type"], frame["time ms"], strict=True))
        found[int(path.name.removeprefix("rank").split(".")[0])] = {
            "compute": ms["computation_time"],
            "communication": ms["total_comm_time"],
            "exposed communication": ms["exposed_comm_time"],
            "idle": ms["idle_time"],
            "span": ms["total_time"],
        }
    return found


def main() -> int:
    """Print the largest difference of each rank, in millionths of its time."""
    warnings.simplefilter("ignore")
    worst = 0.0
    print(
        f"{'job':14} {'rank':>5} {'span ms':>10} {'compute':>10} {'exposed':>9} {'idle':>9}", end=""
    )
    print("  off by, millionths: HTA, TraceLens")
    for name, (example, overrides) in JOBS.items():
        step = pj.project_performance(pj.load_job(EXAMPLES / example, overrides=overrides))
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made) / "ranks"
            pj.write_timeline(step, f"{folder}/")
            timeline = pj.build_timeline(step)
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                tools = (of_hta(folder), of_tracelens(folder))
            ranks = sorted(int(path.name[4:].split(".")[0]) for path in folder.iterdir())
        for stage, rank in enumerate(ranks):
            ours = own_terms(timeline, stage)
            off = [
                max(abs(read[term] - ours[term]) for term in read) / ours["span"]
                for tool in tools
                if (read := tool.get(rank))
            ]
            worst = max([worst, *off])
            row = (ours[term] for term in ("span", "compute", "exposed communication", "idle"))
            print(f"{name:14} {rank:5} " + " ".join(f"{ms:10,.3f}" for ms in row), end="  ")
            print(", ".join(f"{1e6 * share:.4f}" for share in off) or "no tool is installed")
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
