"""An experiment file of Primus."""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from projector.config.adapter import MEGATRON_TARGETS
from projector.config.formats.detect import comment_lines
from projector.config.formats.emit.layer_words import LETTERS, has_pattern, layer_pattern
from projector.config.formats.emit.megatron import Arguments, check_model, megatron_arguments
from projector.config.job import Job
from projector.config.model import ModelConfig
from projector.config.resources import settings_of
from projector.distribution import package_version

SUFFIX: Final = ".yaml"

ALGORITHMS: Final[Mapping[str, str]] = settings_of("primus")["algorithms"]
"""Schedule -> ``pp_algorithm`` of Primus' pipeline runtime."""


def own(job: Job) -> dict[str, Any]:
    """Return the nodes, which Primus is told in ``NNODES``."""
    check_model(job.model, "Primus", _letters(job.model))
    return {"cluster.nodes": job.cluster.nodes}


SPECIFICATIONS: Final[Mapping[str, str]] = settings_of("primus")["specifications"]
"""What M stands for -> module and name of the layers; their attention is latent."""

_SOFTMAX: Final = "mamba2 with softmax attention"


def _mixer(model: ModelConfig) -> str:
    """Return what M stands for in a model."""
    mixer = next((each for each in model.mixers if each != "attention"), "mamba2")
    softmax = mixer == "mamba2" and model.mla is None and "attention" in model.mixers
    return _SOFTMAX if softmax else str(mixer)


def _letters(model: ModelConfig) -> dict[Any, str]:
    """Return the letter of each kind of layer that can stand beside a model's mixer."""
    mixer = _mixer(model)
    letters: dict[Any, str] = {"mlp": LETTERS["mlp"], "experts": LETTERS["experts"]}
    if mixer == _SOFTMAX or model.mla is not None:
        letters["attention"] = LETTERS["attention"]
    return letters | ({mixer.split()[0]: "M"} if mixer in SPECIFICATIONS else {})


def write(job: Job, carried: Mapping[str, Any]) -> str:
    """Return the file of a job; see `projector.config.formats.emit.emitted.Writer`."""
    title = " ".join((job.name or job.model.name).split())
    groups = megatron_arguments(job)
    groups["training"] |= _own(job)
    overrides = {name: value for settings in groups.values() for name, value in settings.items()}
    adapters = _adapters(job)
    overrides |= adapters
    trainer = {
        "framework": "megatron",
        "config": "sft_trainer.yaml" if adapters else "pre_trainer.yaml",
        "model": "language_model.yaml",
        "overrides": overrides,
    }
    modules = {"post_trainer" if adapters else "pre_trainer": trainer}
    data = {**settings_of("primus")["experiment"], "exp_name": title, "modules": modules}
    template: str = settings_of("primus")["head"]
    head = template.format(title=title, version=package_version(), carried=comment_lines(carried))
    body: str = yaml.safe_dump(data, sort_keys=False, width=1 << 20)
    return head + body


def _adapters(job: Job) -> dict[str, Any]:
    """Return what the fine-tuning trainer is told of adapters, if it has words for them."""
    adapter = job.training.adapter
    if adapter is None or not {*adapter.targets} <= {*MEGATRON_TARGETS}:
        return {}
    lora = {
        "enabled": True,
        "dim": adapter.rank,
        "alpha": adapter.alpha or adapter.rank,
        "dropout": adapter.dropout,
        "dropout_position": adapter.dropout_position,
        "target_modules": [*adapter.targets],
    }
    return {"stage": "sft", "lora": lora}


def _own(job: Job) -> Arguments:
    """Return settings of the trainer that Megatron-LM does not have."""
    training, settings = job.training, Arguments()
    if has_pattern(job.model):
        settings["model_type"], settings["is_hybrid_model"] = "mamba", True
        settings["hybrid_layer_pattern"] = layer_pattern(job, _letters(job.model))
        settings["spec"] = SPECIFICATIONS[_mixer(job.model)].split()
    algorithm = ALGORITHMS.get(training.schedule)
    if algorithm is not None:
        settings["patch_primus_pipeline"] = True
        settings["pp_algorithm"] = algorithm
    if training.recompute.layers is not None:
        settings["recompute_layer_ids"] = [*training.recompute.layers]
    choice = training.moe
    if job.model.moe and choice.dispatcher == "deepep" and not choice.host_sync:
        settings |= settings_of("primus")["sync_free"]
        if choice.dispatcher_sms is not None:
            settings["turbo_deepep_num_cu"] = choice.dispatcher_sms
    return settings
