"""Layers of every kind have the shapes, and the numbers, that their columns say."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from measure.on_torch.layer_specs import BASE, spec  # noqa: E402
from projector.measure import parts  # noqa: E402
from projector.measure.comm import Comm  # noqa: E402
from projector.measure.exchange import Ranks  # noqa: E402
from projector.measure.experts import Routing, ends_of  # noqa: E402
from projector.measure.layers import build_layer  # noqa: E402
from projector.measure.narrow import (  # noqa: E402
    NarrowExperts,
    NarrowLinear,
    format_of,
    has_narrow_experts,
)
from projector.measure.pace import Stopwatch  # noqa: E402
from projector.measure.parts import AttentionShape, Kit, UnsupportedError  # noqa: E402
from projector.measure.runners import Bench, LayerRunner  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


MOE = {
    "experts": 8, "topk": 2, "expert_ffn": 32, "shared_ffn": 48, "load_2e20": 1 << 20, "ep": 1,
    "etp": 1,
}  # fmt: skip
MLA = {
    "mla": 1, "q_lora": 32, "kv_lora": 48, "d_nope": 16, "d_rope": 16, "d_qk": 32, "d_v": 16,
    "key_heads": 4,
}  # fmt: skip
LAYERS = {
    "grouped-query": spec(),
    "with norms of queries and keys": spec(qk_norm=1),
    "with wide norms": spec(qk_norm=2),
    "with a window": spec(window=8),
    "unfused": spec(attention="math"),
    "layer norms, biases, no gate": spec(
        norm_parameters=2, gated=0, mlp_bias=1, attention_bias=2, rope=0
    ),
    "eager": spec(eager=1),
    "four norms": spec(norms=4),
    "latent": spec(**MLA),
    "latent, queries direct": spec(**{**MLA, "q_lora": 0}),
    "fp32": spec(dtype="fp32"),
    "tensor parallel": spec(tp=2),
    "sequence parallel": spec(tp=2, sequence_parallel=1),
    "context parallel": spec(cp=2, cp_type=1),
    "heads exchanged": spec(cp=2, cp_type=2),
    "experts": spec("moe", **MOE),
    "experts on two ranks": spec("moe", **{**MOE, "ep": 2}),
    "experts divided": spec("moe", **{**MOE, "etp": 2, "tp": 2, "sequence_parallel": 1}),
    "experts with biases": spec(
        "moe", mlp_bias=1, clamped=1, shared_gate=1, router_bias=1, host_sync=1, **MOE
    ),
    "fp8, one scale a row": spec(dtype="fp8", fp8_recipe=2),
    "fp8 experts": spec("moe", dtype="fp8", fp8_recipe=2, **MOE),
    "head, loss in place": spec("head"),
    "head, plain loss": spec("head", loss_saved_bytes=4),
    "head, vocabulary divided": spec("head", tp=2, sequence_parallel=1),
    "joint projection": spec("mtp"),
    "embedding": spec("embedding"),
    "embedding divided, positions": spec("embedding", tp=2, positions=64),
}


def built(layer):
    kit = Kit(torch, torch.device("cpu"))
    degrees = {name: layer.columns.get(name, 1) for name in ("tp", "cp", "ep", "etp")}
    return build_layer(kit, Comm(degrees), layer)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_every_layer_runs_both_ways(layer):
    made = built(layer)
    x = made.inputs()
    out = made(x)
    c = made.columns
    tokens = 2 * 32 // c.cp // (c.tp if c.divided else 1)
    if layer.kind == "head":
        assert out.dim() == 0
        assert 2.0 < float(out.detach()) < 12.0
    else:
        assert out.shape == (tokens, 64)
        assert bool(torch.isfinite(out.detach().float()).all())
    out.backward(torch.ones_like(out))
    for weight in made.weights:
        assert weight.grad is not None
        assert bool(torch.isfinite(weight.grad.float()).all())
    if layer.kind != "embedding":
        assert x.grad.shape == x.shape


def test_weights_are_those_of_the_table():
    """Parameters of one rank add up to those of the operation table."""
    count = sum(weight.numel() for weight in built(spec()).weights)
    qkv, proj, mlp = 64 * (4 + 2 * 2) * 16, 64 * 64, 3 * 64 * 96
    assert count == qkv + proj + mlp + 2 * 64
    count = sum(weight.numel() for weight in built(spec("moe", **{**MOE, "ep": 2})).weights)
    experts, shared, router = 4 * 3 * 64 * 32, 3 * 64 * 48, 64 * 8
    assert count == qkv + proj + experts + shared + router + 2 * 64


def test_the_input_gradient_alone_is_that_of_the_whole_backward():
    kit = Kit(torch, torch.device("cpu"))
    layer = build_layer(kit, Comm(), spec(dtype="fp32"))
    x = layer.inputs()
    gradient = torch.randn(64, 64)
    (whole, *_) = torch.autograd.grad(layer(x), [x, *layer.weights], gradient)
    runner = LayerRunner(Bench(kit, Stopwatch(torch, kit.device), Ranks(torch)), layer)
    runner.x, runner.gradient = x, gradient
    runner.freeze()
    runner.forward()
    runner.out.backward(gradient)
    runner.thaw()
    torch.testing.assert_close(x.grad, whole)
    assert all(weight.grad is None for weight in layer.weights)


def test_gradients_add_up_in_main_gradients():
    kit = Kit(torch, torch.device("cpu"))
    layer = build_layer(kit, Comm(), spec(dtype="fp32"))
    runner = LayerRunner(Bench(kit, Stopwatch(torch, kit.device), Ranks(torch)), layer)
    for _ in range(2):
        runner.forward()
        runner.backward()
    weight, main = runner.main.of_weight[0]
    assert weight.grad is None
    assert main.dtype == torch.float32
    once = torch.autograd.grad(layer(runner.x), [weight], runner.gradient)[0]
    torch.testing.assert_close(main, 2.0 * once, rtol=1e-4, atol=1e-5)


def test_a_loss_in_place_is_the_plain_one():
    logits = torch.randn(48, 100, requires_grad=True)
    targets = torch.randint(100, (48,))
    plain = parts.plain_loss(torch, logits, targets)
    (wanted,) = torch.autograd.grad(plain, logits)
    copy = logits.detach().clone().requires_grad_()
    # What comes out of a GEMM may be overwritten; a leaf may not.
    found = parts.in_place_loss(torch)(copy * 1.0, targets)
    (gradient,) = torch.autograd.grad(found, copy)
    torch.testing.assert_close(found, plain)
    torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize(
    ("kinds", "d_v", "window"), [((4, 4), 16, 0), ((4, 2), 16, 0), ((4, 4), 8, 0), ((4, 2), 16, 5)]
)
def test_every_attention_kernel_computes_the_same(kinds, d_v, window):
    kit = Kit(torch, torch.device("cpu"))
    heads, key_heads = kinds
    shape = AttentionShape(heads, key_heads, 24, 24, 16, d_v, True, window, torch.float32)
    query = torch.randn(2, heads, 24, 16)
    key, value = torch.randn(2, key_heads, 24, 16), torch.randn(2, key_heads, 24, d_v)
    found = [
        parts.choose_attention(kit, shape, wanted).run(query, key, value)
        for wanted in ("flash", "sdpa", "math")
    ]
    scores = query @ key.repeat_interleave(heads // key_heads, 1).mT / 4.0
    place = torch.arange(24)
    seen = (place[None] <= place[:, None]) & (place[None] > place[:, None] - (window or 24))
    shares = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    wanted = shares @ value.repeat_interleave(heads // key_heads, 1)
    for out in found:
        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("recipe", ["delayed", "tensorwise", "rowwise"])
def test_fp8_gemms_are_near_the_exact_ones(recipe, by_rows):
    kit = Kit(torch, torch.device("cpu"))
    linear = NarrowLinear(replace(format_of(kit, "fp8", recipe), by_rows=by_rows))
    x = kit.random(32, 64, dtype=torch.bfloat16).requires_grad_()
    weight = kit.random(48, 64, dtype=torch.bfloat16).requires_grad_()
    gradient = kit.random(32, 48, dtype=torch.bfloat16)
    out = linear(x, weight)
    found = (out, *torch.autograd.grad(out, (x, weight), gradient))
    x, weight, found = x.detach(), weight.detach(), [each.detach() for each in found]
    wanted = (x @ weight.t(), gradient @ weight, gradient.t() @ x)
    for narrow, exact in zip(found, wanted, strict=True):
        off = (narrow.float() - exact.float()).norm() / exact.float().norm()
        assert float(off) < 0.06


@pytest.mark.parametrize(
    ("recipe", "fast"),
    [("tensorwise", [True, False, False]), ("rowwise", [True] * 3)],
)
def test_gradients_are_added_up_as_recipes_ask_for(monkeypatch, recipe, fast):
    kit, seen, kernel = Kit(torch, torch.device("cpu")), [], torch._scaled_mm

    def watched(*operands, use_fast_accum, **more):
        seen.append(use_fast_accum)
        return kernel(*operands, use_fast_accum=use_fast_accum, **more)

    monkeypatch.setattr(torch, "_scaled_mm", watched)
    linear = NarrowLinear(format_of(kit, "fp8", recipe))
    seen.clear()
    x = kit.random(32, 64, dtype=torch.bfloat16).requires_grad_()
    weight = kit.random(48, 64, dtype=torch.bfloat16).requires_grad_()
    linear(x, weight).float().sum().backward()
    assert seen == fast


KERNEL = getattr(torch, "_scaled_grouped_mm", None)


def grouped_by_hand(left, right, left_scale, right_scale, *, offs, out_dtype, use_fast_accum):
    """What ``torch._scaled_grouped_mm`` computes, with the shapes and layouts that it asks for."""
    groups = len(offs)
    # Torch checks shapes and layouts where there are no numbers.
    given = [each.to("meta") for each in (left, right, left_scale, right_scale)]
    checked = KERNEL(
        *given, offs=offs.to("meta"), out_dtype=out_dtype, use_fast_accum=use_fast_accum
    ).shape
    assert len(checked) == (2 if right.dim() == 3 else 3)
    assert left.stride(-1) == 1
    assert right.stride(-2) == 1
    left, right = left.float(), right.float()
    if right.dim() == 3:
        assert left_scale.shape == left.shape[:1]
        assert right_scale.shape == (groups, right.shape[2])
        blocks = [
            part @ (weight * scale)
            for part, weight, scale in zip(
                (left * left_scale[:, None]).chunk(groups), right, right_scale, strict=True
            )
        ]
        return torch.cat(blocks).to(out_dtype)
    assert left_scale.shape == (groups * left.shape[0],)
    assert right_scale.shape == (groups * right.shape[1],)
    assert left_scale.is_contiguous()
    parts = zip(
        left.chunk(groups, dim=1), right.chunk(groups), left_scale.chunk(groups),
        right_scale.chunk(groups), strict=True,
    )  # fmt: skip
    products = [(a * one[:, None]) @ (b * other) for a, b, one, other in parts]
    return torch.stack(products).to(out_dtype)


@pytest.mark.skipif(KERNEL is None, reason="this torch has no grouped FP8 GEMM")
@pytest.mark.parametrize("recipe", ["delayed", "tensorwise", "rowwise"])
def test_grouped_fp8_gemms_are_near_the_exact_ones(monkeypatch, recipe):
    """The kernel itself runs on GPUs alone; a stand-in checks what it is given."""
    monkeypatch.setattr(torch, "_scaled_grouped_mm", grouped_by_hand)
    kit = Kit(torch, torch.device("cpu"))
    fmt = format_of(kit, "fp8", recipe)
    assert has_narrow_experts(kit, fmt, 64, 48)
    experts = NarrowExperts(fmt, ends_of(kit, 3, 16))
    x = kit.random(48, 64, dtype=torch.bfloat16).requires_grad_()
    weight = kit.random(3, 32, 64, dtype=torch.bfloat16).requires_grad_()
    gradient = kit.random(48, 32, dtype=torch.bfloat16)
    out = experts(x, weight)
    found = [each.detach() for each in (out, *torch.autograd.grad(out, (x, weight), gradient))]
    x, weight = x.detach(), weight.detach()
    blocks = list(zip(x.chunk(3), weight, gradient.chunk(3), strict=True))
    wanted = (
        torch.cat([rows @ each.t() for rows, each, _ in blocks]),
        torch.cat([rows @ each for _, each, rows in blocks]),
        torch.stack([rows.t() @ own for own, _, rows in blocks]),
    )
    for narrow, exact in zip(found, wanted, strict=True):
        off = (narrow.float() - exact.float()).norm() / exact.float().norm()
        assert float(off) < 0.06


def test_cudnn_is_taken_alone_or_not_at_all():
    kit = Kit(torch, torch.device("cpu"))
    shape = AttentionShape(2, 2, 24, 24, 16, 16, True, 0, torch.float32)
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "select_backend", lambda _, backend: asked.append(backend))
        assert parts.choose_attention(kit, shape, "cudnn").name == "sdpa cudnn"
    assert asked == ["cudnn"]


def test_fp8_refuses_what_it_cannot():
    for layer, words in (
        (spec(dtype="fp8", fp8_recipe=3), "blockwise"),
        (spec(dtype="mxfp8"), "mxfp8"),
        (spec(dtype="fp8", fp8_recipe=2, ffn=97), "multiples of 16"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            built(layer)


def test_experts_get_equal_loads_and_tokens_other_experts():
    c = built(spec("moe", **MOE)).columns
    routing = Routing(Kit(torch, torch.device("cpu")), c)
    pair, token = routing.order()
    assert routing.rows == len(pair) == 2 * 64
    counts = torch.bincount(routing.expert_of_row, minlength=8)
    assert counts.tolist() == [16] * 8
    assert torch.bincount(token, minlength=64).tolist() == [2] * 64


def test_one_expert_is_a_dense_mlp():
    """With one expert that every token takes, routing changes nothing."""
    layer = spec("moe", dtype="fp32", **{**MOE, "experts": 1, "topk": 1, "shared_ffn": 0})
    experts = built(layer).feed_forward
    x = torch.randn(64, 64)
    up, down = experts.first.weights[0][0], experts.second.weights[0][0]
    gate, values = (x @ up.t()).chunk(2, dim=-1)
    wanted = (torch.nn.functional.silu(gate) * values) @ down.t()
    torch.testing.assert_close(experts(x), wanted, rtol=1e-4, atol=1e-6)


def test_saved_bytes_grow_with_the_sequence():
    from projector.measure.runners import layer_memory
    from projector.measure.task import LayerProgram

    bench = Bench(
        Kit(torch, torch.device("cpu")), Stopwatch(torch, torch.device("cpu")), Ranks(torch)
    )
    short, long = (
        layer_memory(bench, LayerProgram(layer=spec(seq=seq)))["saved_bytes"] for seq in (32, 64)
    )
    assert long == pytest.approx(2.0 * short, rel=0.02)
    assert BASE["seq"] == 32
