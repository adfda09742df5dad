"""Files of other tools with random settings: a job or one clear error, never anything else."""

import json
import random
from functools import partial

import pytest

from projector.config.formats import deepspeed, torchtitan, trainer
from projector.config.load import load_job
from projector.config.resources import settings_of
from projector.errors import ProjectorError

VALUES = (
    None, True, False, 0, 1, 2, 8, 64, -1, 10**30, 1.5, float("nan"), float("inf"), "", "x", "2",
    "auto", "op", "full", "none", "bf16", "bfloat16", "1F1B", "Interleaved1F1B", "8B", "lora", [],
    ["a"], [["layers.0"]], [1, [2]], {}, {"enabled": True}, {"stage": 3}, {"a": {"b": 1}},
    "\u2603" * 99,
)  # fmt: skip

GIVEN = {
    "model": "llama3.1_8b",
    "cluster.device": "h100",
    "training.seq_length": 128,
    "training.micro_batch_size": 1,
    "training.precision": "bf16",
}

_MOVED = torchtitan.MOVED.items()

FORMATS = {
    "torchtitan": (
        {"model.name": "llama3", "model.flavor": "8B", "training.seq_len": 128},
        {name for pair in _MOVED for name in pair} | settings_of("torchtitan")["unmodelled"].keys(),
    ),
    "deepspeed": (
        {"train_micro_batch_size_per_gpu": 1, "zero_optimization.stage": 2},
        {name.removeprefix(deepspeed.PREFIX) for name in deepspeed.HARMLESS}
        | {"zero_optimization.overlap_comm", "zero_optimization.reduce_bucket_size",
           "tensor_parallel.autotp_size", "sequence_parallel_size", "pipeline.stages",
           "data_types.grad_accum_dtype", "optimizer.type", "bf16.enabled", "fp16.enabled"},
    ),
    "trainer": (
        {"model_name_or_path": "meta-llama/Llama-3.1-8B", "per_device_train_batch_size": 1},
        trainer.MOVED.keys() | set(trainer.MOVED.values())
        | settings_of("trainer")["refused"].keys() | settings_of("trainer")["unmodelled"].keys()
        | {"fsdp", "fsdp_config.fsdp_version", "optim", "deepspeed", "use_peft", "stage"},
    ),
    "maxtext": (
        {"model_name": "llama3-8b", "per_device_batch_size": 2, "max_target_length": 128},
        {name for part in ("architecture", "experts", "latent", "fields", "refused", "unmodelled")
         for name in settings_of("maxtext")[part]}
        | {f"{place}_{axis}_parallelism" for place in ("ici", "dcn")
           for axis in settings_of("maxtext")["axes"]}
        | {"dtype", "weight_dtype", "quantization", "model_name", "per_device_batch_size",
           "capacity_factor", "sparse_matmul", "mlp_activations", "decoder_block"},
    ),
    "simumax": (
        {"tp_size": 1, "world_size": 8, "seq_len": 128, "micro_batch_size": 1,
         "micro_batch_num": 2},
        {*settings_of("simumax")["fields"], *settings_of("simumax")["harmless"].split()}
        | {"dtype", "fp8", "pp_schedule"},
    ),
}  # fmt: skip
"""Settings of a good file, and names of settings to spoil it with."""


def nested(settings):
    found = {}
    for dotted, value in settings.items():
        node = found
        *path, last = dotted.rstrip(".").split(".")
        for name in path:
            if not isinstance(node.get(name), dict):
                node[name] = {}
            node = node[name]
        node[last] = value
    return found


@pytest.mark.parametrize("kind", FORMATS)
def test_random_settings_give_a_job_or_a_clear_error(kind, tmp_path, monkeypatch):
    good, names = FORMATS[kind]
    names, chance = sorted(names), random.Random(kind)
    outcomes = {True: 0, False: 0}
    if kind == "torchtitan":
        # Its reader takes what the parser of TOML returns; a writer of TOML would know fewer types.
        monkeypatch.setattr("tomllib.loads", partial(json.loads))
    path = tmp_path / ("file.toml" if kind == "torchtitan" else "file.json")
    for _ in range(250):
        changes = chance.choice((1, 1, 2, 4, 8))
        settings = good | {chance.choice(names): chance.choice(VALUES) for _ in range(changes)}
        path.write_text(json.dumps(nested(settings)))
        try:
            load_job(path, GIVEN if chance.random() < 0.8 else {"cluster.device": "mi300x"})
            outcomes[True] += 1
        except ProjectorError:
            outcomes[False] += 1
    assert min(outcomes.values()) > 10
