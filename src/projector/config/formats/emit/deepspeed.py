"""A JSON file of DeepSpeed."""

import json
from collections.abc import Mapping
from typing import Any, Final

from projector.config._base import put
from projector.config.formats.emit.emitted import model_words, recompute_words
from projector.config.formats.emit.megatron import add_rows
from projector.config.formats.read_job import CARRIED
from projector.config.job import Job
from projector.config.resources import settings_of

SUFFIX: Final = ".json"


def own(job: Job) -> dict[str, Any]:
    """Return the model, the sequence and recomputation, which the training script brings along."""
    found = {"model": model_words(job), "training.seq_length": job.training.seq_length}
    recompute = recompute_words(job)
    return found if recompute == "none" else {**found, "training.recompute": recompute}


def write(job: Job, carried: Mapping[str, Any]) -> str:
    """Return the file of a job; see `projector.config.formats.emit.emitted.Writer`."""
    training, table = job.training, settings_of("deepspeed")["written"]
    settings: dict[str, Any] = {}
    add_rows(settings, table["batch"], job)
    step = training.micro_batch_size * job.ranks
    settings["gradient_accumulation_steps"] = max(1, training.global_batch_size // step)
    settings |= {"gradient_clipping": 1.0, "steps_per_print": 10}
    add_rows(settings, table["rest"], job)
    if job.model.moe is not None:
        add_rows(settings, table["experts"], job)
    config: dict[str, Any] = {}
    for name, value in settings.items():
        put(config, name, value)
    if carried:
        config[CARRIED] = dict(carried)
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"
