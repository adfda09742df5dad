"""The tracks of a timeline add up to the breakdown, to the picosecond."""

import random
from pathlib import Path

import pytest
from tests.measure.synthetic import project_measured, synthetic_record
from tests.projection.timeline.checks import timeline_of_result
from tests.test_random_overrides import EXAMPLES, FIELDS

import projector as pj
from projector.config.load import load_job
from projector.errors import ConfigError, ProjectorError
from projector.measure.reduction import reduce_job
from projector.projection.timeline.build import Detail, build_timeline

RANDOM = 30

LAYOUTS = {
    "dense": {},
    "tensor": {"parallelism.tp": 4, "parallelism.sequence_parallel": True},
    "tensor_overlapped": {"parallelism.tp": 4, "parallelism.tp_comm_overlap": True},
    "async_tp": {"parallelism.tp": 4, "parallelism.tp_comm_overlap": "async_tp"},
    "context": {"parallelism.cp": 4, "training.seq_length": 32768},
    "context_gathered": {"parallelism.cp": 4, "parallelism.cp_comm_type": "all_gather"},
    "pipeline": {"parallelism.pp": 4, "training.schedule": "1f1b"},
    "pipeline_without_blocking": {"parallelism.pp": 4, "parallelism.overlap_p2p_comm": True},
    "interleaved": {"parallelism.pp": 4, "parallelism.vpp": 2},
    "zero_bubble": {"parallelism.pp": 4, "training.schedule": "zerobubble"},
    "zero_bubble_v": {
        "parallelism.pp": 4, "parallelism.vpp": 2, "training.schedule": "zbv-formatted",
    },
    "apart": {
        "parallelism.pp": 4, "training.schedule": "zerobubble",
        "training.optimizer_post_validation": True,
    },
    "both_directions": {"parallelism.pp": 4, "training.schedule": "dualpipe"},
    "uneven": {"parallelism.pp": 4, "parallelism.decoder_first_pipeline_num_layers": 2},
    "zero_0": {"parallelism.zero_stage": 0},
    "zero_1_in_sequence": {
        "parallelism.overlap_grad_reduce": False, "parallelism.overlap_param_gather": False,
    },
    "zero_2": {"parallelism.zero_stage": 2},
    "zero_3": {"parallelism.zero_stage": 3},
    "fsdp_1": {"parallelism.fsdp": 1},
    "fsdp_2": {"parallelism.fsdp": 2, "parallelism.fsdp_forward_prefetch": 0},
    "selective": {"training.recompute": "selective"},
    "full": {"training.recompute": "full"},
    "full_together": {
        "training.recompute": {"granularity": "full", "method": "uniform", "num_layers": 4},
    },
    "offload": {"training.activation_offload_fraction": 1.0},
    "graphs": {"training.cuda_graphs": True},
    "compiled": {"training.torch_compile": True},
    "host_bound": {"cluster.software.launch_us": 100, "training.seq_length": 128},
    "tied": {"model": "llama3.2_1b", "parallelism.pp": 2},
    "mtp": {"model.mtp_num_layers": 1, "parallelism.pp": 2},
    "adapters": {"training.adapter.dropout": 0.1, "training.recompute": "full"},
    "adapters_divided": {"training.adapter": "lora", "parallelism.tp": 4},
    "adapters_packed": {"training.adapter": "qlora", "parallelism.fsdp": 2},
}  # fmt: skip
BASE = {
    "model": "llama3.1_8b",
    "cluster": {"device": "mi300x", "nodes": 2},
    "training": {"global_batch_size": 64, "micro_batch_size": 1, "seq_length": 4096},
}
MOE = {
    "exchanged": {},
    "overlapped": {"parallelism.overlap_moe_expert_parallel_comm": True},
    "beside_shared": {"parallelism.moe_shared_expert_overlap": True},
    "fused": {"training.moe.dispatcher": "deepep"},
    "with_tensor": {"parallelism.tp": 2, "parallelism.etp": 1},
    "recomputed": {"training.recompute": {"modules": ["moe_act", "core_attn", "mlp"]}},
    "split": {"parallelism.pp": 2, "training.schedule": "zerobubble"},
}
EXPERTS = BASE | {"model": "deepseek_v2_lite", "parallelism": {"ep": 8}}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: Path(path).stem)
def test_every_example(path):
    timeline_of_result(pj.project_performance(path))


@pytest.mark.rotated
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_dense_model(name):
    timeline_of_result(pj.project_performance(load_job(BASE, LAYOUTS[name])))


@pytest.mark.parametrize("name", MOE)
def test_a_model_of_experts(name):
    timeline_of_result(pj.project_performance(load_job(EXPERTS, MOE[name])))


@pytest.mark.parametrize("rule", ["ratio", "linear"])
@pytest.mark.parametrize("path", ["measure_mixtral_8x7b", "measure_llama3_8b"])
def test_measured_jobs(path, rule):
    job = load_job(EXAMPLES[0].parent / f"{path}.yaml")
    record = synthetic_record(reduce_job(job, 1), 1.7)
    result = project_measured(job, record, tp_rule=rule)
    with pytest.raises(ConfigError, match="record"):
        build_timeline(result)
    timeline_of_result(result, record=record)


def test_a_measured_job_that_knows_its_record():
    job = load_job(EXAMPLES[0].parent / "measure_mixtral_8x7b.yaml")
    result = pj.project_performance(job, records=synthetic_record(reduce_job(job, 1), 1.7))
    timeline_of_result(result)


@pytest.mark.rotated
@pytest.mark.parametrize("seed", range(RANDOM))
def test_random_jobs(seed):
    rng = random.Random(1000 + seed)
    while True:
        fields = rng.sample(list(FIELDS), rng.choice([1, 2, 3, 4, 6]))
        overrides = {name: rng.choice(FIELDS[name]) for name in fields}
        path = rng.choice(EXAMPLES)
        try:
            result = pj.project_performance(load_job(path, overrides))
        except ProjectorError:
            continue
        break
    try:
        timeline_of_result(result, detail=Detail(most=50_000))
    except Exception as error:
        error.add_note(f"{path} with {overrides}")
        raise
