"""A sweep on a Dask cluster of this machine beside the plain command: what the cluster costs.

More workers than processors are no faster; they show what each of them adds.
"""

import os
import pickle

import psutil
import pytest
from distributed import Client, SubprocessCluster

from projector.sweeps import cluster
from projector.sweeps.engine import sweep
from test_bench_whole_sweeps import Finished, cut

SPACE = {"cluster.nodes": [16], "training.global_batch_size": [1024]}
FEW = SPACE | {
    "training.seq_length": [8192],
    "parallelism.cp": [1],
    "parallelism.zero_stage": [1],
    "training.recompute": ["none"],
}
ROUNDS = 3
TASKS = {250: 2_000, 17_000_000: 100}
"""Bytes of an answer -> tasks."""


@pytest.fixture
def space_file(benchmark, tmp_path):
    return cut("llama70b", FEW if benchmark.disabled else SPACE, tmp_path)


def of_processes(workers):
    """Start a cluster whose scheduler is a process of its own, too."""
    return SubprocessCluster(
        n_workers=workers,
        threads_per_worker=1,
        dashboard_address="127.0.0.1:0",
        worker_kwargs={"memory_limit": 0},
    )


def scheduler_of(client):
    return psutil.Process(client.run_on_scheduler(os.getpid))


def spent_s(process):
    """Return the processor time of a process that runs."""
    times = process.cpu_times()
    return times.user + times.system


class Measured:
    """A cluster whose workers have swept a space once, and what a further sweep takes."""

    def __init__(self, workers, space, folder):
        with of_processes(workers) as found, Client(found, set_as_default=False) as client:
            client.wait_for_workers(workers)
            crew = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
            # In this order in `spent`.
            self.processes = [psutil.Process()], [scheduler_of(client)], crew
            spent = [
                self._round(space, folder / f"rows{number}", client) for number in range(ROUNDS + 1)
            ]
        # The first one loads modules and kernels in every worker.
        self.first_s, self.core_s = sum(spent[0]), min(map(sum, spent[1:]))
        self.caller_s, self.scheduler_s, _ = map(min, zip(*spent[1:], strict=True))

    def _round(self, space, out, client):
        self.answers = []
        unwrap = cluster.unwrap

        def counted(answer, chunk):
            self.answers.append(pickle.dumps(answer))
            return unwrap(answer, chunk)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster, "unwrap", counted)
            before = [sum(map(spent_s, each)) for each in self.processes]
            self.rows = sweep(str(space), out, engine="dask", scheduler=client).rows
        after = [sum(map(spent_s, each)) for each in self.processes]
        return [now - then for now, then in zip(after, before, strict=True)]


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_sweep_on_a_cluster(benchmark, space_file, tmp_path, workers):
    """Processor seconds of all processes, and of the one with caller and scheduler."""
    if benchmark.disabled and workers > 2:
        pytest.skip("the same, with more processes")
    plain = Finished(space_file, tmp_path / "plain")
    found = benchmark.pedantic(lambda: Measured(workers, space_file, tmp_path), rounds=1)
    assert found.rows == plain.told["rows"]
    benchmark.extra_info |= {
        "rows": found.rows,
        "chunks": len(found.answers),
        "bytes_a_chunk": sum(map(len, found.answers)) / len(found.answers),
        "plain_core_s": plain.core_s,
        "first_core_s": found.first_s,
        "core_s": found.core_s,
        "caller_s": found.caller_s,
        "scheduler_s": found.scheduler_s,
    }


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [2, 8])
@pytest.mark.parametrize("size_bytes", [250, 17_000_000])
def test_tasks_a_second(benchmark, monkeypatch, workers, size_bytes):
    """Tasks of a sweep whose answers are ready: processor time of caller and scheduler for each.

    250 bytes is an answer where workers write into an object store, 17 MB one with the rows of
    196,608 points.
    """
    if benchmark.disabled and (workers, size_bytes) != (2, 250):
        pytest.skip("the same, with more processes or bytes")
    count = 20 if benchmark.disabled else TASKS[size_bytes]
    ready = f"__import__('pickle').dumps(bytes({size_bytes}))"
    monkeypatch.setattr(cluster, "_CALL", ready)
    monkeypatch.setattr(cluster, "unwrap", lambda answer, _: answer)
    with of_processes(workers) as found, Client(found, set_as_default=False) as client:
        client.wait_for_workers(workers)
        both = psutil.Process(), scheduler_of(client)

        def tasks():
            with cluster.TaskCrew(client) as crew:
                assert sum(map(len, crew.project(range(count)))) == size_bytes * count

        tasks()
        spent = []
        for _ in range(ROUNDS):
            before = [*map(spent_s, both)]
            tasks()
            spent.append([now - then for now, then in zip(map(spent_s, both), before, strict=True)])
        benchmark.pedantic(tasks, rounds=1)
    caller_s, scheduler_s = map(min, zip(*spent, strict=True))
    benchmark.extra_info |= {
        "tasks": count,
        "caller_us_a_task": caller_s / count * 1e6,
        "scheduler_us_a_task": scheduler_s / count * 1e6,
    }
