"""Activities: what devices did, each with its launch, operation, layer, phase and iteration.

The table that every measure, picture and comparison looks at. Rows are the kernels, copies and
fills of devices; of a trace without any they are the operators of the host that call no other.
"""

from dataclasses import dataclass
from typing import Any

from projector.arrays import Flags, Ints
from projector.trace.clocks import Clock

COMPUTE, COMMUNICATION, MEMCPY = range(3)
"""Classes of activities. A fill of memory is compute: a kernel writes it."""

CLASSES = ("compute", "communication", "memcpy")

GEMM, ATTENTION, VECTOR, COLLECTIVE, MOVE = range(5)
"""Types of operations."""

TYPES = ("gemm", "attention", "vector", "communication", "copy")

FORWARD, BACKWARD, OPTIMIZER, OTHER = range(4)
"""Phases of an iteration."""

PHASES = ("forward", "backward", "optimizer", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Activities:
    """Columns, one row an activity, by rank, device and start; of equals the shorter one first."""

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
    instance: Ints
    """Activities of one run of an operation agree in it; -1 where `operation` is."""
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
    clocks: tuple[Clock, ...] = ()
    """What was added to the times of each rank, so that collectives end together."""
    frameworks: tuple[str, ...] = ()
    """What splits the model, as ranges tell: ``fsdp1``, ``fsdp2``, ``ddp``."""
    notes: tuple[str, ...] = ()
    """What the traces do not tell and was inferred, or was left open."""

    def __len__(self) -> int:
        return len(self.rank)
