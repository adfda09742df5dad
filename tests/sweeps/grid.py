"""A small space of jobs."""

from projector.config.load import load_job
from projector.sweeps.table import load_space

BASE = {
    "model": "llama3.2_1b",
    "parallelism": {"tp": 1, "pp": 1},
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048},
    "cluster": {"device": "h100", "nodes": 1},
}
AXES = {
    "parallelism.tp": [1, 2, 4, 3],
    "parallelism.pp": [1, 2, 4],
    "training.micro_batch_size": [1, 2, 4],
    "training.recompute": ["none", "full", {"granularity": "selective", "modules": ["mlp"]}],
    "cluster.nodes": [1, 2],
}


def grid(axes=AXES, most=None, **base):
    """Return a space; ``most`` limits the product of the first two axes, base fields dotted."""
    first, second = [*axes, *AXES][:2]
    return load_space(
        {
            "base": load_job(BASE, base),
            "axes": {name: list(values) for name, values in axes.items()},
            "constraints": [] if most is None else [f"{first} * {second} <= {most}"],
        }
    )


def every(space):
    return map(space.overrides, range(space.size))


def excluded(space, overrides):
    """Return the text of the first constraint that a point breaks, None if it keeps all."""
    broken = (each for each in space.constraints if not space.keeps(each, overrides))
    return next((each.text for each in broken), None)
