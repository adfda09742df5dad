"""How processor time grows with what is asked for: jobs, layers, GPUs, ranks of a pipeline, traces.

``python benchmarks/growth.py [PART...]`` measures the parts and keeps their times in
``benchmarks/results/growth.csv``; ``docs/make_growth.py`` draws them. Times are user and system
time of a copy of this process and of those that it starts, the least of `ROUNDS`. This process has
run a smaller size before, so that modules and kernels are loaded; nothing else stays from a round.
"""

import csv
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

import projector
from projector.schedule import registry
from projector.searches.limits import RECOMPUTE, Limits

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results") / "growth.csv"
ROUNDS = 3
MOST_S = 20.0
"""A curve ends after the size that takes longer than this in one round."""

LEARNED_S = 2.0
"""Sizes that take less are also run by the process whose copies are timed."""

SCHEDULES = {"1f1b": 1, "interleaved": 2, "zerobubble": 1, "zbv-greedy-zb": 2, "seaailab": 1}
"""Schedule -> chunks a rank."""

MODEL = yaml.safe_load((ROOT / "models" / "llama3.1_8b.yaml").read_text())
CUTS: tuple[dict[str, list[Any]], ...] = (
    {
        "parallelism.cp": [1],
        "parallelism.zero_stage": [1],
        "training.recompute": ["none"],
        "training.seq_length": [8192],
    },
    {"parallelism.cp": [1, 2], "parallelism.zero_stage": [1], "training.seq_length": [8192]},
    {},
)
"""What is left of the axes of the example space, for 16 nodes and one batch."""

Point = tuple[str, float, float, Callable[[], object]]
"""Curve, size, steps of work where the size is not that, and what is timed."""


def job(layers: int = 32, nodes: int = 1, microbatches: int = 8, **split: Any) -> dict[str, Any]:
    """Return a job of Llama 3.1 8B with other layers, and so many microbatches a rank."""
    schedule = split.pop("schedule", "auto")
    gpus = 8 * nodes
    dp = gpus // (split.get("tp", 1) * split.get("pp", 1))
    return {
        "model": MODEL | {"num_layers": layers},
        "parallelism": split,
        "training": {
            "micro_batch_size": 1,
            "global_batch_size": microbatches * dp,
            "seq_length": 4096,
            "schedule": schedule,
        },
        "cluster": {"device": "h100", "nodes": nodes},
    }


def piped(schedule: str, pp: int, microbatches: int) -> dict[str, Any]:
    """Return a job with two layers a rank, one for each of two chunks."""
    vpp = {"vpp": 2} if SCHEDULES[schedule] == 2 else {}
    nodes = max(1, pp // 8)
    return job(2 * pp, nodes, microbatches, pp=pp, schedule=schedule, **vpp)


def listed(schedule: str, pp: int, microbatches: int) -> bool:
    """Whether an order is not too long; those that repeat themselves never are here."""
    entry = registry.SCHEDULES[schedule]
    return not entry.planned or 3 * pp * SCHEDULES[schedule] * microbatches <= entry.most


def jobs(folder: Path) -> Iterator[Point]:
    """Sweeps of one process to disk; sizes are rows."""
    source = yaml.safe_load((ROOT / "examples" / "space_llama70b.yaml").read_text())
    one = {"cluster.nodes": [16]}
    cuts = [one | {"training.global_batch_size": [1024]} | cut for cut in CUTS] + [one, {}]
    for number, cut in enumerate(cuts):
        space = source | {"axes": source["axes"] | cut}
        file = folder / f"space{number}.yaml"
        file.write_text(yaml.safe_dump(space, sort_keys=False))

        def run(file: Path = file) -> float:
            out = folder / "rows.parquet"
            return projector.sweep(str(file), out, overwrite=True, workers=1).rows

        yield "sweep", 0, 0, run


def layers(_: Path) -> Iterator[Point]:
    """One job on eight GPUs; all layers are alike, or of two kinds in turn."""
    mixed = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 4096, "layer_freq": 2}
    for count in (10, 32, 100, 316, 1000, 3162, 10_000):
        alike = job(count, tp=8)
        yield "memory", count, 0, functools.partial(projector.project_memory, alike)
        yield "performance", count, 0, functools.partial(projector.project_performance, alike)
        two = alike | {"model": alike["model"] | {"moe": mixed}}
        run = functools.partial(projector.project_performance, two)
        yield "performance, every other layer with experts", count, 0, run


def gpus(_: Path) -> Iterator[Point]:
    """One job whose data parallelism grows."""
    for power in range(3, 21):
        if power > 3 and power % 2:
            continue
        nodes = max(1, 2**power // 8)
        dense = job(32, nodes, tp=8)
        yield "memory", 8 * nodes, 0, functools.partial(projector.project_memory, dense)
        yield "performance", 8 * nodes, 0, functools.partial(projector.project_performance, dense)


def stages(_: Path) -> Iterator[Point]:
    """One job with more ranks of its pipeline, two layers each and two microbatches a rank."""
    for power in range(10):
        pp = 2**power
        for schedule, chunks in SCHEDULES.items():
            if (pp == 1 and schedule != "1f1b") or not listed(schedule, pp, 2 * pp):
                continue
            run = functools.partial(projector.project_performance, piped(schedule, pp, 2 * pp))
            yield schedule, pp, pp * 2 * pp * chunks, run


def microbatches(_: Path) -> Iterator[Point]:
    """One job of eight ranks with more microbatches."""
    for power in range(4, 16):
        for schedule, chunks in SCHEDULES.items():
            if not listed(schedule, 8, 2**power):
                continue
            run = functools.partial(projector.project_performance, piped(schedule, 8, 2**power))
            yield schedule, 2**power, 8 * 2**power * chunks, run


def searches(_: Path) -> Iterator[Point]:
    """Searches of 405B on 2,048 GPUs within wider limits: sizes are configurations."""
    base = job(126, 256, 2, tp=8)
    base |= {"model": "llama3.1_405b"}
    base["training"]["global_batch_size"] = 4096
    for ways in (1, 2, 4, 6, 8, 12, 16, 24, 32):
        sizes = tuple(range(1, ways + 1))
        for recompute in (("none",), RECOMPUTE):
            limits = Limits(micro_batch_sizes=sizes, recompute=recompute)
            if len(recompute) == 1 and ways > 2:
                continue

            def run(limits: Limits = limits) -> float:
                return projector.search(base, limits=limits).evaluated

            yield "search", 0, 0, run


def timelines(_: Path) -> Iterator[Point]:
    """Timelines, written operation by operation: sizes are activities."""
    from projector.projection.timeline.build import Detail, build_timeline

    for power in range(8):
        result = projector.project_performance(piped("1f1b", 8, 8 * 2**power))

        def run(result: Any = result) -> float:
            return build_timeline(result, Detail(most=1 << 24)).track.size

        yield "build_timeline", 0, 0, run


def traces(folder: Path) -> Iterator[Point]:
    """Reading a trace of one rank: sizes are events."""
    sys.path.insert(0, str(ROOT / "validation"))
    from trace_of_size import write

    for size in (1, 3, 10, 30, 100):
        path = folder / f"trace{size}.json"
        events = write(path, size * 10**6)
        yield "load_trace", events, 0, lambda path=path: projector.load_trace(str(path)).activities


PARTS: dict[str, Callable[[Path], Iterator[Point]]] = {
    function.__name__: function
    for function in (layers, gpus, stages, microbatches, searches, timelines, traces, jobs)
}


def round_of(run: Callable[[], object]) -> tuple[float, float]:
    """Return the processor time of a copy of this process that runs, and what it found.

    Nothing that it keeps for later calls is there in the next round.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        found = run()
        os.write(write, str(found if isinstance(found, int) else 0).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        found = int(told.read())
    _, status, used = os.wait4(child, 0)
    assert status == 0
    return used.ru_utime + used.ru_stime, found


def measure(part: str) -> Iterator[dict[str, Any]]:
    """Yield the times of the sizes of a part."""
    ended, warm = set(), set()
    with tempfile.TemporaryDirectory() as folder:
        for curve, size, steps, run in PARTS[part](Path(folder)):
            if curve in ended:
                continue
            if curve not in warm:
                run()
                warm.add(curve)
            least, found = float("inf"), 0.0
            for _ in range(ROUNDS):
                took, found = round_of(run)
                least = min(least, took)
                if took > MOST_S:
                    ended.add(curve)
                    break
            row = {"part": part, "curve": curve, "size": size or found}
            yield row | {"steps": steps or size or found, "seconds": f"{least:.4g}"}
            if least < LEARNED_S:
                # What later sizes need is compiled or loaded here.
                run()


def main() -> None:
    """Measure parts; those of other parts stay as they are."""
    parts = sys.argv[1:] or [*PARTS]
    rows = [*csv.DictReader(RESULTS.open())] if RESULTS.exists() else []
    for part in parts:
        rows = [row for row in rows if row["part"] != part]
        for row in measure(part):
            print(*row.values(), flush=True)
            rows.append(row)
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["part", "curve", "size", "steps", "seconds"])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
