"""Collectives by themselves: every algorithm that can serve one, over size, and who wins where.

MPI within a node stands beside the collective library, by what its file says of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Floats, Ints, Records
from projector.config.bands import Band, collective_band
from projector.config.cluster import ClusterConfig
from projector.config.formats.shape_table import MAX_BYTES, MAX_EXTENT
from projector.errors import ConfigError, shown
from projector.kernels.collective_algorithms import ALGORITHMS, NO_ALGORITHM, OPERATIONS
from projector.kernels.collectives import algorithm_mask, collective_time_columns
from projector.lower.fabrics import fabric_record, job_domain_gpus, tier_gpus
from projector.lower.placement import Blocks, Place, one_run, place
from projector.single import inputs
from projector.topology.build import Topology
from projector.topology.transfers import NodeLike, engine_matrices, topology_of, transfers_of
from projector.units import GB, MICROSECOND


def collective_time(
    operation: str,
    num_bytes: ArrayLike,
    ranks: ArrayLike,
    *,
    device: inputs.DeviceLike,
    network: str | Mapping[str, Any] | None = None,
    stride: int = 1,
    algorithm: str | None = None,
) -> float | Floats:
    """Return the seconds of a collective, with the best algorithm or with a named one.

    Args:
        operation (str): ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``,
            ``broadcast``, ``send_recv``, ``reduce`` or ``all_to_all_v`` (blocks of unequal size).
        num_bytes (float or float array): The whole buffer: what every rank holds (all-reduce), the
            gathered output, the input of one rank (reduce-scatter, all-to-all), the message.
        ranks (int or int array): Group size.
        device (str, Path, mapping or Device): Accelerator, as in a job.
        network (str or mapping, optional): Cluster network; the device's usual one when left out.
        stride (int): Distance between neighbouring ranks of the group, in devices.
        algorithm (str, optional): The only algorithm, whether or not the device's library has it;
            else the fastest that the library has.

    Returns:
        float or float64 array: Seconds.

    Raises:
        ConfigError: For an unknown name, an invalid size, or an algorithm that cannot serve a
            group.
    """
    given = collective_case(operation, device=device, network=network, stride=stride)
    return given.times_s(num_bytes, ranks, algorithm)


MPI = "mpi_kernel"
"""Engine of a node file that moves the messages of MPI."""


def mpi_collective_time(
    operation: str, num_bytes: ArrayLike, ranks: ArrayLike, *, node: NodeLike
) -> float | Floats:
    """Return seconds of an MPI collective: its messages, or the library's times a stated ratio."""
    topology = topology_of(node)
    case, most = collective_case(operation, device=topology.device), topology.num_devices
    if np.max(np.asarray(ranks), initial=0) > most:
        name = topology.node.name
        msg = f"ranks must be from 1 to {most}, the devices of {name}, got {shown(ranks)}"
        raise ConfigError(msg, key="ranks", value=ranks, allowed=f"1 to {most}")
    ratio = transfers_of(topology).mpi_over_library.get(operation)
    if ratio is not None:
        return case.times_s(num_bytes, ranks) * ratio
    return replace(case, fabric=_mpi_fabric(topology, case.fabric)).times_s(num_bytes, ranks)


def _mpi_fabric(topology: Topology, library: Records) -> Records:
    """Return links over which ranks send one message of MPI after another, as its engine does.

    A message takes the mean latency of all pairs, and the rate of the slowest pair of the group.
    """
    reached, fabric = engine_matrices(topology, MPI), np.zeros_like(library)
    pairs = [*permutations(range(topology.num_devices), 2)]
    for name in ("scale_up_bytes_per_s", "peer_bytes_per_s", "domain_gpus"):
        fabric[name] = library[name]
    for name in ("scale_up_efficiency", "exchange_efficiency", "flag_traffic"):
        fabric[name] = 1.0
    for name in ("scale_up_latency_s", "exchange_issue_s"):
        fabric[name] = np.mean([reached.latency_us[a][b] for a, b in pairs]) * MICROSECOND
    for name in ("local_ring_bytes_per_s", "local_exchange_bytes_per_s", "local_pair_bytes_per_s"):
        for n in range(2, topology.num_devices + 1):
            slowest = min(reached.gb_per_s[a][b] or 0.0 for a, b in pairs if max(a, b) < n)
            fabric[name][0, n] = slowest * GB
    # Those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations
    # in MPICH" (2005), with a ring for what a number of ranks rules out.
    fabric["algorithms"] = algorithm_mask("halving_doubling", "bruck", "pairwise", "ring")
    return fabric


ALIASES = {"hypercube": "halving_doubling", "single_shot": "direct"}
"""Names that Primus has for two of the algorithms."""

SWEEP_BYTES = 2.0 ** np.arange(10, 35)
"""Sizes of a sweep: powers of two from 1 KiB to 16 GiB."""

FINE_BYTES = 2.0 ** np.arange(10.0, 34.001, 1.0 / 16.0)
"""Sizes between which crossovers are looked for; lines of a figure are drawn through them."""

_EXCHANGED = ("all_gather", "reduce_scatter", "all_to_all", "all_to_all_v")


def bus_share(operation: str, ranks: int) -> float:
    """Return the bytes that cross each link, over the bytes of the buffer.

    The bus bandwidth is the buffer over the time, times this share. The convention is that of
    nccl-tests (``doc/PERFORMANCE.md``): 2(n-1)/n for an all-reduce, (n-1)/n where every rank ends
    or begins with a block of the buffer, 1 where a message goes to or from a root.
    """
    if operation == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    if operation in _EXCHANGED:
        return (ranks - 1) / ranks
    return 1.0 if ranks > 1 else 0.0


class Crossover(NamedTuple):
    """The size at which the fastest algorithm changes."""

    num_bytes: float
    """Up to here ``before`` is the fastest."""
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class AlgorithmTimes:
    """Times of every algorithm that can serve a collective, at the same sizes."""

    num_bytes: Floats
    """Sizes, float64[S]."""
    best_s: Floats
    """Seconds of the chosen algorithm at each size, float64[S]."""
    best: tuple[str | None, ...]
    """Chosen algorithm at each size; None where nothing moves."""
    each_s: dict[str, Floats]
    """Seconds of each algorithm, float64[S]; infinite where it cannot serve."""

    def crossovers(self, names: Sequence[str]) -> tuple[Crossover, ...]:
        """Return where the fastest of some algorithms changes, by size.

        Between two sizes the ratio of both times is taken to be a power of the size.
        """
        present = [name for name in self.each_s if name in names]
        if not present:
            return ()
        stacked = np.stack([self.each_s[name] for name in present])
        winner = np.argmin(stacked, axis=0)
        found = []
        for column in np.flatnonzero(winner[1:] != winner[:-1]):
            pair = winner[column], winner[column + 1]
            lead, behind = (
                float(np.log(stacked[pair[1], at] / stacked[pair[0], at]))
                for at in (column, column + 1)
            )
            low, high = np.log(self.num_bytes[column]), np.log(self.num_bytes[column + 1])
            # An algorithm that begins or ceases to serve has no time on one side.
            step = lead / (lead - behind) if np.isfinite([lead, behind]).all() else 0.0
            size = float(np.exp(low + (high - low) * min(max(step, 0.0), 1.0)))
            found.append(Crossover(size, present[pair[0]], present[pair[1]]))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class CollectiveCase:
    """One operation on one cluster."""

    operation: str
    cluster: ClusterConfig
    stride: int
    """Devices between neighbouring ranks of the group."""
    fabric: Records
    """FABRIC[1]."""

    def place(self, ranks: Ints) -> Place:
        """Return where groups lie whose ranks are ``stride`` devices apart, beside others."""
        each, row = np.unique(ranks, return_inverse=True)
        stride = self._least_stride()
        blocks = [
            (job_domain_gpus(self.cluster, world), *tier_gpus(self.cluster, world), world)
            for world in (each * stride).tolist()
        ]
        columns = np.array(blocks, np.int64).reshape(-1, len(Blocks._fields)).T
        return place(one_run(each, np.full_like(each, stride)), Blocks(*columns)).take(row)

    def _least_stride(self) -> int:
        """Return a stride that is alike in every block, so that products stay exact."""
        largest = self.stride * MAX_EXTENT
        blocks = (job_domain_gpus(self.cluster, largest), *tier_gpus(self.cluster, largest))
        widest = math.lcm(*(block for block in blocks if block))
        return min(self.stride, widest + self.stride % widest)

    def times_s(
        self, num_bytes: ArrayLike, ranks: ArrayLike, algorithm: str | None = None
    ) -> float | Floats:
        """Return the seconds of collectives, broadcast like numpy."""
        sizes, groups, shape = self._columns(num_bytes, ranks)
        return inputs.shaped(self._chosen(sizes, groups, algorithm)[0], shape)

    def project(
        self, num_bytes: float, ranks: int, *, algorithm: str | None = None, sweep: bool = False
    ) -> "CollectiveProjection":
        """Return one collective with every algorithm, and with ``sweep`` also at other sizes."""
        sizes, groups, _ = self._columns(num_bytes, ranks)
        if sizes.size != 1:
            msg = f"a projection is of one size and one group, got {sizes.size}"
            raise ConfigError(msg, key="num_bytes", value=sizes.size, allowed="one number")
        listed = np.union1d(sizes, SWEEP_BYTES) if sweep else sizes
        every = np.concatenate([listed, FINE_BYTES])
        times = self._all_algorithms(every, int(groups[0]), algorithm)
        cut = len(listed)
        return CollectiveProjection(
            self,
            float(sizes[0]),
            int(groups[0]),
            None if algorithm is None else algorithm_named(algorithm),
            sweep,
            _part(times, slice(None, cut)),
            _part(times, slice(cut, None)),
        )

    def _columns(
        self, num_bytes: ArrayLike, ranks: ArrayLike
    ) -> tuple[Floats, Ints, tuple[int, ...]]:
        columns, shape = inputs.broadcast(num_bytes=num_bytes, ranks=ranks)
        sizes, groups = columns["num_bytes"], inputs.extents_of(columns, ("ranks",))[:, 0]
        inputs.check_range(columns, "num_bytes", MAX_BYTES)
        if np.any(groups < 1):
            msg = f"ranks must be at least 1, got {groups.min()}"
            raise ConfigError(msg, key="ranks", value=int(groups.min()), allowed="integers >= 1")
        if self.operation == "send_recv" and np.any(groups > 2):
            msg = f"send_recv joins two ranks, got {groups.max()}"
            raise ConfigError(msg, key="ranks", value=int(groups.max()), allowed=[1, 2])
        return sizes, groups, shape

    def _chosen(self, sizes: Floats, groups: Ints, algorithm: str | None) -> tuple[Floats, Ints]:
        """Return seconds and algorithm codes of rows, with the best algorithm or a named one."""
        code = OPERATIONS.index(self.operation)
        fabric, wanted = self.fabric, NO_ALGORITHM
        if algorithm is not None:
            wanted = ALGORITHMS.index(algorithm_named(algorithm))
            fabric = self._restricted(ALGORITHMS[wanted])
        where = self.place(groups)
        seconds, codes = collective_time_columns(
            code, sizes, groups, where.local, 0, fabric, where.span
        )
        # The kernel takes any algorithm where the allowed ones cannot serve, so another code than
        # the wanted one says that it cannot.
        wrong = np.flatnonzero((codes != wanted) & (codes != NO_ALGORITHM))
        if wanted != NO_ALGORITHM and wrong.size:
            self._refuse(ALGORITHMS[wanted], float(sizes[wrong[0]]), int(groups[wrong[0]]))
        return seconds, codes

    def _restricted(self, *names: str) -> Records:
        fabric = self.fabric.copy()
        fabric["algorithms"] = algorithm_mask(*names)
        return fabric

    def _all_algorithms(self, sizes: Floats, ranks: int, algorithm: str | None) -> AlgorithmTimes:
        """Return the times of every algorithm in one call of the kernel."""
        fabrics = np.concatenate([self.fabric, *(self._restricted(name) for name in ALGORITHMS)])
        rows, columns = len(fabrics), len(sizes)
        groups = np.full(rows * columns, ranks)
        where = self.place(groups)
        seconds, codes = collective_time_columns(
            OPERATIONS.index(self.operation),
            np.tile(sizes, rows),
            groups,
            where.local,
            np.repeat(np.arange(rows), columns),
            fabrics,
            where.span,
        )
        seconds, codes = seconds.reshape(rows, columns), codes.reshape(rows, columns)
        each = {}
        for code, name in enumerate(ALGORITHMS):
            serves = codes[1 + code] == code
            if serves.any():
                each[name] = np.where(serves, seconds[1 + code], np.inf)
        if algorithm is not None:
            best_s, best = self._chosen(sizes, np.full(columns, ranks), algorithm_named(algorithm))
        else:
            best_s, best = seconds[0], codes[0]
        names = tuple(None if code == NO_ALGORITHM else ALGORITHMS[code] for code in best)
        return AlgorithmTimes(sizes, best_s, names, each)

    def _refuse(self, algorithm: str, size: float, ranks: int) -> None:
        legal = list(self._all_algorithms(np.array([size]), ranks, None).each_s)
        local = int(self.place(np.array([ranks])).local[0])
        where = "of one scale-up domain" if local == ranks else f"with {local} in a scale-up domain"
        msg = (
            f"algorithm {algorithm!r} cannot serve {self.operation} of {size:g} bytes over {ranks} "
            f"GPUs {where} of {self.cluster.device.name}; {', '.join(legal)} can"
        )
        raise ConfigError(msg, key="algorithm", value=algorithm, allowed=legal)


@dataclass(frozen=True, slots=True)
class CollectiveProjection:
    """One collective of one group, with every algorithm that can serve it."""

    case: CollectiveCase
    num_bytes: float
    ranks: int
    asked: str | None
    """Algorithm that was asked for; None where the library chooses."""
    is_sweep: bool
    times: AlgorithmTimes
    """At the asked size, and in a sweep at the other sizes too."""
    fine: AlgorithmTimes
    """At `FINE_BYTES`."""

    @property
    def local(self) -> int:
        """Members that share a scale-up domain."""
        return int(self.case.place(np.array([self.ranks])).local[0])

    @property
    def row(self) -> int:
        """Position of the asked size among the sizes."""
        return int(np.flatnonzero(self.times.num_bytes == self.num_bytes)[0])

    @property
    def time_s(self) -> float:
        """Seconds at the asked size."""
        return float(self.times.best_s[self.row])

    @property
    def algorithm(self) -> str | None:
        """Algorithm at the asked size; None where nothing moves."""
        return self.times.best[self.row]

    @property
    def crossovers(self) -> tuple[Crossover, ...]:
        """Where the library changes its algorithm."""
        return self.fine.crossovers(self.served_by_library)

    @property
    def crossovers_of_all(self) -> tuple[Crossover, ...]:
        """Where the fastest of all algorithms changes, those included that the library lacks."""
        return self.fine.crossovers(tuple(self.fine.each_s))

    @property
    def served_by_library(self) -> tuple[str, ...]:
        """Algorithms that the library chooses among; all where it has none that serves."""
        device = self.case.cluster.device
        have = [name for name in self.fine.each_s if name in device.collective_algorithms]
        if self.local < self.ranks:
            far = set(device.collective_network_algorithms) - ({"pat"} if self.local > 1 else set())
            have = [name for name in have if name in far] or have
        if self.case.operation in ("all_reduce", "reduce_scatter"):
            have = [name for name in have if name != "bruck"] or have
        return tuple(have or self.fine.each_s)

    def bus_bytes_per_s(self, num_bytes: ArrayLike, seconds: ArrayLike) -> Floats:
        """Return bus bandwidths (`bus_share`); 0 where nothing moves."""
        moved = np.asarray(num_bytes, float) * bus_share(self.case.operation, self.ranks)
        time_s = np.asarray(seconds, float)
        rates: Floats = np.divide(moved, time_s, out=np.zeros(np.shape(time_s)), where=time_s > 0.0)
        return rates

    def mpi_us(self) -> float:
        """Return the microseconds of MPI, among the first devices of a node."""
        node = self.case.cluster.network.node
        if node is None or self.case.stride > 1:
            msg = "mpi needs a node whose file has its messages (--device mi250x), and --stride 1"
            raise ConfigError(msg, key="mpi", value=node, allowed="--device mi250x, --stride 1")
        time_s = mpi_collective_time(self.case.operation, self.num_bytes, self.ranks, node=node)
        return float(time_s) / MICROSECOND

    @property
    def band(self) -> Band:
        """Where measured times of such collectives lie, at the asked size."""
        cluster = self.case.cluster
        network = cluster.network if self.local < self.ranks else None
        return collective_band(cluster.device, self.num_bytes, network)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        head = {
            "uncertainty": self.band.to_dict(),
            "operation": self.case.operation,
            "device": self.case.cluster.device.name,
            "network": self.case.cluster.network.name,
            "gpus": self.ranks,
            "gpus_in_domain": self.local,
            "stride": self.case.stride,
            **self._size(self.row),
            "library": list(self.served_by_library),
            "crossovers": [_crossover(point) for point in self.crossovers],
            "crossovers_of_all": [_crossover(point) for point in self.crossovers_of_all],
        }
        if not self.is_sweep:
            return head
        return {**head, "sizes": [self._size(row) for row in range(len(self.times.num_bytes))]}

    def _size(self, row: int) -> dict[str, Any]:
        size = float(self.times.num_bytes[row])
        return {
            "bytes": int(size),
            **self._timed(size, float(self.times.best_s[row])),
            "algorithm": self.times.best[row],
            "algorithms": {
                name: self._timed(size, float(column[row]))
                for name, column in self.times.each_s.items()
                if np.isfinite(column[row])
            },
        }

    def _timed(self, size: float, seconds: float) -> dict[str, float]:
        rate = float(self.bus_bytes_per_s(size, seconds)) / GB
        return {"time_us": seconds / MICROSECOND, "bus_gb_per_s": rate}


def collective_case(
    operation: str,
    *,
    device: inputs.DeviceLike,
    network: str | Mapping[str, Any] | None = None,
    stride: int = 1,
) -> CollectiveCase:
    """Return an operation on a cluster; the arguments are those of `projector.collective_time`."""
    if not inputs.is_text(operation) or operation not in OPERATIONS:
        msg = f"unknown collective {operation!r}; known: {', '.join(OPERATIONS)}"
        raise ConfigError(msg, key="operation", value=operation, allowed=list(OPERATIONS))
    stride = inputs.whole_number("stride", stride, least=1)
    profile = inputs.device_from(device)
    cluster = ClusterConfig.parse({"device": profile, "network": network}, path="cluster")
    return CollectiveCase(operation, cluster, stride, fabric_record(cluster))


def project_collective(
    operation: str,
    num_bytes: float,
    ranks: int,
    *,
    device: inputs.DeviceLike,
    network: str | Mapping[str, Any] | None = None,
    stride: int = 1,
    algorithm: str | None = None,
    sweep: bool = False,
) -> CollectiveProjection:
    """Return one collective with the time of every algorithm that can serve it.

    Arguments are those of `projector.collective_time`, of one size and one group. ``sweep`` asks
    for the sizes `SWEEP_BYTES` too.
    """
    given = collective_case(operation, device=device, network=network, stride=stride)
    return given.project(num_bytes, ranks, algorithm=algorithm, sweep=sweep)


def algorithm_named(name: str) -> str:
    """Return an algorithm by its name or by another name of it."""
    known = ALIASES.get(name, name) if inputs.is_text(name) else name
    if not inputs.is_text(known) or known not in ALGORITHMS:
        legal = [*ALGORITHMS, *ALIASES]
        msg = f"unknown algorithm {name!r}; known: {', '.join(legal)}"
        raise ConfigError(msg, key="algorithm", value=name, allowed=legal)
    return known


def _part(times: AlgorithmTimes, rows: slice) -> AlgorithmTimes:
    each = {name: column[rows] for name, column in times.each_s.items()}
    return AlgorithmTimes(times.num_bytes[rows], times.best_s[rows], times.best[rows], each)


def _crossover(point: Crossover) -> dict[str, Any]:
    return {"bytes": round(point.num_bytes), "from": point.before, "to": point.after}
