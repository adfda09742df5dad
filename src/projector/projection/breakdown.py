"""The terms of a step, declared once: columns, keys and texts of reports follow."""

from typing import NamedTuple

from projector.operations.table import CATEGORIES


class StepTerm(NamedTuple):
    """One term of a step."""

    name: str
    """Key of ``breakdown_ms``."""
    limit: str
    """What limits a step whose largest term this is."""


_CATEGORY_LIMITS = (
    "matrix multiplication",
    "attention",
    "memory-bound operators",
    "tensor-parallel communication",
    "context-parallel communication",
    "expert-parallel communication",
)

STEP_TERMS = (
    *map(StepTerm, CATEGORIES, _CATEGORY_LIMITS),
    StepTerm("pp_bubble", "pipeline bubble"),
    StepTerm("pp_comm", "pipeline communication"),
    StepTerm("dp_comm", "data-parallel communication"),
    StepTerm("optimizer", "optimizer"),
    StepTerm("launch", "kernel launches and host"),
    StepTerm("stragglers", "the slowest device"),
)
"""Terms of a step, which add up to it, in the order in which `kernels.step` writes them."""

BREAKDOWN = tuple(term.name for term in STEP_TERMS)

LIMITS = dict(STEP_TERMS)
