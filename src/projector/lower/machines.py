"""Machines: the devices and fabrics that jobs run on, as records for kernels."""

from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from projector.arrays import GrowingArray, Ints
from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.kernels.collectives import BEYOND_DOMAIN, FABRIC
from projector.kernels.device import DEVICE
from projector.kernels.moe_exchange import EXCHANGE
from projector.lower import sharing
from projector.lower.cluster_columns import ClusterColumns
from projector.lower.columns import SectionTable
from projector.lower.fabrics import exchange_record, fabric_record
from projector.lower.hardware import (
    device_record,
    gemm_shares,
    slowdowns,
    under_fsdp1,
    within_a_step,
)

Shares = tuple[float, ...]


class Machines:
    """Devices and fabrics as records, each kept once however many jobs run on it."""

    def __init__(self) -> None:
        """Begin without any."""
        self._devices: dict[tuple[bytes, Shares, Shares], int] = {}
        self._fabrics: dict[tuple[bytes, bytes], int] = {}
        self._device_records = GrowingArray(DEVICE)
        self._fabric_records = GrowingArray(FABRIC)
        self._exchange_records = GrowingArray(EXCHANGE)
        self._domains: dict[tuple[bytes, bytes], int] = {}
        self.near = GrowingArray(np.int64)
        """The first fabric that is the same within a domain, int64[fabrics]."""
        self._known: dict[Hashable, tuple[int, object]] = {}
        """Number of what was asked for, and what has the ids in it, which lives as long."""
        self._contents: dict[Hashable, int] = {}
        self._of_tables: WeakKeyDictionary[
            SectionTable[ClusterConfig], dict[tuple[str, bool] | None, Ints]
        ] = WeakKeyDictionary()
        """Numbers by the `pipeline_key` of clusters, -1 of those that were not asked for."""

    def __len__(self) -> int:
        """Return how many devices and fabrics were looked up."""
        return len(self._known)

    def devices_of(
        self, clusters: ClusterColumns, rows: Ints, attention_kernel: str, *, fsdp1: bool
    ) -> Ints:
        """Return the numbers of the devices of some jobs that run an attention kernel."""
        return self._looked_up(
            clusters,
            rows,
            (attention_kernel, fsdp1),
            lambda cluster: self._device(cluster, attention_kernel, fsdp1=fsdp1),
        )

    def fabrics_of(self, clusters: ClusterColumns) -> Ints:
        """Return the numbers of the fabrics of jobs, and of their exchanges between experts."""
        return self._looked_up(clusters, np.arange(len(clusters.index)), None, self._fabric)

    def _looked_up(
        self,
        clusters: ClusterColumns,
        rows: Ints,
        asked: tuple[str, bool] | None,
        number: Callable[[ClusterConfig], int],
    ) -> Ints:
        """Return the number of the clusters of some jobs, each kind of cluster asked for once."""
        of_table = self._of_tables.setdefault(clusters.table, {})
        key = clusters.pipeline_key.take(rows)
        known = of_table.get(asked, np.zeros(0, np.int64))
        more = int(key.max()) + 1 - len(known)
        if more > 0:
            known = of_table[asked] = np.concatenate([known, np.full(more, -1)])
        found = known.take(key)
        missing = np.flatnonzero(found < 0)
        if len(missing):
            each, first = np.unique(key.take(missing), return_index=True)
            jobs = rows.take(missing.take(first))
            known[each] = [number(clusters.of(row)) for row in jobs.tolist()]
            found = known.take(key)
        return found

    def _device(self, cluster: ClusterConfig, attention_kernel: str, *, fsdp1: bool) -> int:
        device, clock_mhz, shares = cluster.device, cluster.gpu_clock_mhz, gemm_shares(cluster)

        def number() -> int:
            sustained = under_fsdp1(device) if fsdp1 else device
            record = within_a_step(device_record(sustained, clock_mhz, attention_kernel), sustained)
            # The record leaves out what collectives and compute cost each other, and what a GEMM
            # loses within a step.
            key = (record.tobytes(), slowdowns(sustained), shares)
            if key not in self._devices:
                self._devices[key] = len(self._devices)
                self._device_records.add(record)
            return self._devices[key]

        asked = clock_mhz, shares, attention_kernel, fsdp1
        return self._once((self._content(sharing.DEVICE_KEY, device), *asked), number, device)

    def _fabric(self, cluster: ClusterConfig) -> int:
        device, network = cluster.device, cluster.network
        # The links of an irregular node may read anything of its device.
        links = self._content(sharing.LINKS_KEY, device) if network.node is None else id(device)
        key = id(network), cluster.gpus_per_node, links
        return self._once(key, lambda: self._fabric_number(cluster), cluster)

    def _content(self, read: sharing.Key, device: Device) -> int:
        """Return a number that devices share in which a key reads the same."""
        return self._once(
            (read, id(device)),
            lambda: self._contents.setdefault((read, read(device)), len(self._contents)),
            device,
        )

    def _once(self, key: Hashable, number: Callable[[], int], has: object) -> int:
        """Return a number that is found once, while what has the ids of its key is kept."""
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = number(), has
        return known[0]

    def _fabric_number(self, cluster: ClusterConfig) -> int:
        record, exchange = fabric_record(cluster), exchange_record(cluster)
        key = (record.tobytes(), exchange.tobytes())
        if key not in self._fabrics:
            number = self._fabrics[key] = len(self._fabrics)
            self._fabric_records.add(record)
            self._exchange_records.add(exchange)
            domain = record.copy()
            for name in BEYOND_DOMAIN:
                domain[name] = 0
            near = self._domains.setdefault((domain.tobytes(), exchange.tobytes()), number)
            self.near.add(np.array([near]))
        return self._fabrics[key]

    def records(self) -> dict[str, Any]:
        """Return all devices and fabrics, under the names that they have in `Workloads`."""
        return {
            "devices": self._device_records.all(),
            "slowdown": np.array([slowdown for _, slowdown, _ in self._devices], np.float64),
            "gemm_shares": np.array([shares for _, _, shares in self._devices], np.float64),
            "fabrics": self._fabric_records.all(),
            "exchanges": self._exchange_records.all(),
        }
