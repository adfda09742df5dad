"""Where a projection's inputs came from: stated, derived, or filled in by default.

The memory forms as Primus documents them stand beside, for comparison. They are known to be coarse:
every norm counts 2H parameters and there are three a layer, the total has no output layer and no
final norm, the sharding degree is world / (EP * PP) for all parameters, and the schedule factor
multiplies the embedding too. The physical form is in `projector.projection.memory`.
"""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from pydantic import BaseModel

from projector.config.adapter import TARGETS, model_sites
from projector.config.device_file import origins_of
from projector.config.device_kernels import Evidence
from projector.config.framework import framework_origins, profile_named
from projector.config.job import Job
from projector.config.listed import dated_numbers, price_warnings
from projector.config.model import ModelConfig
from projector.config.resources import hardware_table
from projector.envelope import told
from projector.lower import stages as kinds
from projector.lower.batch import data_parallel
from projector.lower.hardware import attention_name
from projector.units import to_gib

LIMITS, DRIFT = "exchange_limits.yaml", "release_drift.yaml"


@dataclass(frozen=True, slots=True)
class Origins:
    """Where each term of a hybrid step comes from."""

    shares: dict[str, dict[str, float]]
    """Term of the breakdown -> share of its time that was ``measured``, ``scaled`` or is
    ``analytic``; they add up to 1. A term that takes no time is analytic."""
    record: dict[str, Any]
    """What was measured, where, and how it was restored."""

    @property
    def terms(self) -> dict[str, str]:
        """Term -> the origin of most of its time; of equal ones the one that is least measured."""
        order = ("analytic", "scaled", "measured")
        return {
            term: max(order, key=lambda origin: shares.get(origin, 0.0))
            for term, shares in self.shares.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return what ``provenance`` of ``--json`` says of times."""
        return {"times": "hybrid", **told(self, "terms shares record")}


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where settings that the job does not state came from, and what could not be taken over."""

    defaults: dict[str, Any]
    """Dotted field -> the default that was filled in."""
    derived: dict[str, str]
    """Dotted field -> the value and where it came from."""
    warnings: tuple[str, ...]
    device: dict[str, Any]
    """Whose numbers the device has: fields ``borrowed`` by whose they are, and ``assumed`` ones."""
    times: Origins | None = None
    """Where the terms of the step come from, if some were measured."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values under the names of the attributes, warnings apart."""
        plain = {"defaults": self.defaults, "derived": self.derived, "device": self.device}
        return plain if self.times is None else {**self.times.to_dict(), **plain}


def provenance_of(job: Job, today: dt.date | None = None) -> Provenance:
    """Collect what was filled in for one job.

    Dated prices are old against ``today``, which is asked of this machine (UTC) for no other job
    than one with such prices.
    """
    split = job.parallelism
    derived = dict(framework_origins(job)) | dict(job.origins)
    derived.setdefault("parallelism.dp", f"{data_parallel(job)} (cluster / (tp * pp * cp))")
    if split.etp is None and job.model.moe is not None:
        derived.setdefault("parallelism.etp", f"{split.tp} (tp)")
    if split.sequence_parallel is None and split.tp > 1:
        derived.setdefault("parallelism.sequence_parallel", "true (tp > 1)")
    derived.setdefault("cluster.network", job.cluster.network.name)
    if job.training.attention_kernel == "default" and {*attention_evidence(job)} != {"width"}:
        derived.setdefault("training.attention_kernel", f"default ({attention_basis(job)})")
    defaults: dict[str, Any] = {}
    for section in ("parallelism", "training", "cluster"):
        _collect(getattr(job, section), section, defaults, derived)
    profile = job.cluster.device
    device = {"name": profile.name, **told(origins_of(profile), "borrowed assumed")}
    return Provenance(defaults, derived, (*job.notes, *_warnings(job, today)), device)


def _warnings(job: Job, today: dt.date | None) -> list[str]:
    dated = dated_numbers(job)
    if dated and today is None:
        today = dt.datetime.now(dt.UTC).date()
    old = [] if today is None else price_warnings(dated, today)
    told = (*_uneven_stages(job), *_binding_links(job), *_missed_targets(job))
    return [*told, *_unserved_exchange(job), *_later_release(job), *old]


def release_drift(job: Job) -> tuple[int, Mapping[str, float]]:
    """Return the months from the newest known release to that of a job, and what one gained."""
    framework = job.training.framework
    months = profile_named(framework.name).months_after(framework.release) if framework else 0
    return months, hardware_table(DRIFT)["moe" if job.model.moe else "dense"]


def _later_release(job: Job) -> list[str]:
    """Say what a release that nothing is known of is projected as."""
    months, drift = release_drift(job)
    gain, spread = (100.0 * months * drift[name] for name in ("gain", "spread"))
    text = (
        f"training.framework.release: projected as the newest known release; {months} months of "
        f"releases took {gain:.1f} ± {spread:.1f} % off a step before"
    )
    return [text] if months else []


def _unserved_exchange(job: Job) -> list[str]:
    """Say where the dispatcher of experts does not run as it is (`LIMITS`)."""
    split, cluster, dispatcher = job.parallelism, job.cluster, job.training.moe.dispatcher
    beyond = split.ep * split.expert_tp > cluster.network.scale_up_gpus
    for rule in hardware_table(LIMITS)["rules"] if job.model.moe and split.ep > 1 else ():
        if (
            rule["dispatcher"] == dispatcher
            and (beyond or "vendor" in rule)
            and cluster.device.vendor == rule.get("vendor", cluster.device.vendor)
            and cluster.network.transport in rule.get("transports", [cluster.network.transport])
            and split.ep > rule.get("above_ranks", 0)
        ):
            return [f"training.moe.dispatcher: {rule['says']}"]
    return []


def _missed_targets(job: Job) -> list[str]:
    """Name the modules that adapters should stand beside and the model does not have."""
    adapter = job.training.adapter
    if adapter is None:
        return []
    sites = model_sites(job.model)
    missed = [name for name in adapter.targets if not sites & {*TARGETS[name]}]
    if not missed:
        return []
    return [f"training.adapter.targets: {job.model.name} has no {', '.join(missed)}"]


def _binding_links(job: Job) -> list[str]:
    """Name the field that binds where only one of the two rates of a node's links was changed.

    A switch gives one pair all of a device's rate, a mesh an equal share to each peer.
    """
    device, network = job.cluster.device, job.cluster.network
    whole, peer = device.scale_up_gb_per_s, device.scale_up_peer_gb_per_s
    peers = network.scale_up_gpus - 1
    is_switch, is_mesh = (abs(whole / (peer * most) - 1.0) < 0.02 for most in (1, max(1, peers)))
    if network.node is not None or is_switch or is_mesh:
        return []
    fields = f"scale_up_gb_per_s ({whole:g}) and scale_up_peer_gb_per_s ({peer:g})"
    if whole > peer * peers:
        text = f"the peer links bind: {peers} peers carry {peer * peers:g} GB/s"
    else:
        text = (
            f"the first binds groups of more than {whole / peer:.3g} peers, the second the others"
        )
    return [f"{fields} are those of neither a switch nor a mesh: {text}; change both for one node"]


def _uneven_stages(job: Job) -> list[str]:
    split, layers = job.parallelism, job.model.num_layers
    placed = (
        split.pipeline_model_parallel_layout,
        split.decoder_first_pipeline_num_layers,
        split.decoder_last_pipeline_num_layers,
        split.divide_pipeline_by_work or None,
    )
    counted = (
        split.account_for_embedding_in_pipeline_split + split.account_for_loss_in_pipeline_split
    )
    stages = split.pp * split.vpp
    if (layers + counted) % stages and all(value is None for value in placed):
        text = (
            f"{layers} layers do not divide into {stages} pipeline stages; the first ones take one "
            f"more, where Megatron-LM asks for a layout"
        )
        return [text]
    return []


def attention_evidence(job: Job) -> tuple[Evidence, Evidence]:
    """Return where forward and backward of the job's attention kernel were measured."""
    device, mla = job.cluster.device, job.model.mla
    kernel = device.attention_kernels.get(attention_name(job.training), device.attention)
    width = mla.qk_head_dim + mla.qk_pos_emb_head_dim if mla else job.model.head_dim
    forward = kernel.evidence(device.name, width, backward=False)
    return forward, kernel.evidence(device.name, width, backward=True)


def attention_basis(job: Job) -> str:
    """Say where forward and backward of the job's attention kernel were measured."""
    forward, backward = (_WHERE[evidence] for evidence in attention_evidence(job))
    if forward == backward:
        return forward
    return f"forward {forward}, backward {backward}"


_WHERE: dict[Evidence, str] = {
    "width": "measured here",
    "device": "measured at other heads",
    "family": "measured in the family",
    "none": "not measured",
}


def _collect(
    section: BaseModel, path: str, defaults: dict[str, Any], derived: dict[str, str]
) -> None:
    for name, field in type(section).model_fields.items():
        dotted = f"{path}.{name}"
        value = getattr(section, name)
        if dotted in derived or dotted in {"cluster.device", "cluster.network"}:
            continue
        if isinstance(value, BaseModel) and name in section.model_fields_set:
            _collect(value, dotted, defaults, derived)
        elif name not in section.model_fields_set and value is not None:
            shown = value.model_dump() if isinstance(value, BaseModel) else value
            if value == field.get_default():
                defaults[dotted] = shown


ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class DocumentedMemory:
    """What the documented closed forms give for rank 0."""

    parameters_total: int
    parameters_per_rank: int
    param_optimizer_gib: float
    activation_gib: float
    total_gib: float
    components: dict[str, dict[str, float]]
    """Parameters of one rank and activation GiB of one microbatch, by module."""


def documented_components(job: Job) -> dict[str, dict[str, float]]:
    """List modules as the documented report prints them, for rank 0 and one microbatch."""
    if _unknown_to_forms(job.model):
        return {}
    split, training = job.parallelism, job.training
    tokens = training.micro_batch_size * training.seq_length // split.tp // split.cp
    return _Forms(job.model, split.tp).components(split.ep, tokens)


def _unknown_to_forms(model: ModelConfig) -> bool:
    """Return whether the documented forms, attention and an MLP in every layer, lack its layers."""
    return model.layer_types is not None or model.has_unfamiliar_layers


@lru_cache(maxsize=4096)
def documented_forms(
    model: ModelConfig, tp: int, ep: int, split: kinds.LayerSplit, settings: kinds.LayerSettings
) -> tuple[int, int, int]:
    """Return what the documented forms multiply, which know no hybrid model: 0.

    All parameters, those of rank 0, and bytes of activations that one microbatch has there for
    each token of the rank.
    """
    if _unknown_to_forms(model):
        return 0, 0, 0
    forms = _Forms(model, tp)
    parameters, activation = forms.embedding_parameters, forms.token_bytes
    for stage in kinds.stage_layout(model, split, settings)[:: split.pp]:
        for kind, count in stage.layers:
            parameters += count * forms.layer_parameters(kind.kind is kinds.Kind.MOE, ep)
            activation += count * forms.kept_bytes(kind.kind is kinds.Kind.MOE, kind.recompute)
    mixtures = sum(model.moe_layers)
    layers = mixtures * forms.layer_parameters(moe=True, ep=1)
    layers += (len(model.moe_layers) - mixtures) * forms.layer_parameters(moe=False, ep=1)
    return forms.embedding_parameters + layers, parameters, activation


def documented_states_gib(parameters: Any, gpus: Any, ep: Any, pp: Any) -> Any:
    """Return GiB of parameters with their states, of one job or of columns."""
    sharding = np.maximum(1, gpus // (ep * pp))
    bytes_per_parameter = 2 + 2 + 10 / sharding
    return to_gib(parameters * bytes_per_parameter)


def documented_microbatches(pp: Any, vpp: Any, microbatches: Any) -> Any:
    """Return by how much the activations of one microbatch count, of one job or of columns."""
    return pp * (1 + (pp - 1) / (pp * vpp)) * np.minimum(1.0, microbatches / pp)


class _Forms:
    """The closed forms of a model; parameters of one rank, bytes of one token of a microbatch."""

    def __init__(self, model: ModelConfig, tp: int) -> None:
        self.model = model
        self.vocab = model.padded_vocab_size(tp)
        self.token_bytes = ELEMENT_BYTES * model.hidden_size
        self.embedding_parameters = self.vocab * model.hidden_size
        self.norm_parameters = 2 * model.hidden_size
        self.router_parameters = model.hidden_size * model.moe.num_experts if model.moe else 0
        self._projections = 3 if model.gated else 2

    @property
    def attention_parameters(self) -> int:
        model = self.model
        heads, hidden = model.num_attention_heads, model.hidden_size
        mla = model.mla
        if mla is None:
            width = heads * model.head_dim
            return 2 * hidden * width + 2 * hidden * model.query_groups * model.head_dim
        query = mla.qk_head_dim + mla.qk_pos_emb_head_dim
        rank = mla.q_lora_rank
        queries = rank * (hidden + heads * query + 1) if rank else hidden * heads * query
        keys = mla.kv_lora_rank * (hidden + heads * (mla.qk_head_dim + mla.v_head_dim) + 1)
        return queries + keys + hidden * mla.qk_pos_emb_head_dim + heads * mla.v_head_dim * hidden

    def mlp_parameters(self, moe: bool, ep: int) -> int:
        model = self.model
        if not moe or model.moe is None:
            return self._projections * model.hidden_size * model.ffn_hidden_size
        routed = model.moe.num_experts // ep * model.moe.ffn_hidden_size
        width = routed + model.moe.shared_expert_ffn_hidden_size
        return self._projections * model.hidden_size * width

    def layer_parameters(self, moe: bool, ep: int) -> int:
        router = self.router_parameters if moe else 0
        return (
            3 * self.norm_parameters
            + self.attention_parameters
            + router
            + self.mlp_parameters(moe, ep)
        )

    @property
    def attention_bytes(self) -> int:
        model = self.model
        query = model.num_attention_heads * model.head_dim
        if model.mla is not None:
            wide = model.num_attention_heads * (
                model.mla.qk_head_dim + model.mla.qk_pos_emb_head_dim
            )
            return ELEMENT_BYTES * (3 * wide + 2 * query)
        keys = model.query_groups * model.head_dim
        return ELEMENT_BYTES * (query + 2 * keys + model.hidden_size + query)

    def mlp_bytes(self, moe: bool) -> int:
        model = self.model
        if not moe or model.moe is None:
            return ELEMENT_BYTES * (3 * model.ffn_hidden_size + model.hidden_size)
        width = model.moe.ffn_hidden_size
        shared = model.moe.num_shared_experts or -(
            -model.moe.shared_expert_ffn_hidden_size // width
        )
        visits = model.moe.router_topk + shared
        return ELEMENT_BYTES * visits * (model.hidden_size + 3 * width)

    def layer_bytes(self, moe: bool) -> int:
        # Three norms, two residual additions and, in an MoE layer, the router.
        around = (6 if moe else 5) * self.token_bytes
        return around + self.attention_bytes + self.mlp_bytes(moe)

    def kept_bytes(self, moe: bool, recompute: int) -> int:
        if recompute == kinds.RECOMPUTE_FULL:
            return self.token_bytes
        dropped = self.attention_bytes if recompute == kinds.RECOMPUTE_SELECTIVE else 0
        return self.layer_bytes(moe) - dropped

    def components(self, ep: int, tokens: int) -> dict[str, dict[str, float]]:
        """List modules as the documented report prints them, with ``tokens`` of a microbatch."""
        entries: dict[str, tuple[int, int]] = {
            "embedding": (self.embedding_parameters, self.token_bytes),
            "dense_transformer_layer": (self.layer_parameters(False, ep), self.layer_bytes(False)),
            "layer_norm": (self.norm_parameters, self.token_bytes),
            "self_attention": (self.attention_parameters, self.attention_bytes),
            "residual_add": (0, self.token_bytes),
            "mlp": (self.mlp_parameters(False, ep), self.mlp_bytes(False)),
        }
        if self.model.moe is not None:
            entries |= {
                "moe_transformer_layer": (self.layer_parameters(True, ep), self.layer_bytes(True)),
                "router": (self.router_parameters, self.token_bytes),
                "moe_mlp": (self.mlp_parameters(True, ep), self.mlp_bytes(True)),
            }
        entries |= {
            "final_layernorm": (self.norm_parameters, self.token_bytes),
            "output_layer": (self.embedding_parameters, ELEMENT_BYTES * self.vocab),
        }
        return {
            name: {"parameters": parameters, "activation_gib": to_gib(tokens * num_bytes)}
            for name, (parameters, num_bytes) in entries.items()
        }
