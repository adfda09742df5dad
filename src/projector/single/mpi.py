"""Collectives of MPI within a node, by what its file says of them beside the collective library."""

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Floats
from projector.errors import ConfigError, shown
from projector.single.collective import collective_case
from projector.topology.transfers import NodeLike, topology_of, transfers_of


def mpi_collective_time(
    operation: str, num_bytes: ArrayLike, ranks: ArrayLike, *, node: NodeLike
) -> float | Floats:
    """Return the seconds of an MPI collective among the first devices of a node.

    It is the time of the collective library times the ratio in the node's file
    (``transfers.mpi_over_library``).

    Parameters
    ----------
    operation, num_bytes, ranks
        As in `projector.collective_time`.
    node : str, Path, mapping or Topology
        Which node.
    """
    topology = topology_of(node)
    ratios = transfers_of(topology).mpi_over_library
    case = collective_case(operation, device=topology.device)
    if operation not in ratios:
        msg = f"nothing is known of an MPI {operation}; known: {', '.join(ratios) or 'none'}"
        raise ConfigError(msg, key="operation", value=operation, allowed=list(ratios))
    seconds = case.times_s(num_bytes, ranks)
    most = topology.num_devices
    if np.max(np.asarray(ranks), initial=0) > most:
        name = topology.node.name
        msg = f"ranks must be from 1 to {most}, the devices of {name}, got {shown(ranks)}"
        raise ConfigError(msg, key="ranks", value=ranks, allowed=f"1 to {most}")
    return seconds * ratios[operation]
