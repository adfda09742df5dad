"""Activities: what devices did, each with its launch, operation, layer, phase and iteration.

The table that every measure, picture and comparison looks at. Rows are the kernels, copies and
fills of devices; of a trace without any they are the operators of the host that call no other.
"""

from dataclasses import dataclass
from typing import Any

from projector.arrays import Flags, Ints
from projector.trace.codes import (
    ATTENTION,
    BACKWARD,
    CLASSES,
    COLLECTIVE,
    COMMUNICATION,
    COMPUTE,
    FORWARD,
    GEMM,
    MEMCPY,
    MOVE,
    OPTIMIZER,
    OTHER,
    PHASES,
    TYPES,
    VECTOR,
)
from projector.trace.events import Trace

__all__ = [
    "ATTENTION", "BACKWARD", "CLASSES", "COLLECTIVE", "COMMUNICATION", "COMPUTE", "FORWARD",
    "GEMM", "MEMCPY", "MOVE", "OPTIMIZER", "OTHER", "PHASES", "TYPES", "VECTOR", "Activities",
    "align",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Activities:
    """Columns of equal length, one row an activity, by rank, device and start.

    Of activities of one device that start together the shorter one comes first.
    """

    rank: Ints
    device: Ints
    stream: Ints
    name: Ints
    """Row of `names`."""
    kind: Ints
    """Position in ``events.KINDS``."""
    klass: Ints
    """Position in `CLASSES`."""
    type: Ints
    """Position in `TYPES`."""
    start_ps: Ints
    """On the common clock of the ranks."""
    end_ps: Ints
    launch_ps: Ints
    """Start of the call that launched it; -1 where it is not in the trace."""
    launch_end_ps: Ints
    operation: Ints
    """Row of `operations`; -1 where nothing stands around its launch."""
    layer: Ints
    """Number of the layer of the network, -1 outside layers or where it is not known."""
    phase: Ints
    """Position in `PHASES`."""
    iteration: Ints
    """Number of the iteration as annotated; -1 before the first and where there is none."""
    recompute: Flags
    """Whether it repeats a forward within the backward."""
    forward: Ints
    """For the backward: row of the first activity of the forward's operation; -1 elsewhere."""
    group: Ints
    """For communication: row of `groups`; -1 where it is not known."""
    bytes: Ints
    """For communication the buffer as collectives count it, for copies what moves; -1 unknown."""
    detail: Ints
    """Row of `details`; -1 where nothing more is known."""
    names: tuple[str, ...]
    operations: tuple[str, ...]
    groups: tuple[str, ...]
    details: tuple[Any, ...]
    """Mappings of what is known of an activity (``grid``, ``bytes``, ``collective``), together with
    ``operator``, ``dims`` and ``types`` of the innermost operator around its launch that has
    dimensions, such as ``aten::mm``."""
    on_host: bool = False
    """Whether operators of the host stand for kernels."""

    def __len__(self) -> int:
        """Return the number of activities."""
        return len(self.rank)


def align(trace: Trace) -> Activities:
    """Put what devices did in the context of the program that launched it.

    Parameters
    ----------
    trace : Trace
        Traces of a run's ranks.

    Returns
    -------
    Activities
        Every event of every device once; of a trace without any, the operators of the host that
        call no other.
    """
    from projector.trace.merging import merge  # it makes activities, so it needs this module

    return merge(trace)
