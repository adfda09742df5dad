"""What a step of reinforcement learning consists of: who trains, who answers, and where."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from projector.arrays import Ints
from projector.config._base import Config, Count
from projector.config.job import Job
from projector.config.load import load_job, resolve_paths
from projector.config.yaml_file import beside, read_yaml
from projector.errors import ConfigError, shown
from projector.serving.api import read_case
from projector.serving.deployment import Deployment
from projector.serving.load import MAX_TOKENS, Lengths, Scheduler

COLOCATED, APART = "colocated", "apart"

MOST_RESPONSES = 1 << 19
"""More of a step are of no run, and one replica would take minutes to simulate."""

MOST_LEVELS = 1 << 12
"""Equal parts of a distribution that its mean is taken of, where there are more responses."""


class Responses(Config):
    """What is asked and answered in a step."""

    prompts: int = Field(gt=0, le=1 << 14)
    """Distinct prompts of a step."""
    group: int = Field(default=1, gt=0, le=1 << 8)
    """Responses to each of them."""
    prompt_tokens: Count = 256
    """Tokens of a prompt. That of a group is computed once, as engines keep prefixes."""
    tokens: Lengths
    """Tokens of a response. ``mean`` is that of what is generated, cut at ``high``, as frameworks
    log it; ``cv`` is that of the distribution before the cut."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.total > MOST_RESPONSES:
            msg = f"prompts * group: should be at most {MOST_RESPONSES} (got {self.total})"
            raise ConfigError(msg, key="prompts", value=self.prompts, allowed=MOST_RESPONSES)
        mean, high = self.tokens.mean or 2.0, self.tokens.high or MAX_TOKENS
        if not 2.0 <= mean <= high:
            msg = f"mean ({mean:g}) of responses is from 2 to high ({high}), where they are cut"
            raise ConfigError(msg, key="tokens.mean", value=mean, allowed=f"2 to {high}")
        return self

    @property
    def total(self) -> int:
        """Responses of a step."""
        return self.prompts * self.group

    def lengths(self, count: int) -> Ints:
        """Return the lengths of a replica's ``count`` responses, int64[count], rising.

        They are the middles of equal parts of the distribution. The longest is that of all
        responses of the step: the replica that has it is waited for.
        """
        levels = (np.arange(count) + 0.5) / count
        levels[-1] = (self.total - 0.5) / self.total
        return self._before_cut.quantiles(levels)

    @cached_property
    def mean_tokens(self) -> float:
        """Prompt and response."""
        return self.prompt_tokens + float(self.lengths(min(self.total, MOST_LEVELS)).mean())

    @property
    def longest(self) -> int:
        """Tokens of a prompt with its longest response."""
        return self.prompt_tokens + int(self.lengths(1)[0])

    @cached_property
    def _before_cut(self) -> Lengths:
        """The distribution that has the stated mean once it is cut, by bisection."""
        lengths, wanted = self.tokens, self.tokens.mean or 1.0
        if lengths.kind != "lognormal" or lengths.high is None:
            return lengths
        count = min(self.total, MOST_LEVELS)
        levels = (np.arange(count) + 0.5) / count
        low, high = np.log(wanted), np.log(MAX_TOKENS)
        for _ in range(40):
            middle = (low + high) / 2.0
            lengths = lengths.model_copy(update={"mean": float(np.exp(middle))})
            is_short = lengths.quantiles(levels).mean() < wanted
            low, high = (middle, high) if is_short else (low, middle)
        return lengths


class RLJob(Config):
    """One step of GRPO, or with a critic of PPO."""

    training: Job
    """The policy and its update. ``training.global_batch_size`` counts responses of an update,
    which are packed into sequences of ``training.seq_length``."""
    rollout: Deployment
    """What generates the responses."""
    scheduler: Scheduler = Scheduler()
    """How its engine fills its steps: ``max_num_seqs`` bounds the responses at once."""
    responses: Responses

    placement: Literal["colocated", "apart"] = "colocated"
    """Whether training and rollout take turns on the same devices, or have devices of their own."""
    rollout_gpus: Count
    """Devices that generate."""
    staleness: Literal[0, 1] = 0
    """Updates by which the weights that generate are older; with 1 rollout and training overlap."""
    reference: bool = True
    """Whether a frozen copy of the policy gives log-probabilities too."""
    critic: Job | None = None
    """Model that values responses and is trained beside the policy, as in PPO."""
    offload: bool = True
    """Whether models that wait lie in host memory: those that train while the same devices
    generate, the reference and the critic while the policy is updated."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        total, longest, gpus = self.responses.total, self.responses.longest, self.rollout_gpus
        own, replica = self.training.cluster.gpus, self.rollout.gpus
        device, other = (each.cluster.device.name for each in (self.training, self.rollout))
        mine, theirs = (each.model.name for each in (self.training, self.rollout))
        together = self.placement == COLOCATED
        found = [
            (gpus % replica > 0, "rollout_gpus", gpus, f"a multiple of {replica}, the replica's"),
            (self.rollout.disaggregated is not None, "rollout.disaggregated", "set", "left out"),
            (together and gpus != own, "rollout_gpus", gpus, f"{own}, those of training"),
            (together and other != device, "rollout.device", other, f"{device} where colocated"),
            (mine != theirs, "rollout.model", theirs, f"{mine}, which trains"),
            (together and self.staleness > 0, "staleness", 1, "0 where colocated"),
        ]
        for name, job in (("training", self.training), ("critic", self.critic or self.training)):
            batch, seq = job.training.global_batch_size, job.training.seq_length
            key = f"{name}.training"
            divides = f"a divisor of {total}, the responses"
            found += [(total % batch > 0, f"{key}.global_batch_size", batch, divides)]
            found += [(longest > seq, f"{key}.seq_length", seq, f"{longest}, a response, or more")]
        for is_wrong, key, value, allowed in found:
            if is_wrong:
                msg = f"{key}: should be {allowed} (got {value})"
                raise ConfigError(msg, key=key, value=value, allowed=allowed)
        return self

    @property
    def gpus(self) -> int:
        """All devices."""
        return self.training.cluster.gpus + (self.placement == APART) * self.rollout_gpus


def read_rl(
    source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> RLJob:
    """Read a file or mapping of `RLJob`; ``critic: true`` stands for the job of the policy.

    Model and machines of ``rollout`` are those of ``training`` where it states none. Overrides are
    dotted, e.g. ``{"rollout.tp": 4, "training.cluster.nodes": 2}``.
    """
    folder, given = Path(), source
    if isinstance(source, str | Path):
        folder, given = Path(source).parent, read_yaml(source)
    if not isinstance(given, Mapping):
        msg = f"a step is a file or a mapping, got {shown(given)}"
        raise ConfigError(msg, key="config", value=given, allowed="a file or a mapping")
    data = dict(given)
    changes: dict[str, dict[str, Any]] = {"training": {}, "critic": {}, "rollout": {}}
    for key, value in (overrides or {}).items():
        section, _, name = key.partition(".")
        if name and section in changes:
            changes[section][name] = value
            continue
        node, (*sections, last) = data, key.split(".")
        for depth, each in enumerate(sections, 1):
            node[each] = dict(_section(".".join(sections[:depth]), node.get(each)))
            node = node[each]
        node[last] = value
    for name in ("rollout", "responses"):
        _section(name, data.get(name))
    if changes["critic"] and not data.get("critic"):
        msg = f"critic: is left out; with critic.{next(iter(changes['critic']))} it should be true"
        raise ConfigError(msg, key="critic", value=data.get("critic"), allowed="true or a job")
    for name in ("training", "responses"):
        if not data.get(name):
            raise ConfigError(f"{name}: is required", key=name, allowed="a section")
    gpus = data.get("rollout_gpus")
    if gpus is None and data.get("placement") == APART:
        msg = "rollout_gpus: is required where rollout and training lie apart"
        raise ConfigError(msg, key="rollout_gpus", allowed="the GPUs that generate")
    for name in ("training", "critic"):
        part = data["training"] if data.get(name) is True else data.get(name) or None
        with within(name):
            part = resolve_paths(dict(part), folder) if isinstance(part, Mapping) else part
            data[name] = part and load_job(beside(part, folder), changes[name])
    policy, rollout = data["training"], dict(data.get("rollout") or {})
    gpus = data["rollout_gpus"] = policy.cluster.gpus if gpus is None else gpus
    rollout.setdefault("model", policy.model)
    if not {"cluster", "device"} & rollout.keys():
        nodes = -(-gpus // policy.cluster.gpus_per_node) if isinstance(gpus, int) else 1
        rollout["cluster"] = policy.cluster.model_copy(update={"nodes": max(1, nodes)})
    with within("rollout"):
        case = read_case(resolve_paths(rollout, folder), changes["rollout"])
        if case.traffic.model_fields_set:
            raise ConfigError("load: is that of a server; write responses", key="load")
    return RLJob.parse({**data, "rollout": case.deployment, "scheduler": case.scheduler})


def _section(name: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value or {}, Mapping):
        return value or {}
    msg = f"{name}: should be a mapping (got {shown(value)})"
    raise ConfigError(msg, key=name, value=value, allowed="a mapping")


@contextmanager
def within(section: str) -> Iterator[None]:
    """Put the section before the key of an error."""
    try:
        yield
    except ConfigError as error:
        key, text = f"{section}.{error.key}", f"{section}: {error.message}"
        raise type(error)(text, key=key, value=error.value, allowed=error.allowed) from None
