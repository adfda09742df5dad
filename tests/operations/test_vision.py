"""A vision tower before a language model, against counts in plain numbers."""

import numpy as np
import pytest

import projector as pj
from projector.errors import ConfigError, UnsupportedError
from projector.lower.batch import JobBatch, job_columns
from projector.lower.stages import Kind
from projector.lower.workloads import build_workloads, lay_out
from projector.operations.counts import count_model
from projector.operations.emit import emit_operations
from projector.operations.table import FORWARD
from projector.serving.deployment import Deployment

HIDDEN, FFN, LAYERS, PATCH, PATCHES, WIDE, OUT = 1024, 4096, 6, 588, 576, 4096, 2048
TOWER = {
    "num_layers": LAYERS, "hidden_size": HIDDEN, "ffn_hidden_size": FFN, "num_attention_heads": 16,
    "patch_size": PATCH, "patches": PATCHES, "projector_size": WIDE,
}  # fmt: skip


def job_of(vision, **split):
    model = {"extends": "llama3.2_1b", "num_layers": 4, "vision": vision}
    return pj.load_job(
        {
            "model": model,
            "parallelism": split,
            "training": {"micro_batch_size": 2, "global_batch_size": 32, "seq_length": 2048},
            "cluster": {"device": "h100", "nodes": 1},
        }
    )


def tower_rows(job, kind=Kind.VISION):
    batch = JobBatch.of([job])
    workloads = build_workloads(batch, job_columns(batch), lay_out(batch))
    table = emit_operations(workloads.rows)
    rows = np.flatnonzero(workloads.columns.kind[table.workload] == kind)
    return table.take(rows, table.workload[rows])


def test_weights_are_those_of_a_vision_transformer():
    plain, seen = count_model(job_of(None)), count_model(job_of(TOWER))
    layer = 4 * HIDDEN**2 + 4 * HIDDEN + 2 * HIDDEN * FFN + FFN + HIDDEN + 2 * 2 * HIDDEN
    ends = (PATCH + 1 + PATCHES + 2) * HIDDEN
    projector = (HIDDEN + 1) * WIDE + (WIDE + 1) * OUT
    added = seen.parameters_total - plain.parameters_total
    assert added == LAYERS * layer + ends + projector
    still = count_model(job_of(TOWER | {"frozen": True}))
    assert still.parameters_total == seen.parameters_total
    assert still.parameters_trained == seen.parameters_total - LAYERS * layer


def test_patches_that_merge_and_a_gate_have_their_weights():
    plain, qwen = (
        count_model(job_of(TOWER | more)).parameters_total
        for more in ({}, {"merge": 4, "gated": True, "learned_positions": False})
    )
    gates = LAYERS * (HIDDEN * FFN + FFN)
    assert qwen - plain == gates + 3 * HIDDEN * WIDE - PATCHES * HIDDEN


def test_each_image_is_attended_to_by_itself():
    def work(**changes):
        table = tower_rows(job_of(TOWER | changes))
        core = np.array([label == "attention.core" for label in table.labels])[table.label]
        return float(table.flop[core & (table.phase == FORWARD)].sum()), table

    one, table = work()
    assert one == 4.0 * 2 * PATCHES**2 * HIDDEN
    assert work(images=3)[0] == 3 * one
    assert work(images=1, patches=3 * PATCHES)[0] == 9 * one
    assert table.saved_bytes.sum() > 0


def test_a_frozen_tower_goes_forward_alone_and_keeps_nothing():
    table = tower_rows(job_of(TOWER | {"frozen": True}))
    assert set(table.phase.tolist()) == {FORWARD}
    assert table.saved_bytes.sum() == 0
    assert (tower_rows(job_of(TOWER | {"frozen": True}), Kind.PROJECTOR).phase != FORWARD).any()
    steps = [job_of(vision) for vision in (None, TOWER | {"frozen": True}, TOWER)]
    times = [pj.project_performance(job).iteration_time_s for job in steps]
    peaks = [pj.project_memory(job).stages[0].peak_bytes for job in steps]
    assert times == sorted(times)
    assert peaks == sorted(peaks)
    assert len({*times}) == len({*peaks}) == 3
    assert [step.iteration_time_s for step in pj.project_jobs(steps)] == times


@pytest.mark.parametrize("split", [{"tp": 2}, {"pp": 2}, {"cp": 2, "tp": 2}])
def test_it_stands_on_the_first_stage_and_is_divided_by_tp(split):
    job = job_of(TOWER, **split)
    batch = JobBatch.of([job])
    workloads = build_workloads(batch, job_columns(batch), lay_out(batch))
    stage = np.searchsorted(workloads.run_offset, np.arange(len(workloads.run_workload)), "right")
    towers = workloads.columns.kind[workloads.run_workload] == Kind.VISION
    assert (stage[towers] == 1).all()
    assert towers.sum() == 1
    whole, part = (tower_rows(each).flop.sum() for each in (job_of(TOWER), job))
    assert part * split.get("tp", 1) == pytest.approx(whole)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 15}, "divide"),
        ({"merge": 5}, "divide"),
        ({"images": 4}, "2304 tokens of images"),
    ],
)
def test_what_does_not_fit_is_named(changes, words):
    with pytest.raises(ConfigError, match=words):
        pj.project_performance(job_of(TOWER | changes))


def test_what_knows_no_images_says_so():
    job = job_of(TOWER)
    with pytest.raises(UnsupportedError, match="sees images"):
        Deployment.parse({"model": job.model, "cluster": {"device": "b300"}})
    with pytest.raises(UnsupportedError, match="sees images"):
        pj.project_performance(job, fidelity="first-order")
