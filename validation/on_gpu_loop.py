"""A small training loop that `on_gpu.py` records: the layers of a job, as measuring builds them.

``python on_gpu_loop.py JOB.yaml STEPS [--device cuda|cpu]`` runs some steps of the whole model on
random tokens.
"""

import argparse

import torch

from projector.config.load import load_job
from projector.measure.exchange import Ranks
from projector.measure.pace import Stopwatch
from projector.measure.parts import Kit
from projector.measure.probe import whole_step
from projector.measure.reduction import reduce_job
from projector.measure.runners import Bench, StepRunner


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job")
    parser.add_argument("steps", type=int)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    program = whole_step(reduce_job(load_job(options.job), 1).job)
    device = torch.device(options.device)
    bench = Bench(Kit(torch, device), Stopwatch(torch, device), Ranks(torch))
    runner = StepRunner(bench, program)
    for _ in range(options.steps):
        runner.forward()
        runner.backward()
        runner.update()
    bench.watch.wait()


if __name__ == "__main__":
    main()
