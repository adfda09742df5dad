"""Print the figures of the paper on MI250X beside ours; --write puts the table into the page.

The paper is Schieffer et al., "Understanding Data Movement in AMD Multi-GPU Systems with Infinity
Fabric" (KTH). A figure is a range in which it lies; what the paper only finds is a bound.
"""

import math
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations, permutations
from pathlib import Path
from typing import NamedTuple

import projector as pj
from projector.single.collective import mpi_collective_time
from projector.topology.build import Topology, load_topology
from projector.topology.routes import find_matrices
from projector.topology.transfers import (
    find_way,
    overlapped_seconds,
    shared_rates,
)

PAGE = Path(__file__).parents[1] / "docs" / "transfers.md"
BEGIN, END = "<!-- infinity fabric: begin -->", "<!-- infinity fabric: end -->"

PACKAGE = ((0, 1), (2, 3), (4, 5), (6, 7))
DUAL = ((0, 6), (2, 4))
SINGLE = ((0, 2), (1, 3), (1, 5), (3, 7), (4, 6), (5, 7))
DETOUR = ((1, 7), (3, 5))
"""Pairs of dies, as sections II-A and V-A1 name them; the dual ones follow from the text."""

LARGE = 8e9
MIB = 2.0**20
REDUCED = ("all_reduce", "all_gather", "reduce_scatter")
ONE_PASS = ("broadcast", "reduce")
WITHIN = 0.10
"""Largest distance from a range, as a share of its nearer end."""


class Figure(NamedTuple):
    """One figure of the paper and ours."""

    what: str
    where: str
    """Section of the paper."""
    unit: str
    low: float
    high: float
    """Equal to ``low`` where one number is printed; infinite where only a bound is known."""
    model: float
    is_finding: bool = False
    """Whether the paper finds a bound, which must hold as it stands."""

    @property
    def error(self) -> float:
        """Distance from the range, as a share of its nearer end."""
        if self.model < self.low:
            return self.model / self.low - 1.0
        return self.model / self.high - 1.0 if self.model > self.high else 0.0

    @property
    def holds(self) -> bool:
        """Whether ours agrees with the paper."""
        return abs(self.error) <= (1e-9 if self.is_finding else WITHIN)


@cache
def node() -> Topology:
    """Return the node."""
    return load_topology("mi250x")


def rate(pair: tuple[int, int], engine: str, **options: bool) -> float:
    """Return the GB/s of a large message."""
    return LARGE / float(find_way(node(), *pair, engine, **options).seconds(LARGE)) * 1e-9


def host_rate(engine: str, size: float = 1e9) -> float:
    """Return the GB/s of a message from host memory."""
    return size / float(find_way(node(), "host", 0, engine).seconds(size)) * 1e-9


def latency(pair: tuple[int, int]) -> float:
    """Return the microseconds of a copy command of 16 bytes."""
    return float(find_way(node(), *pair, "copy").seconds(16)) * 1e6


def host_total(*dies: int) -> float:
    """Return the GB/s of both directions that dies reach together."""
    flows = [("host", die) for die in dies]
    return 2.0 * sum(shared_rates(node(), flows, engine="zero_copy", both_directions=True))


def rccl(operation: str, size: float, dies: int) -> float:
    """Return the microseconds of a collective of RCCL."""
    return float(pj.collective_time(operation, size, dies, device="mi250x")) * 1e6


def hops_as_printed() -> int:
    """Count the entries of the matrix of hops that agree with the links of figure 1."""
    near = {frozenset(pair) for pair in (*PACKAGE, *DUAL, *SINGLE)}
    hops = find_matrices(node()).hops
    return sum(
        hops[a][b] == (0 if a == b else 1 if frozenset((a, b)) in near else 2)
        for a in range(8)
        for b in range(8)
    )


def detours() -> tuple[tuple[int, int], ...]:
    """Return the pairs whose widest path is longer than the shortest."""
    matrices = find_matrices(node())
    return tuple(
        (a, b)
        for a, b in combinations(range(8), 2)
        if len(matrices.routes[a][b].path) - 1 > matrices.hops[a][b]
    )


def figures() -> Iterator[Figure]:
    """Yield every figure."""
    yield from _graph()
    yield from _latencies()
    yield from _copies()
    yield from _mpi()
    yield from _host()
    yield from _collectives()


def _graph() -> Iterator[Figure]:
    yield Figure("hops between two dies, entries that agree", "V-A1", "of 64", 64, 64,
                 hops_as_printed(), is_finding=True)  # fmt: skip
    found = detours()
    yield Figure("pairs whose widest path is not the shortest", "V-A1", "pairs", 2, 2, len(found),
                 is_finding=True)  # fmt: skip
    yield Figure("of them 1-7 and 3-5", "V-A1", "pairs", 2, 2, len({*found} & {*DETOUR}),
                 is_finding=True)  # fmt: skip
    yield Figure("hops on the widest path of these", "V-A1", "hops", 3, 3,
                 max(find_way(node(), *pair, "copy").route.hops for pair in DETOUR),
                 is_finding=True)  # fmt: skip


def _latencies() -> Iterator[Figure]:
    for what, pairs, low, high in (
        ("over a single link", SINGLE, 8.7, 10.0),
        ("in a package", PACKAGE, 10.5, 10.8),
        ("of 1-7 and 3-5", DETOUR, 17.8, 18.2),
    ):
        found = [latency(pair) for pair in pairs]
        yield Figure(f"latency {what}, least", "V-A1", "us", low, high, min(found))
        yield Figure(f"latency {what}, largest", "V-A1", "us", low, high, max(found))
    every = [latency(pair) for pair in permutations(range(8), 2)]
    yield Figure("least latency", "V-A1", "us", 8.7, 8.7, min(every))
    yield Figure("largest latency", "V-A1", "us", 18.2, 18.2, max(every))
    yield Figure("pairs with a latency above 17 us", "V-A1", "pairs", 2, 2,
                 sum(value > 17.0 for value in every) / 2, is_finding=True)  # fmt: skip
    others = [latency(pair) for pair in (*PACKAGE, *DUAL)]
    yield Figure("latency of wider links over the slowest single one", "V-A1", "ratio", 1.0,
                 math.inf, min(others) / max(map(latency, SINGLE)), is_finding=True)  # fmt: skip


def _copies() -> Iterator[Figure]:
    tiers = (("single", (0, 2), 50.0), ("dual", (0, 6), 100.0), ("quad", (0, 1), 200.0))
    printed = {"single": (37.0, 38.0), "dual": (50.0, 50.0), "quad": (50.0, 50.0)}
    shares = {"single": 75.0, "dual": 50.0, "quad": 25.0}
    for tier, pair, peak in tiers:
        found = rate(pair, "copy")
        yield Figure(f"copy engine, {tier} link", "V-A2", "GB/s", *printed[tier], found)
        yield Figure(f"copy engine, {tier} link", "V-A2", "% of peak", shares[tier], shares[tier],
                     100.0 * found / peak)  # fmt: skip
    for a, b in DETOUR:
        yield Figure(f"copy engine, {a}-{b}", "V-A2", "GB/s", 50, 50, rate((a, b), "copy"))
    levels = {round(rate(pair, "copy")) for pair in permutations(range(8), 2)}
    yield Figure("levels of the copy engine over all pairs", "V-A2", "levels", 2, 2, len(levels),
                 is_finding=True)  # fmt: skip
    for tier, pair, peak in tiers:
        found = 2.0 * rate(pair, "kernel", both_directions=True)
        yield Figure(f"kernel copy, {tier} link, both ways", "V-B", "% of peak", 43, 44,
                     100.0 * found / (2.0 * peak))  # fmt: skip
    local = 2.0 * rate((0, 0), "kernel")
    yield Figure("kernel copy in local memory", "V-B", "GB/s", 1400, 1400, local)
    yield Figure("kernel copy in local memory", "V-B", "% of peak", 87, 87, 100.0 * local / 1600.0)
    copied, computed = 1e-3, 4e-3
    beside = float(overlapped_seconds(node(), "copy", copied, computed)) / computed
    yield Figure("a kernel beside the copy engine over the kernel alone", "V-A2", "ratio", 1, 1,
                 beside, is_finding=True)  # fmt: skip


def _mpi() -> Iterator[Figure]:
    ratios = [rate((0, to), "mpi_kernel") / rate((0, to), "kernel") for to in range(1, 8)]
    for what, ratio in (("least", min(ratios)), ("largest", max(ratios))):
        yield Figure(f"MPI by a kernel over the kernel copy, {what}", "V-C", "ratio", 0.85, 0.90,
                     ratio, is_finding=True)  # fmt: skip
    fastest = max(rate((0, target), "mpi_copy") for target in range(1, 8))
    yield Figure("MPI by a copy engine, at most", "V-C", "GB/s", 0, 50, fastest, is_finding=True)
    far = [rate((0, target), "mpi_kernel") for target in (3, 4, 5, 7)]
    near = [rate((0, target), "mpi_kernel") for target in (2, 2, 2, 6)]
    worst = min(a / b for a, b in zip(far, near, strict=True))
    yield Figure("MPI to a die that is no neighbour, over a neighbour", "V-C", "ratio", 1, 1, worst)


def _host() -> Iterator[Figure]:
    yield Figure("pinned host memory", "IV-A", "GB/s", 28.3, 28.3, host_rate("pinned"))
    yield Figure("managed, zero-copy", "IV-A", "GB/s", 25.5, 25.5, host_rate("zero_copy"))
    yield Figure("managed, page migration", "IV-A", "GB/s", 2.8, 2.8, host_rate("page_migration"))
    yield Figure("pageable over pinned", "IV-A", "ratio", 0, 1,
                 host_rate("pageable") / host_rate("pinned"), is_finding=True)  # fmt: skip
    for size in (1e6, 8e6, 32e6):
        ratio = host_rate("zero_copy", size) / host_rate("pinned", size)
        yield Figure(f"zero-copy over pinned, {size / 1e6:.0f} MB", "IV-A", "ratio", 1, 1, ratio)
    after = host_rate("zero_copy", 128e6) / host_rate("pinned", 128e6)
    yield Figure("zero-copy over pinned, 128 MB", "IV-A", "ratio", 0, 0.99, after, is_finding=True)
    own, other = (find_way(node(), domain, 0, "pinned").gb_per_s for domain in ("host", "numa0"))
    yield Figure("pinned memory of another domain over the own", "IV-B", "ratio", 1, 1, other / own)
    one = host_total(0)
    for what, dies, expected in (
        ("two dies, spread, over one", (0, 2), 2.0),
        ("two dies of a package over one", (0, 1), 1.0),
        ("four dies, spread, over one", (0, 2, 4, 6), 4.0),
        ("eight dies over one", tuple(range(8)), 4.0),
    ):
        yield Figure(f"host memory, {what}", "IV-C", "ratio", expected, expected,
                     host_total(*dies) / one)  # fmt: skip


def _collectives() -> Iterator[Figure]:
    for operation in ONE_PASS:
        least = min(rccl(operation, 8, dies) for dies in range(2, 9))
        yield Figure(f"{operation}, least over 2 to 8 dies", "VI", "us", 8.7, math.inf, least,
                     is_finding=True)  # fmt: skip
    for operation in REDUCED:
        least = min(rccl(operation, 8, dies) for dies in range(2, 9))
        yield Figure(f"{operation}, least over 2 to 8 dies", "VI", "us", 17.4, math.inf, least,
                     is_finding=True)  # fmt: skip
    for operation in ("reduce", "broadcast", "all_reduce"):
        drop = rccl(operation, MIB, 8) / rccl(operation, MIB, 7)
        yield Figure(f"{operation} of 1 MiB, 8 dies over 7", "VI", "ratio", 0, 0.999, drop,
                     is_finding=True)  # fmt: skip
    for operation in ("all_gather", "reduce_scatter"):
        kept = rccl(operation, MIB, 8) / rccl(operation, MIB, 7)
        yield Figure(f"{operation} of 1 MiB, 8 dies over 7", "VI", "ratio", 1.0, math.inf, kept,
                     is_finding=True)  # fmt: skip
    for operation in (*REDUCED, *ONE_PASS):
        by_mpi = mpi_collective_time(operation, MIB, 8, node=node())
        ratio = float(by_mpi) * 1e6 / rccl(operation, MIB, 8)
        bounds = (0.0, 0.999) if operation == "broadcast" else (1.001, math.inf)
        yield Figure(f"MPI over RCCL, {operation} of 1 MiB, 8 dies", "VI", "ratio", *bounds, ratio,
                     is_finding=True)  # fmt: skip


def printed(low: float, high: float) -> str:
    """Return what the paper prints, or the bound that it finds."""
    if high == math.inf:
        return f"≥ {low:g}"
    if low == high:
        return f"{low:g}"
    return f"≤ {high:g}" if low == 0.0 else f"{low:g} to {high:g}"


def table(rows: Callable[[], Iterator[Figure]] = figures) -> str:
    """Return the table of the page."""
    lines = ["| figure | section | unit | paper | model | off |", "|---|---|---|---|---|---|"]
    for row in rows():
        off = "" if abs(row.error) < 5e-4 else f"{100.0 * row.error:+.1f} %"
        lines.append(
            f"| {row.what} | {row.where} | {row.unit} | {printed(row.low, row.high)} "
            f"| {row.model:.4g} | {off} |"
        )
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the page with the table in its place."""
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    print(table())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
