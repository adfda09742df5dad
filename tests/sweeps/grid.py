"""A small space of jobs with what a sweep asks of one."""

import hashlib
import itertools
import json
import math
from dataclasses import dataclass
from typing import Any

from projector.config.job import Job
from projector.config.load import load_job

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


@dataclass(frozen=True)
class Grid:
    """Every combination of some values."""

    base: Job
    axes: tuple[tuple[str, tuple[Any, ...]], ...]
    most: int | None = None
    """Largest product of the values of the first two axes."""

    @property
    def size(self):
        return math.prod(len(values) for _, values in self.axes)

    @property
    def fields(self):
        return tuple(name for name, _ in self.axes)

    @property
    def digest(self):
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def overrides(self, index):
        found = {}
        for name, values in reversed(self.axes):
            index, position = divmod(index, len(values))
            found[name] = values[position]
        return {name: found[name] for name in self.fields}

    def excluded(self, overrides):
        product = math.prod(overrides[name] for name in self.fields[:2])
        return None if self.most is None or product <= self.most else f"product <= {self.most}"

    def to_dict(self):
        return {
            "base": self.base.model_dump(mode="json", exclude_unset=True),
            "axes": {name: list(values) for name, values in self.axes},
            "constraints": [] if self.most is None else [f"product <= {self.most}"],
        }


def grid(axes=AXES, most=None, **base):
    job = load_job(BASE, base)
    return Grid(job, tuple((name, tuple(values)) for name, values in axes.items()), most)


def every(space):
    return itertools.islice(map(space.overrides, range(space.size)), space.size)
