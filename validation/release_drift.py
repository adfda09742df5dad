"""What one configuration gained from release to release of its framework, by published steps.

Rows agree in framework, model, device, precision, GPUs, sequence, batches and degrees, and differ
in the release, the last from the first by two months or more. Doubtful rows are left out. Each
configuration counts once. --record writes ``hardware/release_drift.yaml``.
"""

import csv
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from projector.validate.run import validate

TABLE = Path(__file__).parent / "data" / "training_throughput.csv"
FILE = Path(__file__).resolve().parents[1] / "hardware" / "release_drift.yaml"
ALIKE = (
    *("framework", "model", "gpu", "n_gpus", "precision", "seq_len", "micro_batch"),
    *("global_batch", "tp", "pp", "vpp", "cp", "ep", "task"),
)
HEAD = """\
# What a month of releases gained for fixed configurations: validation/release_drift.py over all
# rows of validation/data/training_throughput.csv that several releases have. `gain` is the median
# share of a step that a month took away, `spread` its standard deviation over configurations.

"""


def main() -> None:
    """Print the gain a month, and record it if asked to."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    steps = defaultdict(lambda: defaultdict(list))
    for result in validate("training_throughput", TABLE).results:
        row = rows[result.line - 2]
        if result.outcome.measured and not row["doubt"] and "." in row["framework_release"]:
            year, month = map(int, row["framework_release"].split(".")[:2])
            config = ("moe" if int(row["ep"] or 1) > 1 else "dense", *(row[n] for n in ALIKE))
            steps[config][12 * year + month].append(math.log(result.outcome.measured))
    gains = defaultdict(list)
    for (kind, *_), by_month in steps.items():
        first, last = min(by_month), max(by_month)
        if last - first >= 2:
            gained = np.mean(by_month[first]) - np.mean(by_month[last])
            gains[kind].append(gained / (last - first))
    text = HEAD + "".join(
        f"{kind}: {{gain: {np.median(found):.3f}, spread: {np.std(found):.3f}, "
        f"configurations: {len(found)}}}\n"
        for kind, found in sorted(gains.items())
    )
    print(text)
    if "--record" in sys.argv:
        FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
