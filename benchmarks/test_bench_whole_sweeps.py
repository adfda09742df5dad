"""Sweeps as processes of their own: time until the last byte, core time a row, peak memory.

Core time is compared with that of writing the finished rows once more: same schema, encodings and
codec, one thread. A run before has compiled the modules, as installing a package does, and another
one is watched for its memory: the system walks through all pages for each look, on the same cores.
Without timing, spaces are cut to a few points.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from projector.sweeps.store import encode

EXAMPLES = Path(__file__).parents[1] / "examples"
POLL_S = 0.25
PARTS = 8
"""Parts that are written again."""
ROUNDS = 3

ONE_CLUSTER = {"cluster.nodes": [16]}
SPACES = {
    # Rows -> how the space over Llama 3.1 70B is cut.
    "16 thousand": ONE_CLUSTER
    | {
        "training.global_batch_size": [1024],
        "training.seq_length": [4096, 8192],
        "training.recompute": ["none", "selective"],
        "training.precision": ["bf16"],
    },
    "1.2 million": ONE_CLUSTER,
}
FEW = ONE_CLUSTER | {
    "training.global_batch_size": [1024],
    "training.seq_length": [8192],
    "parallelism.cp": [1],
    "parallelism.zero_stage": [1],
    "training.recompute": ["none"],
}
"""Left of a space where nothing is timed."""


def cut(name, axes, folder):
    """Write an example space with other values on some axes."""
    source = yaml.safe_load((EXAMPLES / f"space_{name}.yaml").read_text())
    file = folder / f"{name}.yaml"
    source["axes"] |= {axis: values for axis, values in axes.items() if axis in source["axes"]}
    file.write_text(yaml.safe_dump(source, sort_keys=False))
    return file


@pytest.fixture
def space_file(benchmark, tmp_path):
    """Write a space, a small one where nothing is timed."""
    few = FEW if benchmark.disabled else {}
    return lambda name, axes: cut(name, axes | few, tmp_path)


class Finished:
    """A sweep that ran as a process, and what it took; its memory only where it is watched."""

    def __init__(self, space, out, *, is_watched=False):
        self.out = out
        environment = os.environ | {"PYTHONPYCACHEPREFIX": str(out.parent / "compiled")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begun = time.perf_counter()
        command = [sys.executable, "-m", "projector", "sweep", str(space), "--json", "--quiet"]
        with subprocess.Popen(
            [*command, "--out", str(out)], stdout=subprocess.PIPE, env=environment
        ) as process:
            watch = threading.Thread(target=self._watch, args=(psutil.Process(process.pid),))
            if is_watched:
                watch.start()
            self.told = json.loads(process.communicate()[0])
            if is_watched:
                watch.join()
        assert process.returncode == 0
        self.seconds = time.perf_counter() - begun
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.core_s = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)

    def _watch(self, process):
        """Remember the largest sum over its processes; what they share counts once."""
        self.peak_bytes = 0
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            total = 0
            try:
                for each in (process, *process.children(recursive=True)):
                    total += each.memory_full_info().pss
            except (psutil.Error, OSError):
                pass
            self.peak_bytes = max(self.peak_bytes, total)
            time.sleep(POLL_S)

    def writing_s(self):
        """Return the seconds of writing a row once more, the least of some rounds."""
        parts = sorted(self.out.glob("part-*.parquet"))
        schema = pq.read_schema(parts[0])
        texts = [field.name for field in schema if field.type == pa.string()]
        tables = [
            pq.read_table(part, read_dictionary=texts, use_threads=False)
            for part in parts[:: max(1, len(parts) // PARTS)]
        ]
        least = float("inf")
        for _ in range(ROUNDS):
            begun = time.process_time()
            for table in tables:
                encode(table, schema)
            least = min(least, time.process_time() - begun)
        return least / sum(map(len, tables))


@pytest.mark.thorough
@pytest.mark.parametrize("rows", SPACES)
def test_short_sweep(benchmark, space_file, tmp_path, rows):
    """From the start of the process, its kernels in the disk cache, until it has ended."""
    space = space_file("llama70b", SPACES[rows])
    folders = iter(range(1000))
    found = benchmark.pedantic(
        lambda: Finished(space, tmp_path / f"out{next(folders)}"), rounds=ROUNDS, warmup_rounds=1
    )
    assert found.told["rows"] > 0
    benchmark.extra_info |= {"rows": found.told["rows"], "cores": os.cpu_count()}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["llama70b", "schedules"])
def test_whole_sweep(benchmark, space_file, tmp_path, name):
    """Rows a second on all cores, core time over that of writing, and peak memory."""
    space, out = space_file(name, {}), tmp_path / "out"
    found = benchmark.pedantic(
        lambda: Finished(space, out),
        setup=lambda: shutil.rmtree(out, ignore_errors=True),
        rounds=1,
        warmup_rounds=1,
    )
    rows, writing_s = found.told["rows"], found.writing_s()
    watched = Finished(space, tmp_path / "watched", is_watched=True)
    assert rows > 0
    benchmark.extra_info |= {
        "rows": rows,
        "rows_per_s": found.told["rate_per_s"],
        "core_us_per_row": found.core_s / rows * 1e6,
        "writing_us_per_row": writing_s * 1e6,
        "core_time_over_writing": found.core_s / rows / writing_s,
        "peak_gib": watched.peak_bytes / 2**30,
    }


def test_every_stage_is_found(tmp_path):
    """The table of `sweep_stages.py` names functions that may move."""
    script = Path(__file__).with_name("sweep_stages.py")
    command = [sys.executable, str(script), str(cut("llama70b", FEW, tmp_path))]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    spent = [line.split("|")[2].strip() for line in table.splitlines() if line.startswith("| ")]
    assert len(spent) > 10
    assert "0" not in spent
