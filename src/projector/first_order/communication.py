"""Collectives, bubbles and the crossing of a domain, in closed form.

Every function takes numbers or arrays that broadcast, and returns float64. Rates are those of one
device in one direction, in bytes/s. No term has a latency: messages are gigabytes.
"""

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Floats
from projector.first_order.constants import Constants
from projector.first_order.roofline import column


def ring_all_reduce_s(ranks: ArrayLike, message_bytes: ArrayLike, bytes_per_s: ArrayLike) -> Floats:
    """Return the seconds of a ring: 2 (N - 1) / N * message / bandwidth.

    Source: Patarasuk and Yuan, J. Parallel Distrib. Comput. 2009; the Roofline methodology,
    section 3.1.
    """
    ranks = column(ranks)
    return 2.0 * (ranks - 1.0) / ranks * column(message_bytes) / column(bytes_per_s)


def hierarchical_all_reduce_s(
    nodes: ArrayLike,
    ranks_per_node: ArrayLike,
    message_bytes: ArrayLike,
    node_bytes_per_s: ArrayLike,
    network_bytes_per_s: ArrayLike,
) -> Floats:
    """Return the seconds of a reduce-scatter in each node, a ring of nodes, and an all-gather.

    Each device rings its own part, message / ranks of a node, over its own network link. Both
    collectives within a node together move as much as a ring there.

    Source: the Roofline methodology, section 3.2.
    """
    part_bytes = column(message_bytes) / column(ranks_per_node)
    within_s = ring_all_reduce_s(ranks_per_node, message_bytes, node_bytes_per_s)
    return within_s + ring_all_reduce_s(nodes, part_bytes, network_bytes_per_s)


def all_reduce_s(
    ranks: ArrayLike,
    ranks_per_domain: ArrayLike,
    message_bytes: ArrayLike,
    scale_up_bytes_per_s: ArrayLike,
    scale_out_bytes_per_s: ArrayLike,
) -> Floats:
    """Return the seconds of a ring where one domain holds all ranks, else those of the hierarchy.

    ``ranks_per_domain`` is how many ranks of the group lie in one domain (a node, or all of an
    NVL72); the last domain may be part-filled.

    Source: the Roofline methodology, sections 3.1, 3.2 and 3.5.
    """
    ranks = column(ranks)
    near = np.minimum(ranks, np.maximum(1.0, column(ranks_per_domain)))
    domains = np.ceil(ranks / near)
    return hierarchical_all_reduce_s(
        domains, near, message_bytes, scale_up_bytes_per_s, scale_out_bytes_per_s
    )


def bubble_fraction(stages: ArrayLike, microbatches: ArrayLike, chunks: ArrayLike = 1) -> Floats:
    """Return idle over work of a pipeline: (P - 1) / (v m), with v = 1 for 1F1B and AFAB.

    Source: Narayanan et al., arXiv:2104.04473, section 2.2; the Roofline methodology, section 3.3.
    """
    return (column(stages) - 1.0) / (column(chunks) * column(microbatches))


def crossing_factor(tp: ArrayLike, domain: ArrayLike, constants: Constants) -> Floats:
    """Return what a step is multiplied by: 1.40 where tensor parallelism leaves its domain.

    Source: the Roofline methodology, sections 3.4 and 3.5.
    """
    return np.where(column(tp) > column(domain), constants.tp_crossing, 1.0)
