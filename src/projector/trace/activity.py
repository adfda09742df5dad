"""Activities: what devices did, each with its launch, operation, layer, phase and iteration.

The table that every measure, picture and comparison looks at. Rows are the kernels, copies and
fills of devices; of a trace without any they are the operators of the host that call no other.
"""

from projector.trace.activity_table import Activities
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
from projector.trace.merging import merge

__all__ = [
    "ATTENTION", "BACKWARD", "CLASSES", "COLLECTIVE", "COMMUNICATION", "COMPUTE", "FORWARD",
    "GEMM", "MEMCPY", "MOVE", "OPTIMIZER", "OTHER", "PHASES", "TYPES", "VECTOR", "Activities",
    "align",
]  # fmt: skip


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
    return merge(trace)
