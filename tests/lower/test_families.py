"""Families of jobs, and the sizes of their steps."""

import numpy as np
import pytest

from projector.config.load import load_job
from projector.lower.batch import Families, JobBatch, step_sizes

BASE = {
    "model": "llama3.2_1b",
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048},
    "cluster": {"device": "h100", "nodes": 1},
}


def batch_of(*overrides):
    first = load_job(BASE)
    jobs = []
    for changes in overrides:
        job = load_job(BASE, changes)
        same = {
            name: getattr(first, name)
            for name in ("model", "parallelism", "cluster")
            if getattr(job, name) == getattr(first, name)
        }
        jobs.append(job.model_copy(update=same))
    return JobBatch.of(jobs)


JOBS = batch_of(
    {},
    {"training.seq_length": 4096},
    {"training.global_batch_size": 128},
    {"training.seq_length": 4096, "training.global_batch_size": 12},
    {"run.steps": 1000},
    {"parallelism.tp": 2},
    {"training.grad_reduce_dtype": "bf16"},
)


def test_the_global_batch_and_the_run_alone_make_no_family():
    families = Families.of(JOBS)
    assert families.of_job.tolist() == [0, 1, 0, 1, 0, 2, 3]
    assert families.batch.training.seq.tolist() == [2048, 4096, 2048, 2048]
    assert not families.are_jobs


@pytest.mark.parametrize("rows", [[3, 2, 0], [1, 3], [6, 0, 1, 5], [*range(7)]])
def test_some_jobs_have_families_of_their_own(rows):
    whole = Families.of(JOBS)
    some, kept = whole.take(np.array(rows))
    assert kept[some.of_job].tolist() == whole.of_job[rows].tolist()
    assert sorted(set(some.of_job.tolist())) == [*range(len(some))]
    assert some.batch.training.seq.tolist() == whole.batch.training.seq[kept].tolist()
    assert some.are_jobs == (some.of_job.tolist() == [*range(len(rows))])


def test_jobs_without_relatives_are_families():
    families = Families.of(batch_of({}, {"parallelism.tp": 2}, {"training.seq_length": 4096}))
    assert families.are_jobs


@pytest.mark.parametrize("kinds", [[0, 0, 0, 0], [0, 1, 1, 2]])
def test_sizes_of_steps(kinds):
    families = Families.of(JOBS)
    samples = np.array([8, 8, 4, 8])
    sizes = step_sizes(JOBS, families, samples, np.array(kinds))
    of_job = samples[families.of_job]
    global_batch = JOBS.training.global_batch
    assert sizes.global_batch[sizes.of_job].tolist() == global_batch.tolist()
    assert sizes.microbatches[sizes.of_job].tolist() == (global_batch // of_job).tolist()
    assert sizes.uneven[sizes.of_job].tolist() == (global_batch % of_job != 0).tolist()
    kind = np.array(kinds)
    assert kind[sizes.family[sizes.of_job]].tolist() == kind[families.of_job].tolist()
    columns = (kind[sizes.family], samples[sizes.family], sizes.global_batch)
    pairs = {*zip(*(column.tolist() for column in columns), strict=True)}
    assert len(pairs) == len(sizes.global_batch)
