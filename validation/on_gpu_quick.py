"""The command of the project, for a rehearsal: it measures a job at a pace that is given first.

A processor that does other things is never as steady as a GPU, so that what `on_gpu.py` measures
of a job there would warm up for seconds each, and large copies take as long.
"""

import json
import sys
from typing import Any

from projector.cli.main import main
from projector.measure import programs
from projector.measure.task import Pace, Task


def quicken(sizes: dict[str, Any]) -> None:
    """Measure at the ``pace`` of a section of ``on_gpu.yaml``, and its ``copies``."""
    pace, whole = Pace.model_validate(sizes["pace"]), programs.task_of

    def task_of(reduction: Any, device: Any, pace_of_gpus: Pace) -> Task:
        del pace_of_gpus
        return whole(reduction, device, pace)

    programs.task_of = task_of  # type: ignore[assignment]
    programs.COPIES = tuple(sizes["copies"])


if __name__ == "__main__":
    quicken(json.loads(sys.argv.pop(1)))
    main()
