"""Kinds of workloads, each declared once. A kind of layer is one row here.

How a kind of layer is emitted is a row of `projector.operations.emit.LAYERS`.
"""

from enum import IntEnum
from typing import Self

import numpy as np

from projector.arrays import Flags, Ints
from projector.config.model import LayerType


class Kind(IntEnum):
    """What a workload is."""

    shown: str
    """Its name among the components of a model."""
    layer: LayerType | None
    """Its name in ``ModelConfig.layer_kinds``; None for what is not a transformer layer."""

    DENSE = "dense_layer", "dense"
    MOE = "moe_layer", "moe"
    EMBEDDING = "embedding", None
    HEAD = "head", None
    MTP = "mtp_projection", None

    def __new__(cls, shown: str, layer: LayerType | None) -> Self:
        """Give the kind the number of its row."""
        kind = int.__new__(cls, len(cls.__members__))
        kind._value_ = len(cls.__members__)
        kind.shown, kind.layer = shown, layer
        return kind

    # An enumeration hashes its name, in Python; the number does it in C.
    __hash__ = int.__hash__


KINDS = tuple(Kind)
"""By number."""

KIND_OF_LAYER: dict[LayerType, Kind] = {kind.layer: kind for kind in KINDS if kind.layer}
"""The kind of each layer of a model."""

_IS_LAYER = np.array([kind.layer is not None for kind in KINDS])


def is_layer(kinds: Ints) -> Flags:
    """Return which of some kinds are transformer layers."""
    return np.asarray(_IS_LAYER[kinds])
