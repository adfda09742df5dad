"""Time of dispatch and combine of a mixture of experts by a fused exchange kernel.

Shape suffixes
    G   exchanges in the batch
Units
    time s, buffers bytes, rates bytes/s per device and direction. Floats are float64, counts
    int64.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Floats, Ints, Records

from ._jit import helper, kernel
from .collectives import FABRIC, local_rates
from .columns import broadcast_columns, raise_first_invalid
from .spans import ceil_log2


@helper
def _exchange_s(near: float, far: float, ranks: int, local: int, record: Records) -> float:
    """Return the time of one exchange that moves something; NaN without a rate it needs."""
    domains = -(-ranks // local)
    group, pair = local_rates(record, local)
    nic = float(record["nic_bytes_per_s"])
    if not pair > 0.0 or (domains > 1 and not nic > 0.0):
        return math.nan
    wire_s = 0.0
    latency_s = float(record["start_s"]) + float(record["simple_start_s"])
    if local > 1:
        wire_s = near / group
        latency_s += float(record["scale_up_latency_s"])
    if domains > 1:
        wire_s = max(wire_s, far / nic)
        latency_s += float(record["network_start_s"])
        latency_s += ceil_log2(domains) * float(record["nic_latency_s"])
    return wire_s + latency_s


@kernel
def moe_exchange_times(
    local_bytes_G: Floats,
    remote_bytes_G: Floats,
    ranks_G: Ints,
    local_G: Ints,
    fabric_G: Ints,
    fabrics: Records,
    time_s_G: Floats,
) -> int:
    """Time of each dispatch or combine of a mixture of experts by a fused exchange kernel.

    Parameters
    ----------
    local_bytes_G : float64[G]
        What one rank sends to other members of its domain, forwarded tokens included.
    remote_bytes_G : float64[G]
        What one rank sends through its adapter, after any de-duplication per node.
    ranks_G, local_G, fabric_G, fabrics
        As for ``collective_times``.
    time_s_G : float64[G]
        Output, overwritten; NaN in an invalid row, 0 where n is 1 or there are no bytes.

    Returns
    -------
    int
        0, or 1 if some row is invalid, which includes local bytes without local peers and
        remote bytes without another domain.

    Notes
    -----
    ``t = start + max(local / group rate, remote / nic) + hop + ceil(log2(domains)) * nic hop``.
    """
    status = 0
    for g in range(local_bytes_G.shape[0]):
        near, far = float(local_bytes_G[g]), float(remote_bytes_G[g])
        ranks, local, fabric = int(ranks_G[g]), int(local_G[g]), int(fabric_G[g])
        time_s_G[g] = math.nan
        if (
            not 0.0 <= near < math.inf
            or not 0.0 <= far < math.inf
            or not 0 <= fabric < fabrics.shape[0]
            or not 1 <= local <= ranks
            or (near > 0.0 and local == 1)
            or (far > 0.0 and local == ranks)
        ):
            status = 1
            continue
        if local > fabrics[fabric]["domain_gpus"]:
            status = 1
            continue
        if near == 0.0 and far == 0.0:
            time_s_G[g] = 0.0
            continue
        time_s = _exchange_s(near, far, ranks, local, fabrics[fabric])
        if not 0.0 <= time_s < math.inf:
            status = 1
            continue
        time_s_G[g] = time_s
    return status


def moe_exchange_time_column(
    local_bytes: ArrayLike,
    remote_bytes: ArrayLike,
    ranks: ArrayLike,
    local: ArrayLike,
    fabric_index: ArrayLike,
    fabrics: Records,
) -> Floats:
    """Return the column ``time_s`` of ``moe_exchange_times``; scalars broadcast.

    Raises
    ------
    ValueError
        Where a row has no valid time, with the values of the first such row.
    """
    near_G, far_G, ranks_G, local_G, fabric_G = broadcast_columns(
        (local_bytes, remote_bytes, ranks, local, fabric_index),
        (np.float64, np.float64, np.int64, np.int64, np.int64),
    )
    fabrics = np.require(fabrics, FABRIC, ["C", "W"])
    time_s_G = np.empty(near_G.shape[0])
    if moe_exchange_times(near_G, far_G, ranks_G, local_G, fabric_G, fabrics, time_s_G):
        raise_first_invalid(
            "exchange",
            time_s_G,
            local_bytes=near_G,
            remote_bytes=far_G,
            ranks=ranks_G,
            local=local_G,
            fabric=fabric_G,
        )
    return time_s_G
