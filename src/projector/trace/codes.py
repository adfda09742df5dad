"""Codes of what activities are: classes, types of operations, phases."""

COMPUTE, COMMUNICATION, MEMCPY = range(3)
"""Classes of activities. A fill of memory is compute: a kernel writes it."""

CLASSES = ("compute", "communication", "memcpy")

GEMM, ATTENTION, VECTOR, COLLECTIVE, MOVE = range(5)
"""Types of operations."""

TYPES = ("gemm", "attention", "vector", "communication", "copy")

FORWARD, BACKWARD, OPTIMIZER, OTHER = range(4)
"""Phases of an iteration."""

PHASES = ("forward", "backward", "optimizer", "other")
