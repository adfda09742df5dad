"""What bounds a step: every second of it belongs to one of five classes.

The three tables below define the classes.
"""

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels import attention, gemm
from projector.kernels.grouping import segment_sums
from projector.operations.repeats import repeated_rows
from projector.operations.table import ATTENTION, GEMM, TP_COMM
from projector.projection.evaluate import Evaluation
from projector.projection.terms import BREAKDOWN

CLASSES = ("compute", "memory", "communication", "latency", "bubble")
"""What a step waits for: matrix and vector units; data out of caches and memory; links; kernel
starts, the host and other fixed costs; other pipeline ranks."""

COMPUTE, MEMORY, COMMUNICATION, LATENCY, BUBBLE = range(5)

CLASS_OF_TERM = {
    "compute_gemm": COMPUTE,
    "compute_attention": COMPUTE,
    "compute_other": MEMORY,
    "tp_comm": COMMUNICATION,
    "cp_comm": COMMUNICATION,
    "ep_comm": COMMUNICATION,
    "pp_bubble": BUBBLE,
    "pp_comm": COMMUNICATION,
    "dp_comm": COMMUNICATION,
    "optimizer": MEMORY,
    "launch": LATENCY,
    "stragglers": COMPUTE,
}
"""Class of each term of the breakdown; kernels of GEMMs and attention go by their limiter."""

CLASS_OF_GEMM = {
    "compute": COMPUTE,
    "l2_fill": MEMORY,
    "l2": MEMORY,
    "memory": MEMORY,
    "overhead": LATENCY,
    "issue": COMPUTE,
    "epilogue": COMPUTE,
}
"""Class of a GEMM by its limiter."""

CLASS_OF_ATTENTION = {
    "matrix": COMPUTE,
    "softmax": COMPUTE,
    "memory": MEMORY,
    "atomics": MEMORY,
    "overhead": LATENCY,
}
"""Class of an attention kernel by its limiter."""

COMPUTE_TERMS = TP_COMM
"""The first terms of the breakdown are compute and consist of kernels."""


def class_seconds(evaluation: Evaluation) -> Floats:
    """Return the seconds of each job's step by class, on the rank that ends it.

    A GEMM or an attention kernel belongs wholly to the class of its limiter; other operators wait
    for memory. Each compute term is divided as the kernels of that rank are.

    Returns
    -------
    float64[jobs, len(CLASSES)]
        Adds up to the step.
    """
    breakdown_s = evaluation.steps.breakdown_s
    seconds = np.zeros((len(breakdown_s), len(CLASSES)))
    for term in range(COMPUTE_TERMS, len(BREAKDOWN)):
        seconds[:, CLASS_OF_TERM[BREAKDOWN[term]]] += breakdown_s[:, term]
    mix_s = _ending_ranks(evaluation)
    total_s = mix_s.sum(axis=2)
    for term in range(COMPUTE_TERMS):
        has_kernels = total_s[:, term] > 0.0
        share = mix_s[:, term] / np.where(has_kernels, total_s[:, term], 1.0)[:, None]
        seconds += breakdown_s[:, term][:, None] * share
        unsplit = np.where(has_kernels, 0.0, breakdown_s[:, term])
        seconds[:, CLASS_OF_TERM[BREAKDOWN[term]]] += unsplit
    return seconds


def class_shares(seconds: Floats) -> dict[str, float]:
    """Return the share of a step that each class has.

    Parameters
    ----------
    seconds : float64[len(CLASSES)]
    """
    shares = (seconds / seconds.sum()).tolist()
    return dict(zip(CLASSES, shares, strict=True))


def _ending_ranks(evaluation: Evaluation) -> Floats:
    """Return one microbatch on the rank that ends each job, ``float64[jobs, terms, classes]``."""
    workloads, replicas = evaluation.workloads, evaluation.inputs.replicas
    kernels_s = _kernel_seconds(evaluation)[workloads.run_workload]
    kernels_s *= workloads.run_count[:, None, None]
    rank = replicas.rank_offset[replicas.of_job] + evaluation.steps.ending_rank
    time_s = np.empty((len(rank), *kernels_s.shape[1:]))
    for term in range(kernels_s.shape[1]):
        for class_index in range(kernels_s.shape[2]):
            stages = segment_sums(workloads.run_offset, kernels_s[:, term, class_index])
            time_s[:, term, class_index] = replicas.per_rank(stages[replicas.stage])[rank]
    return time_s


def _kernel_seconds(evaluation: Evaluation) -> Floats:
    """Return the compute of one layer of each workload, ``float64[workloads, terms, classes]``."""
    table, rows = evaluation.table, evaluation.rows
    compute = np.flatnonzero(table.category < COMPUTE_TERMS)
    workload = table.workload[compute]
    # Recomputed operations run in the forward and again in the backward.
    records = evaluation.workloads.rows
    runs = 1.0 + repeated_rows(table, evaluation.workloads)[compute]
    slot = workload * COMPUTE_TERMS + table.category[compute]
    slot = slot * len(CLASSES) + _kernel_class(table.kind[compute], rows.detail[compute])
    size = len(records) * COMPUTE_TERMS * len(CLASSES)
    seconds = np.bincount(slot, runs * rows.exposed_s[compute], size)
    return seconds.astype(np.float64).reshape(len(records), COMPUTE_TERMS, len(CLASSES))


def _kernel_class(kind: Ints, limiter: Ints) -> Ints:
    """Return the class of each kernel; one without a limiter waits for memory."""
    kernel_class = np.full(len(kind), MEMORY, np.int64)
    for code, bounds, classes in (
        (GEMM, gemm.BOUNDS, CLASS_OF_GEMM),
        (ATTENTION, attention.BOUNDS, CLASS_OF_ATTENTION),
    ):
        limited = (kind == code) & (limiter >= 0)
        kernel_class[limited] = np.array([classes[bound] for bound in bounds])[limiter[limited]]
    return kernel_class
