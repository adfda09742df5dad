"""Grouped GEMMs: the one of this build of torch, or a loop over experts."""

from collections.abc import Callable
from dataclasses import dataclass

from projector.measure.parts import Kit, Tensor, Torch

LOOP = "loop over experts"


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """A way to multiply rows that are sorted by expert, the same number of each."""

    torch: Torch
    name: str
    library: Callable[..., Tensor] | None

    def multiply(self, left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
        """Multiply rows [n, k] by [experts, k, m]; or [k, n] by [n, m], the rows divided.

        Parameters
        ----------
        ends : Tensor
            int32[experts], where the rows of each expert end.
        """
        if self.library is not None:
            return self.library(left, right, offs=ends)
        groups = ends.shape[0]
        if right.dim() == 3:
            blocks = zip(left.chunk(groups), right, strict=True)
            return self.torch.cat([block @ weight for block, weight in blocks])
        blocks = zip(left.chunk(groups, dim=1), right.chunk(groups), strict=True)
        return self.torch.stack([block @ rows for block, rows in blocks])


def choose_grouped(kit: Kit, dtype: object, n_in: int, n_out: int) -> GroupedGemm:
    """Return the grouped GEMM of this build, tried both ways, or a loop where it has none."""
    torch = kit.torch
    functional = torch.nn.functional
    for owner, name, shown in (
        (functional, "grouped_mm", "torch.nn.functional.grouped_mm"),
        (torch, "_grouped_mm", "torch._grouped_mm"),
    ):
        found = GroupedGemm(torch, shown, getattr(owner, name, None))
        if found.library is None:
            continue
        try:
            x = kit.random(32, n_in, dtype=dtype).requires_grad_()
            w = kit.random(2, n_out, n_in, dtype=dtype).requires_grad_()
            out = found.multiply(x, w.transpose(1, 2), ends_of(kit, 2, 16))
            out.backward(torch.ones_like(out))
        except (RuntimeError, NotImplementedError, TypeError):
            continue
        return found
    return GroupedGemm(torch, LOOP, None)


def ends_of(kit: Kit, groups: int, rows: int) -> Tensor:
    """Return where the rows of equal groups end, int32[groups]."""
    torch = kit.torch
    return torch.arange(rows, rows * groups + 1, rows, dtype=torch.int32, device=kit.device)
