import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.errors import ConfigError
from projector.kernels.moe_exchange import DISPATCH, LOW_LATENCY, moe_exchange_time_column
from projector.lower.cluster_columns import largest_of_normals
from projector.operations.emit import emit_inference
from projector.operations.moe import active_experts, part_pairs
from projector.operations.table import EXCHANGE
from projector.serving.deployment import Deployment
from projector.serving.experts import random_loads
from projector.serving.step import BREAKDOWN
from serving.steps import Step, columns_of, decode_time_s, prefill_time_s, step_times


def deploy(model="deepseek_v3", device="h200", nodes=1, **settings):
    cluster = {"device": device, "nodes": nodes}
    return Deployment.parse({"model": model, "cluster": cluster, "dtype": "fp8", **settings})


def emitted(step):
    columns = columns_of([step])
    return emit_inference(columns.shapes, columns.extents)


def rows_of(table, label):
    if label not in table.labels:
        return np.zeros(0, np.int64)
    return np.flatnonzero(table.label == table.labels.index(label))


def term(step, name):
    return step_times([step]).breakdown_s[0, BREAKDOWN.index(name)]


def columns(*values):
    return [np.array([value]) for value in values]


def one_part(tokens, experts, topk, parts, load=1.0):
    args = columns(tokens, experts, topk, parts)
    found = part_pairs(*args, np.array([largest_of_normals(parts)]), np.array([load]))
    return int(found[0])


@given(st.integers(1, 1 << 20), st.integers(1, 512), st.data())
def test_one_part_has_every_pair(tokens, experts, data):
    topk = data.draw(st.integers(1, experts))
    assert one_part(tokens, experts, topk, 1) == tokens * topk
    assert one_part(tokens, experts, topk, 1, load=3.0) == tokens * topk
    # The closed form of one part, as it stood before experts were divided.
    missed = (1.0 - topk / experts) ** tokens
    expected = max(round(experts * (1.0 - missed)), topk)
    (found,) = active_experts(*columns(experts, tokens * topk, tokens))
    assert found == expected


@pytest.mark.parametrize("parts", [2, 8, 32, 64])
@pytest.mark.parametrize("tokens", [16, 256, 4096])
def test_the_fullest_part_is_that_of_drawn_tokens(tokens, parts):
    experts, topk = 256, 8
    generator = np.random.default_rng(0)
    draws = [
        random_loads(tokens, experts, topk, generator).reshape(parts, -1).sum(axis=1).max()
        for _ in range(100)
    ]
    assert one_part(tokens, experts, topk, parts) == pytest.approx(np.mean(draws), rel=0.08)


@given(st.integers(1, 4096), st.sampled_from([8, 64, 256]), st.data())
def test_a_part_has_no_less_than_its_share_and_no_more_than_can_be(tokens, experts, data):
    topk = data.draw(st.integers(1, min(8, experts)))
    parts = data.draw(st.sampled_from([p for p in (1, 2, 4, 8, 64, 256) if experts % p == 0]))
    pairs = one_part(tokens, experts, topk, parts)
    local = experts // parts
    assert tokens * topk / parts <= pairs <= tokens * min(topk, local)
    assert one_part(tokens, experts, topk, parts, load=1.5) >= pairs
    (active,) = active_experts(*columns(local, pairs, tokens))
    assert 1 <= active <= min(local, max(pairs, 1))


def test_parts_without_groups_divide_experts_and_communicate_as_before():
    whole, parts = (Step(deploy(tp=8, ep=ep), 64, 1, 1000) for ep in (1, 8))
    tables = emitted(whole), emitted(parts)
    (first,), (second,) = (rows_of(table, "moe.experts.fc1") for table in tables)
    assert (tables[0].n[first], tables[0].batch[first]) == (2 * 2048 // 8, 222)
    assert tables[1].n[second] == 2 * 2048
    assert tables[1].batch[second] <= 32
    assert term(whole, "tp_comm") == term(parts, "tp_comm")
    assert term(parts, "ep_comm") == 0.0


def test_groups_share_the_batch_and_the_cache_is_theirs():
    alone, groups = deploy(tp=1), deploy(attention_dp=8, ep=8)
    one, all_of_them = emitted(Step(alone, 16, 1, 4096)), emitted(Step(groups, 128, 1, 4096))
    (first,), (second,) = (rows_of(table, "attention.core") for table in (one, all_of_them))
    assert one.bytes[first] == all_of_them.bytes[second]
    # One more sequence lies on one group, which the others wait for.
    (more,) = rows_of(emitted(Step(groups, 129, 1, 4096)), "attention.core")
    longer = emitted(Step(groups, 129, 1, 4096)).bytes[more]
    assert longer == pytest.approx(one.bytes[first] * 17 / 16)
    for label in ("attention.proj", "head.output"):
        (row,) = rows_of(all_of_them, label)
        assert all_of_them.m[row] == 16


def test_latent_attention_reads_less_with_groups():
    tensor, groups = (
        Step(deploy(tp=8), 128, 1, 8192),
        Step(deploy(attention_dp=8, ep=8), 128, 1, 8192),
    )
    assert term(groups, "attention") < 0.25 * term(tensor, "attention")
    assert step_times([groups]).latency_s[0] < step_times([tensor]).latency_s[0]


@pytest.mark.parametrize(("new_tokens", "op"), [(1, LOW_LATENCY), (512, DISPATCH)])
def test_an_exchange_costs_what_its_kernel_says(new_tokens, op):
    step = Step(deploy(nodes=4, attention_dp=32, ep=32), 64, new_tokens, 100)
    found = columns_of([step])
    table = emit_inference(found.shapes, found.extents)
    rows = np.flatnonzero(table.kind == EXCHANGE)
    assert len(rows) == 2
    assert table.operation[rows[0]] == op
    moe = step.deployment.model.moe
    pairs = one_part(64 * new_tokens, moe.num_experts, moe.router_topk, 32)
    load = pairs / (64 * new_tokens * moe.router_topk / 32)
    copies = moe.router_topk if op == LOW_LATENCY else found.extents.ranks_reached[0]
    sizes = 7168 * (1 + 4 / 128), 7168 * 2
    back = {LOW_LATENCY: LOW_LATENCY, DISPATCH: DISPATCH + 1}[op]
    expected = moe_exchange_time_column(
        [op, back], 2 * new_tokens * load, sizes, copies, found.extents.domains_reached[0], 32, 8,
        10, 0, found.fabrics, found.exchanges,
    )  # fmt: skip
    assert term(step, "ep_comm") == pytest.approx(58 * expected.sum())


def test_groups_that_split_experts_gather_all_tokens():
    step = Step(deploy(tp=2, attention_dp=4, ep=2), 64, 1, 100)
    table = emitted(step)
    (gather,), (scatter,) = rows_of(table, "moe.dispatch"), rows_of(table, "moe.combine")
    assert table.bytes[gather] == table.bytes[scatter] == 2 * 64 * 7168
    assert table.ranks[gather] == table.local[gather] == 4
    (row,) = rows_of(table, "moe.experts.fc1")
    assert table.n[row] == 2 * 2048 // 4
    assert len(rows_of(table, "moe.tp.all_reduce")) == 1
    asked = Step(deploy(attention_dp=8, ep=8, dispatcher="allgather"), 64, 1, 100)
    assert not np.any(emitted(asked).kind == EXCHANGE)


def test_more_groups_than_a_node_use_the_network():
    near = Step(deploy(attention_dp=8, ep=8), 64, 1, 100)
    far = Step(deploy(nodes=4, attention_dp=32, ep=32), 256, 1, 100)
    assert term(near, "ep_comm") < term(far, "ep_comm")
    weights = term(near, "gemm"), term(far, "gemm")
    assert weights[1] < weights[0]


def test_uneven_routing_is_never_faster():
    deployments = [deploy(attention_dp=8, ep=8, expert_load=load) for load in (1.0, 1.5, 3.0)]
    times = [step_times([Step(each, 8, 512)]).latency_s[0] for each in deployments]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_routing_is_as_uneven_as_the_engine_says_where_experts_are_divided():
    step = {"engine": "vllm", "engine_constants": {"expert_load": 2.0}}
    even, uneven = deploy(attention_dp=8, ep=8, expert_load=1.0, **step), {"ep": 8, **step}
    assert deploy(attention_dp=8, **uneven).runs.expert_load == 2.0
    assert deploy(tp=8, **step).runs.expert_load == even.runs.expert_load == 1.0
    # Weights are read of no more experts.
    few = [term(Step(each, 8, 1, 100), "gemm") for each in (even, deploy(attention_dp=8, **uneven))]
    assert few[1] < 1.1 * few[0]


def test_tensor_groups_send_their_share_and_gather():
    table = emitted(Step(deploy(tp=2, attention_dp=4, ep=8), 64, 1, 100))
    (row, _) = np.flatnonzero(table.kind == EXCHANGE)
    assert table.tokens[row] >= 8.0
    (gather,) = rows_of(table, "moe.tp.all_gather")
    assert table.bytes[gather] == 2 * 16 * 7168


def test_a_batch_of_layouts_equals_each():
    steps = [
        Step(deploy(tp=8), 32, 1, 500),
        Step(deploy(attention_dp=8, ep=8), 32, 1, 500, prefill_tokens=100),
        Step(deploy("mixtral_8x7b", tp=2, attention_dp=2, ep=2), 5, 64),
    ]
    together = step_times(steps).breakdown_s
    for row, step in enumerate(steps):
        assert step_times([step]).breakdown_s[0].tolist() == together[row].tolist()


def test_dense_groups_are_replicas():
    one = Deployment.parse({"model": "llama3_8b", "cluster": {"device": "h100"}})
    four = one.model_copy(update={"attention_dp": 4})
    assert decode_time_s(four, 32, 100) == decode_time_s(one, 8, 100)
    assert prefill_time_s(four, 4, 512) == prefill_time_s(one, 1, 512)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"tp": 8, "dispatcher": "deepep"}, "dispatcher"),
        ({"tp": 2, "attention_dp": 4, "ep": 4, "dispatcher": "low_latency"}, "dispatcher"),
        ({"attention_dp": 8, "ep": 3}, "ep"),
        ({"attention_dp": 8, "ep": 16}, "ep"),
        ({"attention_dp": 16}, "tp"),
        ({"expert_load": 0.5}, "expert_load"),
    ],
)
def test_impossible_groups_are_named(settings, key):
    with pytest.raises(ConfigError) as caught:
        deploy(**settings)
    assert caught.value.key.endswith(key)
