"""Mixers with a state of fixed size: Mamba-1 and -2, delta rules, linear attention, convolution.

Each projects its input, runs a causal convolution, a recurrence and a gated norm, and projects
back. All but Mamba-1 cut the sequence into chunks: matrix products inside a chunk, and a state that
goes from chunk to chunk. A short convolution has no recurrence and no norm. Operations, saved
tensors and traffic are those of mamba-ssm (state-spaces/mamba@e9594ce1c7) and
flash-linear-attention (fla-org@bc3b101dcb), read from their code. Nobody has timed the kernels for
this model, so that no measurement stands behind their time.

H are value heads of width P, G key heads (groups) of width N, all of one tensor-parallel rank.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.config.model import CHUNKS, Mixer
from projector.config.recurrence import WEIGHTS, Weights, Widths, held_bytes
from projector.kernels.collective_algorithms import ALL_REDUCE, ALL_TO_ALL
from projector.lower.stages import has_part
from projector.operations import communication
from projector.operations.attention import SEGMENT_PROJ, SEGMENT_QKV
from projector.operations.linear import Linear, emit_linear, emit_memory
from projector.operations.shapes import Shapes, StepShapes, ceil_div
from projector.operations.table import (
    BACKWARD,
    COMPUTE_ATTENTION,
    CP_COMM,
    FORWARD,
    GEMM,
    TP_COMM,
    IntValues,
    TableBuilder,
)

TRITON_SHARE = 0.4
"""Rate of products inside these kernels over that of GEMMs of their shape. The prior is 0.5, about
what Triton's attention has of a tuned kernel on Hopper. 34 steps of hybrid models (three sources)
ask for 0.2 to 0.6; they were projected with 1 before."""

SCAN_TOKENS = 2048
"""Tokens after which the scan of Mamba-1 keeps its state (selective_scan_fwd_kernel.cuh)."""


class Core(NamedTuple):
    """What goes through a recurrence, int64[workloads] each; nothing where a step only decodes."""

    tokens: Ints
    """Of one rank, all its heads counted once."""
    sequences: Ints
    seq: Ints
    """Tokens of a sequence."""


def _widths(shapes: Shapes) -> Widths:
    s = shapes
    heads, groups = s.state_heads // s.tp, ceil_div(s.state_groups, s.tp)
    return Widths.of(s.hidden, heads, groups, s.state_width, s.state_size, s.state_rank)


def emit_recurrent(table: TableBuilder, shapes: Shapes, where: Ints) -> None:
    """Emit the recurrent mixers of the layers in ``where``."""
    core, widths = Core(shapes.tokens, shapes.micro_batch, shapes.seq), _widths(shapes)
    for mixer in RECURRENT:
        chosen = where[has_part(shapes.kind[where], mixer)]
        if len(chosen):
            _EMITTERS[mixer](table, shapes, chosen, widths, core)


def emit_cached_recurrent(
    table: TableBuilder, shapes: Shapes, steps: StepShapes, where: Ints
) -> None:
    """Emit the recurrent mixers of inference steps.

    Prompts go through as in training, and leave their state. A sequence that decodes reads and
    writes the state of each head once for all its new tokens (selective_state_update,
    fused_recurrent): no matrix unit has a part in it.
    """
    core = Core(steps.chunks * steps.chunk_tokens, steps.chunks, steps.chunk_tokens)
    widths = _widths(shapes)
    for number, mixer in enumerate(RECURRENT):
        count = steps.state_layers[:, number]
        chosen = where[count[where] > 0]
        if len(chosen) == 0:
            continue
        layers = table.repeated(count)
        _EMITTERS[mixer](layers, shapes, chosen, widths, core)
        emit_memory(
            layers, chosen[steps.sequences[chosen] > 0], f"{mixer}.state.update",
            forward_bytes=2.0 * state_bytes(shapes, mixer) * steps.sequences, backward_bytes=0.0,
            launches=2.0,
        )  # fmt: skip


def state_bytes(shapes: Shapes, mixer: Mixer) -> Floats:
    """Return what a sequence keeps of one recurrent layer on a rank, float64[workloads]."""
    held = held_bytes(mixer, _widths(shapes), shapes.state_conv)
    return np.broadcast_to(np.asarray(held, np.float64), len(shapes))


def _emit_in(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, weights: Weights, taps: IntValues
) -> None:
    """Emit the input projection, the convolution, and what a head has besides.

    The convolution reads and writes its channels, and keeps its input; the backward reads the
    gradient as well.
    """
    tokens = shapes.tokens.astype(np.float64)
    activations = 2.0 * tokens * shapes.hidden
    communication.emit_region_entry(table, shapes, where, f"{label}.tp", activations, SEGMENT_QKV)
    emit_linear(
        table, shapes, where, f"{label}.in",
        Linear(
            tokens=shapes.tokens, n_in=shapes.hidden, n_out=weights.inputs,
            saved_tokens=shapes.kept_tokens, segment=SEGMENT_QKV,
            # Attention beside it keeps what both read.
            saves_input=~has_part(shapes.kind, "attention"),
        ),
    )  # fmt: skip
    has_taps = np.asarray(taps) > 0
    moved = tokens * weights.convolved * has_taps
    emit_memory(
        table, where, f"{label}.conv", forward_bytes=4.0 * moved, backward_bytes=6.0 * moved,
        launches=1.0 * has_taps, saved_bytes=2.0 * moved,
        parameters=np.multiply(weights.convolved, taps) + weights.own,
    )  # fmt: skip


def _emit_norm(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, width: Ints, norm: IntValues,
    *, has_gate: bool,
) -> None:  # fmt: skip
    """Emit the gated norm over the values.

    It keeps its input, and its gate unless the projection's output is kept anyway.
    """
    elements = shapes.tokens * width.astype(np.float64)
    passes = 2.0 * has_gate
    emit_memory(
        table, where, f"{label}.norm", forward_bytes=(4.0 + passes) * elements,
        backward_bytes=(6.0 + 2.0 * passes) * elements, backward_launches=2.0,
        saved_bytes=(2.0 + passes) * elements, parameters=norm,
    )  # fmt: skip


def _emit_out(table: TableBuilder, shapes: Shapes, where: Ints, label: str, width: Ints) -> None:
    out = Linear(tokens=shapes.tokens, n_in=width, n_out=shapes.hidden, segment=SEGMENT_PROJ)
    emit_linear(table, shapes, where, f"{label}.out", out)
    activations = 2.0 * shapes.tokens.astype(np.float64) * shapes.hidden
    communication.emit_region_exit(table, shapes, where, f"{label}.tp", activations, SEGMENT_PROJ)


def _emit_products(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, batch: Ints,
    extents: tuple[IntValues, IntValues, IntValues], backward: float, out_bytes: float = 2.0,
) -> None:  # fmt: skip
    """Emit the products of one kernel, m by n by k of each of ``batch``, with their backward.

    ``backward`` is how often the backward does as much: what it computes anew, and two gradients.
    """
    m, n, k = (np.broadcast_to(extent, len(shapes)) for extent in extents)
    gemm = partial(
        table.add, where, label, kind=GEMM, category=COMPUTE_ATTENTION, dtype=shapes.wide_dtype,
        batch=batch, m=m, n=n, k=k, out_bytes=out_bytes, rate_share=TRITON_SHARE,
    )  # fmt: skip
    flop = 2.0 * batch * m.astype(np.float64) * n * k
    gemm(phase=FORWARD, flop=flop)
    gemm(phase=BACKWARD, flop=2.0 * flop, repeats=backward)


def _chunk(shapes: Shapes, mixer: Mixer, core: Core) -> Ints:
    """Return the tokens of a chunk; a short sequence is one."""
    stated = np.where(shapes.state_chunk > 0, shapes.state_chunk, CHUNKS[mixer])
    return np.maximum(1, np.minimum(stated, core.seq))


def _emit_context(
    table: TableBuilder, shapes: Shapes, where: Ints, label: str, inwards: Ints, outwards: Ints
) -> None:
    """Emit how context parallelism exchanges heads for the sequence, before and behind a core."""
    split = where[shapes.cp[where] > 1]
    moved = 2.0 * shapes.tokens.astype(np.float64) * (inwards + outwards)
    for phase in (FORWARD, BACKWARD):
        communication.emit_collective(
            table, split, f"{label}.cp.all_to_all", phase=phase, category=CP_COMM,
            operation=ALL_TO_ALL, num_bytes=moved, **communication.group_row(shapes, "cp"),
        )  # fmt: skip


def _emit_mamba2(
    table: TableBuilder, shapes: Shapes, where: Ints, widths: Widths, core: Core
) -> None:
    """Emit Mamba-2: the structured state-space dual, cut into chunks (ssd_combined.py).

    The backward computes the convolution, states and products anew; nothing of them is kept.
    """
    label, chunk, weights = "mamba2", _chunk(shapes, "mamba2", core), WEIGHTS["mamba2"](widths)
    heads, value, groups = widths.heads, widths.value, ceil_div(shapes.state_groups, shapes.tp)
    _emit_in(table, shapes, where, label, weights, shapes.state_conv)
    _emit_context(table, shapes, where, label, weights.inputs, value)
    tokens = core.tokens.astype(np.float64)
    chunks = ceil_div(core.tokens, chunk) * groups
    shared = value // np.maximum(1, groups)
    states = tokens / chunk * value * shapes.state_size
    within = where[core.tokens[where] > 0]
    products = partial(_emit_products, table, shapes, within)
    products(f"{label}.states", chunks, (shared, shapes.state_size, chunk), 2.5, 4.0)
    products(f"{label}.scores", chunks, (chunk, chunk, shapes.state_size), 3.0, 4.0)
    # A causal half is cut at the edges of tiles: three quarters of the chunk.
    products(f"{label}.scan", chunks, (chunk, shared, shapes.state_size + 3 * chunk // 4), 2.75)
    # Decays of all pairs in a chunk are exponentials of FP32.
    decays = 0.75 * tokens * heads * chunk
    emit_memory(
        table, within, f"{label}.pass",
        forward_bytes=8.0 * states + tokens * (4.0 * value + 26.0 * heads),
        backward_bytes=24.0 * states + tokens * (14.0 * value + 60.0 * heads), launches=3.0,
        backward_launches=15.0, exponentials=decays, backward_exponentials=2.0 * decays,
        saved_bytes=2.0 * tokens * (2 * value + heads), transient_bytes=8.0 * states,
    )  # fmt: skip
    normed = where[shapes.state_norm[where] == 1]
    _emit_norm(table, shapes, normed, label, value, weights.norm, has_gate=False)
    _emit_out(table, shapes, where, label, value)


def _emit_delta(
    table: TableBuilder, shapes: Shapes, where: Ints, widths: Widths, core: Core, *, label: Mixer
) -> None:
    """Emit a gated delta rule: a triangular solve in each chunk, and a state that is corrected.

    Queries and keys stand for each value head. The state goes through the chunks of a sequence one
    after the other, so only heads and columns of the state run side by side. Kimi's decay is of
    each channel of a key, and comes from two thin projections, as its gate does.
    """
    _, heads, width, size, value, key, wide_key, _ = widths
    chunk, fine, weights = _chunk(shapes, label, core), label == "kda", WEIGHTS[label](widths)
    _emit_in(table, shapes, where, label, weights, shapes.state_conv)
    for name, n_in, n_out, bias in weights.further:
        further = Linear(
            tokens=shapes.tokens, n_in=n_in, n_out=n_out, bias=bias, segment=SEGMENT_QKV,
            saves_input=not name.endswith("_down"),  # the input projection keeps it
        )  # fmt: skip
        emit_linear(table, shapes, where, f"{label}.{name}", further)
    _emit_context(table, shapes, where, label, 2 * key + 2 * value + 2 * heads, value)
    tokens = core.tokens.astype(np.float64)
    chunks = ceil_div(core.tokens, chunk) * heads
    within = where[core.tokens[where] > 0]
    products = partial(_emit_products, table, shapes, within)
    products(f"{label}.solve", chunks, (chunk, chunk, size), 2.0)
    products(f"{label}.corrections", chunks, (chunk, size + width, chunk), 2.0)
    # Over the whole sequence, one head beside the other.
    sequences = ceil_div(core.sequences * heads, shapes.cp)
    products(f"{label}.state", sequences, (width, size, 2 * core.seq), 2.0)
    # One kernel has both products of the outputs.
    products(f"{label}.outputs", chunks, (chunk, chunk, size), 5.0)
    products(f"{label}.outputs", chunks, (chunk, width, size + chunk), 4.0)
    states = tokens / chunk * value * size
    passes = 8.0 + (20.0 if fine else 0.0)
    inverse = 2.0 * tokens * heads * chunk
    emit_memory(
        table, within, f"{label}.gates", forward_bytes=passes * tokens * wide_key + 4.0 * states,
        backward_bytes=2.0 * passes * tokens * wide_key + 12.0 * states, launches=6.0,
        backward_launches=8.0,
        saved_bytes=tokens * (4.0 * wide_key + 2.0 * value + 6.0 * heads)
        + inverse * (2.0 if fine else 1.0) + (2.0 * tokens * wide_key if fine else 0.0),
        transient_bytes=4.0 * states,
        exponentials=tokens * (wide_key if fine else heads),
    )  # fmt: skip
    _emit_norm(table, shapes, where, label, value, weights.norm, has_gate=True)
    _emit_out(table, shapes, where, label, value)


def _emit_linear_attention(
    table: TableBuilder, shapes: Shapes, where: Ints, widths: Widths, core: Core
) -> None:
    """Emit linear attention with a fixed decay of each head (Lightning Attention)."""
    _, heads, width, size, value, _, wide_key, _ = widths
    label, chunk, weights = "linear", _chunk(shapes, "linear", core), WEIGHTS["linear"](widths)
    _emit_in(table, shapes, where, label, weights, 0)
    _emit_context(table, shapes, where, label, 2 * wide_key + value, value)
    tokens = core.tokens.astype(np.float64)
    chunks = ceil_div(core.tokens, chunk) * heads
    within = where[core.tokens[where] > 0]
    products = partial(_emit_products, table, shapes, within)
    sequences = ceil_div(core.sequences * heads, shapes.cp)
    products(f"{label}.state", sequences, (width, size, core.seq), 3.0)
    products(f"{label}.outputs", chunks, (chunk, chunk, size), 3.0)
    products(f"{label}.outputs", chunks, (chunk, width, size + chunk), 2.0)
    states = tokens / chunk * value * size
    emit_memory(
        table, within, f"{label}.gates", forward_bytes=4.0 * states,
        backward_bytes=12.0 * states, saved_bytes=tokens * (4.0 * wide_key + 2.0 * value),
        transient_bytes=4.0 * states,
    )  # fmt: skip
    _emit_norm(table, shapes, where, label, value, weights.norm, has_gate=True)
    _emit_out(table, shapes, where, label, value)


def _emit_mamba1(
    table: TableBuilder, shapes: Shapes, where: Ints, widths: Widths, core: Core
) -> None:
    """Emit Mamba-1: one scan kernel, element by element, on vector units.

    The state of a channel is N exponentials and as many steps a token. The backward computes the
    convolution and the step sizes anew (selective_scan_interface.py, checkpoint level 1).
    """
    value, size, rank, label = widths.value, widths.size, widths.rank, "mamba1"
    weights = WEIGHTS["mamba1"](widths)
    tokens, within = core.tokens.astype(np.float64), where[core.tokens[where] > 0]
    activations = 2.0 * shapes.tokens.astype(np.float64)
    _emit_in(table, shapes, where, label, weights, shapes.state_conv)
    (_, n_in, n_out, _), (_, *dt, _) = weights.further
    x = Linear(tokens=shapes.tokens, n_in=n_in, n_out=n_out, saves_input=False)
    emit_linear(table, shapes, where, f"{label}.x", x)
    divided = where[shapes.tp[where] > 1]
    for phase in (FORWARD, BACKWARD):
        communication.emit_collective(
            table, divided, f"{label}.x.all_reduce", phase=phase, category=TP_COMM,
            operation=ALL_REDUCE, num_bytes=activations * (rank + 2 * size),
            **communication.group_row(shapes, "tp"),
        )  # fmt: skip
    emit_linear(table, shapes, where, f"{label}.dt", Linear(shapes.tokens, *dt))
    _emit_context(table, shapes, where, label, 3 * value + 2 * size, value)
    states = core.sequences * ceil_div(core.seq, SCAN_TOKENS) * value / shapes.cp
    kept = 8.0 * states * size
    steps = tokens * value * size
    emit_memory(
        table, within, f"{label}.scan", forward_bytes=tokens * (10.0 * value + 4.0 * size) + kept,
        backward_bytes=tokens * (18.0 * value + 8.0 * size) + kept, exponentials=steps,
        backward_exponentials=2.0 * steps, saved_bytes=2.0 * tokens * (value + 2 * size) + kept,
    )  # fmt: skip
    _emit_out(table, shapes, where, label, value)


def _emit_rwkv7(
    table: TableBuilder, shapes: Shapes, where: Ints, widths: Widths, core: Core
) -> None:
    """Emit RWKV-7: a delta rule with a decay and a rate of each channel of a key (dplr/chunk.py).

    Its input is mixed with the token before, six times. No one published the traffic of its gates;
    it is taken to be that of Kimi's, whose decays are of each channel too.
    """
    _, heads, width, size, value, _, wide_key, _ = widths
    label, chunk, weights = "rwkv7", _chunk(shapes, "rwkv7", core), WEIGHTS["rwkv7"](widths)
    mixed = 2.0 * shapes.tokens.astype(np.float64) * shapes.hidden
    # The input projection keeps one of the six.
    emit_memory(
        table, where, f"{label}.shift", forward_bytes=7.0 * mixed, backward_bytes=9.0 * mixed,
        saved_bytes=5.0 * mixed,
    )  # fmt: skip
    _emit_in(table, shapes, where, label, weights, 0)
    for name, n_in, n_out, _ in weights.further:
        low = Linear(shapes.tokens, n_in, n_out, saves_input=name == "low_up")
        emit_linear(table, shapes, where, f"{label}.{name}", low)
    _emit_context(table, shapes, where, label, 4 * wide_key + 2 * value, value)
    tokens = core.tokens.astype(np.float64)
    chunks = ceil_div(core.tokens, chunk) * heads
    within = where[core.tokens[where] > 0]
    products = partial(_emit_products, table, shapes, within, backward=2.5)
    sequences = ceil_div(core.sequences * heads, shapes.cp)
    products(f"{label}.scores", chunks, (chunk, 4 * chunk, size))
    products(f"{label}.corrections", chunks, (chunk, size + width, chunk))
    products(f"{label}.state", sequences, (width, size, 3 * core.seq))
    products(f"{label}.outputs", chunks, (chunk, width, size + 3 * chunk))
    states = tokens / chunk * value * size
    emit_memory(
        table, within, f"{label}.gates", forward_bytes=28.0 * tokens * wide_key + 4.0 * states,
        backward_bytes=56.0 * tokens * wide_key + 12.0 * states, launches=8.0,
        backward_launches=14.0, saved_bytes=2.0 * tokens * (5 * wide_key + value),
        transient_bytes=4.0 * states, exponentials=tokens * wide_key,
    )  # fmt: skip
    _emit_norm(table, shapes, where, label, value, weights.norm, has_gate=True)
    _emit_out(table, shapes, where, label, value)


def _emit_short_convolution(
    table: TableBuilder, shapes: Shapes, where: Ints, widths: Widths, core: Core
) -> None:
    """Emit a short convolution with a gate before and one behind (modeling_lfm2.py).

    A gate reads two tensors and writes one. What ranks of CP tell their neighbours, the last tokens
    of a part, is not counted.
    """
    del core
    label, weights, value = "conv", WEIGHTS["conv"](widths), widths.value
    _emit_in(table, shapes, where, label, weights, shapes.state_conv)
    elements = 2.0 * shapes.tokens.astype(np.float64) * value
    # Gates keep the projection's output and the convolution's.
    emit_memory(
        table, where, f"{label}.gates", forward_bytes=6.0 * elements,
        backward_bytes=10.0 * elements, launches=2.0, saved_bytes=4.0 * elements,
    )  # fmt: skip
    _emit_out(table, shapes, where, label, value)


_EMITTERS: dict[Mixer, Callable[[TableBuilder, Shapes, Ints, Widths, Core], None]] = {
    "mamba1": _emit_mamba1,
    "mamba2": _emit_mamba2,
    "gdn": partial(_emit_delta, label="gdn"),
    "kda": partial(_emit_delta, label="kda"),
    "linear": _emit_linear_attention,
    "rwkv7": _emit_rwkv7,
    "conv": _emit_short_convolution,
}

RECURRENT = tuple(WEIGHTS)
"""Recurrent mixers, in the order of columns."""
