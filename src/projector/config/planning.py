"""What a plan assumes where nobody says otherwise: devices, global batch, sizes to try."""

from pydantic import Field

from projector.config._base import MOST, Config, Count, NotNegative, Positive


class PlanSettings(Config):
    """Choices that a plan makes for its user; each is stated in its output."""

    devices: tuple[str, ...] = ("h100", "b200", "mi300x", "mi355x")
    """Devices to choose from where neither the user nor the job names one: the last and the current
    generation of both vendors of GPUs, of which training runs are published. Our choice."""
    batch_tokens: tuple[tuple[Positive, Positive], ...] = (
        (1e9, 2.0**19),
        (5e9, 2.0**20),
        (1e11, 2.0**22),
        (MOST, 2.0**24),
    )
    """Most parameters -> tokens of a global batch, for a model without a job. After GPT-3 (0.5 M
    tokens up to 760 M parameters and 1 M for 1.3 B and 2.7 B: arXiv:2005.14165, table 2.1), Llama 2
    (4 M for 7 B to 70 B: arXiv:2307.09288, table 1) and Llama 3.1 405B (16 M in the end:
    arXiv:2407.21783, 3.4.1)."""
    batch_law: tuple[Positive, Positive] = (0.58, 0.571)
    """Tokens of the global batch that loses least, a (tokens of the run)^b: Li and others,
    Predictable Scale: Part I, Step Law (arXiv:2503.04715), fitted to dense models of up to 1 B
    parameters. Larger runs extrapolate it: of published ones, GPT-3 (3.2 M of 300 B), Llama 2 (4 M
    of 2 T), DeepSeek 67B (19 M of 2 T), Llama 3.1 405B (16 M of 15.6 T) and DeepSeek-V3 (63 M of
    14.8 T) have 0.6 to 3.3 times as much. The critical batch, beyond which more tokens are needed,
    grows as tokens^0.47, and hardly with parameters (Zhang and others, How Does Critical Batch Size
    Scale in Pre-training?, arXiv:2410.21676). These figures are recalled, not read again, but for
    both laws, which other texts quote alike."""
    batch_slack: NotNegative = 0.01
    """Share of days that a smaller batch of the range may add: it is the safer one. Our choice,
    about what a comparison of global batches is off by."""
    longest_sequence: Count = 8192
    """Sequence of a model without a job; shorter where the model's positions end before."""
    sizes: int = Field(default=7, gt=0, le=16)
    """Cluster sizes of a device that are tried where no deadline says which, each twice the one
    before."""
    refinements: int = Field(default=2, ge=0, le=8)
    """Sizes that are tried between the largest that is too slow (or cheap enough) and the smallest
    that is fast enough (or too expensive)."""
    halvings: int = Field(default=4, ge=0, le=16)
    """Sizes that are tried between the largest that does not hold a model and the least that does,
    where nothing that was offered holds it."""
    most_gpus: Count = 1 << 17
    """Larger clusters are not tried: 131,072 devices are more than any published run has used.
    Assumed."""
