"""Settings of public training recipes, for rows that leave them blank."""

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from projector.config import resources
from projector.config.model_file import model_data
from projector.config.yaml_file import read_yaml
from projector.validate.kind import Row

_VERSIONS = {
    "v0.1.0rc4": "25.09",
    "v0.2.2": "25.11",
    "v0.3.0": "26.02",
    "v0.3.1": "26.02",
    "v0.4.0": "26.02.01",
    "v0.4.1": "26.04",
    "v0.4.2": "26.04.01",
    "v0.5.0": "26.06",
    "v0.5.1": "26.06.01",
    "v0.6.0": "26.08",
}
"""Version of Megatron-Bridge -> NeMo container that ships it (its performance summary)."""

OF_RECIPE = "of its public recipe"
"""Origin of a setting that a recipe of the same model states."""

_CONTAINER = re.compile(r"(?<![\d.])(2\d\.(?:0[1-9]|1[0-2])(?:\.\d{1,2})?)(?![\d.]*\d)")


class Layout(NamedTuple):
    """How a job of a known model is split, as far as a recipe is looked up by it."""

    device: str
    tp: int
    pp: int
    cp: int
    ep: int
    precision: str
    release: str
    """Release of the NeMo container, ``""`` if unknown."""


def container_of(row: Row) -> str:
    """Return the release of the NeMo container that a row names, ``""`` if it names none.

    The remarks of the row come first, then those of its recipe, then the versions in both sources.
    """
    for column in ("other_flags", "recipe_other", "source", "recipe_source"):
        text = row.get(column) or ""
        found = _CONTAINER.search(text)
        if found:
            return found[1]
        version = re.search(r"\bv0\.\d\.\d(?:rc\d)?\b", text)
        if version and version[0] in _VERSIONS and "megatron-bridge" in text.lower():
            return _VERSIONS[version[0]]
    return ""


def virtual_stages(model: str, num_layers: int, layout: Layout) -> tuple[int, str]:
    """Return the virtual stages that NVIDIA's recipes give a pipeline, and what they are from.

    The recipe of the same model and number of stages counts, nearest in device, degrees, type and
    release. With another number of stages, or with other layers, its layers per virtual stage
    count; for a model without a recipe, those of the others.

    Parameters
    ----------
    model : str
        Stem of the model's file.
    num_layers : int
        Layers of the job, which may be a truncated model.
    layout : Layout
        Split of the job.
    """
    recipes = _pipelines(model)
    same = [recipe for recipe in recipes if recipe["pp"] == layout.pp]
    if same:
        vpp = int(_nearest(same, layout)["vpp"])
        if num_layers == _full_layers(model) or num_layers % (layout.pp * vpp) == 0:
            return vpp, OF_RECIPE
    split = [recipe for recipe in recipes if recipe["vpp"] > 1]
    if split:
        nearest = _nearest(split, layout)
        stages = int(nearest["pp"]) * int(nearest["vpp"])
        chunk = max(1, round(_full_layers(model) / stages))
        return _split(num_layers, layout.pp, chunk), "by the layers of its public recipes"
    chunk = int(_document()["layers_per_chunk"]["value"])
    return _split(num_layers, layout.pp, chunk), "by the layers of public recipes"


def paxml_settings(model: str) -> Mapping[str, Any]:
    """Return ``sharding_group_size`` and ``recompute`` of a model of Paxml, empty if unknown."""
    settings: Mapping[str, Any] = _document()["paxml"].get(model, {})
    return settings


@cache
def _document() -> Mapping[str, Any]:
    return read_yaml(resources.data_dir("models") / "recipes.yaml")


def _pipelines(model: str) -> list[Mapping[str, Any]]:
    document = _document()
    name = document["same_as"].get(model, model)
    return list(document["pipelines"].get(name, ()))


@cache
def _full_layers(model: str) -> int:
    return int(model_data(model)["num_layers"])


def _nearest(recipes: list[Mapping[str, Any]], layout: Layout) -> Mapping[str, Any]:
    def closeness(recipe: Mapping[str, Any]) -> tuple[Any, ...]:
        equal = [
            recipe["device"] == layout.device,
            recipe["pp"] == layout.pp,
            recipe["tp"] == layout.tp,
            recipe.get("cp", 1) == layout.cp,
            recipe.get("ep", 1) == layout.ep,
            layout.precision in recipe.get("types", (layout.precision,)),
        ]
        return sum(equal), -_away(recipe, layout.release), _number(recipe["since"])

    return max(recipes, key=closeness)


def _away(recipe: Mapping[str, Any], release: str) -> float:
    """Return how far a release lies outside of those that have a recipe."""
    if not release:
        return 0.0
    number = _number(release)
    return max(0.0, _number(recipe["since"]) - number, number - _number(recipe["until"]))


def _number(release: str) -> float:
    """Return a release such as ``26.02.01`` in months."""
    year, month, *patch = (int(part) for part in release.split("."))
    return 12.0 * year + month + 0.01 * sum(patch)


def _split(num_layers: int, pp: int, chunk: int) -> int:
    """Return the virtual stages of nearly ``chunk`` layers, 1 where the stages are uneven."""
    for layers in (num_layers, num_layers + 2):
        if layers % pp == 0:
            share = layers // pp
            fits = [vpp for vpp in range(1, share + 1) if share % vpp == 0]
            return min(fits, key=lambda vpp: (abs(math.log(share / vpp / chunk)), -vpp))
    return 1
