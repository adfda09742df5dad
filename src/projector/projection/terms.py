"""The terms of a rank's memory and of a step, declared once.

Sums, columns, JSON and reports follow from the declarations.
"""

import functools
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_type_hints

from projector.operations.table import CATEGORIES

Static = TypeVar("Static")
"""A term that is known before a schedule is replayed: a number, or one for each of many ranks."""

Scheduled = TypeVar("Scheduled")
"""A term that the order of the schedule decides; None until one is replayed."""


class MemoryTerm(NamedTuple):
    """One term, as `MemoryTerms` declares it."""

    meaning: str
    head: str = ""
    """Above its column in a terminal; its name unless that is too long."""
    scheduled: bool = False
    """Whether the order of the schedule decides it."""
    name: str = ""
    """From the attribute."""

    @property
    def attribute(self) -> str:
        """Where `MemoryTerms` has its bytes."""
        return f"{self.name}_bytes"

    @property
    def key(self) -> str:
        """Where ``--json`` has its GiB."""
        return f"{self.name}_gib"

    def of(self, memory: "MemoryTerms[Any, Any]") -> Any:
        """Return its bytes."""
        return getattr(memory, self.attribute)


@dataclass(frozen=True, slots=True)
class MemoryTerms(Generic[Static, Scheduled]):
    """Bytes that ranks hold, each term apart, in the order of `MEMORY_TERMS`."""

    weights_bytes: Annotated[Static, MemoryTerm("weights as stored, with their quantised copies")]
    gradients_bytes: Annotated[Static, MemoryTerm("main gradients", head="grads")]
    optimizer_bytes: Annotated[Static, MemoryTerm("master weights and moments", head="optim")]
    activations_bytes: Annotated[
        Scheduled,
        MemoryTerm("the most kept for backwards at one time", head="activ", scheduled=True),
    ]
    transient_bytes: Annotated[Static, MemoryTerm("largest working set, and gathered layers")]
    buffers_bytes: Annotated[Static, MemoryTerm("staged gradients and pipeline messages")]

    @property
    def static_bytes(self) -> Static:
        """Everything that is held whatever the order of the schedule."""
        total: Static = functools.reduce(operator.add, self.values(STATIC_TERMS).values())
        return total

    @property
    def peak_bytes(self) -> Scheduled:
        """Allocated peak: the sum of all terms."""
        total: Scheduled = functools.reduce(operator.add, self.values(SUMMED).values())
        return total

    def values(self, terms: Iterable[MemoryTerm]) -> dict[str, Any]:
        """Return some terms under the names of their attributes."""
        return {term.attribute: term.of(self) for term in terms}


def _declared() -> Iterable[MemoryTerm]:
    for attribute, hint in get_type_hints(MemoryTerms, include_extras=True).items():
        name, (term,) = attribute.removesuffix("_bytes"), hint.__metadata__
        yield term._replace(name=name, head=term.head or name)


MEMORY_TERMS = tuple(_declared())
"""Every term, in the order of columns and keys."""

STATIC_TERMS = tuple(term for term in MEMORY_TERMS if not term.scheduled)

SUMMED = (*STATIC_TERMS, *(term for term in MEMORY_TERMS if term.scheduled))
"""Every term, in the order in which they are added."""


_CATEGORY_LIMITS = (
    "matrix multiplication",
    "attention",
    "memory-bound operators",
    "tensor-parallel communication",
    "context-parallel communication",
    "expert-parallel communication",
)

LIMITS = dict(zip(CATEGORIES, _CATEGORY_LIMITS, strict=True)) | {
    "pp_bubble": "pipeline bubble",
    "pp_comm": "pipeline communication",
    "dp_comm": "data-parallel communication",
    "optimizer": "optimizer",
    "launch": "kernel launches and host",
    "stragglers": "the slowest device",
}
"""Term of a step -> what limits the step where it is the largest."""

BREAKDOWN = tuple(LIMITS)
"""Terms of a step, keys of ``breakdown_ms``, which add up to it, in the order in which
`kernels.step` writes them."""
