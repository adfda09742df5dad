"""The tile model beside a fitted roofline on the kernels of one inference library, by family.

The roofline has a dozen constants for each family of devices: an efficiency for each type, a share
of the memory bandwidth, a fixed cost, a share of the shorter term that does not hide, and for each
type that is quantised a fixed cost and a rate. It is fitted here, in sample and with whole (n, k)
put aside, so that the tile model, whose constants stand in the device files, is shown beside what
constants alone can do. Rows marked doubtful are left out.
"""

import csv
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from projector.config.device import Device
from projector.config.device_file import load_device
from projector.validate import gemm
from projector.validate.kind import Row
from projector.validate.names import device_of

TABLE = Path(__file__).parent / "data" / "gemm_measured.csv"
FAMILIES = {"Ampere": ("a100",), "Hopper": ("h100", "h200"), "Blackwell": ("b200", "gb200")}
FOLDS = 5
LARGE = 512
"""Rows of C from which a GEMM counts as large."""
KINDS = ("bf16", "fp8", "fp8 (128-block scales)", "nvfp4")
BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8 (128-block scales)": 1.0, "nvfp4": 0.5625}
QUANTISED = {"fp8": 5.0, "fp8 (128-block scales)": 3.0, "nvfp4": 2.5}
"""Bytes that quantising moves for each element of A."""

START = {
    **{f"efficiency {kind}": 0.7 for kind in KINDS},
    "memory": 0.75, "start_us": 3.0, "loss": 0.2,
    **{f"quantise_us {kind}": 6.0 for kind in QUANTISED},
    "quantise_tb_per_s": 3.0, "loaded": 0.9,
}  # fmt: skip
NAMES = tuple(START)


def main() -> None:
    """Print median and 90th percentile of both models for each family."""
    with TABLE.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if "gemm/trtllm" in (row["source"] or "")]
    rows = [row for row in rows if not row["doubt"]]
    print(f"{'family':10} {'rows':>5} {'':9} {'roofline':>13} {'left out':>13} {'tile':>13}")
    for family, devices in FAMILIES.items():
        own = [row for row in rows if device_of(row["gpu"] or "") in devices]
        _compare(family, own)


def _compare(family: str, rows: Sequence[Row]) -> None:
    measured = np.array([float(row["runtime_us"] or 0.0) for row in rows])
    tile = np.array([outcome.predicted for outcome in gemm.project(rows)], np.float64)
    fitted = _predict(_fit(rows, measured), rows)
    keys = sorted({(row["n"], row["k"]) for row in rows})
    fold = np.array([keys.index((row["n"], row["k"])) % FOLDS for row in rows])
    held = np.empty(len(rows))
    for part in range(FOLDS):
        inside = [row for row, own in zip(rows, fold, strict=True) if own != part]
        outside = [row for row, own in zip(rows, fold, strict=True) if own == part]
        held[fold == part] = _predict(_fit(inside, measured[fold != part]), outside)
    large = np.array([float(row["m"] or 0.0) >= LARGE for row in rows])
    for label, chosen in (("m >= 512", large), ("m < 512", ~large)):
        cells = [_errors(each[chosen] / measured[chosen]) for each in (fitted, held, tile)]
        print(
            f"{family:10} {chosen.sum():5} {label:9} " + " ".join(f"{cell:>13}" for cell in cells)
        )


@lru_cache
def _device(gpu: str) -> Device:
    return load_device(device_of(gpu))


def _errors(ratio: np.ndarray) -> str:
    errors = 100.0 * np.abs(ratio - 1.0)
    return f"{np.median(errors):.1f} / {np.quantile(errors, 0.9):.1f} %"


def _fit(rows: Sequence[Row], measured_us: np.ndarray) -> np.ndarray:
    def residuals(logs: np.ndarray) -> np.ndarray:
        ratio = _predict(np.exp(logs), rows) / measured_us
        # Constants that no row of a family shows stay where they start.
        return np.concatenate([np.log(ratio) / 0.05, 0.05 * (logs - start)])

    start = np.log(np.array(list(START.values())))
    return np.exp(least_squares(residuals, start, loss="soft_l1", diff_step=0.02).x)


def _predict(constants: np.ndarray, rows: Sequence[Row]) -> np.ndarray:
    value = dict(zip(NAMES, constants.tolist(), strict=True))
    times = []
    for row in rows:
        device, kind = _device(row["gpu"] or ""), row["in_dtype"] or ""
        m, n, k = (float(row[name] or 0.0) for name in "mnk")
        native = kind.partition(" ")[0]
        rate = device.matrix_peak_tflops[native] * value[f"efficiency {kind}"]
        rate *= value["loaded"] if row["power_w"] else 1.0
        math_us = 2.0 * m * n * k / rate * 1e-6
        traffic = (m + n) * k * BYTES[kind] + 2.0 * m * n
        memory_us = traffic / (device.hbm_peak_tb_per_s * value["memory"]) * 1e-6
        time_us = value["start_us"] + max(math_us, memory_us)
        time_us += value["loss"] * min(math_us, memory_us)
        if kind in QUANTISED:
            moved_us = QUANTISED[kind] * m * k / value["quantise_tb_per_s"] * 1e-6
            time_us += value[f"quantise_us {kind}"] + moved_us
        times.append(time_us)
    return np.array(times)


if __name__ == "__main__":
    main()
