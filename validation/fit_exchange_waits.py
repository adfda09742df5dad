"""Fit what exchanges between experts wait for on EFA, and the rate of UCCL's host threads.

Usage: ``fit_exchange_waits.py``. It prints two constants, fitted to published steps by soft-L1 on
log time with a prior on each, the error of each row, and that of the rows of one EP size by the
constants of the other. `hardware/transports.yaml` and `hardware/exchange_proxies.yaml` have them.
"""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from projector.validate.kind import Row, Without
from projector.validate.names import source_of
from projector.validate.training import project
from projector.validate.words import said

TABLE = Path(__file__).parent / "data" / "training_throughput.csv"
SOURCE = "awslabs/awsome-distributed-ai"
PRIORS = {
    # Collectives between nodes of EFA start within some hundred microseconds.
    "cluster.network.exchange_wait_us": (500.0, 1.5),
    # UCCL's own microbenchmark of a combine: 18 to 43 GB/s.
    "cluster.network.exchange_proxy_gb_per_s": (18.0, 1.5),
}
"""Constant -> its prior and the spread of that, in ln."""
NOISE = 0.1
"""Spread of a row, in ln."""


def main() -> None:
    """Print the constants and what they leave."""
    with TABLE.open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if source_of(row["source"]) == SOURCE]
    constants = fit(rows)
    print(dict(zip(PRIORS, np.exp(constants).round(3), strict=True)), f"from {len(rows)} rows")
    errors = misses(rows, constants)
    for row, miss in zip(rows, errors, strict=True):
        layout = f"EP {row['ep']} micro-batch {row['micro_batch']}"
        print(f"{np.exp(miss):6.2f}  {layout}  {row['recipe_moe_dispatcher']}")
    print("in sample", _summary(errors))
    left = [
        misses([row for row in rows if row["ep"] == ep], fit([r for r in rows if r["ep"] != ep]))
        for ep in sorted({row["ep"] for row in rows})
    ]
    print("EP left out", _summary(np.concatenate(left)))


def fit(rows: list[Row]) -> NDArray[np.float64]:
    """Return the logarithms of the constants that suit rows best."""
    means = np.log([mean for mean, _ in PRIORS.values()])
    spreads = np.array([spread for _, spread in PRIORS.values()])

    def residuals(constants: NDArray[np.float64]) -> NDArray[np.float64]:
        soft = misses(rows, constants) / NOISE
        return np.concatenate([soft, (constants - means) / spreads])

    return least_squares(residuals, means, loss="soft_l1", diff_step=0.02).x


def misses(rows: list[Row], constants: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln of projected over measured time."""
    values = dict(zip(PRIORS, np.exp(constants), strict=True))
    # Of the two proxies, the rate is one's alone.
    slow = {**values, "cluster.network.exchange_proxy_gb_per_s": 0.0}
    each = [values if said(row, "exchange_proxy") == "uccl" else slow for row in rows]
    outcomes = project(rows, [Without("", one) for one in each])
    return np.log([outcome.ratio for outcome in outcomes])


def _summary(errors: NDArray[np.float64]) -> str:
    share = np.abs(np.exp(errors) - 1.0)
    return f"median / p90 {100 * np.median(share):.0f} / {100 * np.percentile(share, 90):.0f} %"


if __name__ == "__main__":
    main()
