"""Alignment of programs with known answers: threads, graphs, checkpoints, ranges, sharding."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from program import AUTOGRAD, Program, spoken
from projector.trace.activity import (
    ATTENTION,
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    GEMM,
    MEMCPY,
    OPTIMIZER,
    PHASES,
)
from projector.trace.alignment import align
from projector.trace.events import ANNOTATION, NONE, OPERATOR, Events, Trace
from projector.trace.host import stack_events
from projector.trace.layers import layers_of_sequence
from thoroughness import examples

BYTES = {
    "collective": "_allgather_base", "group": "0", "group_ranks": (0, 1), "in_elements": 50,
    "out_elements": 100, "dtype": "BFloat16",
}  # fmt: skip


def phases(activities):
    return [PHASES[code] for code in activities.phase.tolist()]


def small_step(p, named=False, layers=2, checkpoint=False):
    """A training step of layers with an attention and a matrix product each."""
    made = []

    def layer(number):
        with p.forward("aten::layer_norm") as norm:
            p.kernel("layer_norm_kernel")
        with p.forward("aten::scaled_dot_product_attention") as attention:
            p.kernel("flash_fwd_kernel")
            p.kernel("elementwise_kernel")
        if named:
            with p.range("f_mlp_gp"), p.forward("aten::linear") as product:
                p.kernel("nvjet_gate")
        else:
            with p.forward("aten::linear") as product:
                p.kernel("nvjet_gate")
        return norm, attention, product

    with p.op("aten::to"):
        p.kernel("Memcpy HtoD")
    with p.forward("aten::embedding") as embedding:
        p.kernel("embedding_kernel")
    made = [layer(number) for number in range(layers)]
    with p.forward("aten::mse_loss") as loss:
        p.kernel("loss_kernel")
    with p.op("aten::ones_like"):
        p.kernel("fill_kernel")
    with p.on(AUTOGRAD):
        with p.backward(loss, "MseLossBackward0"):
            p.kernel("loss_backward_kernel")
        for norm, attention, product in reversed(made):
            with p.backward(product, "MmBackward0"):
                if checkpoint:
                    layer(0)
                with p.op("aten::mm"):
                    p.kernel("nvjet_dgrad")
            with p.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"):
                p.kernel("add_kernel")
            with p.backward(attention, "SdpaBackward0"):
                p.kernel("flash_bwd_kernel")
            with p.backward(norm, "NormBackward0"):
                p.kernel("norm_backward_kernel")
        with p.backward(embedding, "EmbeddingBackward0"):
            p.kernel("embedding_backward_kernel")
    with p.op("aten::_foreach_norm"):
        p.kernel("norm_of_gradients")
    with p.range("Optimizer.step#AdamW.step"), p.op("aten::_fused_adamw_"):
        p.kernel("multi_tensor_apply_kernel")
    p.now += 500


def test_a_training_step_without_ranges_or_modules():
    p = Program()
    for step in (7, 8):
        with p.range(f"ProfilerStep#{step}"):
            small_step(p)
    a = align(p.trace())
    one = a.iteration == 8
    assert one.sum() * 2 == len(a)
    assert [p for p in phases(a) if p == "other"] == []
    found = list(zip(spoken(a), phases(a), a.layer.tolist(), strict=True))[len(a) // 2 :]
    assert found == [
        ("aten::to", "forward", -1),
        ("aten::embedding", "forward", -1),
        ("aten::layer_norm", "forward", 0),
        ("aten::scaled_dot_product_attention", "forward", 0),
        ("aten::scaled_dot_product_attention", "forward", 0),
        ("aten::linear", "forward", 0),
        ("aten::layer_norm", "forward", 1),
        ("aten::scaled_dot_product_attention", "forward", 1),
        ("aten::scaled_dot_product_attention", "forward", 1),
        ("aten::linear", "forward", 1),
        ("aten::mse_loss", "forward", -1),
        ("aten::ones_like", "backward", -1),
        ("aten::mse_loss", "backward", -1),
        ("aten::linear", "backward", 1),
        ("torch::autograd::AccumulateGrad", "backward", 1),
        ("aten::scaled_dot_product_attention", "backward", 1),
        ("aten::layer_norm", "backward", 1),
        ("aten::linear", "backward", 0),
        ("torch::autograd::AccumulateGrad", "backward", 0),
        ("aten::scaled_dot_product_attention", "backward", 0),
        ("aten::layer_norm", "backward", 0),
        ("aten::embedding", "backward", -1),
        ("aten::_foreach_norm", "optimizer", -1),
        ("aten::_fused_adamw_", "optimizer", -1),
    ]
    assert any("layers were inferred" in note for note in a.notes)
    kinds = dict(zip(spoken(a, "name"), a.type.tolist(), strict=True))
    assert kinds["elementwise_kernel"] == ATTENTION  # an attention starts it
    assert kinds["nvjet_gate"] == kinds["nvjet_dgrad"] == GEMM


def test_a_backward_points_at_the_forward_of_its_own_layer_and_iteration():
    p = Program()
    for step in (0, 1):
        with p.range(f"ProfilerStep#{step}"):
            small_step(p)
    a = align(p.trace())
    linked = np.flatnonzero(a.forward >= 0)
    assert len(linked) == 2 * 8
    for column in (a.iteration, a.layer, a.operation):
        assert (column[linked] == column[a.forward[linked]]).all()
    assert (a.phase[a.forward[linked]] == FORWARD).all()


@pytest.mark.parametrize("arrows", [True, False])
def test_a_checkpoint_runs_the_forward_of_its_layer_again(arrows):
    p = Program()
    with p.range("ProfilerStep#0"):
        small_step(p, checkpoint=True)
    if not arrows:
        p.links.clear()
    a = align(p.trace())
    again = np.flatnonzero(a.recompute)
    assert (a.phase[again] == BACKWARD).all()
    assert a.layer[again].tolist() == [1] * 4 + [0] * 4
    assert spoken(a)[again[0] : again[0] + 4] == [
        "aten::layer_norm",
        "aten::scaled_dot_product_attention",
        "aten::scaled_dot_product_attention",
        "aten::linear",
    ]


def test_ranges_of_the_program_name_operations_also_of_the_backward():
    p = Program()
    with p.range("ProfilerStep#0"):
        small_step(p, named=True)
    a = align(p.trace())
    assert spoken(a).count("f_mlp_gp") == 2
    assert spoken(a).count("b_mlp_gp") == 2
    forward = [row for row, name in enumerate(spoken(a)) if name == "f_mlp_gp"]
    assert (a.phase[forward] == FORWARD).all()
    assert a.layer[forward].tolist() == [0, 1]


def test_iterations_follow_the_optimizer_where_nothing_counts_them():
    p = Program()
    for _ in range(3):
        small_step(p)
    a = align(p.trace())
    assert np.unique(a.iteration, return_counts=True)[1].tolist() == [len(a) // 3] * 3
    assert any("iterations were inferred" in note for note in a.notes)


def test_a_graph_launches_many_kernels():
    p = Program()
    with p.range("ProfilerStep#0"), p.op("aten::add"):
        p.graph("one", "two", "three")
    a = align(p.trace())
    assert len(set(a.launch_ps.tolist())) == 1
    assert spoken(a) == ["aten::add"] * 3


def test_kernels_without_a_launch_take_what_both_neighbours_have():
    p = Program()
    p.kernel("before", launched=False)
    with p.range("ProfilerStep#4"), p.forward("aten::mm"):
        p.kernel("first")
        p.kernel("lost", launched=False)
        p.kernel("last")
    with p.range("ProfilerStep#5"), p.forward("aten::mm"):
        p.kernel("between", launched=False)
        p.kernel("next")
    a = align(p.trace())
    found = dict(zip(spoken(a, "name"), a.iteration.tolist(), strict=True))
    assert found == {"before": -1, "first": 4, "lost": 4, "last": 4, "between": -1, "next": 5}
    assert a.launch_ps[spoken(a, "name").index("lost")] == -1


def test_several_devices_of_one_rank():
    p = Program()
    with p.op("aten::add"):
        p.kernel("on_one", device=1)
        p.kernel("on_zero", device=0)
    a = align(p.trace())
    assert a.device.tolist() == [0, 1]
    assert spoken(a, "name") == ["on_zero", "on_one"]


def test_what_fsdp_gathers_has_group_bytes_and_layer():
    p = Program()
    with p.range("ProfilerStep#0"):
        for layer in range(2):
            with p.range(f"FSDP::pre_forward (layers.{layer})"):
                gather, spread = (
                    f"FSDP::all_gather{x} (layers.{layer})" for x in ("", "_copy_out")
                )
                with p.range(gather), p.op("record_param_comms", detail=BYTES):
                    p.kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgs)", stream=20)
                with p.range(spread), p.op("fsdp::split_with_sizes_copy"):
                    p.kernel("split_with_sizes_copy_out_contiguous")
            with p.forward("aten::linear"):
                p.kernel("nvjet_gate")
    a = align(p.trace())
    assert a.frameworks == ("fsdp2",)
    talks = a.klass == COMMUNICATION
    assert a.bytes[talks].tolist() == [200, 200]
    assert a.layer[talks].tolist() == [0, 1]
    assert {a.groups[row] for row in a.group[talks]} == {"0: ranks 0-1"}
    assert {spoken(a)[row] for row in np.flatnonzero(talks)} == {"_allgather_base"}
    copies = [row for row, name in enumerate(spoken(a)) if name and name.startswith("fsdp::")]
    assert a.layer[copies].tolist() == [0, 1]


def test_the_first_fsdp_is_told_from_the_second():
    p = Program()
    with p.range("FullyShardedDataParallel.forward"):
        with p.range("FullyShardedDataParallel._pre_forward"), p.op("c10d::_allgather_base_"):
            p.kernel("ncclDevKernel_AllGather_RING_LL", stream=20)
        with p.forward("aten::linear"):
            p.kernel("nvjet_gate")
    hook = "FullyShardedDataParallel._post_backward_hook"
    with p.on(AUTOGRAD), p.range(hook), p.op("c10d::_reduce_scatter_base_"):
        p.kernel("ncclDevKernel_ReduceScatter_Sum_bf16", stream=20)
    a = align(p.trace())
    assert a.frameworks == ("fsdp1",)
    assert a.phase.tolist() == [FORWARD, FORWARD, BACKWARD]
    assert spoken(a) == ["_allgather_base_", "aten::linear", "_reduce_scatter_base_"]


def test_copies_are_no_compute_and_fills_are():
    p = Program()
    with p.op("aten::copy_"):
        p.kernel("Memcpy DtoD", detail={"bytes": 64})
        p.kernel("Memset (Device)")
    a = align(p.trace())
    assert (a.klass == MEMCPY).tolist() == [True, False]
    assert a.bytes.tolist() == [64, -1]


def test_optimizer_in_the_backward_is_optimizer():
    p = Program()
    with p.forward("aten::linear") as product:
        p.kernel("gemm")
    with p.on(AUTOGRAD), p.backward(product, "MmBackward0"):
        p.kernel("dgrad")
        with p.range("Optimizer.step#SGD.step"):
            p.kernel("update")
    a = align(p.trace())
    assert a.phase.tolist() == [FORWARD, BACKWARD, OPTIMIZER]


def test_kernels_alone_tell_phases_and_iterations():
    p = Program()
    for _ in range(2):
        for name in (
            "Cijk_first", "flash_fwd_kernel", "Cijk_loss", "softmax_backward", "Cijk_dgrad_unnamed",
            "flash_bwd_kernel", "norm_kernel", "multi_tensor_apply_kernel<Adam>",
        ):  # fmt: skip
            p.kernel(name, launched=False)
    a = align(p.trace())
    assert phases(a) == 2 * [*["forward"] * 3, *["backward"] * 3, *["optimizer"] * 2]
    assert a.iteration.tolist() == [0] * 8 + [1] * 8
    assert len(a.notes) == 2
    assert (a.operation == -1).all()


def test_kernels_alone_of_inference_are_forward():
    p = Program()
    p.kernel("Cijk_first", launched=False)
    p.kernel("paged_attention", launched=False)
    a = align(p.trace())
    assert phases(a) == ["forward"] * 2
    assert a.notes == ()


def test_work_from_before_the_trace_is_told_by_the_next_iteration():
    p = Program()
    names = [f"kernel_{i}" for i in range(5)]
    for name in [*names[3:], *names]:
        p.kernel(name, launched=False)
    for step in (1, 2):
        with p.range(f"ProfilerStep#{step}"), p.forward("aten::linear"):
            p.kernel(names[0])
        with p.range(f"ProfilerStep#{step}"), p.op("aten::add"):
            for name in names[1:]:
                p.kernel(name)
        p.now += 100
    a = align(p.trace())
    assert a.iteration.tolist() == [-1] * 7 + [1] * 5 + [2] * 5
    assert spoken(a)[:7] == ["aten::add"] * 2 + ["aten::linear"] + ["aten::add"] * 4
    assert a.instance[2] not in a.instance[3:].tolist()
    assert len(set(a.instance[3:7].tolist())) == 1


def test_other_work_before_the_trace_stays_unknown():
    p = Program()
    for name in ("warm", "up"):
        p.kernel(name, launched=False)
    for step in (1, 2):
        with p.range(f"ProfilerStep#{step}"), p.op("aten::add"):
            p.kernel("one")
            p.kernel("two")
    a = align(p.trace())
    assert spoken(a)[:2] == [None, None]


def _skewed(offset_ns, drift=0.0, collectives=40, zero_ns=10**15):
    """Two ranks that meet in collectives; the second one's clock is off."""
    ranks = []
    for rank in (0, 1):
        p = Program(rank=rank, zero_ns=zero_ns)
        for step in range(collectives // 4):
            with p.range(f"ProfilerStep#{step}"):
                for _ in range(4):
                    with p.op("record_param_comms", detail=BYTES):
                        p.kernel("ncclDevKernel_AllGather_RING_LL", stream=20, duration=2000)
        trace = p.rank_trace()
        columns = {name: getattr(trace.events, name).copy() for name in Events.__slots__}
        if rank:
            start = columns["start_ps"]
            columns["start_ps"] = start + offset_ns * 1000 + np.rint(drift * start).astype(np.int64)
        ranks.append(Program.with_events(trace, Events(**columns)))
    return Trace(ranks=tuple(ranks))


@pytest.mark.parametrize("offset_ns", [0, 12_345, -9_999_999])
def test_clocks_of_ranks_are_aligned_on_collectives(offset_ns):
    a = align(_skewed(offset_ns))
    ends = [a.end_ps[a.rank == rank] for rank in (0, 1)]
    assert (ends[0] == ends[1]).all()
    assert a.clocks[1].offset_ps == -offset_ns * 1000
    assert a.clocks[1].collectives == 40
    assert a.clocks[1].drift == 0


def test_a_clock_that_runs_faster_is_slowed_down():
    a = align(_skewed(5_000, drift=20e-6))
    ends = [a.end_ps[a.rank == rank] for rank in (0, 1)]
    assert np.abs(ends[0] - ends[1]).max() < 100  # of 1.6 us that it ran off
    assert a.clocks[1].drift == pytest.approx(-20e-6, rel=1e-3)


def test_starts_of_traces_count_by_the_clocks_of_the_hosts():
    first, second = Program(rank=0, zero_ns=10**15), Program(rank=1, zero_ns=10**15 + 70)
    for p in (first, second):
        p.kernel("k")
    a = align(Trace(ranks=(first.rank_trace(), second.rank_trace())))
    assert np.diff(a.start_ps).tolist() == [70_000]
    assert a.clocks[1].reference == 1


@st.composite
def spans(draw):
    count = draw(st.integers(1, 30))
    rows = []
    for _ in range(count):
        start = draw(st.integers(0, 40))
        rows.append((start, draw(st.integers(0, 20)), draw(st.integers(0, 2))))
    return rows


@settings(deadline=None, max_examples=examples(200))
@given(spans())
def test_the_event_around_an_event_is_the_smallest_that_holds_it(rows):
    """Against a look at all pairs: the parent holds the event, and none that holds it is within."""
    p = Program()
    for start, duration, thread in rows:
        p.add(OPERATOR, "op", start, duration, thread=thread)
    events = p.rank_trace().events
    stack = stack_events(events)

    def holds(outer, inner):
        a, b = rows[outer], rows[inner]
        return a[2] == b[2] and a[0] <= b[0] and b[0] + b[1] <= a[0] + a[1]

    for row in range(len(rows)):
        parent = stack.parent[row]
        around = [i for i in range(len(rows)) if i != row and holds(i, row) and not holds(row, i)]
        if parent == NONE:
            assert not around
        else:
            assert holds(parent, row)
    depth = {int(row): level for level, found in enumerate(stack.levels) for row in found}
    assert sorted(depth) == list(range(len(rows)))
    for row, parent in enumerate(stack.parent.tolist()):
        assert parent == NONE or depth[parent] < depth[row]


def test_nearest_and_outermost_look_up_the_stack():
    p = Program()
    with p.range("a"), p.op("b"), p.op("c"), p.range("d"):
        pass
    events = p.rank_trace().events
    stack = stack_events(events)
    operator = events.kind == OPERATOR
    assert stack.nearest(operator).tolist() == [NONE, 1, 2, 2]
    assert stack.outermost(operator).tolist() == [NONE, 1, 1, 1]
    ranges = events.kind == ANNOTATION
    assert stack.outermost(operator, within=ranges).tolist() == [NONE, 1, 1, NONE]
    assert stack.nearest(operator, within=ranges).tolist() == [NONE, 1, 2, NONE]


def test_several_optimizers_and_clipping_are_one_step():
    p = Program()
    for _ in range(3):
        with p.forward("aten::linear") as product:
            p.kernel("gemm")
        with p.on(AUTOGRAD), p.backward(product, "MmBackward0"):
            p.kernel("dgrad")
        for name in ("clip_grad_norm", "Optimizer.step#Muon.step", "Optimizer.step#AdamW.step"):
            with p.range(name):
                p.kernel("multi_tensor_apply_kernel")
        with p.range("Optimizer.zero_grad#AdamW.zero_grad"):
            p.kernel("Memset (Device)")
        p.now += 100
    a = align(p.trace())
    assert phases(a) == 3 * ["forward", "backward", *["optimizer"] * 4]
    # The gradients are set to zero once the iteration has ended.
    assert a.iteration.tolist() == [*[0] * 5, *[1] * 6, *[2] * 6, -1]


def test_a_pipeline_stage_sends_and_receives_between_its_chunks():
    """Interleaved 1F1B of Megatron-LM with kernels of Transformer Engine, and no ranges."""
    p = Program()
    sent = {
        "collective": "send", "group": "3", "group_ranks": (0, 4), "in_elements": 8,
        "out_elements": 8, "dtype": "BFloat16",
    }  # fmt: skip
    waiting = []

    def forward():
        made = []
        for _ in range(2):
            with p.forward("_LayerNormLinear") as first:
                p.kernel("nvjet_qkv")
            with p.forward("FusedAttnFunc") as attention:
                p.kernel("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma")
            with p.forward("_Linear") as last:
                p.kernel("nvjet_proj")
            made += [first, attention, last]
        waiting.append(made)

    def backward():
        with p.on(AUTOGRAD):
            for made in reversed(waiting.pop(0)):
                with p.backward(made, "Backward"):
                    p.kernel("nvjet_dgrad")

    def pass_on():
        with p.range("nccl:send 0->4"), p.op("record_param_comms", detail=sent):
            p.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage)", stream=30)

    with p.range("ProfilerStep#2"):
        for turn in (forward, forward, backward, forward, backward, backward):
            turn()
            pass_on()
        with p.range("Optimizer.step#FusedAdam.step"):
            p.kernel("multi_tensor_apply_kernel")
    a = align(p.trace())
    assert (a.iteration == 2).all()
    forwards = a.layer[(a.phase == FORWARD) & (a.klass != COMMUNICATION)]
    assert forwards.tolist() == [0, 0, 0, 1, 1, 1] * 3
    backwards = a.layer[(a.phase == BACKWARD) & (a.klass != COMMUNICATION)]
    assert backwards.tolist() == [1, 1, 1, 0, 0, 0] * 3
    talks = a.klass == COMMUNICATION
    assert talks.sum() == 6
    assert a.bytes[talks].tolist() == [16] * 6
    assert {spoken(a)[row] for row in np.flatnonzero(talks)} == {"send"}
    assert a.type[spoken(a).index("FusedAttnFunc")] == ATTENTION


numbers = st.integers(-3, 5) | st.sampled_from([2**40, -(2**40), 2**61])
NAMES = (
    "ProfilerStep#3", "Optimizer.step#x", "autograd::engine::evaluate_function: X", "aten::mm",
    "nn.Module: Block_1", "nn.Module: layers.9.mlp", "FSDP::all_gather (layers.3)", "f_attn_fa",
    "ncclDevKernel_AllReduce", "flash_fwd", "", "ProfilerStep#99999999999999999999999999",
    "CheckpointFunction", "record_param_comms",
)  # fmt: skip
DETAILS = (
    {}, {"collective": None}, {"collective": "allreduce", "group": None, "group_ranks": ()},
    {"collective": "x", "in_elements": "many", "dtype": 3}, {"bytes": -5}, {"dims": None},
    {"bytes": 2**70}, {"collective": "allreduce", "group_ranks": (3, 3, 1), "in_elements": 2**62,
     "dtype": "Double"},
)  # fmt: skip


@settings(deadline=None, max_examples=examples(150))
@given(st.data())
def test_nonsense_is_survived(data):
    """Whatever the numbers say, each event of a device is in the table once."""
    ranks = []
    for rank in range(data.draw(st.integers(1, 2))):
        count = data.draw(st.integers(0, 12))

        def column(values, count=count):
            return np.array(data.draw(st.lists(values, min_size=count, max_size=count)), np.int64)

        columns = {name: column(numbers) for name in Events.__slots__}
        columns |= {
            "kind": column(st.integers(0, 7)),
            "name": column(st.integers(0, len(NAMES) - 1)),
            "detail": column(st.integers(-1, len(DETAILS) - 1)),
            "duration_ps": np.abs(columns["duration_ps"]) % 2**61,
            "sequence": np.maximum(columns["sequence"], -1),
        }
        events = Events(**columns)
        trace = replace(Program(rank=rank).rank_trace(), names=NAMES, details=DETAILS)
        ranks.append(Program.with_events(trace, events))
    a = align(Trace(ranks=tuple(ranks)))
    on_device = sum(int((rank.events.kind <= 2).sum()) for rank in ranks)
    assert on_device in (0, len(a))
    for column, table in (("name", a.names), ("operation", a.operations), ("group", a.groups)):
        assert getattr(a, column).max(initial=-1) < len(table)
    assert a.forward.max(initial=-1) < max(len(a), 1)


def test_forwards_in_a_row_are_told_apart_by_what_stands_around_their_layers():
    """Decoding: embedding, five layers, the head; and again."""
    layer = ["norm", "qkv", "attention", "proj", "norm", "mlp"]
    forward = ["embedding", *layer * 5, "norm", "head"]
    names = forward * 3
    place = {name: row for row, name in enumerate(dict.fromkeys(names))}
    rows = np.array([place[name] for name in names])
    found = layers_of_sequence(rows, rows == place["attention"])
    expected = [-1, *np.repeat(range(5), len(layer)).tolist(), -1, -1]
    assert found.tolist() == expected * 3


def test_layers_of_several_kinds_are_numbered_through():
    """Three dense layers and five of experts."""
    dense = ["norm", "attention", "add", "norm", "mlp", "add"]
    experts = ["norm", "attention", "add", "norm", "router", "experts", "add"]
    names = ["embedding", *dense * 3, *experts * 5, "norm", "head"]
    place = {name: row for row, name in enumerate(dict.fromkeys(names))}
    rows = np.array([place[name] for name in names])
    found = layers_of_sequence(rows, rows == place["attention"])
    expected = np.repeat(range(8), [len(dense)] * 3 + [len(experts)] * 5).tolist()
    assert found.tolist() == [-1, *expected, -1, -1]
