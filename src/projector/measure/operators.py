"""Single operators as something that can be run and timed: GEMMs, attention, memory-bound ones.

Operands take turns with others of the same shape until `COLD_BYTES` were touched, so that what one
run reads is not what the run before left in a cache. In a step it is not either, but for what the
operator before has just written. Only kernels are timed, see `Stopwatch.hold_back`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from projector.measure import narrow, parts
from projector.measure.exchange import collective
from projector.measure.experts import choose_grouped, ends_of
from projector.measure.memory_operators import memory_operator
from projector.measure.pace import KernelRunner
from projector.measure.parts import AttentionShape, Kit, Tensor, UnsupportedError
from projector.measure.runners import Bench, Prepared
from projector.measure.task import OperationProgram

COLD_BYTES = 64 * 2**20
"""Beyond the second-level cache of every GPU of 2024; on processors with more it is a part."""

MOST_SETS = 16

Run = Callable[[], object]


def _prepared(bench: Bench, make: Callable[[], Run], backend: str) -> Prepared:
    kit = bench.kit
    before = kit.made_bytes
    sets = [make()]
    size = max(1, kit.made_bytes - before)
    sets += [make() for _ in range(min(MOST_SETS, COLD_BYTES // size) - 1)]
    return Prepared(KernelRunner(bench.watch, sets), backend)


def operation_bytes(program: OperationProgram) -> float:
    """Return about what the operands and results of an operation hold, all sets together."""
    key = program.key
    if key.kind == "gemm":
        elements = key.m * key.k + key.n * key.k + key.m * key.n
        one = 4.0 * key.batch * elements
    elif key.kind == "attention":
        heads = key.heads + 2.0 * (key.key_heads or key.heads)
        one = 8.0 * key.batch * heads * max(key.m, key.n) * max(key.k, key.d_v)
    else:
        one = 4.0 * key.bytes
    return max(one, min(2.0 * COLD_BYTES, MOST_SETS * one))


def prepare_operation(bench: Bench, program: OperationProgram) -> Prepared:
    """Make one operator."""
    key = program.key
    if key.kind == "gemm":
        return _gemm(bench, program)
    if key.kind == "attention":
        return _attention(bench, program)
    if key.kind == "memory":
        return _memory(bench, program)
    run = collective(bench.ranks, key, bench.kit.device)
    backend = f"torch.distributed {bench.ranks.backend(bench.kit.device)}"
    return Prepared(KernelRunner(bench.watch, [run]), backend)


def _gemm(bench: Bench, program: OperationProgram) -> Prepared:
    key = program.key
    if key.dtype == "fp8":
        return _narrow_gemm(bench, program)
    if key.dtype == "int8":
        return _integer_gemm(bench, program)
    if key.dtype not in parts.WIDE:
        raise UnsupportedError(f"torch has no GEMM in {key.dtype} that is driven here")
    if key.expert and key.batch > 1:
        return _grouped_gemm(bench, program)
    kit = bench.kit
    torch, dtype = kit.torch, kit.wide_type(key.dtype)
    batch = () if key.batch == 1 else (key.batch,)
    tf32 = key.dtype == "tf32"
    adds = key.phase == "weight" and key.out_bytes > 2.0 and not batch and key.dtype != "fp32"
    into = _adding(kit, dtype, torch.float32 if key.out_bytes > 4.0 else dtype) if adds else None

    def make() -> Run:
        left, right = _operands(kit, program, batch, dtype)
        if into is not None:
            main = torch.zeros(key.m, key.n, dtype=into.dtype, device=kit.device)
            return lambda: into.run(main, left, right)
        if not tf32:
            return lambda: torch.matmul(left, right)
        return lambda: _in_tf32(torch, left, right)

    backend = "torch.matmul" if into is None else into.name
    return _prepared(bench, make, f"{backend}, tf32" if tf32 else backend)


def _operands(
    kit: Kit, program: OperationProgram, batch: tuple[int, ...], dtype: Any
) -> tuple[Tensor, Tensor]:
    """Return operands [m, k], [k, n] of X W', dY W or dY' X, laid out as a linear layer's are."""
    key = program.key
    if key.phase == "forward":
        left = kit.random(*batch, key.m, key.k, dtype=dtype)
        return left, kit.random(*batch, key.n, key.k, dtype=dtype).mT
    right = kit.random(*batch, key.k, key.n, dtype=dtype)
    if key.phase == "backward":
        return kit.random(*batch, key.m, key.k, dtype=dtype), right
    return kit.random(*batch, key.k, key.m, dtype=dtype).mT, right


def _in_tf32(torch: Any, left: Tensor, right: Tensor) -> Tensor:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = True
    try:
        return torch.matmul(left, right)
    finally:
        matmul.allow_tf32 = before


class _Adding(NamedTuple):
    name: str
    dtype: Any
    run: Callable[[Tensor, Tensor, Tensor], Tensor]


def _adding(kit: Kit, dtype: Any, wide: Any) -> _Adding:
    """Return one GEMM that adds in its output's type, or a GEMM and an addition."""
    torch = kit.torch

    def one(main: Tensor, left: Tensor, right: Tensor) -> Tensor:
        if wide == dtype:
            return torch.addmm(main, left, right, out=main)
        return torch.addmm(main, left, right, out_dtype=wide, out=main)

    try:
        sample = kit.random(16, 16, dtype=dtype)
        one(torch.zeros(16, 16, dtype=wide, device=kit.device), sample, sample)
    except (RuntimeError, NotImplementedError, TypeError):
        return _Adding(
            "torch.matmul and add_", wide, lambda main, left, right: main.add_(left @ right)
        )
    return _Adding("torch.addmm", wide, one)


def _grouped_gemm(bench: Bench, program: OperationProgram) -> Prepared:
    kit, key = bench.kit, program.key
    dtype, groups = kit.wide_type(key.dtype), key.batch
    depth = key.phase == "weight"
    n_in, n_out = (key.n, key.m) if depth else (key.k, key.n)
    grouped = choose_grouped(kit, dtype, n_in, n_out)
    ends = ends_of(kit, groups, key.k if depth else key.m)
    adds = depth and key.out_bytes > 2.0

    def make() -> Run:
        if depth:
            left = kit.random(groups * key.k, key.m, dtype=dtype).t()
            right = kit.random(groups * key.k, key.n, dtype=dtype)
        else:
            left = kit.random(groups * key.m, key.k, dtype=dtype)
            turned = key.phase == "forward"
            shape = (groups, key.n, key.k) if turned else (groups, key.k, key.n)
            right = kit.random(*shape, dtype=dtype)
            right = right.transpose(1, 2) if turned else right
        if not adds:
            return lambda: grouped.multiply(left, right, ends)
        main = kit.torch.zeros(groups, key.m, key.n, dtype=kit.torch.float32, device=kit.device)
        return lambda: main.add_(grouped.multiply(left, right, ends))

    return _prepared(bench, make, f"{grouped.name} and add_" if adds else grouped.name)


def _narrow_gemm(bench: Bench, program: OperationProgram) -> Prepared:
    """Make an FP8 GEMM of operands that are quantised already."""
    kit, key = bench.kit, program.key
    narrow.check_extents(key.m, key.n, key.k)
    # Scaled as the layer says, by whole tensors unless stated.
    code = 1 if program.layer is None else program.layer.columns.get("fp8_recipe", 1)
    fmt = narrow.format_of(kit, key.dtype, narrow.RECIPES[code])
    if key.expert and key.batch > 1:
        n_in, n_out = (key.n, key.m) if key.phase == "weight" else (key.k, key.n)
        if narrow.has_narrow_experts(kit, fmt, n_in, n_out):
            return _narrow_grouped_gemm(bench, program, fmt)

    def make() -> Run:
        pairs = [
            (
                fmt.quantise(kit.random(key.m, key.k, dtype=kit.torch.bfloat16)),
                fmt.quantise(kit.random(key.n, key.k, dtype=kit.torch.bfloat16)),
            )
            for _ in range(key.batch)
        ]
        gradient = key.phase != "forward"
        return lambda: [fmt.multiply(left, right, gradient=gradient) for left, right in pairs]

    note = ", one by one" if key.batch > 1 else ""
    return _prepared(bench, make, f"torch._scaled_mm, {fmt.name}{note}")


def _narrow_grouped_gemm(bench: Bench, program: OperationProgram, fmt: narrow.Format) -> Prepared:
    kit, key = bench.kit, program.key
    groups, dtype = key.batch, kit.torch.bfloat16
    depth = key.phase == "weight"
    experts = narrow.NarrowExperts(fmt, ends_of(kit, groups, key.k if depth else key.m))

    def make() -> Run:
        if depth:
            left = experts.of_groups(kit.random(key.m, groups * key.k, dtype=dtype))
            right = experts.of_groups(kit.random(key.n, groups * key.k, dtype=dtype))
        else:
            left = experts.of_rows(kit.random(groups * key.m, key.k, dtype=dtype))
            right = experts.of_rows(kit.random(groups, key.n, key.k, dtype=dtype))
        return lambda: experts.multiply(left, right)

    return _prepared(bench, make, f"torch._scaled_grouped_mm, {fmt.recipe}")


def _integer_gemm(bench: Bench, program: OperationProgram) -> Prepared:
    kit, key = bench.kit, program.key
    torch = kit.torch
    if not hasattr(torch, "_int_mm") or key.batch > 1:
        raise UnsupportedError("torch has no batched GEMM in int8")

    def make() -> Run:
        left = kit.integers(key.m, key.k, below=100).to(torch.int8)
        right = kit.integers(key.n, key.k, below=100).to(torch.int8).t()
        kit.made_bytes += left.nbytes + right.nbytes
        return lambda: torch._int_mm(left, right)  # noqa: SLF001

    return _prepared(bench, make, "torch._int_mm")


def _attention(bench: Bench, program: OperationProgram) -> Prepared:
    kit, key = bench.kit, program.key
    if key.dtype not in parts.WIDE:
        raise UnsupportedError(f"no attention kernel of torch computes in {key.dtype}")
    key_heads = key.key_heads or key.heads
    shape = AttentionShape(
        key.heads, key_heads, key.m, key.n, key.k, key.d_v or key.k, causal=key.causal,
        window=key.window, dtype=kit.wide_type(key.dtype),
    )  # fmt: skip
    wanted = "flash" if program.layer is None else program.layer.attention
    kernel = parts.choose_attention(kit, shape, wanted)

    def make() -> Run:
        def operand(heads: int, tokens: int, width: int) -> Tensor:
            # As projections leave them: tokens before heads.
            made = kit.random(key.batch, tokens, heads, width, dtype=shape.dtype)
            return made.transpose(1, 2).requires_grad_()

        query = operand(shape.heads, shape.queries, shape.d_qk)
        keys = operand(key_heads, shape.keys, shape.d_qk)
        values = operand(key_heads, shape.keys, shape.d_v)
        if key.phase == "forward":
            return lambda: kernel.run(query, keys, values)
        return _gradient(kit, (kernel.run(query, keys, values),), (query, keys, values))

    return _prepared(bench, make, kernel.name)


def _gradient(kit: Kit, outs: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> Run:
    gradients = [kit.random(*out.shape, dtype=out.dtype).reshape(out.shape) for out in outs]
    grad = kit.torch.autograd.grad
    return lambda: grad(outs, inputs, gradients, retain_graph=True)


def _memory(bench: Bench, program: OperationProgram) -> Prepared:
    kit, key = bench.kit, program.key
    if key.phase == "forward" and not key.bytes:
        raise UnsupportedError(f"{key.label} moves nothing")
    operator = memory_operator(kit, program)

    def make() -> Run:
        inputs = operator.inputs()
        if operator.explicit or key.phase == "forward":
            return lambda: operator.run(*inputs)
        outs = operator.run(*inputs)
        wanted = tuple(each for each in inputs if each.requires_grad)
        return _gradient(kit, outs if isinstance(outs, tuple) else (outs,), wanted)

    return _prepared(bench, make, operator.name)
