"""What jobs of one batch share changes none of them: every field of every section is varied."""

from functools import cache, partial

import pytest

from projector.lower import batch, workloads
from projector.lower.batch import PLACED, SECTIONS, JobBatch
from projector.lower.cluster_columns import ClusterColumns
from projector.lower.columns import KeyColumn
from projector.lower.sections import ParallelismColumns, TrainingColumns
from projector.lower.sharing import CLUSTER, PARALLELISM, TRAINING, field_names
from projector.lower.stages import LayerSettings, LayerSplit
from projector.operations import counts
from projector.projection.evaluate import find_legal
from sweeps.variants import (
    BASES,
    alone,
    base_job,
    count_once,
    differences,
    every_field,
    variants,
)

DEVICE_BASES = ("latents in fp8",)
"""Devices are compared as objects, so that one base is enough for their fields."""

SHOWN = {
    "cluster.device.calibrated_to": "runs that a device was calibrated to: they choose its band",
    "cluster.device.sources": "a device's notes on its numbers, written when it is read",
    "cluster.network.sources": "the same of a network",
    "model.notes": "warnings of the reader of a model, which no projection reads",
    "training.adapter.kind": "the other kinds stand for values of other fields",
}
"""Fields without other values -> why."""


@pytest.fixture(autouse=True)
def _counted_once(monkeypatch):
    """Count each model once for all jobs that give the counting the same: a third of the time."""
    monkeypatch.setattr(counts, "_count_uncached", count_once)


@cache
def alone_of(base, number, device=False):
    return alone(variants(base, device=device)[number].job)


@cache
def alone_of_base(base):
    return alone(base_job(base))


def wanted(base, numbers, device=False):
    return [alone_of_base(base), *(alone_of(base, number, device) for number in numbers)]


def compared(base, numbers, device=False):
    found = variants(base, device=device)
    jobs = [base_job(base), *(found[number].job for number in numbers)]
    rows = differences(jobs, wanted(base, numbers, device))
    return [("base", *(found[number].field for number in numbers))[row] for row in rows]


@pytest.mark.parametrize("base", BASES)
def test_a_job_beside_others_is_the_job_alone(base, of_this_run):
    assert "error" not in alone_of_base(base)
    assert not compared(base, of_this_run(range(len(variants(base, device=False)))))


@pytest.mark.parametrize("base", DEVICE_BASES)
def test_devices_beside_others_are_those_alone(base, of_this_run):
    assert not compared(base, of_this_run(range(len(variants(base, device=True)))), device=True)


def test_every_field_is_varied():
    legal = set(SHOWN)
    for device, bases in ((False, BASES), (True, DEVICE_BASES)):
        for base in bases:
            found = variants(base, device=device)
            refused = find_legal(JobBatch.of([each.job for each in found])).refused
            legal |= {each.field for each, why in zip(found, refused, strict=True) if why < 0}
    job = base_job("dense")
    fields = [field for name in SECTIONS for field in every_field(type(getattr(job, name)), name)]
    assert not [
        field
        for field in fields
        if field not in legal and not any(each.startswith(f"{field}.") for each in legal)
    ]


SHARINGS = {"parallelism": PARALLELISM, "training": TRAINING, "cluster": CLUSTER}
COLUMNS = {
    "parallelism": ParallelismColumns,
    "training": TrainingColumns,
    "cluster": ClusterColumns,
}


def keys_without():
    """Yield section, part, field, and a key that leaves the field out."""
    for section, sharing in SHARINGS.items():
        whole = field_names(sharing.section, sharing.as_object)
        for field in whole:
            left = {field: "tried"}
            if field not in {*sharing.replica, *sharing.job, *sharing.own, *CHANGES_NOTHING}:
                fewer = sharing._replace(job={**sharing.job, **left})
                yield section, "pipeline", field, fewer.pipeline_key()
        for field in sharing.replica:
            rest = {name: why for name, why in sharing.replica.items() if name != field}
            yield section, "replica", field, sharing._replace(replica=rest).replica_key()
    for field in sorted({*TRAINING.replica, *TRAINING.job} - CHANGES_NOTHING):
        yield "training", "family", field, TRAINING._replace(own={field: "tried"}).family_key()
    for section, part in (("parallelism", LayerSplit), ("training", LayerSettings)):
        for field in part._fields:
            yield section, "layout", field, partial(without, part, field)
    for field in ("attention", "schedule"):
        yield "training", field, field, lambda _: 0


def without(part, field, section):
    return part.of(section)._replace(**{field: None})


def caught(section, field):
    """Return the base that tells a key without a field from the key, or none."""
    for base in BASES:
        for device in (False, True) if field == "device" else (False,):
            found = variants(base, device=device)
            names = {f"{section}.{name}" for name in FIELDS.get(field, [field])}
            numbers = [
                number
                for number, each in enumerate(found)
                if any(f"{each.field}.".startswith(f"{name}.") for name in names)
            ][:12]
            try:
                if numbers and compared(base, numbers, device):
                    return base
            except (AssertionError, IndexError, ValueError):
                # Stages and orders of one pipeline do not suit another's.
                return base
    return None


FIELDS = {
    "narrow": ["precision"],
    "wide_ends": ["first_last_layers_bf16"],
    "attention": ["attention_kernel"],
    "device": ["device.hbm_peak_tb_per_s"],
}
"""Name in a key -> fields of the section that it is read from."""


CHANGES_NOTHING = {"framework", "schedule_solver_work", "network.nic_measured"}
"""Fields in which no two variants differ in what they come to; bands alone read the last."""

IMPLIED = {
    "tp": ["tp"],
    "etp": ["etp"],
    "gpus_per_node": ["tp", "ep", "etp"],
    **dict.fromkeys(("network.scale_up_gpus", "network.scale_up_segment_gpus"), PLACED),
    **dict.fromkeys(("network.pod_nodes", "network.core_pods"), PLACED),
}
"""Fields that the places of groups tell as well -> these groups."""


@pytest.mark.rotated
@pytest.mark.parametrize("case", [*keys_without()], ids=lambda case: ".".join(case[:3]))
def test_a_key_without_a_field_is_caught(case, monkeypatch):
    section, part, field, key = case
    rest = tuple(group for group in PLACED if group not in IMPLIED.get(field, ()))
    for module in (batch, workloads):
        monkeypatch.setattr(module, "PLACED", rest)
    monkeypatch.setattr(getattr(COLUMNS[section], f"{part}_key"), "read", key)
    if (section, part) == ("cluster", "pipeline"):
        # Pipelines compare machines by the columns that are read of them; here by nothing else.
        by_key = partial(KeyColumn.keys, ClusterColumns.pipeline_key)
        monkeypatch.setattr(ClusterColumns.machine_key, "keys", by_key)
    assert caught(section, field) is not None


def test_what_is_left_out_exists():
    with pytest.raises(ValueError, match="no field 'stepp'"):
        TRAINING._replace(job={"stepp": "misspelt"}).pipeline_key()
