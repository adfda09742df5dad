"""Memory of a rank that serves: weights, cache, activations, and the largest batch that fits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.config.engine import inference_memory
from projector.errors import ConfigError
from projector.lower.cluster_columns import ClusterColumns
from projector.lower.stages import KIND_OF_LAYER, Kind, has_part
from projector.operations.emit import emit_inference, emit_operations
from projector.operations.recurrent import RECURRENT, state_bytes
from projector.operations.shapes import Shapes, is_narrow
from projector.operations.table import FORWARD, GEMM
from projector.serving.columns import (
    StepColumns,
    each_once,
    elements_per_token,
    layer_rows,
    step_columns,
)
from projector.serving.deployment import MTP, Deployment
from projector.serving.points import draft_deployment
from projector.units import GIB, to_gib


@dataclass(frozen=True, slots=True)
class ServingMemory:
    """Memory of the ranks of a deployment, in bytes."""

    deployment: Deployment
    stage_weights_bytes: Floats
    """float64[pp]: weights of a rank of each stage."""
    stage_layers: Ints
    """int64[pp]: layers of each stage with attention, which cache tokens."""
    stage_state_bytes: Floats
    """float64[pp]: what a sequence holds in recurrent layers, however long it is."""
    workspace_bytes: float
    """Activations and logits of the largest step, and buffers of libraries."""
    reserve_bytes: float
    """Driver context and communicators."""
    draft: "ServingMemory | None"
    """What proposes tokens, on the devices of the last stage; its weights are counted there."""
    usable_bytes: float
    """What the engine takes of the device, less the reserve: for weights, workspace and cache."""

    @property
    def weights_bytes(self) -> float:
        """Weights of a rank of the stage that has most."""
        return float(self.stage_weights_bytes.max())

    @property
    def cache_bytes_per_token(self) -> float:
        """What a token more adds to a rank of the largest stage, below any window."""
        return self._layer_token_bytes * float(self.stage_layers.max())

    @property
    def page_bytes(self) -> float:
        """One page of one sequence, in all layers of such a rank."""
        return self.cache_bytes_per_token * self.deployment.page_tokens

    @property
    def _layer_token_bytes(self) -> float:
        deployment = self.deployment
        return elements_per_token(deployment.model, deployment.tp) * deployment.cached_element_bytes

    def stage_cache_bytes(self, context: int | Ints) -> Floats:
        """Return what a sequence holds on a rank of each stage, float64[..., pp].

        Whole pages count. A windowed layer keeps the pages of its window; such layers are taken
        to be spread evenly over the stages. Recurrent layers hold a state.
        """
        model, page = self.deployment.model, self.deployment.page_tokens
        tokens = np.asarray(context, np.int64)[..., np.newaxis]
        pages = -(-tokens // page) * page
        windowed = model.sliding_window_layers / max(1, model.mixers.count("attention"))
        window = -(-model.sliding_window // page) * page
        mean = (1.0 - windowed) * pages + windowed * np.minimum(pages, window)
        held: Floats = mean * self.stage_layers * self._layer_token_bytes + self.stage_state_bytes
        if self.draft is not None:
            held[..., -1] += self.draft.stage_cache_bytes(context).sum(axis=-1)
        return held

    def cache_bytes(self, batch: int | Ints, context: int | Ints) -> Floats:
        """Return the cache of the fullest rank, with the batch dealt to the attention groups."""
        sequences = -(-np.asarray(batch, np.int64) // self.deployment.attention_dp)
        held: Floats = sequences * self.stage_cache_bytes(context).max(axis=-1)
        return held

    def peak_bytes(self, batch: int | Ints, context: int | Ints) -> Floats:
        """Return weights, activations and cache of the fullest rank, reserve included."""
        held = self.weights_bytes + self.workspace_bytes + self.reserve_bytes
        return held + self.cache_bytes(batch, context)

    @property
    def stage_room_bytes(self) -> Floats:
        """float64[pp]: what is left for the cache; below 0 where weights alone do not fit."""
        return self.usable_bytes - self.workspace_bytes - self.stage_weights_bytes

    def max_batch(self, context: int | Ints) -> Ints:
        """Return the most sequences of ``context`` tokens that fit; 0 if none does."""
        room = np.maximum(0.0, self.stage_room_bytes)
        per_group = np.floor(room / np.maximum(1.0, self.stage_cache_bytes(context))).min(axis=-1)
        most: Ints = per_group.astype(np.int64) * self.deployment.attention_dp
        return most

    def shortfall_bytes(self, context: int, batch: int = 1) -> float:
        """Return how much the fullest rank lacks for ``batch`` sequences; 0 where they fit."""
        sequences = -(-batch // self.deployment.attention_dp)
        over = sequences * self.stage_cache_bytes(context) - self.stage_room_bytes
        return max(0.0, float(over.max()))

    def check_fits(self, context: int, batch: int = 1) -> None:
        """Refuse what does not fit."""
        missing = self.shortfall_bytes(context, batch)
        if not missing:
            return
        most = int(self.max_batch(context))
        msg = (
            f"{batch} sequences of {context} tokens do not fit: a device lacks "
            f"{to_gib(missing):.1f} GiB of {to_gib(self.usable_bytes):.1f} usable "
            f"({to_gib(self.weights_bytes):.1f} weights, {to_gib(self.workspace_bytes):.1f} "
            f"workspace); the largest batch is {most}"
        )
        raise ConfigError(msg, key="batch", value=batch, allowed=f"<= {most}")


def serving_memory(deployment: Deployment) -> ServingMemory:
    """Return the memory of a deployment's ranks."""
    return serving_memories([deployment])[0]


def serving_memories(deployments: Sequence[Deployment]) -> list[ServingMemory]:
    """Return the memory of each deployment's ranks; parameters come from the operation table."""
    weights = _kind_weights_bytes(deployments)
    activations = _activation_bytes(deployments)
    columns = ClusterColumns(*each_once([deployment.cluster for deployment in deployments]))
    workspace = inference_memory().gemm_workspaces * columns.workspace_bytes + activations
    # What lies outside the engine's allocations: stated, or by groups of ranks.
    communicators = [
        sum(ranks > 1 for ranks in (each.tp, each.pp, each.attention_dp)) for each in deployments
    ]
    reserve = columns.context_bytes + communicators * columns.communicator_bytes
    stated = columns.stated_reserve_bytes
    reserve = np.where(np.isnan(stated), reserve, stated)
    shapes = Shapes(layer_rows(deployments))
    states = np.stack([state_bytes(shapes, mixer) for mixer in RECURRENT], axis=1)
    numbers = (column.tolist() for column in (workspace, reserve, columns.memory_bytes))
    rows = zip(deployments, weights, states, *numbers, strict=True)
    return [_of_deployment(*row) for row in rows]


def _of_deployment(
    deployment: Deployment,
    kind_bytes: Floats,
    state_bytes: Floats,
    workspace_bytes: float,
    reserve_bytes: float,
    memory_bytes: float,
) -> ServingMemory:
    layers = np.array([int(KIND_OF_LAYER[kind]) for kind in deployment.model.layer_kinds])
    stages = np.array_split(layers, deployment.pp)
    weights = np.array([kind_bytes[stage].sum() for stage in stages])
    weights[0] += kind_bytes[Kind.EMBEDDING]
    weights[-1] += kind_bytes[Kind.HEAD]
    kept = [*zip(RECURRENT, state_bytes.tolist(), strict=True)]
    draft = draft_deployment(deployment)
    drafting = None if draft is None else serving_memory(draft)
    if deployment.speculative and deployment.speculative.draft == MTP:
        # Embedding and head are the model's own.
        weights[-1] += kind_bytes[Kind.MTP] + kind_bytes[layers[-1]]
    elif drafting is not None:
        weights[-1] += drafting.weights_bytes
    return ServingMemory(
        deployment=deployment,
        stage_weights_bytes=weights,
        stage_layers=np.array([has_part(stage, "attention").sum() for stage in stages]),
        stage_state_bytes=np.array(
            [sum(has_part(stage, mixer).sum() * held for mixer, held in kept) for stage in stages],
            np.float64,
        ),
        workspace_bytes=workspace_bytes
        + deployment.exchanges * deployment.exchange_buffer_gib * GIB,
        reserve_bytes=reserve_bytes,
        draft=drafting,
        usable_bytes=memory_bytes * deployment.gpu_memory_utilization - reserve_bytes,
    )


def _kind_weights_bytes(deployments: Sequence[Deployment]) -> Floats:
    """Return float64[deployments, kinds]: weights on a rank, 16 bits but in linear layers."""
    share = step_columns(deployments)
    rows = layer_rows(deployments)
    told = zip(rows, share.extents.narrow_layers.tolist(), share.weight_share.tolist(), strict=True)
    keys = [(row.tobytes(), *others) for row, *others in told]
    known = {key: _known_weights[key] for key in keys if key in _known_weights}
    fresh = {key: row for row, key in enumerate(keys) if key not in known}
    if fresh:
        found = dict(zip(fresh, _weights_of_rows(rows, share, [*fresh.values()]), strict=True))
        if len(_known_weights) > _MOST_KNOWN:
            _known_weights.clear()
        _known_weights.update(found)
        known |= found
    return np.array([known[key] for key in keys]).reshape(-1, len(Kind))


_known_weights: dict[tuple[object, ...], Floats] = {}
"""Weights by what they depend on: deployments differ in what else they say, and are asked again."""
_MOST_KNOWN = 4096


def _weights_of_rows(rows: Records, share: StepColumns, fresh: Sequence[int]) -> Floats:
    """Return float64[fresh, kinds]: weights of these rows."""
    kinds = len(Kind)
    origin = np.array(fresh)
    each = np.repeat(rows[origin], kinds)
    each["kind"] = np.tile(np.arange(kinds), len(origin))
    each["micro_batch"] = each["seq"] = 1
    table = emit_operations(each)
    owner = origin[table.workload // kinds]
    linear = (table.kind == GEMM) & (table.phase == FORWARD)
    linear &= is_narrow(table, share.extents.narrow_layers[owner])
    narrow = linear & (table.dtype == each["dtype"][table.workload])
    wide_bytes = np.where(
        linear & (share.weight_share[owner] < 1.0), 2.0 * share.weight_share[owner], 2.0
    )
    own_bytes = share.shapes.operand_bytes[owner] * share.weight_share[owner]
    stored = table.parameters * np.where(narrow, own_bytes, wide_bytes)
    total: Floats = np.bincount(table.workload, stored, len(each)).astype(np.float64)
    return total.reshape(-1, kinds)


def _activation_bytes(deployments: Sequence[Deployment]) -> Floats:
    """Return float64[deployments]: the largest working set of the largest step.

    The residual stream and its addend lie beside input and output of each linear layer; logits
    are kept in 16 bits and, with their probabilities, in FP32.
    """
    columns = step_columns(
        deployments,
        batch=[item.attention_dp for item in deployments],
        new_tokens=[item.max_step_tokens for item in deployments],
    )
    table = emit_inference(columns.shapes, columns.extents)
    operand = columns.shapes.operand_bytes[table.workload]
    rows = np.flatnonzero(table.kind == GEMM)
    held = table.m * table.batch * (table.k * operand + table.n * table.out_bytes)
    largest = np.zeros(len(deployments))
    np.maximum.at(largest, table.workload[rows], held[rows])
    costs = inference_memory()
    tokens = np.array([float(item.max_step_tokens) for item in deployments])
    sequences = np.array([float(item.max_sequences) for item in deployments])
    vocab = columns.shapes.vocab.astype(np.float64)
    stream = costs.stream_bytes * tokens * columns.shapes.hidden
    peak: Floats = np.maximum(
        stream + largest, costs.logit_bytes * np.minimum(tokens, sequences) * vocab
    )
    return peak
