"""Linear layers in FP8 through ``torch._scaled_mm``, quantised as a recipe says.

Forward and both gradients are FP8 GEMMs with FP32 scales: one for a whole tensor, or one for each
row. A delayed scale is known beforehand, so that nothing is read to find it. Quantising is done by
torch's own element-wise operators, several kernels where Transformer Engine has one.
Weights are quantised once and kept, as in a step of several microbatches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from projector.measure.parts import Kit, Tensor, Torch, UnsupportedError

RECIPES = ("delayed", "tensorwise", "rowwise", "blockwise")
"""Names of the codes of the column ``fp8_recipe``."""

MULTIPLE = 16
"""Extents of an FP8 GEMM are multiples of this (``torch._scaled_mm``)."""

NARROW = ("fp8", "mxfp8", "nvfp4", "int8", "fp8_block", "mxfp6", "mxfp4")
"""Matrix types of fewer than 16 bits."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a tensor is quantised."""

    torch: Torch
    narrow_type: Any
    largest: float
    recipe: str
    by_rows: bool = False
    """Whether GEMMs are given the one scale of a tensor once for each row. On a CPU torch 2.13 has
    a fast kernel for scales of rows alone: with scales of tensors a GEMM of extent 256 took 3 s."""

    @property
    def name(self) -> str:
        """What the recipe is, and how it is computed."""
        repeated = self.by_rows and self.recipe != "rowwise"
        return f"{self.recipe}, scales repeated by row" if repeated else self.recipe

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return values and what they are multiplied by, for each row or for all."""
        torch = self.torch
        if self.recipe == "delayed":
            one = torch.ones((), dtype=torch.float32, device=x.device)
            return x.clamp(-self.largest, self.largest).to(self.narrow_type), one
        if self.recipe == "rowwise":
            most = x.abs().amax(dim=-1, keepdim=True).float()
        else:
            most = x.abs().amax().float()
        scale = self.largest / most.clamp_min(1e-12)
        scaled = (x * scale).clamp(-self.largest, self.largest)
        return scaled.to(self.narrow_type), scale.reciprocal()

    def multiply(
        self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], *, gradient: bool = False
    ) -> Tensor:
        """Return ``left @ right'`` of two quantised tensors whose rows share their depth.

        Hopper adds products up in fewer bits for a forward, and in FP32 for a gradient, as the
        recipes of Transformer Engine and torchao ask for. Scales of rows have one fast kernel
        alone, which takes fewer bits throughout (pytorch/ao, pull request 1325).
        """
        (a, of_a), (b, of_b) = left, right
        if self.by_rows and self.recipe != "rowwise":
            of_a, of_b = of_a.expand(a.shape[0], 1), of_b.expand(b.shape[0], 1)
            of_a, of_b = of_a.contiguous(), of_b.contiguous()
        if self.by_rows or self.recipe == "rowwise":
            of_b = of_b.t()
        return self.torch._scaled_mm(  # noqa: SLF001
            a, b.t(), scale_a=of_a, scale_b=of_b, out_dtype=self.torch.bfloat16,
            use_fast_accum=not gradient or self.recipe == "rowwise",
        )  # fmt: skip


Quantised = tuple[Tensor, Tensor]
"""Values, and what they are multiplied by."""


def format_of(kit: Kit, dtype: str, recipe: str) -> Format:
    """Return how tensors of a narrow type are quantised on this device."""
    torch = kit.torch
    if dtype != "fp8" or recipe == "blockwise":
        msg = f"torch._scaled_mm is driven for FP8 with scales of tensors or rows, not for {dtype}"
        msg += f" with {recipe} scales" if dtype == "fp8" else ""
        raise UnsupportedError(msg)
    last = "torch._scaled_mm is not there"
    for name in ("float8_e4m3fn", "float8_e4m3fnuz"):
        narrow_type = getattr(torch, name, None)
        if narrow_type is None or not hasattr(torch, "_scaled_mm"):
            continue
        largest = float(torch.finfo(narrow_type).max)
        found = Format(torch, narrow_type, largest, recipe, by_rows=kit.device.type == "cpu")
        try:
            x = kit.random(MULTIPLE, MULTIPLE, dtype=torch.bfloat16)
            found.multiply(found.quantise(x), found.quantise(x))
        except (RuntimeError, NotImplementedError, TypeError) as error:
            last = str(error).splitlines()[0]
        else:
            return found
    raise UnsupportedError(f"FP8 does not run here: {last}")


def check_extents(*extents: int) -> None:
    """Refuse extents that FP8 GEMMs do not take."""
    wrong = [extent for extent in extents if extent % MULTIPLE]
    if wrong:
        msg = f"FP8 GEMMs need extents that are multiples of {MULTIPLE}, not {wrong[0]}"
        raise UnsupportedError(msg)


class NarrowLinear:
    """A linear layer of which all three GEMMs are narrow: rows [t, n_in], weight [n_out, n_in]."""

    def __init__(self, fmt: Format) -> None:
        self.format = fmt
        self._kept: dict[int, tuple[Tensor, Quantised, Quantised]] = {}
        self._apply = _function(fmt.torch, self)

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return ``x @ weight'`` in 16 bits, of rows of experts each with its own weight."""
        return self._apply(x, weight)

    def of_weight(self, weight: Tensor) -> tuple[Quantised, Quantised]:
        """Return a weight quantised by rows and by columns, as it was when first asked for."""
        if id(weight) not in self._kept:
            self._keep(weight)
        _, rows, columns = self._kept[id(weight)]
        return rows, columns

    def of_rows(self, x: Tensor) -> Quantised:
        """Quantise one operand of a GEMM, its depth innermost."""
        return self.format.quantise(x)

    def of_groups(self, x: Tensor) -> Quantised:
        """Quantise rows, which are all of one group."""
        return self.of_rows(x)

    def multiply(self, left: Quantised, right: Quantised, *, gradient: bool = False) -> Tensor:
        """Return the product of quantised rows and quantised rows of the other side."""
        return self.format.multiply(left, right, gradient=gradient)

    def refresh(self) -> None:
        """Quantise all weights anew, as after a step of the optimizer."""
        for weight, _, _ in list(self._kept.values()):
            self._keep(weight)

    def _keep(self, weight: Tensor) -> None:
        plain = weight.detach()
        turned = plain.transpose(-2, -1).contiguous()
        self._kept[id(weight)] = (weight, self.of_rows(plain), self.of_rows(turned))


class NarrowExperts(NarrowLinear):
    """A grouped linear layer of which all three GEMMs are narrow, one kernel for all experts.

    ``torch._scaled_grouped_mm`` takes a scale for each row; one of a whole tensor is repeated.
    Rows [n, n_in] are sorted by expert, the same number of each; weights [experts, n_out, n_in].
    """

    def __init__(self, fmt: Format, ends: Tensor) -> None:
        """Take where the rows of each expert end, int32[experts]."""
        super().__init__(fmt)
        self.ends, self.torch = ends, fmt.torch

    def of_rows(self, x: Tensor) -> Quantised:
        """Quantise, and give each row its scale: [..., rows, k] and [..., rows]."""
        values, scale = self.format.quantise(x)
        if scale.dim():
            return values, scale.squeeze(-1)
        return values, scale.expand(x.shape[:-1]).contiguous()

    def of_groups(self, x: Tensor) -> Quantised:
        """Quantise [rows, n] with a scale for each row of each expert: [experts * rows]."""
        rows, groups = x.shape[0], self.ends.shape[0]
        values, scale = self.of_rows(x.reshape(rows, groups, -1))
        return values.view(x.shape), scale.t().reshape(-1)

    def multiply(self, left: Quantised, right: Quantised, *, gradient: bool = False) -> Tensor:  # noqa: ARG002
        """Return the grouped product of quantised rows, with scales of rows, as a forward's."""
        return self.torch._scaled_grouped_mm(  # noqa: SLF001
            left[0], right[0].transpose(-2, -1), left[1], right[1], offs=self.ends,
            out_dtype=self.torch.bfloat16, use_fast_accum=True,
        )  # fmt: skip


def _function(torch: Torch, linear: NarrowLinear) -> Callable[[Tensor, Tensor], Tensor]:
    class Function(torch.autograd.Function):
        """The three GEMMs, grouped or not; a weight that wants no gradient keeps no input."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            rows, _ = linear.of_weight(weight)
            ctx.weight = weight
            turned = linear.of_groups(x.t().contiguous()) if weight.requires_grad else ()
            ctx.save_for_backward(*turned)
            return linear.multiply(linear.of_rows(x), rows)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
            _, columns = linear.of_weight(ctx.weight)
            of_x = linear.multiply(linear.of_rows(gradient.contiguous()), columns, gradient=True)
            if not ctx.saved_tensors:
                return of_x, None
            turned = linear.of_groups(gradient.t().contiguous())
            return of_x, linear.multiply(turned, ctx.saved_tensors, gradient=True)

    apply: Callable[[Tensor, Tensor], Tensor] = Function.apply
    return apply


def has_narrow_experts(kit: Kit, fmt: Format, n_in: int, n_out: int) -> bool:
    """Return whether the grouped narrow GEMMs run here, tried both ways on few rows."""
    torch = kit.torch
    if not hasattr(torch, "_scaled_grouped_mm"):
        return False
    ends = torch.tensor([MULTIPLE, 2 * MULTIPLE], dtype=torch.int32, device=kit.device)
    try:
        x = kit.random(2 * MULTIPLE, n_in, dtype=torch.bfloat16).requires_grad_()
        weight = kit.random(2, n_out, n_in, dtype=torch.bfloat16).requires_grad_()
        out = NarrowExperts(fmt, ends)(x, weight)
        out.backward(torch.ones_like(out))
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return True
