"""What a record keeps of a reduction, checked when it is read."""

from typing import Literal

from projector.config._base import Config, Count, CountOrNone

Dimension = Literal["pp", "ep", "etp", "tp"]


class DescribedJob(Config):
    """Degrees and devices of a job."""

    tp: Count
    pp: Count
    vpp: Count
    cp: Count
    ep: Count
    etp: Count
    dp: Count
    nodes: Count
    gpus: Count
    num_experts: CountOrNone


class DescribedStep(Config):
    """One dimension given up."""

    dimension: Dimension
    before: Count
    after: Count
    gpus: Count
    reason: str


class DescribedReduction(Config):
    """A job, its benchmark job, and the way from one to the other."""

    target: DescribedJob
    benchmark: DescribedJob
    least_gpus: Count
    available_gpus: Count
    least_nodes: Count
    min_dp: Count
    target_dp: Count
    steps: list[DescribedStep]
    modelled: list[str]
    stand_ins: list[str]
