"""Layers of several kinds in Megatron's words: a pattern of letters, or layers of its GPT model."""

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final

from projector.config.formats.megatron_settings.model import WIDTHS, layers_of_period
from projector.config.job import Job
from projector.config.model import PATTERN, LayerType, ModelConfig
from projector.config.parallelism import ParallelismConfig

LETTERS: Final[Mapping[LayerType, str]] = {kind: sign for sign, kind in [*PATTERN.items()][::-1]}
"""Kind of layer -> letter, * for attention."""

_GPT: Final = frozenset({"dense", "moe", "gdn_dense", "gdn_moe"})
"""Kinds that Megatron's GPT model has (``--experimental-attention-variant``)."""

_STAGE: Final = re.compile(r"E?(?:t\*(\d+)|(t*))m*L?")


def has_pattern(model: ModelConfig) -> bool:
    """Whether Megatron builds a model of a pattern of letters."""
    return model.layer_types is not None and not _GPT.issuperset(model.layer_kinds)


def layer_words(model: ModelConfig) -> dict[str, Any]:
    """Return what mixers have, and which layers have which where no pattern says it."""
    settings: dict[str, Any] = {}
    if model.mla is not None and model.mla.index_heads:
        settings |= {"experimental_attention_variant": "dsa"} | _named("indexer", model.mla)
        settings["apply_rope_fusion"] = False
    if model.recurrent is not None and "mamba2" in model.mixers:
        settings |= _named("states", model.recurrent)
    if model.recurrent is not None and {*model.mixers} - {"mamba2", "attention"}:
        settings |= _named("linear", model.recurrent)
    if "gdn" in model.mixers and not has_pattern(model):
        whole = [int(mixer == "attention") for mixer in model.mixers]
        freq = whole.index(1) + 1 if 1 in whole else 0
        periodic = freq and whole == layers_of_period(freq, len(whole))
        settings["experimental_attention_variant"] = "gdn"
        settings["linear_attention_freq"] = (
            freq if periodic else layer_list(1 - each for each in whole)
        )
    return settings


def layer_list(pattern: Iterable[int]) -> str:
    """Return a list of layers as Megatron's expression, such as ``([0]*3+[1]*58)``."""
    runs = [f"[{value}]*{len([*run])}" for value, run in groupby(pattern)]
    return f"({'+'.join(runs)})"


def _named(part: str, section: Any) -> dict[str, Any]:
    return {name: getattr(section, field) for field, (name, _) in WIDTHS[part].items()}


def layer_pattern(job: Job, letters: Mapping[Any, str]) -> str:
    """Return the letters of a model, cut into stages, with modules of further tokens behind."""
    model, layers = job.model, "".join(letters[kind] for kind in job.model.layer_kinds)
    counts, first = stage_layers(job.parallelism, model.num_layers) or [], 0
    stages = []
    for count in counts:
        stages.append(layers[first : first + count])
        first += count
    module = letters.get("attention", "*") + letters["experts" if model.moe else "mlp"]
    return "/".join(["|".join(stages) or layers, *[module] * model.mtp_num_layers])


def stage_layers(split: ParallelismConfig, layers: int) -> list[int] | None:
    """Return the layers of each stage, None where arguments beside a pattern must say them."""
    stages = split.pp * split.vpp
    if split.pipeline_model_parallel_layout is not None:
        found = [_STAGE.fullmatch(part) for part in split.pipeline_model_parallel_layout.split("|")]
        return [int(one[1] or len(one[2] or "")) for one in found if one] if all(found) else None
    if split.decoder_first_pipeline_num_layers or split.decoder_last_pipeline_num_layers:
        return None
    least, longer = divmod(layers, stages)
    return [least + (stage < longer) for stage in range(stages)]
