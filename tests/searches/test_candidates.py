"""What a search proposes, without a job for each of it."""

from collections import Counter

import numpy as np
import pytest

from projector.config.formats.emit import FORMATS
from projector.config.formats.emit.runnable import Setting, searchable
from projector.config.load import load_job
from projector.errors import ProjectorError
from projector.searches.candidates import KnownSections, candidates
from projector.searches.limits import Limits

JOB = {
    "model": "mixtral_8x7b",
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 2},
}


def changed(training):
    return {**JOB, "training": {**JOB["training"], **training}}


@pytest.mark.parametrize(
    ("job", "limits"),
    [
        (JOB, Limits()),
        (JOB, Limits(schedules=("1f1b", "zbv-greedy-half"), zero_stages=(1, 2, 3))),
        (changed({"framework": "megatron"}), Limits(recompute=("full",))),
        (changed({"framework": "torchtitan"}), Limits(fixed=("parallelism.zero_stage",))),
    ],
)
def test_each_is_what_loading_its_overrides_gives(job, limits):
    base = load_job(job)
    proposed = candidates(base, limits)
    rows = np.linspace(0, len(proposed) - 1, 40).astype(np.int64)
    for row in rows.tolist():
        assert proposed.batch.job(row) == load_job(base, proposed.overrides(row))
    taken = proposed.batch.take(rows)
    for number, row in enumerate(rows.tolist()):
        assert taken.job(number) == proposed.batch.job(row)


def test_equal_sections_are_the_same_rows():
    known = KnownSections()
    for changes in ({}, {"cluster.nodes": 4}, {"cluster.nodes": 4, "cluster.device": "mi300x"}):
        base = load_job(JOB, changes)
        proposed, alone = candidates(base, Limits(), known), candidates(base, Limits())
        assert len(proposed) == len(alone)
        for row in range(0, len(alone), 97):
            assert proposed.overrides(row) == alone.overrides(row)
            assert proposed.batch.job(row) == alone.batch.job(row)
    assert [len(table.items) for table in known.tables][2:4] == [15, 3]
    assert len({*known.tables.parallelism.items}) == len(known.tables.parallelism.items)


def test_all_are_proposed_once_and_zero_stages_follow_each_other():
    proposed = candidates(load_job(JOB), Limits())
    every = [tuple(proposed.overrides(row).items()) for row in range(len(proposed))]
    assert len(set(map(str, every))) == len(every)
    assert [dict(each)["parallelism.zero_stage"] for each in every[:4]] == [1, 3, 1, 3]


def test_what_no_section_allows_is_counted_by_its_field():
    base = load_job(JOB)
    limits = Limits(micro_batch_sizes=(1, -1), zero_stages=(1, 7), recompute=("none",))
    proposed = candidates(base, limits)
    whole = candidates(base, Limits(micro_batch_sizes=(1,), recompute=("none",)))
    refused: Counter[str] = Counter()
    for zero, micro_batch in ((7, 1), (7, -1), (1, -1)):
        fields = {"parallelism.zero_stage": zero, "training.micro_batch_size": micro_batch}
        with pytest.raises(ProjectorError) as error:
            load_job(base, fields)
        refused[error.value.key] += len(whole) // 2
    assert proposed.illegal == refused
    assert len(proposed) == len(whole) // 2


@pytest.mark.parametrize("kind", FORMATS)
def test_what_a_framework_cannot_run_is_not_proposed(kind):
    base = load_job({**JOB, "model": "qwen3_30b_a3b"})
    every = candidates(base, Limits(schedules=("auto", "dualpipe")))
    proposed = candidates(base, Limits(schedules=("auto", "dualpipe"), formats=(kind,)))
    assert 0 < len(proposed) < len(every)
    left_out = sum(proposed.illegal.values()) - sum(every.illegal.values())
    assert left_out > 0
    for row in np.linspace(0, len(proposed) - 1, 20).astype(np.int64).tolist():
        job = proposed.batch.job(row)
        setting = Setting(job.model, job.parallelism, job.training, job.cluster.gpus)
        assert not [*searchable(kind, setting)]
    if kind == "torchtitan":
        shardings = {
            (split["parallelism.fsdp"], split["parallelism.zero_stage"])
            for split in map(proposed.overrides, range(len(proposed)))
        }
        assert (2, 3) in shardings
        assert (False, 3) not in shardings


def test_a_sharding_that_is_stated_is_kept_for_a_framework():
    base = load_job(JOB, {"parallelism.fsdp": 2, "model": "qwen3_30b_a3b"})
    fixed = ("parallelism.fsdp",)
    proposed = candidates(base, Limits(fixed=fixed, formats=("torchtitan",)))
    assert {proposed.overrides(row)["parallelism.fsdp"] for row in range(len(proposed))} == {2}
