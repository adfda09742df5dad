"""Devices and networks as the records kernels read, in SI units."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from projector.config.cluster import ClusterConfig
from projector.config.device import Device, ExpertKernels
from projector.kernels.collectives import FABRIC, algorithm_mask
from projector.kernels.device import DEVICE, MATRIX_TYPES, MAX_TILES, OPERAND_BYTES
from projector.kernels.grouped import GROUPED
from projector.units import GB, GBIT, MEGA, MIB, MICROSECOND, TB, TERA

_STAND_INS = {
    "mxfp8": "fp8",
    "nvfp4": "mxfp8",
    "fp8": "bf16",
    "tf32": "fp32",
    "bf16": "fp16",
    "fp16": "bf16",
}
"""What runs in place of a matrix type the device lacks."""


def device_records(
    clusters: Sequence[ClusterConfig],
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """Return one record for each distinct device and clock, and each row's index."""
    keys: dict[tuple[int, float | None], int] = {}
    records: list[NDArray[np.void]] = []
    index = np.empty(len(clusters), np.int64)
    for row, cluster in enumerate(clusters):
        key = (id(cluster.device), cluster.gpu_clock_mhz)
        if key not in keys:
            keys[key] = len(records)
            records.append(device_record(cluster.device, cluster.gpu_clock_mhz))
        index[row] = keys[key]
    return np.concatenate(records), index


def device_record(
    device: Device, clock_mhz: float | None = None, attention_kernel: str = "default"
) -> NDArray[np.void]:
    """Convert one device; ``clock_mhz`` replaces the sustained clock of every type.

    Returns
    -------
    DEVICE[1]
    """
    record = np.zeros(1, DEVICE)
    row = record[0]
    row["compute_units"] = device.compute_units
    row["dies"] = device.dies
    for code, name in enumerate(MATRIX_TYPES):
        native = native_type(device, name)
        clock = (clock_mhz or device.sustained_clock_mhz[native]) * MEGA  # type: ignore[index]
        rate = device.matrix_flop_per_clk_per_cu[native] * device.gemm_efficiency[native]  # type: ignore[index]
        row["matrix_flop_per_s"][code] = rate * device.compute_units * clock
        row["clock_hz"][code] = clock
    row["vector_flop_per_s"] = device.vector_tflops * TERA
    sixteen_bit_clock = row["clock_hz"][MATRIX_TYPES.index("bf16")]
    row["transcendental_per_s"] = (
        device.transcendental_per_clk_per_cu * device.compute_units * sixteen_bit_clock
    )
    row["l2_fill_bytes_per_clk_per_cu"] = device.l2_fill_bytes_per_clk_per_cu
    row["l2_bytes"] = device.l2_mib * MIB
    row["l2_bytes_per_s"] = device.l2_tb_per_s * TB
    row["mall_bytes"] = device.mall_mib * MIB
    row["mall_bytes_per_s"] = device.mall_tb_per_s * TB
    row["hbm_bytes_per_s"] = device.hbm_peak_tb_per_s * device.hbm_efficiency * TB
    elementwise = device.elementwise_efficiency or device.hbm_efficiency
    row["elementwise_bytes_per_s"] = device.hbm_peak_tb_per_s * elementwise * TB
    row["hbm_latency_s"] = device.hbm_latency_us * MICROSECOND
    row["gemm_overhead_s"] = device.gemm_overhead_us * MICROSECOND
    row["gemm_split_k_s"] = device.gemm_split_k_us * MICROSECOND
    row["gemm_overlap_loss"] = device.gemm_overlap_loss
    row["gemm_wave_exposed"] = device.gemm_wave_exposed
    row["grouped_forward_efficiency"] = device.grouped_gemm_efficiency_forward
    row["grouped_backward_efficiency"] = device.grouped_gemm_efficiency_backward
    row["l2_multicast"] = device.l2_multicast
    row["num_tiles"] = len(device.gemm_tiles[:MAX_TILES])
    for position, tile in enumerate(device.gemm_tiles[:MAX_TILES]):
        row["tiles"][position] = (tile.m, tile.n, tile.k_bytes, tile.efficiency)
    attention = device.attention_kernels.get(attention_kernel, device.attention)
    row["attention_forward_rows"] = attention.forward_rows
    row["attention_forward_columns"] = attention.forward_columns
    row["attention_backward_columns"] = attention.backward_columns
    row["attention_backward_rows"] = attention.backward_rows
    row["attention_forward_efficiency"] = attention.forward_efficiency
    row["attention_backward_efficiency"] = attention.backward_efficiency
    row["attention_softmax_exposed"] = attention.softmax_exposed
    row["attention_tile_overhead_s"] = attention.tile_overhead_us * MICROSECOND
    row["attention_atomic_bytes_per_s"] = (attention.atomic_gb_per_s or 0.0) * GB
    return record


def expert_kernels(device: Device, name: str, release: str = "") -> ExpertKernels:
    """Return the entry of ``expert_layer.kernels`` for a kind, its release's if there is one.

    A kind without an entry runs as its matrix type, and that as what stands in for it.
    """
    table = device.expert_layer.kernels
    keys = [f"{name}@{release}", name]
    dtype = name.split("_", maxsplit=1)[0]
    while dtype not in keys[2:]:
        keys.append(dtype)
        dtype = _STAND_INS.get(dtype, "bf16")
    for key in keys:
        if key in table:
            return table[key]
    return next(iter(table.values()))


def grouped_record(
    device: Device, dtype: str, kernels: ExpertKernels, clock_mhz: float | None = None
) -> NDArray[np.void]:
    """Convert what grouped GEMMs of one kind need of a device; ``dtype`` is native to it.

    Without a clock they run at the peak one: a launch alone is too short to meet the power cap.

    Returns
    -------
    GROUPED[1]
    """
    record = np.zeros(1, GROUPED)
    row, layer = record[0], device.expert_layer
    clock_hz = (clock_mhz or device.peak_clock_mhz) * MEGA
    rate = device.matrix_flop_per_clk_per_cu[dtype]  # type: ignore[index]
    row["compute_units"] = device.compute_units
    row["unit_flop_per_s"] = rate * clock_hz * kernels.matrix_efficiency
    row["operand_bytes"] = OPERAND_BYTES[MATRIX_TYPES.index(dtype)]
    row["fill_bytes_per_s"] = device.l2_fill_bytes_per_clk_per_cu * clock_hz
    row["hbm_bytes_per_s"] = device.hbm_peak_tb_per_s * device.hbm_efficiency * TB
    row["group_s"] = kernels.expert_us * MICROSECOND
    row["wave_s"] = kernels.wave_us * MICROSECOND
    row["overlap_loss"] = layer.overlap_loss
    row["num_row_tiles"] = len(layer.row_tiles)
    row["row_tiles"][: len(layer.row_tiles)] = layer.row_tiles
    row["num_column_tiles"] = len(layer.column_tiles)
    row["column_tiles"][: len(layer.column_tiles)] = layer.column_tiles
    return record


def native_type(device: Device, name: str) -> str:
    """Return the matrix type that runs when ``name`` is asked for."""
    seen = set()
    while name not in device.matrix_flop_per_clk_per_cu and name not in seen:
        seen.add(name)
        name = _STAND_INS.get(name, "fp32")
    return (
        name
        if name in device.matrix_flop_per_clk_per_cu
        else next(iter(device.matrix_flop_per_clk_per_cu))
    )


def domain_gpus(cluster: ClusterConfig) -> int:
    """Devices of one scale-up domain: the node, unless the fabric reaches further."""
    network = cluster.network
    if network.scale_up_gpus == network.gpus_per_node:
        return cluster.gpus_per_node
    return network.scale_up_gpus


def fabric_record(cluster: ClusterConfig) -> NDArray[np.void]:
    """Convert the links of one cluster.

    Returns
    -------
    FABRIC[1]
    """
    device, network = cluster.device, cluster.network
    record = np.zeros(1, FABRIC)
    row = record[0]
    row["scale_up_bytes_per_s"] = device.scale_up_gb_per_s * GB
    row["peer_bytes_per_s"] = device.scale_up_peer_gb_per_s * GB
    row["scale_up_efficiency"] = device.scale_up_efficiency
    row["scale_up_latency_s"] = device.scale_up_latency_us * MICROSECOND
    row["start_s"] = device.collective_start_us * MICROSECOND
    row["simple_start_s"] = device.collective_simple_start_us * MICROSECOND
    row["in_network_bytes_per_s"] = device.in_network_all_reduce_gb_per_s * GB
    row["in_network_min_gpus"] = device.in_network_all_reduce_min_gpus
    row["nic_bytes_per_s"] = (
        network.nic_gbit_per_s
        * GBIT
        * network.nic_efficiency
        * network.nics_per_node
        / network.gpus_per_node
    )
    row["nic_latency_s"] = network.nic_latency_us * MICROSECOND
    row["network_start_s"] = network.collective_start_us * MICROSECOND
    row["domain_gpus"] = domain_gpus(cluster)
    row["self_copy_share"] = device.collective_self_copy_share
    row["algorithms"] = algorithm_mask(*device.collective_algorithms)
    return record
