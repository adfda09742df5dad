"""What recurrent mixers hold: one table for the rows of a layer and for closed forms.

Sizes are whole numbers or columns of them, of a layer or of its part on one tensor-parallel rank.
H are value heads of width P, G key heads (groups) of width N.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeAlias

from projector.config.model import CHUNKS, Mixer

Size: TypeAlias = Any
"""int or int64[workloads]."""


class Widths(NamedTuple):
    """Elements of a token."""

    hidden: Size
    heads: Size
    width: Size
    """P"""
    size: Size
    """N"""
    value: Size
    """H P"""
    key: Size
    """G N"""
    wide_key: Size
    """H N: keys repeated for every value head, as delta rules are given them."""
    rank: Size
    """Of the step sizes of Mamba-1."""

    @classmethod
    def of(
        cls, hidden: Size, heads: Size, groups: Size, width: Size, size: Size, rank: Size
    ) -> Self:
        """Return those of some heads and groups."""
        return cls(hidden, heads, width, size, heads * width, groups * size, heads * size, rank)


class Weights(NamedTuple):
    """What a mixer learns, beside the output projection of its values."""

    inputs: Size
    """Columns of the input projection."""
    convolved: Size
    """Channels of the causal convolution."""
    own: Size
    """Parameters that are no product, tap or norm: decays, skips, biases."""
    norm: Size
    """Of the gated norm over values."""
    state: Size
    """Numbers that a sequence keeps in FP32, whatever its length."""
    kept: Size
    """Elements of 16 bits that the backward needs of a token, beside the input, for closed forms;
    rows say it kernel by kernel."""
    further: tuple[tuple[str, Size, Size, int], ...] = ()
    """Further projections: name, rows, columns, whether they have a bias."""


def _mamba1(w: Widths) -> Weights:
    x, dt = ("x", w.value, w.rank + 2 * w.size, 0), ("dt", w.rank, w.value, 0)
    own, kept = w.value * (w.size + 3), 3 * w.value + w.rank + 2 * w.size
    return Weights(2 * w.value, w.value, own, 0, w.wide_key * w.width, kept, (x, dt))


def _mamba2(w: Widths) -> Weights:
    # Bias of the convolution; decay, skip and bias of the step of each head.
    convolved = w.value + 2 * w.key
    inputs, own = w.value + convolved + w.heads, convolved + 3 * w.heads
    return Weights(inputs, convolved, own, w.value, w.wide_key * w.width, inputs + 3 * w.value)


def _gdn(w: Widths) -> Weights:
    convolved = 2 * w.key + w.value
    inputs, state = convolved + w.value + 2 * w.heads, w.wide_key * w.width
    # Keys and queries stand for each head, a triangular matrix for each chunk.
    kept = convolved + 2 * w.wide_key + 4 * w.value + (CHUNKS["gdn"] + 3) * w.heads
    return Weights(inputs, convolved, 2 * w.heads, w.width, state, kept)


def _kda(w: Widths) -> Weights:
    # Decays and gates come through projections of low rank (kda.py).
    convolved = 2 * w.key + w.value
    thin = (
        ("decay_down", w.hidden, w.width, 0),
        ("decay_up", w.width, w.wide_key, 0),
        ("gate_down", w.hidden, w.width, 0),
        ("gate_up", w.width, w.value, 1),
    )
    inputs, state = convolved + w.heads, w.wide_key * w.width
    kept = convolved + 3 * w.wide_key + 4 * w.value + (2 * CHUNKS["kda"] + 3) * w.heads
    return Weights(inputs, convolved, w.heads + w.wide_key, w.width, state, kept, thin)


def _linear(w: Widths) -> Weights:
    inputs, kept = 2 * w.wide_key + 2 * w.value, 2 * w.wide_key + 4 * w.value
    return Weights(inputs, 0, 0, w.value, w.wide_key * w.width, kept)


def _rwkv7(w: Widths) -> Weights:
    # Six mixes with the token before and the one of the feed-forward, three biases, k_k, k_a, r_k
    # and a group norm (rwkv7.py). What is kept of the last token has 16 bits, twice H wide. The
    # first layer lacks the projections of the values' rate.
    low = (("low_down", w.hidden, w.rank, 0), ("low_up", w.rank, w.value, 0))
    own, state = 7 * w.hidden + 6 * w.value, w.wide_key * w.width + w.hidden
    kept = 5 * w.hidden + w.rank + 5 * w.wide_key + 4 * w.value
    return Weights(3 * w.value, 0, own, 2 * w.value, state, kept, low)


WEIGHTS: dict[Mixer, Callable[[Widths], Weights]] = {
    "mamba1": _mamba1,
    "mamba2": _mamba2,
    "gdn": _gdn,
    "kda": _kda,
    "linear": _linear,
    "rwkv7": _rwkv7,
    "conv": lambda w: Weights(3 * w.value, w.value, 0, 0, 0, 6 * w.value),
}
"""Recurrent mixers, in the order of columns."""

STATE_BYTES, CONV_BYTES = 4.0, 2.0
"""Of an element of a state, kept in FP32 (Hugging Face's Nemotron-H), and of the convolution's last
inputs."""


def held_bytes(mixer: Mixer, w: Widths, taps: Size) -> Any:
    """Return what a sequence keeps of a layer, whatever its length."""
    own = WEIGHTS[mixer](w)
    return STATE_BYTES * own.state + CONV_BYTES * taps * own.convolved
