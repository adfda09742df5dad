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
from projector.config.formats.read_job import Derived, ReadJob, Stated
from projector.config.formats.values import integer, is_off
from projector.config.model import ModelConfig
from projector.config.model_file import load_model
from projector.errors import ConfigError, UnsupportedError, shown

_TABLE: Final = resources.settings_of("maxtext")


def read_maxtext(
    data: Mapping[str, Any],
    *,
    path: Path,
    assumed: Mapping[str, Any] | None = None,
    assumed_origin: str = "",
) -> ReadJob:
    """Read MaxText's settings without a device.

    ``assumed`` has settings of presets, from ``assumed_origin``, where the file says nothing.
    """
    # -1 is not set, but of an axis, where it is all that is left.
    given = {
        name: value
        for name, value in data.items()
        if value != -1 or str(name).endswith("_parallelism")
    }
    stated = Stated(given, "MaxText", assumed=assumed, assumed_origin=assumed_origin)
    stated.put("name", stated.word("run_name") or path.stem, origin="the file's name")
    _model(stated)
    stated.take(_TABLE["fields"])
    _training(stated)
    mesh = _Mesh(stated)
    stated.unmodelled(_TABLE)
    return stated.read_job(_TABLE["harmless"].split(), derive=mesh.derive)


def _model(stated: Stated) -> None:
    """Set the architecture of a name, or the one that the settings describe."""
    name = stated.word("model_name", "default")
    whole, key = name == "default", resources.normalise(name)
    found = resources.index("models").get(key)
    own = copy.deepcopy(_TABLE["models"].get(key)) or {"extends": found.stem if found else name}
    if not whole and own.get("extends") == name and found is None:
        msg = f"model_name {shown(name)} is not known; give model=NAME, or model=FILE"
        stated.missing["model"] = ConfigError(msg, key="model_name", value=name)
    stated.put("model", {} if whole else own, "model_name")
    for setting, why in _TABLE["refused"].items():
        if stated.has(setting) and not is_off(stated.values[setting]):
            error = stated.refusal(setting, f"{why}: not supported; give model=NAME", "0")
            stated.missing["model"] = error
    _take(stated, "architecture", whole)
    kind = " ".join(stated.words("mlp_activations")) or ("silu linear" if whole else "")
    if kind:
        if kind not in _TABLE["activations"]:
            stated.fail("mlp_activations", f"one of {', '.join(_TABLE['activations'])}")
        stated.put("model.activation", _TABLE["activations"][kind], "mlp_activations")
    if stated.integer("num_experts", 1) > 1:
        _take(stated, "experts", whole)
    if whole:
        _whole_model(stated, stated.job["model"])
    else:
        for setting in filter(stated.has, _TABLE["of_a_whole_model"].split()):
            stated.warn(f"{stated.spell(setting)} was ignored: model_name {name} says it")
    if "model" in stated.missing:
        del stated.job["model"]


def _take(stated: Stated, part: str, whole: bool) -> None:
    """Set fields of an architecture, with MaxText's defaults where they are all that there is."""
    for setting, row in _TABLE[part].items():
        stated.take({setting: row | ({"default": row.get("base")} if whole else {})})


def _whole_model(stated: Stated, model: dict[str, Any]) -> None:
    """Set what only a model without a name is described by."""
    model |= stated.choice("decoder_block", _TABLE["blocks"], "llama2")
    model["norms_per_layer"] = 2 + sum(map(stated.on, ("use_post_attn_norm", "use_post_ffw_norm")))
    dense = stated.integer("first_num_dense_layers", 0, least=0)
    every = stated.integer("interleave_moe_layer_step", 1)
    shared = stated.integer("shared_experts", 0, least=0)
    if experts := model.get("moe"):
        width = experts.setdefault("ffn_hidden_size", model["ffn_hidden_size"])
        experts["shared_expert_ffn_hidden_size"] = shared * width
        # Of so many layers the last has experts.
        each = range(1, model["num_layers"] + 1)
        experts["layer_freq"] = [int(at > dense and at % every == 0) for at in each]
    if stated.choice("attention_type", _TABLE["attention_types"], "global"):
        _take(stated, "latent", whole=True)


def _training(stated: Stated) -> None:
    types = _TABLE["types"]
    kind = stated.choice("dtype", _TABLE["computes"], "bfloat16")
    weights = stated.choice("weight_dtype", types, "float32")
    first = stated.choice("mu_dtype", {**types, "": weights}, "")
    gradient = stated.choice("grad_dtype", types, "float32")
    fields: dict[str, tuple[Any, ...]] = {
        "framework": ("maxtext", "model_name"),
        "precision": (kind, "dtype"),
        # Weights of 32 bits are cast where they are used, narrow ones have no copy.
        "optimizer.master_weights": ("none" if weights == "bf16" else "shared", "weight_dtype"),
        # optax keeps the second moment in the type of the weights; the wider of the two counts.
        "optimizer.moment_dtype": (max(first, weights), "mu_dtype", "weight_dtype"),
        "gradient_dtype": (min(gradient, weights), "grad_dtype", "weight_dtype"),
        # XLA sums what a product returns, in the type that computes.
        "grad_reduce_dtype": ("fp32" if kind == "fp32" else "bf16", "dtype"),
        "gradient_accumulation_fusion": (False,),
        "torch_compile": (True,),
        # Shapes are fixed, so the host waits for no counts.
        "moe.host_sync": (False,),
        "moe.permute_fusion": (False,),
    }
    for name, value in stated.choice("quantization", _TABLE["quantization"], "").items():
        fields[name] = value, "quantization"
    policy = stated.choice("remat_policy", _TABLE["policies"], "full")
    if policy is None:
        why, known = "is not read; give training.recompute=NAME", list(_TABLE["policies"])
        stated.missing["training.recompute"] = stated.refusal("remat_policy", why, known)
    else:
        fields["recompute"] = copy.deepcopy(policy), "remat_policy"
    model, masked = _model_of(stated.job), not stated.on("sparse_matmul", default=True)
    capacity = stated.number("capacity_factor", 0.0)
    if masked and model is not None and model.moe is not None:
        # Without a capacity every expert works on every token.
        every = model.moe.num_experts / model.moe.router_topk
        fields["moe.capacity_factor"] = capacity if capacity > 0 else every, "sparse_matmul"
        stated.warn("sparse_matmul false: products with masks, which sort tokens, are left out")
    elif capacity > 0:
        stated.warn("capacity_factor was ignored: it needs experts and sparse_matmul false")
    for name, (value, *settings) in fields.items():
        stated.put(f"training.{name}", value, *settings)


def _model_of(data: Mapping[str, Any]) -> ModelConfig | None:
    """Return the architecture of a native layout, None where it cannot be read."""
    try:
        return load_model(data.get("model") or {})
    except ConfigError:
        return None


class _Mesh:
    """Axes of devices and batch, some of which follow from the nodes."""

    def __init__(self, stated: Stated):
        self.sizes: dict[str, dict[str, int]] = {}
        """``ici`` and ``dcn`` -> axis -> size, -1 for all that is left."""
        for place, free in _TABLE["left_over"].items():
            sizes = self.sizes[place] = {}
            for axis in _TABLE["axes"]:
                name = f"{place}_{axis}_parallelism"
                sizes[axis] = stated.get(name, integer, -1 if axis == free else 1)
                if sizes[axis] < -1 or not sizes[axis] or list(sizes.values()).count(-1) > 1:
                    stated.fail(name, "an integer >= 1, or -1 for one axis of a kind")
        self.local = stated.number("per_device_batch_size", 12.0)
        self.steps = stated.integer("gradient_accumulation_steps", 1)
        self.zero_stage = int(stated.on("shard_optimizer_over_data"))
        self.parts = stated.integer("num_pipeline_microbatches", 0, least=0)
        self.length = stated.integer("num_layers_per_pipeline_stage", 1)

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
                        name, allowed = f"{place}_{axis}_parallelism", f"{place}_* dividing {whole}"
                        msg = f"{name} -1 is what {known[place]} leave of {whole}; give {allowed}"
                        raise ConfigError(msg, key=name, value=-1, allowed=allowed)
                    degree[_TABLE["axes"][axis]] *= size if size > 0 else left
            fields |= self._split(data, degree) | self._batch(degree, nodes * gpus)
        return {name: (value, "derived as MaxText does") for name, value in fields.items()}

    def _split(self, data: dict[str, Any], degree: Mapping[str, int]) -> dict[str, Any]:
        """Return degrees and what is sharded; a pipeline goes forward before it goes back."""
        model, pp = _model_of(data), degree["pp"]
        split: dict[str, Any] = {name: degree[name] for name in ("tp", "pp", "cp")}
        if model is not None and model.moe is not None:
            split["ep"] = degree["ep"]
        if degree["fsdp"] * degree["ep"] * degree["cp"] > 1:
            split |= {"fsdp": 2, "num_distributed_optimizer_instances": degree["data"]}
        else:
            split["zero_stage"] = self.zero_stage
        if pp > 1 and self.sizes["dcn"]["pipeline"] == 1:
            split["rank_order"] = "tp-cp-ep-pp-dp"
        fields = {f"parallelism.{name}": value for name, value in split.items()}
        if pp > 1:
            fields["training.schedule"] = "gpipe"
        rounds = 1 if model is None else model.num_layers // (pp * self.length)
        if pp > 1 and rounds > 1 and not read_job.section_of(data, "training").get("schedule"):
            key = "num_layers_per_pipeline_stage"
            msg = (
                f"{key} {self.length} makes {rounds} rounds of {pp} stages, which is not supported;"
                f" give training.schedule=interleaved parallelism.vpp={rounds}, or gpipe"
            )
            raise UnsupportedError(
                msg, key=key, value=self.length, allowed=["interleaved", "gpipe"]
            )
        return fields

    def _batch(self, degree: Mapping[str, int], world: int) -> dict[str, Any]:
        """Return the batches; MaxText counts the sequences of a device, of which several share."""
        ranks, parts = degree["tp"] * degree["cp"] * degree["pp"], self.parts or degree["pp"]
        micro = self.local * ranks / (parts if degree["pp"] > 1 else 1)
        if not (0 < micro < 1e9 and micro % 1 == 0):
            key, allowed = "per_device_batch_size", f"a number that makes whole batches of {ranks}"
            msg = f"{key} should be {allowed} devices and {parts} microbatches (got {self.local:g})"
            raise ConfigError(msg, key=key, value=self.local, allowed=allowed)
        whole = int(self.local * world) * self.steps
        return {"training.micro_batch_size": int(micro), "training.global_batch_size": whole}
