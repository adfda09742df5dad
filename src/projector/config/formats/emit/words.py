"""Parts of a job by the shortest words that give them again."""

from typing import Any

from projector.config import resources
from projector.config.job import Job
from projector.config.model import ModelConfig
from projector.config.model_file import load_model


def model_words(job: Job) -> Any:
    """Return the name of the shipped model that a job has, or the fields of its own."""
    known = resources.index("models").get(resources.normalise(job.model.name))
    if known is not None and same_model(load_model(known.stem), job.model):
        return known.stem
    return job.model.model_dump(mode="json", exclude_unset=True, exclude={"source"})


def same_model(one: ModelConfig, other: ModelConfig) -> bool:
    """Whether two architectures differ at most in name and source."""
    titles = {"name": "", "source": ""}
    return one.model_copy(update=titles) == other.model_copy(update=titles)


def recompute_words(job: Job) -> Any:
    """Return what the backward computes again, in one word or as a mapping."""
    kind = job.training.recompute
    if kind.granularity == "none":
        return "none"
    found: dict[str, Any] = {"granularity": kind.granularity}
    if kind.granularity == "selective":
        return {**found, "modules": [*kind.modules]}
    if kind.layers is not None:
        found["layers"] = [*kind.layers]
    if kind.num_layers is not None:
        found["num_layers"] = kind.num_layers
    return {**found, "method": kind.method}
