"""Where the time of a sweep goes: nanoseconds of processor time a row, stage by stage.

    python benchmarks/sweep_stages.py examples/space_llama70b.yaml

Some chunks in the middle of the space are projected twice; the second time counts. The time of a
stage is its own, without the stages that it calls.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any

from projector.sweeps.rows import Sweeper
from projector.sweeps.store import chunk_points
from projector.sweeps.table import axis_kinds, load_space
from projector.sweeps.workers import take_over

STAGES = {
    "reading points": ["sweeps.jobs.JobReader.read"],
    "legality": ["sweeps.jobs.find_legal"],
    "workloads and pipelines": ["projection.known.KnownPipelines.of"],
    "replicas and step inputs": [
        "projection.evaluate.find_replicas",
        "projection.evaluate.cost_data_parallel",
        "projection.evaluate.cost_p2p",
        "projection.evaluate.cost_tied_embeddings",
        "projection.evaluate.stage_times",
        "projection.evaluate.state_memory",
        "projection.evaluate.cost_optimizer",
        "projection.step.rank_bytes",
    ],
    "replay": ["projection.step._replay_all"],
    "peaks": ["projection.step._peaks"],
    "ending steps": ["projection.step.run_steps", "projection.step.Steps.results"],
    "result columns": ["sweeps.jobs.JobRows.columns"],
    "Arrow tables": ["sweeps.table.Tables.table"],
    "writing Parquet": ["sweeps.rows.encode"],
}
CHUNKS = 8


class Stopwatch:
    """Shares the processor time of this process out among stages."""

    def __init__(self) -> None:
        self.spent_s: Counter[str] = Counter()
        self._running = ["the rest"]
        self._since_s = time.process_time()

    def _switch(self) -> None:
        now_s = time.process_time()
        self.spent_s[self._running[-1]] += now_s - self._since_s
        self._since_s = now_s

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time counts for a stage."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            self._switch()
            self._running.append(stage)
            try:
                return function(*arguments, **keywords)
            finally:
                self._switch()
                self._running.pop()

        return call

    def begin(self) -> None:
        """Forget what was spent."""
        self._switch()
        self.spent_s.clear()


def watch(stopwatch: Stopwatch) -> None:
    """Put the stopwatch around every stage."""
    for stage, places in STAGES.items():
        for place in places:
            parts = place.split(".")
            holder: Any = import_module(".".join(["projector", *parts[:2]]))
            for name in parts[2:-1]:
                holder = getattr(holder, name)
            setattr(holder, parts[-1], stopwatch.timed(stage, getattr(holder, parts[-1])))


def main(name: str) -> None:
    """Print the table of one space."""
    take_over()
    space = load_space(name)
    points = chunk_points(space)
    sweeper = Sweeper(space, axis_kinds(space), points)
    chunks = -(-space.size // points)
    chosen = sorted(
        {chunks * number // CHUNKS + chunks // (2 * CHUNKS) for number in range(CHUNKS)}
    )
    stopwatch = Stopwatch()
    watch(stopwatch)
    for chunk in chosen:
        sweeper.part(chunk)
    stopwatch.begin()
    rows = sum(sweeper.part(chunk).totals.rows for chunk in chosen)
    stopwatch.timed("the rest", int)()
    print(f"{name}: {rows:,} rows of {len(chosen)} chunks")
    print("| stage | ns a row | share |\n|---|---|---|")
    whole_s = sum(stopwatch.spent_s.values())
    for stage in [*STAGES, "the rest"]:
        spent_s = stopwatch.spent_s[stage]
        print(f"| {stage} | {spent_s / rows * 1e9:,.0f} | {spent_s / whole_s:.0%} |")
    print(f"| all | {whole_s / rows * 1e9:,.0f} | |")


if __name__ == "__main__":
    main(sys.argv[1])
