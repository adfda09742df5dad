"""What is measured of a benchmark job, and the record of what came out."""

import numpy as np
import pytest

from projector.config.load import load_job
from projector.measure.keys import keys_of
from projector.measure.programs import lower_job, record_of, task_of
from projector.measure.record import Record, load_record
from projector.measure.reduction import reduce_job
from projector.measure.task import Answer, Environment, Outcome, Timing
from projector.operations.table import ATTENTION, GEMM
from projector.projection.evaluate import evaluate


def _reduction(gpus=1, **overrides):
    job = {
        "model": "deepseek_v3",
        "training": {"micro_batch_size": 1, "global_batch_size": 1024, "seq_length": 1024},
        "cluster": {"device": "h100", "nodes": 16},
        "parallelism": {"pp": 8, "ep": 16},
    }
    return reduce_job(load_job(job, {"model.mtp_num_layers": 1, **overrides}), gpus)


def _answer(task):
    timing = Timing(median_s=1e-3, low_s=1e-3, high_s=1e-3, repeats=1)
    outcome = Outcome(status="ok", times={"time": timing})
    environment = Environment(device="none", backend="cpu", memory_bytes=1, torch="none")
    return Answer(environment=environment, outcomes=[outcome] * len(task.programs))


def _of(task, program):
    return [each for each in task.programs if each.program == program]


def test_each_operation_and_each_layer_is_measured_once():
    task = task_of(_reduction())
    keys = [program.key for program in _of(task, "operation")]
    assert len(set(keys)) == len(keys)
    kinds = [program.layer.kind for program in _of(task, "layer")]
    assert kinds == ["embedding", "dense", "moe", "mtp", "head"]
    (step,) = _of(task, "step")
    assert [layer.kind for layer in step.layers] == ["embedding", "dense", "moe", "head"]


def test_nothing_is_measured_that_takes_no_time():
    one, eight = (task_of(_reduction(gpus)) for gpus in (1, 8))
    for task, communicates in ((one, False), (eight, True)):
        kinds = {program.key.kind for program in _of(task, "operation")}
        assert ("collective" in kinds) is communicates
        assert task.ranks == task.ep


def test_kernels_of_a_rank_of_the_target_are_measured_whatever_is_reduced():
    """Tensors over 8 on one device, experts of which one is left too few, and the router."""
    reduction = _reduction(
        **{
            "parallelism.tp": 8,
            "parallelism.ep": 2,
            "model.moe.num_experts": 8,
            "model.moe.num_groups": 0,
        }
    )
    assert reduction.job.parallelism.tp == 1
    measured = {program.key for program in _of(task_of(reduction), "operation")}
    lowered = lower_job(reduction.target)
    alone = np.isin(lowered.table.kind[lowered.rows], (GEMM, ATTENTION))
    assert measured.issuperset(keys_of(lowered.table, lowered.rows[alone]))


def test_collectives_of_contexts_are_those_of_the_target():
    """Layers gather keys; the ring of the target is measured by itself."""
    reduction = _reduction(8, **{"parallelism.cp": 4})
    labels = {program.key.label for program in _of(task_of(reduction), "operation")}
    assert {"attention.cp.all_gather", "attention.cp.send_recv"} <= labels
    exchanged = _reduction(8, **{"parallelism.cp": 4, "parallelism.cp_comm_type": "a2a"})
    labels = {program.key.label for program in _of(task_of(exchanged), "operation")}
    assert {label for label in labels if ".cp." in label} == {"attention.cp.all_to_all"}


@pytest.mark.parametrize(("gpus", "pp", "sends"), [(1, 4, 0), (8, 4, 1), (8, 1, 0)])
def test_a_message_between_stages_is_sent_where_there_are_two_devices(gpus, pp, sends):
    reduction = _reduction(gpus, **{"parallelism.pp": pp, "parallelism.tp": 2})
    keys = [program.key for program in _of(task_of(reduction), "operation")]
    found = [key for key in keys if key.label == "pipeline.send"]
    assert len(found) == sends
    for key in found:
        message = evaluate([reduction.target]).inputs.p2p.bytes[0]
        assert (key.ranks, key.bytes) == (2, message)


def test_memory_bound_operations_say_their_layer():
    for program in _of(task_of(_reduction()), "operation"):
        assert (program.layer is not None) == (program.key.kind == "memory")


@pytest.mark.parametrize(("name", "measured"), [("sgd", "sgd"), ("adam", "adam"), ("muon", "adam")])
def test_the_step_has_an_optimizer_that_a_worker_knows(name, measured):
    task = task_of(_reduction(**{"training.optimizer": name}))
    assert _of(task, "step")[0].optimizer == measured


def test_records_hold_every_outcome(tmp_path):
    reduction = _reduction(8)
    task = task_of(reduction)
    record = record_of(reduction, task, _answer(task))
    assert len(record.operations) == len(_of(task, "operation"))
    assert len(record.layers) == len(_of(task, "layer"))
    assert record.step is not None
    record.save(tmp_path / "record.json")
    assert load_record(tmp_path / "record.json") == record
    assert isinstance(record, Record)


def test_the_benchmark_job_is_lowered_again_from_a_record():
    reduction = _reduction(8)
    task = task_of(reduction)
    record = record_of(reduction, task, _answer(task))
    cluster = {"device": "h100", **record.job["cluster"]}
    again = load_job({**record.job, "cluster": cluster})
    rows = lower_job(again).workloads.rows
    assert (rows == lower_job(reduction.job).workloads.rows).all()
