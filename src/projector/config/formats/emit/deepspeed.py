"""A JSON file of DeepSpeed."""

import json
from collections.abc import Mapping
from typing import Any, Final

from projector.config.formats.emit.emitted import model_words, recompute_words
from projector.config.formats.read_job import CARRIED
from projector.config.job import Job

SUFFIX: Final = ".json"


def own(job: Job) -> dict[str, Any]:
    """Return the model, the sequence and recomputation, which the training script brings along."""
    found = {"model": model_words(job), "training.seq_length": job.training.seq_length}
    recompute = recompute_words(job)
    return found if recompute == "none" else {**found, "training.recompute": recompute}


def write(job: Job, carried: Mapping[str, Any]) -> str:
    """Return the file of a job; see `projector.config.formats.emit.emitted.Writer`."""
    training, split = job.training, job.parallelism
    config: dict[str, Any] = {
        "train_batch_size": training.global_batch_size,
        "train_micro_batch_size_per_gpu": training.micro_batch_size,
        "gradient_accumulation_steps": max(
            1, training.global_batch_size // (training.micro_batch_size * job.ranks)
        ),
        "gradient_clipping": 1.0,
        "steps_per_print": 10,
        "zero_optimization": _zero(job),
        "bf16": {"enabled": training.precision not in {"fp32", "fp16"}},
        "fp16": {"enabled": training.precision == "fp16"},
        "data_types": {"grad_accum_dtype": training.gradient_dtype},
        "communication_data_type": training.reduce_dtype,
    }
    if training.optimizer.name in {"adam", "muon"}:
        name = {"adam": "AdamW", "muon": "Muon"}[training.optimizer.name]
        config["optimizer"] = {"type": name, "params": {"lr": 1e-4}}
    if split.tp > 1:
        config["tensor_parallel"] = {"autotp_size": split.tp}
    if split.cp > 1:
        config["sequence_parallel_size"] = split.cp
    if split.pp > 1:
        config["pipeline"] = {"stages": split.pp}
    if job.model.moe is not None and split.ep > 1:
        config["expert_parallel"] = {
            "enabled": True,
            "autoep_size": split.ep,
            "expert_tensor_parallel_size": split.expert_tp,
        }
    if carried:
        config[CARRIED] = dict(carried)
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _zero(job: Job) -> dict[str, Any]:
    split, optimizer = job.parallelism, job.training.optimizer
    section: dict[str, Any] = {
        "stage": split.sharding_stage,
        "overlap_comm": split.overlap_grad_reduce,
    }
    if split.ddp_bucket_size is not None:
        section["reduce_bucket_size"] = split.ddp_bucket_size
    if split.sharding_group_size is not None:
        section["mics_shard_size"] = split.sharding_group_size
    if optimizer.offload_fraction:
        section["offload_optimizer"] = {"device": "cpu", "ratio": optimizer.offload_fraction}
    return section
