"""MaxText's settings, in a YAML file as its ``base.yml`` or in an experiment of Primus.

``hardware/settings/maxtext.yaml`` has what settings are called and mean, and where that was read.
"""

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from projector.config import resources
from projector.config.formats import read_job
from projector.config.formats.huggingface_file import MAX_LAYERS
from projector.config.formats.read_job import Derived, ReadJob, Stated
from projector.config.formats.values import integer, is_off
from projector.config.model import ModelConfig
from projector.config.model_file import model_of

_TABLE: Final = resources.settings_of("maxtext")


def read_maxtext(
    data: Mapping[str, Any], *, path: Path, assumed: Mapping[str, Any] | None = None
) -> ReadJob:
    """Read MaxText's settings without a device; ``assumed`` has those of presets of Primus."""
    # -1 is not set, but of an axis, where it is all that is left.
    given, held = (
        {
            name: " ".join(map(str, value)) if isinstance(value, list) else value
            for name, value in part.items()
            if value is not None and (value != -1 or str(name).endswith("_parallelism"))
        }
        for part in (data, assumed or {})
    )
    named = (held | given).get("model_name", "default")
    if named == "default" or isinstance(named, Mapping):
        held = _TABLE["defaults"] | held
    origin = "MaxText default" if assumed is None else "Primus preset (assumed)"
    stated = Stated(given, "MaxText", assumed=held, assumed_origin=origin)
    stated.put("name", stated.word("run_name") or path.stem, origin="the file's name")
    _model(stated)
    for part in _TABLE["parts"].split():
        stated.take(_TABLE[part])
    for field, value in _TABLE["constants"].items():
        stated.put(field, value)
    stated.unmodelled(_TABLE)
    return stated.read_job(_TABLE["harmless"].split(), derive=_Mesh(stated).derive)


def _model(stated: Stated) -> None:
    """Set the architecture of a name, or the one that the settings describe."""
    name = stated.word("model_name", "default")
    whole, key = name == "default", resources.normalise(name)
    found = resources.index("models").get(key)
    own = copy.deepcopy(_TABLE["models"].get(key)) or {"extends": found.stem if found else name}
    model: dict[str, Any] = {"name": stated.job["name"]} if whole else own
    stated.put("model", model, "model_name")
    for setting, why in _TABLE["refused"].items():
        if stated.has(setting) and not is_off(stated.values[setting]):
            error = stated.refusal(setting, f"{why}: not supported; give model=NAME", "0")
            stated.missing["model"] = error
    stated.take(_TABLE["architecture"])
    if stated.integer("num_experts", 1) > 1:
        stated.take(_TABLE["experts"])
    if whole:
        model |= stated.choice("decoder_block", _TABLE["blocks"], "llama2")
        dense = stated.integer("first_num_dense_layers", 0, least=0)
        every = stated.integer("interleave_moe_layer_step", 1)
        shared = stated.integer("shared_experts", 0, least=0)
        if experts := model.get("moe"):
            width = experts.setdefault("ffn_hidden_size", model["ffn_hidden_size"])
            experts["shared_expert_ffn_hidden_size"] = shared * width
            # Of so many layers the last has experts.
            each = range(1, min(model["num_layers"], MAX_LAYERS) + 1)
            experts["layer_freq"] = [int(at > dense and at % every == 0) for at in each]
        if stated.choice("attention_type", _TABLE["attention_types"], "global"):
            stated.take(_TABLE["latent"])
    else:
        for setting in filter(stated.has, _TABLE["of_a_whole_model"].split()):
            stated.warn(f"{stated.spell(setting)} was ignored: model_name {name} says it")
    if "model" in stated.missing:
        del stated.job["model"]


class _Mesh:
    """Axes of devices and batch, some of which follow from the nodes."""

    def __init__(self, stated: Stated):
        self.stated = stated
        self.sizes: dict[str, dict[str, int]] = {}
        """``ici`` and ``dcn`` -> axis -> size, -1 for all that is left."""
        for place, free in _TABLE["left_over"].items():
            sizes = self.sizes[place] = {}
            for axis in _TABLE["axes"]:
                name = f"{place}_{axis}_parallelism"
                sizes[axis] = stated.get(name, integer, -1 if axis == free else 1)
                if sizes[axis] < -1 or not sizes[axis] or list(sizes.values()).count(-1) > 1:
                    stated.fail(name, "an integer >= 1, or -1 for one axis of a kind")
        if any(sizes["pipeline"] != 1 for sizes in self.sizes.values()):
            stated.warn("rounds of a pipeline are projected as interleaved, which holds less")
        self.local = stated.number("per_device_batch_size", 12.0)
        self.steps = stated.integer("gradient_accumulation_steps", 1)
        self.masked = not stated.on("sparse_matmul", default=True)
        self.capacity = stated.number("capacity_factor", 0.0)
        self.zero_stage = int(stated.on("shard_optimizer_over_data"))
        self.parts = stated.integer("num_pipeline_microbatches", 0, least=0)
        self.length = stated.integer("num_layers_per_pipeline_stage", 1)
        self.piped = stated.integer("pipeline_parallel_layers", 0, least=0)

    def derive(self, data: dict[str, Any]) -> Derived:
        """Return nodes, degrees, schedule and batches."""
        known = {
            place: math.prod(size for size in sizes.values() if size > 0)
            for place, sizes in self.sizes.items()
        }
        fields: dict[str, Any] = {}
        nodes = read_job.section_of(data, "cluster").get("nodes")
        if nodes is None and -1 in self.sizes["ici"].values():
            fields["cluster.nodes"] = known["dcn"]
        elif nodes is None:
            fields |= read_job.nodes_for(known["ici"] * known["dcn"], data)
        nodes = fields.get("cluster.nodes", nodes)
        gpus = fields.get("cluster.gpus_per_node", read_job.gpus_per_node(data))
        if isinstance(nodes, int) and gpus is not None:
            degree = dict.fromkeys(_TABLE["axes"].values(), 1)
            for place, whole in (("ici", gpus), ("dcn", nodes)):
                for axis, size in self.sizes[place].items():
                    left, rest = divmod(whole, known[place])
                    if size < 1 and rest:
                        allowed = f"a size that divides {whole} with the other axes of {place}"
                        self.stated.fail(f"{place}_{axis}_parallelism", allowed)
                    degree[_TABLE["axes"][axis]] *= size if size > 0 else left
            fields |= self._split(data, degree, nodes * gpus)
        return {name: (value, "derived as MaxText does") for name, value in fields.items()}

    def _split(self, data: dict[str, Any], degree: Mapping[str, int], world: int) -> dict[str, Any]:
        """Return what is split over degrees; MaxText's batch is that of a device, also of TP."""
        model, pp = model_of(data), degree["pp"]
        split: dict[str, Any] = {name: degree[name] for name in ("tp", "pp", "cp")}
        # A pipeline goes forward with all microbatches before it goes back.
        training: dict[str, Any] = {"schedule": "gpipe"} if pp > 1 else {}
        if model is not None and model.moe is not None:
            split["ep"] = degree["ep"]
            # Without a capacity every expert works on every token.
            every = model.moe.num_experts / model.moe.router_topk
            if self.masked:
                training["moe.capacity_factor"] = self.capacity if self.capacity > 0 else every
        if degree["fsdp"] * degree["ep"] * degree["cp"] > 1:
            split |= {"fsdp": 2, "num_distributed_optimizer_instances": degree["data"]}
        else:
            split["zero_stage"] = self.zero_stage
        rounds = 1 if model is None or pp == 1 else model.num_layers // (pp * self.length)
        if pp > 1 and self.sizes["dcn"]["pipeline"] == 1:
            split["rank_order"] = "tp-cp-ep-pp-dp"
        if rounds > 1:
            split["vpp"], training["schedule"] = rounds, "interleaved"
        parts = (self.parts or pp) if pp > 1 else 1
        micro = self.local * degree["tp"] * degree["cp"] * pp / parts
        if not (0 < micro < 1e9 and micro % 1 == 0):
            allowed = f"a number that gives TP, CP and {parts} microbatches whole sequences"
            self.stated.fail("per_device_batch_size", allowed)
        training["micro_batch_size"] = int(micro)
        training["global_batch_size"] = int(self.local * world) * self.steps
        return {f"parallelism.{name}": value for name, value in split.items()} | {
            **{f"training.{name}": value for name, value in training.items()},
            "notes": self._uneven(model, pp),
        }

    def _uneven(self, model: ModelConfig | None, pp: int) -> tuple[str, ...]:
        """Return a warning where MaxText would refuse the layers of its pipeline."""
        if model is None or pp == 1:
            return ()
        # Dense layers before all others stand outside of it (`pipeline_parallel_layers`).
        moe, each = [*model.moe_layers], pp * self.length
        layers = self.piped or (moe == sorted(moe) and sum(moe)) or model.num_layers
        msg = (
            f"MaxText needs a multiple of {each} layers in its pipeline ({pp} stages, num_layers_"
            f"per_pipeline_stage {self.length}), not {layers}: projected on uneven stages"
        )
        return (msg,) if layers % each else ()
