"""Selections of the best tile and number of parts of K, a second of one core.

    PYTHONPATH=tests python benchmarks/gemm_selections.py [DEVICE ...]

Every shipped device, or those that are named, with every menu and every matrix type that it has;
menus and types that come to the same numbers are listed once. Beside it the full search, which
times every candidate: what it finds is equal, bit for bit, or the listing stops.
"""

import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints, Records
from projector.config import resources
from projector.config.device_file import load_device
from projector.kernels.device import MATRIX_TYPES
from projector.kernels.gemm import gemm_time_columns
from projector.lower.hardware import device_record, native_type
from reference.gemm_search import search_all

ROWS = 1000
ROUNDS = 7
SIDES = [
    512, 576, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192,
    10240, 11008, 12288, 13824, 14336, 16384, 18432, 20480, 24576, 28672, 29568, 51200, 128256,
]  # fmt: skip
"""Hidden sizes, widths of layers and vocabularies."""


class Menu(NamedTuple):
    """What a selection depends on besides the shape."""

    device: str
    library: str
    kind: str
    record: Records


class Speed(NamedTuple):
    """Lowest times of a selection, in seconds of the processor."""

    search_s: float
    full_s: float


def menus(devices: list[str]) -> Iterator[Menu]:
    """Yield every menu of every matrix type, equal ones once."""
    seen = set()
    for name in devices:
        device = load_device(name)
        for library in ("default", *device.gemm_libraries):
            for kind in MATRIX_TYPES:
                if native_type(device, kind) != kind:
                    continue
                record = device_record(
                    device, gemm_library=library, gemm_type=None if library == "default" else kind
                )
                key = kind, record.tobytes()
                if key not in seen:
                    seen.add(key)
                    yield Menu(name, library, kind, record)


def mixes(rows: int = ROWS) -> dict[str, Ints]:
    """Return (m, n, k, batch) of any shape, of training and of decode."""
    rng = np.random.default_rng(0)
    extents = rng.integers(1, 16384, (rows, 4))
    extents[:, 3] = 1
    # Layers are cut by tensor parallelism; a third are gradients of weights, a tenth grouped.
    sides = rng.choice(SIDES, (rows, 2)) // rng.choice([1, 1, 2, 4, 8], (rows, 1))
    tokens = rng.choice([512, 1024, 2048, 4096, 8192, 16384, 32768], rows)
    of_weights = rng.random(rows) < 1 / 3
    m, k = np.where(of_weights, sides[:, 1], tokens), np.where(of_weights, tokens, sides[:, 1])
    batch = np.where(rng.random(rows) < 0.1, rng.choice([4, 8, 16, 32], rows), 1)
    one = np.ones(rows, np.int64)
    return {
        "any": extents,
        "training": np.stack([m, sides[:, 0], k, batch], axis=1),
        "decode": np.stack([rng.integers(1, 257, rows), sides[:, 0], sides[:, 1], one], axis=1),
    }


def measure(menu: Menu, extents: Ints, rounds: int = ROUNDS) -> Speed:
    """Time both searches, round after round.

    Raises
    ------
    AssertionError
        If they do not agree.
    """
    count, code = len(extents), MATRIX_TYPES.index(menu.kind)
    columns = (
        extents, np.full(count, code), np.full(count, 2.0), np.ones(count),
        np.zeros(count, np.int64), menu.record,
    )  # fmt: skip
    spent_s: Floats = np.full((rounds, 2), np.inf)
    for place in range(rounds):
        begin_s = time.process_time()
        time_s, _, choice = gemm_time_columns(*columns)
        middle_s = time.process_time()
        full_s, full_choice = search_all(extents, code, 1.0, menu.record)
        spent_s[place] = middle_s - begin_s, time.process_time() - middle_s
        np.testing.assert_array_equal(choice, full_choice)
        np.testing.assert_array_equal(time_s, full_s)
    return Speed(*(spent_s.min(axis=0) / count))


def main(devices: list[str]) -> None:
    """List what one core selects a second; sorted by the slowest mix."""
    shapes = mixes()
    first = next(menus(devices))
    measure(first, shapes["any"][:1], 1)  # compile outside the clock
    lines = []
    for menu in menus(devices):
        speeds = [measure(menu, extents) for extents in shapes.values()]
        rates = [1e-6 / speed.search_s for speed in speeds]
        cells = [
            f"{1e-6 / each.search_s:.2f} ({each.full_s / each.search_s:.1f})" for each in speeds
        ]
        tiles = int(menu.record["num_tiles"][0])
        lines.append((min(rates), [menu.device, menu.library, menu.kind, str(tiles), *cells]))
    print("M selections/s of one core (times as fast as the full search)\n")
    print("| device | library | type | tiles |", " | ".join(shapes), "|")
    print("|---" * (4 + len(shapes)) + "|")
    for _, line in sorted(lines):
        print("|", " | ".join(line), "|")


if __name__ == "__main__":
    main(sys.argv[1:] or sorted(resources.shipped("hardware")))
