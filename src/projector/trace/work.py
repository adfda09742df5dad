"""The work of a kernel: what the extents of its operator say of it.

A trace that was recorded with shapes (``record_shapes``) has the extents of the tensors that each
operator was called with. Those of matrix products, attention and convolutions give their FLOP.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.config._base import Config
from projector.config.device_kernels import MatrixType
from projector.config.resources import shipped_table
from projector.trace.activity import ATTENTION, GEMM, Activities
from projector.trace.groups import group
from projector.trace.names import Cited, Word

BACKWARD_ATTENTION = 2.0
"""FLOP of the backward of an attention over those of its forward, as the operation table needs
them: two gradients for each product, the recomputed scores left out."""


class GemmOperator(Cited):
    """Where the operands of a matrix product stand among an operator's arguments."""

    a: int
    b: int
    b_is: Literal["kn", "nk"] = "kn"
    grouped: bool = False


class AttentionOperator(Cited):
    """Where query, key and value stand, and how their axes lie."""

    q: int
    k: int
    v: int
    lies: Literal["bhsd", "bshd", "thd"] = "bhsd"
    backward: bool = False


class ConvolutionOperator(Cited):
    """Where the tensors of a convolution stand, and what says how its kernel moves."""

    x: int
    w: int
    gradient: int | None = None
    """Of a backward: the gradient of the output, whose extents are those of the output."""
    mask: int | None = None
    """Of a backward: whether the gradients of input and weights are wanted."""
    stride: int | None = None
    padding: int | None = None
    dilation: int | None = None
    transposed: int | bool = False
    """Whether it is transposed, or where that stands."""


class NamedType(Cited):
    """A matrix type with its source."""

    value: MatrixType


class Operators(Config):
    """``hardware/trace_operators.yaml``."""

    gemms: dict[str, GemmOperator]
    attention: dict[str, AttentionOperator]
    convolutions: dict[str, ConvolutionOperator]
    helpers: list[Word]
    types: dict[str, NamedType]
    sources: dict[str, str]


load_operators = shipped_table(Operators, "trace_operators.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one call of an operator computes."""

    kind: Literal["gemm", "attention", "convolution"]
    m: int
    """Rows of the product; queries of an attention; places of a convolution's kernel."""
    n: int
    """Columns of the product; keys of an attention; channels that come out of a group."""
    k: int
    """Extent that is summed over; width of a query."""
    batch: int = 1
    """Equal products, groups, or sequences."""
    heads: int = 0
    key_heads: int = 0
    d_v: int = 0
    backward: bool = False
    grouped: bool = False
    """Whether ``batch`` counts groups that share the rows ``m``, or the summed extent ``k``."""
    gradients: int = 0
    """Gradients that the backward of a convolution takes; 0 of a forward."""
    dtype: str = ""
    """Matrix type; empty where it is not known."""

    def flop(self, *, causal: bool = True) -> float:
        """Return the matrix FLOP that are needed.

        No extent tells whether an attention is causal: half of its pairs are then masked.
        """
        products = 1 if self.grouped else self.batch
        if self.kind != "attention":
            return 2.0 * products * self.m * self.n * self.k * max(self.gradients, 1)
        pairs = float(self.m) * self.n
        if causal and self.m == self.n:
            pairs *= 0.5
        times = BACKWARD_ATTENTION if self.backward else 1.0
        return 2.0 * self.batch * self.heads * pairs * (self.k + self.d_v) * times

    @property
    def shown(self) -> str:
        """The extents in a few characters, as `projector benchmark` shows them."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        if self.kind != "attention":
            return f"{batch}{self.m} x {self.n} x {self.k} {self.dtype}".strip()
        width = f"{self.k}" if self.d_v in (0, self.k) else f"{self.k}/{self.d_v}"
        return f"{batch}{self.heads}/{self.key_heads} x {self.m} x {width} {self.dtype}".strip()


def work_of(operator: str, dims: Any, types: Any = (), scalars: Any = ()) -> Work | None:
    """Return the work of an operator, such as ``aten::mm``, by extents and types of its arguments.

    Extents are empty for what is no tensor, and scalars, as texts, for what is one. None where the
    table does not have the operator, or its extents are no product.
    """
    table, name = load_operators(), operator.lower()
    try:
        if name in table.gemms:
            return _gemm(table.gemms[name], dims, types)
        if name in table.attention:
            return _attention(table.attention[name], dims, types)
        if name in table.convolutions:
            return _convolution(table.convolutions[name], dims, types, scalars)
    except (TypeError, ValueError, LookupError, OverflowError):
        return None
    return None


def _extents(dims: Any, position: int) -> tuple[int, ...]:
    extents = tuple(int(extent) for extent in dims[position])
    if not extents or min(extents) <= 0:
        raise ValueError("no tensor")
    return extents


def _dtype(types: Any, position: int) -> str:
    if not isinstance(types, Sequence) or position >= len(types):
        return ""
    named = load_operators().types.get(str(types[position]).lower())
    return named.value if named is not None else ""


def _gemm(operator: GemmOperator, dims: Any, types: Any) -> Work | None:
    a, b = _extents(dims, operator.a), _extents(dims, operator.b)
    product = partial(Work, kind="gemm", dtype=_dtype(types, operator.a))
    if operator.b_is == "nk":
        b = (*b[:-2], b[-1], b[-2])
    if operator.grouped and len(a) != len(b):
        if len(a) == 2 and len(b) == 3 and a[1] == b[1]:
            return product(m=a[0], n=b[2], k=a[1], batch=b[0], grouped=True)
        if len(a) == 3 and len(b) == 2 and a[2] == b[0]:
            return product(m=a[1], n=b[1], k=a[2], batch=a[0], grouped=True)
        return None
    if operator.grouped and len(a) == 2:
        # Gradients of weights: the summed rows are divided among groups that no extent counts.
        return product(m=a[0], n=b[1], k=a[1], grouped=True)
    if a[-1] != b[-2]:
        return None
    rows = a[-2:-1] if len(b) > 2 else a[:-1]
    return product(m=math.prod(rows), n=b[-1], k=a[-1], batch=math.prod(b[:-2]))


def _attention(operator: AttentionOperator, dims: Any, types: Any) -> Work:
    q, k, v = (
        _by_axis(_extents(dims, position), operator.lies)
        for position in (operator.q, operator.k, operator.v)
    )
    return Work(
        kind="attention",
        m=q["s"],
        n=k["s"],
        k=q["d"],
        batch=q["b"],
        heads=q["h"],
        key_heads=k["h"],
        d_v=v["d"],
        backward=operator.backward,
        dtype=_dtype(types, operator.q),
    )


def _by_axis(extents: tuple[int, ...], lies: str) -> dict[str, int]:
    if lies != "thd" and len(extents) == 3:
        lies = "thd"
    named = dict(zip(lies, extents, strict=True))
    return {"b": named.get("b", 1), "h": named["h"], "s": named.get("s", named.get("t", 0)),
            "d": named["d"]}  # fmt: skip


def _convolution(
    operator: ConvolutionOperator, dims: Any, types: Any, scalars: Any
) -> Work | None:  # fmt: skip
    """Return a convolution as the product that it is: places of its kernel, and what it sums there.

    Each place of the kernel in the input multiplies and adds all weights once (Dumoulin and Visin,
    "A guide to convolution arithmetic for deep learning", arXiv:1603.07285, chapters 2 and 4), at
    two FLOP each. The places are the extents of the output; of a transposed convolution those of
    the input. The gradient of the input and that of the weights go through the same pairs of places
    and weights, so each takes as many FLOP again. Padded zeros count, as a product has them.
    """
    x, w = _extents(dims, operator.x), _extents(dims, operator.w)
    if len(x) == len(w) - 1:
        x = (1, *x)
    if len(x) != len(w) or len(w) < 3:
        return None
    transposed = operator.transposed
    if not isinstance(transposed, bool):
        told = scalars[transposed] if scalars else "False"
        transposed = {"True": True, "False": False}[told]
    if transposed:
        groups, places = 1, x[2:]
    else:
        groups = x[1] // w[1]
        places = _output(operator, dims, x, w, scalars)
    if x[1] != (w[0] if transposed else groups * w[1]) or w[0] % groups:
        return None
    kernel = w[0] if transposed else w[0] // groups
    return Work(
        kind="convolution",
        m=x[0] * math.prod(places),
        n=kernel,
        k=math.prod(w[1:]),
        batch=groups,
        gradients=0 if operator.gradient is None else _gradients(operator, scalars),
        dtype=_dtype(types, operator.x),
    )


def _gradients(operator: ConvolutionOperator, scalars: Any) -> int:
    """Return how many gradients of input and weights are taken: both, where nothing says so."""
    if operator.mask is None or not scalars:
        return 2
    wanted = str(scalars[operator.mask]).strip("[] ").split(",")[:2]
    count = sum(each.strip() == "True" for each in wanted)
    if not count:
        raise ValueError("no gradient")
    return count


def _output(
    operator: ConvolutionOperator, dims: Any, x: tuple[int, ...], w: tuple[int, ...], scalars: Any
) -> tuple[int, ...]:
    """Return floor((x + 2 padding - dilation (w - 1) - 1) / stride) + 1, of torch.nn.Conv2d."""
    if operator.gradient is not None:
        return _extents(dims, operator.gradient)[-len(w[2:]) :]
    axes = len(w) - 2
    stride, dilation = (_whole(scalars, at, axes) for at in (operator.stride, operator.dilation))
    padding = str(scalars[operator.padding])
    if padding == "same":
        return x[2:]
    pads = (0,) * axes if padding == "valid" else _whole(scalars, operator.padding, axes)
    found = tuple(
        (extent + 2 * pad - apart * (size - 1) - 1) // step + 1
        for extent, pad, apart, size, step in zip(x[2:], pads, dilation, w[2:], stride, strict=True)
    )
    if min(found) <= 0:
        raise ValueError("the kernel is larger than what it moves over")
    return found


def _whole(scalars: Any, position: int | None, axes: int) -> tuple[int, ...]:
    """Return the whole numbers of a text such as ``[2, 2]``; one stands for all axes."""
    assert position is not None  # every forward has it
    found = tuple(map(int, str(scalars[position]).strip("[] ").split(",")))
    return found * axes if len(found) == 1 else found


@dataclass(frozen=True, slots=True)
class Works:
    """What the activities of a trace compute, each distinct work once."""

    works: tuple[Work, ...]
    of: Ints
    """int64[activities]: row of ``works``; -1 where extents say nothing."""
    main: Flags
    """bool[activities]: the kernel that does the work, of the kernels of one operator."""
    part: Floats
    """float64[activities]: the share of the work that it does. The gradients of a convolution are
    kernels of one operator, and share its work equally."""

    def flop(self, *, causal: bool = True) -> Floats:
        """Return the needed FLOP of each activity, float64[activities]; 0 where not known."""
        each = np.array([*(work.flop(causal=causal) for work in self.works), 0.0])
        return np.where(self.main, each[self.of] * self.part, 0.0)


def works_of(activities: Activities) -> Works:
    """Return what the activities of a trace compute, as far as its operators have extents."""
    works: dict[Work, int] = {}
    of_detail = np.full(len(activities.details) + 1, -1, np.int64)
    for number, detail in enumerate(activities.details):
        if "dims" not in detail or "operator" not in detail:
            continue
        told = (detail.get(name, ()) for name in ("types", "scalars"))
        work = work_of(str(detail["operator"]), detail["dims"], *told)
        if work is not None:
            of_detail[number] = works.setdefault(work, len(works))
    of = of_detail[activities.detail]
    main = _main(activities, of, len(works))
    return Works(tuple(works), of, main, _parts(activities, tuple(works), of, main))


def _parts(activities: Activities, works: tuple[Work, ...], of: Ints, main: Flags) -> Floats:
    """Return what share of a convolution each kernel does, by the calls of its operator."""
    part = np.ones(len(of))
    convolves = np.array([*(work.kind == "convolution" for work in works), False])
    rows = np.flatnonzero(main & convolves[of])
    if len(rows):
        call = group(of[rows], activities.instance[rows], activities.iteration[rows])
        part[rows] = 1.0 / call.sizes()[call.of]
    return part


def _main(activities: Activities, of: Ints, works: int) -> Flags:
    """Return the activities that do the work of their operators.

    Of an operator's activities those that multiply or attend, or all where names tell none; never
    those that only finish what another one began. On the host it is the operator itself.
    """
    helpers = [helper.value for helper in load_operators().helpers]
    helps = np.array(
        [any(text in name.lower() for text in helpers) for name in activities.names] + [False]
    )
    candidates = (of >= 0) & ~helps[activities.name]
    multiplies = candidates & np.isin(activities.type, (GEMM, ATTENTION))
    told = np.zeros(works + 1, np.bool_)
    told[of[multiplies]] = True
    return np.asarray(np.where(told[of], multiplies, candidates))
