"""Pipelines that one batch of jobs leaves to the next."""

import numpy as np
import pytest

from projector.config.load import load_job
from projector.lower.batch import JobBatch
from projector.projection import known
from projector.projection.evaluate import evaluate, evaluate_legal, find_legal
from projector.projection.known import KnownPipelines

BASE = {
    "model": "llama3.2_1b",
    "parallelism": {"tp": 1, "pp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048},
    "cluster": {"device": "h100", "nodes": 1},
}
JOBS = [
    load_job(BASE, changes)
    for changes in (
        {},
        {"parallelism.tp": 2},
        {"training.global_batch_size": 128},
        {"parallelism.pp": 4},
        {"training.recompute": "full"},
        {"cluster.device": "mi300x"},
    )
]
ALONE = [evaluate([job]) for job in JOBS]


def steps_of(batch, rows, pipelines):
    part = batch.take(np.array(rows))
    found = evaluate_legal(part, find_legal(part), pipelines).steps
    return [*zip(found.iteration_s.tolist(), found.peak_bytes.tolist(), strict=True)]


def expected(rows):
    alone = [ALONE[row].steps for row in rows]
    return [(steps.iteration_s[0], steps.peak_bytes[0]) for steps in alone]


@pytest.mark.parametrize("most", [known.MOST_STAGES, 0])
def test_a_job_is_the_same_whatever_was_known_before(most, monkeypatch):
    monkeypatch.setattr(known, "MOST_STAGES", most)
    pipelines, batch = KnownPipelines(), JobBatch.of(JOBS)
    for rows in ([1, 3], [3, 0, 1, 2], [5, 4], [*range(6)], [2]):
        pipelines.make_room()
        assert steps_of(batch, rows, pipelines) == expected(rows)


def test_jobs_of_other_tables_share_nothing():
    pipelines = KnownPipelines()
    for rows in ([0, 1], [3, 4], [1, 0]):
        batch = JobBatch.of([JOBS[row] for row in rows])
        assert steps_of(batch, [0, 1], pipelines) == expected(rows)


@pytest.mark.parametrize(("tp", "shared"), [(1, True), (2, True), (16, False)])
def test_pipelines_within_a_domain_are_those_of_every_network(tp, shared):
    job = load_job(BASE, {"cluster.nodes": 4, "parallelism.tp": tp})
    slower = load_job(BASE, {"cluster.nodes": 4, "cluster.network.nic_gbit_per_s": 200.0})
    jobs = [job, job.model_copy(update={"cluster": slower.cluster})]
    batch = JobBatch.of(jobs)
    found = evaluate_legal(batch, find_legal(batch), KnownPipelines())
    assert (found.workloads.pipeline[0] == found.workloads.pipeline[1]) == shared
    alone = [evaluate([job]).steps.iteration_s[0] for job in jobs]
    assert found.steps.iteration_s.tolist() == alone
    assert alone[0] != alone[1]
