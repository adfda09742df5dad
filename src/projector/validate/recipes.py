"""What rows leave blank: settings of public training recipes, the framework and its release."""

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from projector.config import resources
from projector.config.framework import profile_named
from projector.config.model_file import model_data
from projector.config.yaml_file import read_yaml
from projector.errors import ConfigError
from projector.validate.kind import Row
from projector.validate.words import said

OF_RECIPE = "of its public recipe"
"""Origin of a setting that a recipe of the same model states."""


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


def virtual_stages(model: str, num_layers: int, layout: Layout) -> tuple[int, str]:
    """Return the virtual stages that NVIDIA's recipes give a pipeline, and what they are from.

    The recipe of the same model (the stem of its file) and number of stages counts, nearest in
    device, degrees, type and release. With another number of stages, or with other layers (the job
    may truncate the model), its layers per virtual stage count; for a model without a recipe, those
    of the others.
    """
    document = _document()
    name = document["same_as"].get(model, model)
    recipes = list(document["pipelines"].get(name, ()))
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
        since = _number(recipe["since"])
        if not layout.release:
            return sum(equal), 0.0, since
        # How far the release lies outside of those that have the recipe.
        release = _number(layout.release)
        return sum(equal), -max(0.0, since - release, release - _number(recipe["until"])), since

    return max(recipes, key=closeness)


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


def framework_of(row: Row) -> dict[str, str] | None:
    """Return ``training.framework`` of a row, None where its source tells nothing."""
    name, release = said(row, "framework"), said(row, "framework_release")
    if not name:
        return None
    return {"name": name, "release": _known(name, release)} if release else {"name": name}


def _known(name: str, release: str) -> str:
    """Return a release, or where it is unknown the last known one before it."""
    profile = profile_named(name)
    try:
        profile.position(release)
    except ConfigError:
        numbers = _numbers(release)
        earlier = [known for known in profile.releases if _numbers(known) <= numbers]
        return max(earlier, key=_numbers, default=next(iter(profile.releases), ""))
    return release


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release))
