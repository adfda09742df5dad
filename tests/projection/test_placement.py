"""What a step costs where its groups lie: orders of ranks, parts, pods, and scale."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.config.load import load_job
from projector.projection.api import project_memory, project_performance
from projector.projection.evaluate import evaluate
from projector.projection.results import Results
from thoroughness import examples

STEP = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 8192}


def projected(device="h100", nodes=8, network=None, model="llama3.1_70b", step=STEP, **split):
    cluster = {"device": device, "nodes": nodes, **({"network": network} if network else {})}
    job = {"model": model, "parallelism": split, "training": step, "cluster": cluster}
    return load_job(job)


def step_s(*args, **fields):
    return project_performance(projected(*args, **fields)).iteration_time_s


def terms(**fields):
    return project_performance(projected(**fields)).breakdown


def edge(device, nodes, other_domain):
    """Return TP 16 over TP 8, and the same with another scale-up domain."""
    networks = (None, {"scale_up_gpus": other_domain})
    of_tp = {tp: [step_s(device, nodes, each, tp=tp) for each in networks] for tp in (8, 16)}
    return [sixteen / eight for sixteen, eight in zip(of_tp[16], of_tp[8], strict=True)]


def test_tensor_parallelism_pays_where_it_leaves_the_node():
    # Ultra-Scale Playbook: TP 16 on nodes of 8 H100 takes 1.40 to 1.43 times as long as TP 8. Half
    # of the replicas run twice as many microbatches, so that most of it is no edge of a node.
    left, stayed = edge("h100", 8, 72)
    assert 1.25 < left < 1.6
    assert left > 1.02 * stayed


def test_tensor_parallelism_within_a_rack_has_no_edge():
    stayed, left = edge("gb200", 16, 8)
    assert left > 1.1 * stayed
    # As long as it stays inside, a rack's size changes nothing.
    rack, less = (
        terms(device="gb200", nodes=16, tp=16, network={"scale_up_gpus": gpus})["tp_comm"]
        for gpus in (72, 16)
    )
    assert rack == less


def test_an_order_decides_who_shares_a_node():
    fields = {"nodes": 4, "model": "llama3.1_8b", "tp": 2, "pp": 4, "overlap_grad_reduce": False}
    apart, together = (terms(**fields, rank_order=f"tp-cp-ep-{end}") for end in ("dp-pp", "pp-dp"))
    # Pipelines within a node send over its links, and their replicas lie in other nodes.
    assert together["pp_comm"] < apart["pp_comm"]
    assert together["dp_comm"] > apart["dp_comm"]


def test_a_part_of_data_parallelism_is_what_it_is():
    fields = {"nodes": 8, "model": "llama3.1_8b", "overlap_grad_reduce": False, "zero_stage": 1}
    jobs = {
        size: projected(**fields, sharding_group_size=size, overlap_param_gather=False)
        for size in (8, 16, 64)
    }
    memory = {size: project_memory(job).stages[0].optimizer_bytes for size, job in jobs.items()}
    assert memory[8] == pytest.approx(8 * memory[64])
    assert memory[16] == pytest.approx(4 * memory[64])
    times = {size: project_performance(job).iteration_time_s for size, job in jobs.items()}
    assert len(set(times.values())) == 3
    whole = projected(**fields, overlap_param_gather=False)
    assert project_performance(whole).iteration_time_s == times[64]


def test_copies_are_a_size_by_another_name():
    fields = {"nodes": 4, "model": "mixtral_8x7b", "ep": 8}
    by_size = projected(**fields, sharding_group_size=16)
    by_number = projected(**fields, num_distributed_optimizer_instances=2)
    for project, result in (
        (project_performance, "iteration_time_s"),
        (project_memory, "peak_bytes"),
    ):
        one, other = (getattr(project(job), result) for job in (by_size, by_number))
        assert one == other


def test_a_gather_in_the_node_spares_the_network():
    fields = {"nodes": 8, "model": "llama3.1_8b", "fsdp": 2}
    part, whole = (
        project_performance(projected(**fields, sharding_group_size=size)).communication
        for size in (8, None)
    )
    gather, reduce = "dp:param_all_gather", "dp:grad_reduce"
    assert part[gather].time_s < whole[gather].time_s
    # The scatter within the node is followed by a sum over the nodes.
    assert part[reduce].time_s > whole[reduce].time_s


def test_pods_slow_what_leaves_them():
    fields = {"nodes": 32, "model": "llama3.1_8b", "tp": 8, "overlap_grad_reduce": False}
    pods = [{"pod_nodes": nodes, "pod_oversubscription": 8.0} for nodes in (32, 8, 4, 1)]
    none, eighth, quarter, every = (terms(**fields, network=each)["dp_comm"] for each in pods)
    # 8 nodes of a pod take an eighth of its uplinks each, as much as there is.
    assert none == eighth < quarter < every


def test_a_lone_pipeline_stage_has_the_uplinks_for_itself():
    fields = {"nodes": 32, "model": "llama3.1_8b", "tp": 8, "pp": 8, "overlap_p2p_comm": False}
    plain, tapered, narrow = (
        terms(**fields, network=each)["pp_comm"]
        for each in (
            None,
            {"pod_nodes": 16, "pod_oversubscription": 4.0},
            {"pod_nodes": 4, "pod_oversubscription": 4.0},
        )
    )
    assert plain == tapered < narrow


@pytest.mark.parametrize(
    ("device", "fields", "says"),
    [
        ("h100", {}, ""),
        ("mi300x", {}, ""),
        ("mi250x", {}, ""),
        ("gh200", {}, ""),
        ("gb200", {}, ""),
        ("h100", {"scale_up_gb_per_s": 900.0}, "the second"),
        ("h100", {"scale_up_gb_per_s": 900.0, "scale_up_peer_gb_per_s": 900.0}, ""),
        ("mi300x", {"scale_up_gb_per_s": 896.0}, "the peer links bind: 7 peers carry 448 GB/s"),
        ("mi300x", {"scale_up_peer_gb_per_s": 128.0}, "more than 3.5 peers"),
        ("mi300x", {"scale_up_gb_per_s": 896.0, "scale_up_peer_gb_per_s": 128.0}, ""),
    ],
)
def test_one_of_two_rates_of_a_node_warns_that_the_other_binds(device, fields, says):
    job = projected(device={"extends": device, **fields}, model="llama3.1_8b", nodes=1)
    found = project_performance(job).to_dict()["warnings"]
    # The memory of one device may be at risk, which is not asked here.
    warnings = [warning for warning in found if not warning.startswith("memory is at risk")]
    assert any(says in warning for warning in warnings) if says else not warnings


SCALED = {
    "dp": {"model": "llama3.1_8b"},
    "tp": {"tp": 8},
    "pp": {"model": "llama3.1_8b", "tp": 2, "pp": 4},
    "fsdp": {"model": "llama3.1_8b", "fsdp": 2},
    "parts": {"model": "llama3.1_8b", "fsdp": 2, "sharding_group_size": 8},
    "experts": {"device": "mi300x", "model": "mixtral_8x7b", "ep": 8},
    "stages in order": {"model": "llama3.1_8b", "tp": 2, "pp": 4, "rank_order": "tp-cp-ep-pp-dp"},
    "pods": {
        "model": "llama3.1_8b",
        "tp": 2,
        "network": {
            "pod_nodes": 32,
            "pod_oversubscription": 4.0,
            "spine_latency_us": 1.0,
            "core_pods": 8,
            "core_oversubscription": 16.0,
            "core_latency_us": 2.0,
        },
    },
    "racks": {"device": "gb200", "model": "llama3.1_8b", "tp": 2},
}
"""Jobs of which each device has as much work on any number of nodes."""

MOST_NODES = 16_384


def exception(name, nodes):
    """Say why a step may cost another share from ``nodes`` to one more, or nothing."""
    # Racks hold 16 trays: the tray that a full rack leaves over comes alone, then gets company.
    if name == "racks" and nodes % 16 in (0, 1):
        return "the last tray is alone in its rack: four adapters carry what 64 carry elsewhere"
    return ""


def steps_s(name, nodes):
    """Return the step on each number of nodes, evaluated as one batch."""
    fields = SCALED[name]
    base = projected(**fields, step={**STEP, "global_batch_size": 8, "seq_length": 4096})
    per_node = base.cluster.gpus_per_node
    width = base.parallelism.tp * base.parallelism.pp
    jobs = [
        base.model_copy(
            update={
                "cluster": base.cluster.model_copy(update={"nodes": count}),
                "training": base.training.model_copy(
                    update={"global_batch_size": 4 * count * per_node // width}
                ),
            }
        )
        for count in nodes
    ]
    return Results(evaluate(jobs)).columns()["iteration_time_ms"]


@pytest.mark.parametrize("name", SCALED)
@settings(max_examples=examples(10))
@given(counts=st.lists(st.integers(1, MOST_NODES - 1), min_size=30, max_size=30))
def test_one_more_node_changes_a_step_little(name, counts):
    near = sorted({*range(1, 40), *counts, *(1 << power for power in range(6, 14))})
    every = sorted({*near, *(count + 1 for count in near)})
    of = dict(zip(every, steps_s(name, every), strict=True))
    ratios = {count: of[count + 1] / of[count] for count in near}
    outside = {count: ratio for count, ratio in ratios.items() if not 0.8 <= ratio <= 1.25}
    assert not {count: ratio for count, ratio in outside.items() if not exception(name, count)}


@pytest.mark.parametrize("name", SCALED)
def test_the_work_of_a_projection_does_not_grow_with_nodes(name):
    fields = SCALED[name]
    width = fields.get("tp", 1) * fields.get("pp", 1)
    tables = []
    for nodes in (8, MOST_NODES):
        step = {**STEP, "global_batch_size": 32 * nodes // width}
        evaluation = evaluate([projected(**{**fields, "nodes": nodes, "step": step})])
        sizes = [chosen.order().kind.size for chosen in evaluation.orders]
        tables.append((len(evaluation.table), sizes))
    assert tables[0] == tables[1]
