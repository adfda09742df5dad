"""What a layer asks of the ranks that share it, and the answer of a rank that is alone.

Layers call an object of this shape where Megatron-LM communicates. With several ranks it holds
process groups (`projector.measure.exchange.Together`); a `Comm` itself gives tensors of the same
shapes without any, so that the compute of one rank of a split layer can be measured without the
others. Every method is part of autograd: its backward does the reverse. Tensors are those of torch,
whose rows are tokens.
"""

from typing import Any, Literal

Tensor = Any
Group = Literal["tp", "etp", "cp", "ep"]


class Comm:
    """Collectives of one layer on a rank without peers, in the shapes of a group of any degree."""

    def __init__(self, degrees: dict[Group, int] | None = None) -> None:
        self._degrees = degrees or {}

    def degree(self, group: Group) -> int:
        """Return the ranks of a group, 1 unless stated."""
        return self._degrees.get(group, 1)

    def rank(self, group: Group) -> int:  # noqa: ARG002
        """Return which of them this one is."""
        return 0

    def enter(self, x: Tensor, *, group: Group, divided: bool) -> Tensor:
        """Bring activations into a tensor-parallel region.

        Where tokens are ``divided`` over the group (sequence parallelism) they are gathered, and
        the backward scatters the sum of gradients. Else they pass, and the backward sums.
        """
        return self.gather(x, group=group) if divided else x

    def enter_linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *, group: Group, divided: bool
    ) -> Tensor:
        """Enter a region through its first linear layer, ``enter(x) @ weight' + bias``.

        What is exchanged in the backward runs beside the GEMM of the weight gradient, and of
        divided tokens only the own ones are kept.
        """
        out = self.enter(x, group=group, divided=divided) @ weight.t()
        return out if bias is None else out + bias

    def leave(self, x: Tensor, *, group: Group, divided: bool) -> Tensor:
        """Sum partial results of a region, and keep the own tokens; the reverse of `enter`."""
        degree = self.degree(group)
        return x[: x.shape[0] // degree] if divided and degree > 1 else x

    def swap(self, x: Tensor, *, group: Group) -> Tensor:  # noqa: ARG002
        """Exchange equal parts of the rows with every rank of the group: an all-to-all."""
        return x

    def gather(self, x: Tensor, *, group: Group) -> Tensor:
        """Return the rows of all ranks; the backward scatters the sum of gradients."""
        degree = self.degree(group)
        return x.repeat(degree, *[1] * (x.dim() - 1)) if degree > 1 else x

    def total(self, x: Tensor, *, group: Group) -> Tensor:  # noqa: ARG002
        """Return the sum over the ranks; the backward passes."""
        return x

    def largest(self, x: Tensor, *, group: Group) -> Tensor:  # noqa: ARG002
        """Return the maximum over the ranks; it has no backward."""
        return x
