"""Every number that a file may state has a least and a greatest legal value."""

import types
import typing
from collections.abc import Iterator

import pytest
from pydantic.fields import FieldInfo

from projector.config._base import Config
from projector.config.job import Job
from projector.config.planning import PlanSettings
from projector.errors import ConfigError
from projector.rl.job import RLJob
from projector.serving.deployment import Deployment
from projector.serving.load import Load

CHECKED_BY_WORDS = {("EnergyConfig", "grid"), ("Deployment", "kv_cache_bytes")}
"""Validators of these take a few values only."""


def numbers(kind: type[Config], seen: set[type]) -> Iterator[tuple[str, str, set[str]]]:
    """Yield class, field and the names of bounds of each number of a section and those below."""
    seen.add(kind)
    for name, field in kind.model_fields.items():
        # Of two upper bounds pydantic checks the last one alone.
        assert sum(type(each).__name__ == "Le" for each in field.metadata) < 2, name
        for leaf, metadata in leaves(field.annotation, list(field.metadata)):
            if leaf in (int, float):
                yield kind.__name__, name, {type(each).__name__ for each in metadata}
            elif leaf not in seen:
                yield from numbers(leaf, seen)


def leaves(annotation, metadata):
    """Yield numbers and sections in a type, each with what is said of it."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        inner, *said = typing.get_args(annotation)
        for each in said:
            metadata = metadata + (each.metadata if isinstance(each, FieldInfo) else [each])
        yield from leaves(inner, metadata)
    elif origin is not None and origin is not typing.Literal:
        passed = metadata if origin in (typing.Union, types.UnionType) else []
        for inner in typing.get_args(annotation):
            yield from leaves(inner, passed)
    elif annotation in (int, float) or (
        isinstance(annotation, type) and issubclass(annotation, Config)
    ):
        yield annotation, metadata


@pytest.mark.parametrize("kind", [Job, Deployment, Load, RLJob, PlanSettings])
def test_every_number_has_bounds(kind):
    found = [*numbers(kind, set())]
    assert len(found) > 2
    unbounded = {
        (section, name)
        for section, name, bounds in found
        if not (bounds & {"Ge", "Gt"} and bounds & {"Le", "Lt"})
    }
    assert unbounded <= CHECKED_BY_WORDS


@pytest.mark.parametrize("key", ["norms_per_layer", "moe.group_topk", "moe.num_shared_experts"])
def test_counts_that_leave_64_bits_are_refused(key):
    settings = {
        "model": "qwen3_30b_a3b",
        "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096},
        "cluster": {"device": "mi300x", "num_gpus": 8},
    }
    from projector import load_job

    with pytest.raises(ConfigError, match=rf"model\.{key}: should be"):
        load_job(settings, overrides={f"model.{key}": 2**53})
