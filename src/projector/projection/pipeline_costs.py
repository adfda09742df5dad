"""What one microbatch takes and leaves in each stage of a pipeline, data parallelism left out."""

from dataclasses import dataclass, fields

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels.device import FIRST_NARROW
from projector.kernels.grouping import group_rows, looked_up_sums, segment_maxima, segment_sums
from projector.lower.batch import JobBatch
from projector.lower.cluster_columns import HostColumns
from projector.lower.stages import RECOMPUTE_FULL, Kind, is_layer
from projector.lower.workload_columns import ADDS_NOTHING
from projector.lower.workloads import Workloads
from projector.operations.cost import WorkloadCosts
from projector.operations.table import BACKWARD, FORWARD, WEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCounts:
    """What of pipelines and their virtual stages no machine changes."""

    saved_bytes: Floats
    """float64[stages]: activations one microbatch keeps."""
    dense_parameters: Floats
    """float64[stages]: parameters of one rank outside routed experts."""
    expert_parameters: Floats
    """float64[stages]: parameters of routed experts of one rank."""
    trained_dense: Floats
    """float64[stages]: those of `dense_parameters` that are trained: all, or adapters."""
    trained_experts: Floats
    """float64[stages]: the same of `expert_parameters`."""
    packed_parameters: Floats
    """float64[stages]: frozen parameters that lie in 4 bits, experts included."""
    narrow_parameters: Floats
    """float64[stages]: dense and expert parameters that linear layers quantise."""
    layer_transient_bytes: Floats
    """float64[stages]: the largest working set of a layer, that of recomputing it included."""
    end_transient_bytes: Floats
    """float64[stages]: the same of the embedding, the head and MTP's projections."""
    placeholder_bytes: Floats
    """float64[stages]: the most that a layer's gradients hold that autograd alone needs."""
    layer_parameters: Floats
    """float64[stages]: parameters of the largest transformer layer outside routed experts."""
    layer_expert_parameters: Floats
    """float64[stages]: those of the routed experts of a layer."""
    end_parameters: Floats
    """float64[stages]: parameters of the embedding, the head and MTP's projections."""
    trained_layer: Floats
    """float64[stages]: those of `layer_parameters` that are trained."""
    trained_layer_experts: Floats
    """float64[stages]: the same of `layer_expert_parameters`."""
    trained_ends: Floats
    """float64[stages]: the same of `end_parameters`."""
    embedding_bytes: Floats
    """float64[stages]: the embedding's gradient in 16 bits, which its backward makes whole."""
    weight_share: Floats
    """float64[pipelines]: share of what is saved that the gradients of the weights need."""
    recompute_flop: Floats
    """float64[pipelines]: matrix FLOP of a rank that recomputation repeats, over all stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCosts(StageCounts):
    """Columns of the pipelines of a batch, of their virtual stages and of their runs."""

    forward_s: Floats
    """float64[runs]: one layer forward, host side included."""
    backward_s: Floats
    """float64[runs]: one layer backward, input and weight gradient together."""
    input_s: Floats
    """float64[runs]: gradient of the input alone, before that of the weights runs by itself."""
    weight_s: Floats
    """float64[runs]: gradient of the weights in an operation of its own."""
    categories_s: Floats
    """float64[stages, categories]: exposed time of a microbatch."""
    launch_s: Floats
    """float64[stages]: gaps between kernels and waits for the host."""
    apart_launch_s: Floats
    """float64[stages]: the same where gradients of the weights are operations of their own."""


def cost_pipelines(workloads: Workloads, costs: WorkloadCosts) -> PipelineCosts:
    """Put the layers of each pipeline together."""
    workload, count = workloads.run_workload, workloads.run_count.astype(np.float64)
    jobs = workloads.first_jobs()
    # Pipelines of one machine mostly have their layers in common, and only divide them otherwise.
    of_pipeline = workloads.pipeline_of_run
    _, host = group_rows(jobs.training.pipeline_key, jobs.cluster.host_key)
    first, like = group_rows(workload, host[of_pipeline])
    layers, apart = _cost_layers(jobs, of_pipeline[first], workload[first], workloads, costs)
    launch_s = np.stack([layers.launch_s, apart.launch_s], axis=2)
    of_layers = np.concatenate([layers.exposed_s, launch_s], axis=2)
    # Of each stage, phase by phase.
    stage_s = looked_up_sums(workloads.run_offset, like, count, of_layers)
    structures = workloads.structures
    counts = count_stages(structures.workloads, costs)
    return PipelineCosts(
        **{name: getattr(counts, name).take(structures.of_stage) for name in _OF_STAGES},
        **{name: getattr(counts, name).take(structures.of_pipeline) for name in OF_PIPELINES},
        forward_s=layers.layer_s[:, FORWARD].take(like),
        backward_s=(layers.layer_s[:, BACKWARD] + layers.layer_s[:, WEIGHT]).take(like),
        input_s=apart.layer_s[:, BACKWARD].take(like),
        weight_s=apart.layer_s[:, WEIGHT].take(like),
        categories_s=np.ascontiguousarray(stage_s[:, :-2]),
        launch_s=np.ascontiguousarray(stage_s[:, -2]),
        apart_launch_s=np.ascontiguousarray(stage_s[:, -1]),
    )


OF_PIPELINES = ("weight_share", "recompute_flop")
"""Columns of `StageCounts` with an entry for each pipeline."""

_OF_STAGES = tuple(each.name for each in fields(StageCounts) if each.name not in OF_PIPELINES)


def count_stages(workloads: Workloads, costs: WorkloadCosts) -> StageCounts:
    """Add up what the layers of each stage are but for their times."""
    jobs = workloads.first_jobs()
    workload, count = workloads.run_workload, workloads.run_count.astype(np.float64)

    def per_stage(values: Floats) -> Floats:
        return segment_sums(workloads.run_offset, values)

    def per_pipeline(values: Floats) -> Floats:
        return segment_sums(workloads.run_offset[workloads.stage_offset], values)

    saved = costs.saved_bytes[workload] * count
    stage_of_pipeline = np.repeat(np.arange(len(jobs)), np.diff(workloads.stage_offset))
    stays = (1.0 - jobs.training.offload)[stage_of_pipeline]
    copies = workloads.run_copies.astype(np.float64)
    dense, experts = costs.dense_parameters[workload], costs.expert_parameters[workload]
    trained, trained_experts = costs.trained_dense[workload], costs.trained_experts[workload]
    columns = workloads.columns
    frozen = (columns.frozen == 1)[workload]
    narrow = ((columns.dtype >= FIRST_NARROW) & is_layer(columns.kind))[workload]
    unit = jobs.training.recompute_unit[workloads.pipeline_of_run]
    full = (columns.recompute == RECOMPUTE_FULL)[workload]
    again = np.where(full, costs.unchecked_bytes[workload] * unit, 0.0)
    transient = np.maximum(costs.transient_bytes[workload], 0.0) + again
    layers = is_layer(columns.kind)[workload]
    ends = np.where(layers, 0.0, dense + experts)
    embedding = (columns.kind == Kind.EMBEDDING) & (columns.accumulation != ADDS_NOTHING)
    embedding &= (columns.frozen == 0) & (columns.latent_size == 0)
    # Adapters beside narrow layers are in 16 bits.
    beside = np.where(frozen, trained + trained_experts, 0.0)
    return StageCounts(
        saved_bytes=per_stage(saved) * stays,
        dense_parameters=per_stage(dense * copies),
        expert_parameters=per_stage(experts * copies),
        trained_dense=per_stage(trained * copies),
        trained_experts=per_stage(trained_experts * copies),
        packed_parameters=per_stage(costs.packed_parameters[workload] * copies),
        narrow_parameters=per_stage((dense + experts - beside) * narrow * copies),
        layer_transient_bytes=segment_maxima(workloads.run_offset, transient * layers),
        end_transient_bytes=segment_maxima(workloads.run_offset, transient * ~layers),
        placeholder_bytes=segment_maxima(workloads.run_offset, costs.placeholder_bytes[workload]),
        layer_parameters=segment_maxima(workloads.run_offset, dense * layers),
        layer_expert_parameters=segment_maxima(workloads.run_offset, experts),
        end_parameters=per_stage(ends * copies),
        trained_layer=segment_maxima(workloads.run_offset, trained * layers),
        trained_layer_experts=segment_maxima(workloads.run_offset, trained_experts),
        trained_ends=per_stage(np.where(layers, 0.0, trained + trained_experts) * copies),
        embedding_bytes=per_stage(2.0 * dense * embedding[workload]),
        weight_share=per_pipeline(costs.weight_bytes[workload] * count) / per_pipeline(saved),
        recompute_flop=per_pipeline(costs.recompute_flop[workload] * count),
    )


@dataclass(frozen=True, slots=True)
class RunCosts:
    """One layer of each run on its pipeline's cluster, host side included."""

    exposed_s: Floats
    """float64[runs, phases, categories]."""
    launch_s: Floats
    """float64[runs, phases]: gaps between kernels and waits for the host."""
    layer_s: Floats
    """float64[runs, phases]: everything but data parallelism."""
    host: "HostCosts"
    """What the launches are made of."""


@dataclass(frozen=True, slots=True)
class HostCosts:
    """What the host takes for one layer of each run."""

    call_s: Floats
    """float64[runs]: launching one kernel, the framework left out."""
    operator_s: Floats
    """float64[runs]: the framework's part of a launch."""
    busy_s: Floats
    """float64[runs, phases]: everything that the host does for the layer."""
    gap_s: Floats
    """float64[runs]: between two kernels."""
    waiting_s: Floats
    """float64[runs, phases]: the device waits for the host."""
    sync_s: Floats
    """float64[runs]: one wait of the host for the device."""
    moved_s: Floats
    """float64[runs]: copies of its activations to the host, or back."""
    late_s: Floats
    """float64[runs, phases]: how much longer than the layer these take."""


def cost_runs(workloads: Workloads, costs: WorkloadCosts, *, splits: bool) -> RunCosts:
    """Cost a layer of each run, for the first job of each pipeline; ``splits``: W stands alone."""
    runs = workloads.pipeline_of_run, workloads.run_workload
    return _cost_layers(workloads.first_jobs(), *runs, workloads, costs)[splits]


def _cost_layers(
    jobs: JobBatch, job: Ints, workload: Ints, workloads: Workloads, costs: WorkloadCosts
) -> tuple[RunCosts, RunCosts]:
    """Add the host where launching takes longer than computing; graphs are launched whole.

    Returned are the costs where input and weight gradients alternate, and where they stand apart.
    """
    training = jobs.training
    cluster: HostColumns = jobs.cluster
    graphs = training.graphs == 1

    def column(values: Floats) -> Floats:
        return np.asarray(values, np.float64)[job][:, None]

    gap_s = column(np.where(graphs, cluster.graph_gap_s, cluster.gap_s))
    operator_s = np.where(training.compiled == 1, 0.0, cluster.operator_s)
    host_s = column(np.where(graphs, 0.0, cluster.launch_s + operator_s))
    sync_s = column(cluster.host_sync_s)
    exposed_s = costs.exposed_s[workload]
    # Phase by phase and term by term, so that the order of additions is fixed.
    device_s = np.zeros(exposed_s.shape[:2])
    for term in range(exposed_s.shape[2]):
        device_s += exposed_s[:, :, term]
    launches, syncs = costs.launches[workload], costs.syncs[workload]
    gaps_s = launches * gap_s
    calls_s = costs.calls[workload] * column(np.where(graphs, 0.0, cluster.expert_call_s))
    busy_s = launches * host_s + calls_s
    # What a job states for a layer of experts stands instead of what its operators take.
    is_moe = (workloads.columns.kind == Kind.MOE)[workload][:, None]
    stated_s = column(_stated_host_s(jobs)) * cluster.moe_layer_shares[job]
    busy_s = np.where(is_moe & ~np.isnan(stated_s), np.maximum(launches * host_s, stated_s), busy_s)
    ahead_s = busy_s - device_s - gaps_s
    offload_s = column(training.offload / cluster.host_link_bytes_per_s)
    moved_s = costs.saved_bytes[workload][:, None] * offload_s

    def run_costs(waiting_s: Floats, *, splits: bool) -> RunCosts:
        launch_s = gaps_s + waiting_s + syncs * sync_s
        if costs.measured is not None:
            # Measured layers say what their kernels and the modelled host leave out.
            measured = int(splits), workload
            launch_s = costs.measured.host_share[measured] * launch_s
            launch_s += costs.measured.extra_s[measured]
        layer_s = device_s + launch_s
        # Offloading runs beside the forward and, coming back, beside the backward.
        late_s = np.maximum(0.0, moved_s - layer_s) * np.array([1.0, 1.0, 0.0])
        host = HostCosts(
            call_s=column(np.where(graphs, 0.0, cluster.launch_s))[:, 0],
            operator_s=column(np.where(graphs, 0.0, operator_s))[:, 0],
            busy_s=busy_s,
            gap_s=gap_s[:, 0],
            waiting_s=waiting_s,
            sync_s=sync_s[:, 0],
            moved_s=moved_s[:, 0],
            late_s=late_s,
        )
        return RunCosts(exposed_s, launch_s + late_s, layer_s + late_s, host)

    apart_s = np.maximum(0.0, ahead_s)
    together_s = apart_s.copy()
    # Input and weight gradients alternate, so the host runs ahead through both.
    together_s[:, BACKWARD] = np.maximum(0.0, ahead_s[:, BACKWARD] + ahead_s[:, WEIGHT])
    together_s[:, WEIGHT] = 0.0
    return run_costs(together_s, splits=False), run_costs(apart_s, splits=True)


def _stated_host_s(jobs: JobBatch) -> Floats:
    """Return the stated host time of a layer of experts, NaN if none is; a graph needs none."""
    training = jobs.training
    cluster: HostColumns = jobs.cluster
    seconds = np.where(training.host_sync == 1, cluster.moe_layer_s, cluster.moe_layer_sync_free_s)
    return np.where(training.graphs == 1, 0.0, seconds)
