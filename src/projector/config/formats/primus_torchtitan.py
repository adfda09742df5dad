"""Primus experiments for torchtitan: its sections of settings over presets of Primus.

What presets set: primus/configs/modules/torchtitan/pre_trainer.yaml and the model files beside it,
of AMD-AGI/Primus.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from projector.config import resources
from projector.config.formats.read_job import ReadJob
from projector.config.formats.torchtitan import read_torchtitan
from projector.config.formats.torchtitan_tables import FLAVORS
from projector.errors import ConfigError

ORIGIN: Final = "Primus preset (assumed)"

_TRAINER: Final[Mapping[str, Any]] = {
    "activation_checkpoint.mode": "none",
    "compile.enable": True,
}
"""What the trainer's preset sets otherwise than torchtitan itself."""

_FP8: Final = re.compile(r"[-_]fp8$", re.IGNORECASE)


def read_torchtitan_experiment(
    settings: Mapping[str, Any], *, model: str, degrees: Mapping[str, Any]
) -> ReadJob:
    """Read the settings of an experiment.

    Parameters
    ----------
    settings : mapping
        Sections of torchtitan's settings, as the experiment states them.
    model : str
        Name of the model preset: an architecture, which ``-fp8`` behind it trains in FP8.
    degrees : mapping
        Dotted field -> what the environment sets.
    """
    stem = Path(model).name.removesuffix(".yaml").removesuffix(".yml")
    name = _FP8.sub("", stem)
    narrow = name != stem
    assumed = {**_TRAINER, **({"model.converters": ["quantize.linear.float8"]} if narrow else {})}
    assumed |= _named(name)
    read = read_torchtitan(settings, name=stem, assumed=assumed, assumed_origin=ORIGIN)
    found = resources.index("models").get(resources.normalise(name))
    missing, origins = dict(read.missing), dict(read.origins)
    if "model" in missing and found is not None:
        read.data["model"] = found.stem
        del missing["model"]
    for field, value in degrees.items():
        section, _, last = field.partition(".")
        read.data.setdefault(section, {})[last] = value
        origins[field] = "environment variable"
    if "model" in missing:
        msg = f"{model}: no shipped model has that name; give model=NAME, or model=FILE"
        missing["model"] = ConfigError(msg, key="modules.model", value=model, allowed="a model")
    return read._replace(missing=missing, origins=origins)


def _named(name: str) -> dict[str, str]:
    """Return torchtitan's name and flavour of a preset such as ``llama3.1_8B``."""
    family, _, flavor = name.lower().rpartition("_")
    for known, flavors in FLAVORS.items():
        if flavor in flavors and family.startswith(known):
            return {"model.name": known, "model.flavor": flavor}
    return {"model.name": family or name, "model.flavor": flavor}
