"""What sections of a job must keep together: each rule, checked over columns of jobs."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np

from projector.arrays import Flags, Ints
from projector.config.adapter import AdapterConfig, model_sites
from projector.config.device import Device
from projector.config.job import Job
from projector.config.parallelism import divisors
from projector.config.training import Precision
from projector.errors import ConfigError
from projector.kernels.grouping import group_looked_up, group_rows
from projector.lower.batch import JobBatch, JobColumns, data_parallel, job_columns
from projector.lower.cluster_columns import ClusterColumns
from projector.lower.hardware import attention_name
from projector.lower.sections import CP_TYPES, TrainingColumns
from projector.lower.stages import uses_fp8_attention

WIDE = {"fp32", "tf32", "fp16", "bf16"}
"""Types that Q, K and V of a training job may have."""


def broken_rules(batch: JobBatch, columns: JobColumns) -> Ints:
    """Return the first of `RULES` that each family breaks, int64[families].

    It is ``len(RULES)`` where a family keeps all of them, but for `EVEN_STEP`, which its jobs keep
    or break one by one.
    """
    job, group = group_looked_up(
        [batch.model.index, batch.parallelism.index, batch.cluster.index, batch.training.index],
        [
            *(None, None),
            batch.cluster.table.key(ClusterColumns.place_key),
            batch.training.table.key(TrainingColumns.rule_key),
        ],
    )
    shapes, degrees = batch.take(job), columns.take(job)
    of_shape, first = (np.full(len(each), len(RULES), np.int64) for each in (shapes, batch))
    for number in reversed(range(len(RULES))):
        if RULES[number].of_machine:
            first[RULES[number].broken(batch, columns)] = number
        elif number != EVEN_STEP:
            of_shape[RULES[number].broken(shapes, degrees)] = number
    return np.minimum(first, of_shape.take(group))


def first_broken(job: Job) -> ConfigError | None:
    """Return why a job cannot exist under any layout or schedule, by the first rule it breaks."""
    batch = JobBatch.of([job])
    columns = job_columns(batch)
    broken = int(broken_rules(batch, columns)[0])
    if broken > EVEN_STEP and RULES[EVEN_STEP].broken(batch, columns)[0]:
        broken = EVEN_STEP
    return RULES[broken].error(job) if broken < len(RULES) else None


def _error(key: str, value: Any, message: str, allowed: Any) -> ConfigError:
    return ConfigError(f"{key}: {message}", key=key, value=value, allowed=allowed)


class Rule(NamedTuple):
    """Something that sections of a job must keep together."""

    broken: Callable[[JobBatch, JobColumns], Flags]
    """Returns bool[jobs]; of all rules `EVEN_STEP` alone tells jobs of one family apart."""
    error: Callable[[Job], ConfigError]
    """Returns the message for a job that breaks it."""
    of_machine: bool = False
    """Whether it looks at the device. Others see of a cluster where groups lie, and of training
    what `TrainingColumns.rule_key` compares, so that they are checked once for jobs that agree in
    these."""


def _rule(
    broken: Callable[[JobBatch, JobColumns], Flags], *, of_machine: bool = False
) -> Callable[[Callable[[Job], ConfigError]], Rule]:
    """Make a rule of what breaks it and of the function below, which returns the message."""
    return lambda error: Rule(broken, error, of_machine)


def _divides(
    degree: str,
    width: str,
    said: str,
    *,
    where: Callable[[JobBatch], Flags] | None = None,
    legal: Callable[[Job, int], bool] | None = None,
    lists: bool = True,
) -> Rule:
    """Make the rule that a degree divides a width of the model.

    ``where`` tells who must keep it, ``legal`` which divisors keep other rules as well, ``lists``
    whether the message shows them. A dense model has 0 experts, and all degrees divide their
    widths of 0.
    """

    def both(batch: JobBatch, columns: JobColumns) -> tuple[Ints, Ints]:
        return getattr(columns, degree), getattr(batch.model, width)

    def broken(batch: JobBatch, columns: JobColumns) -> Flags:
        ranks, whole = both(batch, columns)
        uneven = np.asarray(whole % ranks != 0)
        return uneven if where is None else uneven & where(batch)

    def error(job: Job) -> ConfigError:
        batch = JobBatch.of([job])
        ranks, whole = (int(column[0]) for column in both(batch, job_columns(batch)))
        values = [value for value in divisors(whole) if legal is None or legal(job, value)]
        listed = f"; legal: {_list(values)}" if lists else ""
        text = f"{degree} ({ranks}) does not divide {said} ({whole}){listed}"
        return _error(f"parallelism.{degree}", ranks, text, values)

    return Rule(broken, error)


@_rule(
    lambda b, c: (
        (b.model.is_mla == 0)
        & (b.model.query_groups % c.tp != 0)
        & (c.tp % b.model.query_groups != 0)
    )
)
def _key_heads(job: Job) -> ConfigError:
    tp, groups = job.parallelism.tp, job.model.query_groups
    legal = [
        value
        for value in divisors(job.model.num_attention_heads)
        if groups % value == 0 or value % groups == 0
    ]
    text = (
        f"tp ({tp}) must divide num_query_groups ({groups}) or be a multiple of it; "
        f"legal: {_list(legal)}"
    )
    return _error("parallelism.tp", tp, text, legal)


@_rule(lambda b, c: (b.model.is_moe == 0) & (c.ep > 1))
def _dense_experts(job: Job) -> ConfigError:
    ep = job.parallelism.ep
    text = f"ep ({ep}) spreads experts, but {job.model.name} is a dense model"
    return _error("parallelism.ep", ep, text, [1])


@_rule(lambda b, c: (b.model.is_moe == 1) & (c.gpus % (c.etp * c.ep * c.pp) != 0))
def _expert_world(job: Job) -> ConfigError:
    assert job.model.moe is not None
    split, gpus = job.parallelism, job.cluster.gpus
    expert_tp = split.expert_tp
    world = expert_tp * split.ep * split.pp
    text = (
        f"etp ({expert_tp}) * ep ({split.ep}) * pp ({split.pp}) = {world} must divide the "
        f"{gpus} GPUs; {_enough(job)}"
    )
    experts = divisors(job.model.moe.num_experts)
    legal = [value for value in experts if gpus % (expert_tp * value * split.pp) == 0]
    return _error("parallelism.ep", split.ep, text, legal)


@_rule(lambda b, c: (b.model.is_moe == 1) & (c.tp > 1) & (b.parallelism.splits_sequence == 0))
def _expert_sequence(job: Job) -> ConfigError:
    text = "mixture-of-experts layers with tp > 1 need sequence_parallel, as in Megatron"
    return _error("parallelism.sequence_parallel", job.parallelism.sequence_parallel, text, [True])


def _enough(job: Job) -> str:
    """Say how many nodes the layout would run on."""
    each = job.cluster.gpus_per_node
    nodes = job.parallelism.least_nodes(each, experts=job.model.moe is not None)
    if job.cluster.nodes < nodes:
        return f"{nodes} nodes of {each} would do (cluster.nodes={nodes})"
    return f"a multiple of {nodes} {'node' if nodes == 1 else 'nodes'} of {each} would do"


@_rule(lambda _, c: c.gpus % (c.tp * c.pp * c.cp) != 0)
def _world(job: Job) -> ConfigError:
    split, gpus = job.parallelism, job.cluster.gpus
    dense = split.tp * split.pp * split.cp
    below = gpus // dense * dense
    nearest = f"{below} or {below + dense}" if below else f"{dense}"
    text = (
        f"tp ({split.tp}) * pp ({split.pp}) * cp ({split.cp}) = {dense} must divide the {gpus} "
        f"GPUs of {job.cluster.nodes} nodes with {job.cluster.gpus_per_node} each; nearest that "
        f"fit: {nearest} GPUs; {_enough(job)}"
    )
    return _error("cluster.nodes", job.cluster.nodes, text, f"a multiple of {dense} GPUs")


@_rule(lambda b, c: (b.parallelism.stated_dp != 0) & (b.parallelism.stated_dp != c.dp))
def _stated_dp(job: Job) -> ConfigError:
    given, derived = job.parallelism.dp, data_parallel(job)
    text = f"dp ({given}) contradicts the cluster, which leaves dp = {derived}; leave dp out"
    return _error("parallelism.dp", given, text, [derived])


def _uneven_sequence(batch: JobBatch, columns: JobColumns) -> Flags:
    halves = (columns.cp > 1) & (batch.parallelism.cp_type != CP_TYPES.index("a2a"))
    return np.asarray(columns.seq % (columns.cp * np.where(halves, 2, 1)) != 0)


@_rule(_uneven_sequence)
def _sequence(job: Job) -> ConfigError:
    cp, seq = job.parallelism.cp, job.training.seq_length
    parts = cp * (2 if cp > 1 and job.parallelism.cp_comm_type != "a2a" else 1)
    why = " (2 chunks a rank balance the causal mask)" if parts != cp else ""
    text = f"cp ({cp}) needs seq_length ({seq}) to be a multiple of {parts}{why}"
    return _error("training.seq_length", seq, text, f"a multiple of {parts}")


@_rule(lambda b, c: (b.parallelism.splits_sequence == 1) & (c.seq // c.cp % c.tp != 0))
def _split_sequence(job: Job) -> ConfigError:
    split, seq = job.parallelism, job.training.seq_length
    text = (
        f"sequence_parallel needs seq_length / cp ({seq // split.cp}) to be a multiple of tp "
        f"({split.tp})"
    )
    return _error("training.seq_length", seq, text, f"a multiple of {split.cp * split.tp}")


@_rule(
    lambda b, c: (
        (b.parallelism.cp_type == CP_TYPES.index("a2a")) & (b.model.heads // c.tp % c.cp != 0)
    )
)
def _exchanged_heads(job: Job) -> ConfigError:
    split = job.parallelism
    heads = job.model.num_attention_heads // split.tp
    text = f"cp_comm_type a2a exchanges heads: cp ({split.cp}) must divide heads / tp ({heads})"
    return _error("parallelism.cp", split.cp, text, divisors(heads))


@_rule(lambda b, c: b.model.state_heads // c.tp % c.cp != 0)
def _exchanged_states(job: Job) -> ConfigError:
    split, recurrent = job.parallelism, job.model.recurrent
    assert recurrent is not None
    heads = recurrent.num_heads // split.tp
    text = f"recurrent layers exchange heads: cp ({split.cp}) must divide heads / tp ({heads})"
    return _error("parallelism.cp", split.cp, text, divisors(heads))


@_rule(
    lambda b, c: (
        b.model.vision_images * b.model.vision_patches > c.seq * np.maximum(1, b.model.vision_merge)
    )
)
def _images(job: Job) -> ConfigError:
    assert job.model.vision is not None
    seq, tokens = job.training.seq_length, job.model.vision.tokens
    text = f"seq_length ({seq}) does not hold the {tokens} tokens of images"
    return _error("training.seq_length", seq, text, f"at least {tokens}")


@_rule(lambda b, c: (b.model.joined_tokens >= c.seq) | (b.model.joined_tokens % c.cp != 0))
def _streams(job: Job) -> ConfigError:
    assert job.model.diffusion is not None
    seq, text, cp = (
        job.training.seq_length, job.model.diffusion.text_tokens, job.parallelism.cp,
    )  # fmt: skip
    if text >= seq:
        said = f"seq_length ({seq}) leaves no latents behind {text} tokens of text"
        return _error("training.seq_length", seq, said, f"more than {text}")
    said = f"cp ({cp}) does not divide the {text} tokens of text beside the latents"
    return _error("parallelism.cp", cp, said, divisors(text))


def _not_of_latents(field: str, stated: Callable[[JobBatch], Flags]) -> Rule:
    """Make the rule that a diffusion transformer is trained without something."""

    def error(job: Job) -> ConfigError:
        text = f"is not modelled for a diffusion transformer such as {job.model.name}"
        return _error(f"training.{field}", getattr(job.training, field), text, "none")

    return Rule(lambda b, _: (b.model.latent_size > 0) & stated(b), error)


@_rule(lambda b, c: (b.model.learned == 1) & (c.seq > b.model.max_positions))
def _positions(job: Job) -> ConfigError:
    seq, most = job.training.seq_length, job.model.max_position_embeddings
    text = (
        f"seq_length ({seq}) exceeds max_position_embeddings ({most}), the size of the learned "
        f"position table"
    )
    return _error("training.seq_length", seq, text, f"at most {most}, or a larger table")


@_rule(lambda b, c: c.dp * c.cp % np.maximum(1, b.parallelism.sharding_ranks) != 0)
def _stated_part(job: Job) -> ConfigError:
    split = job.parallelism
    size, ranks = split.sharding_group_size, data_parallel(job) * split.cp
    text = f"{size} does not divide the {ranks} ranks of dp * cp"
    return _error("parallelism.sharding_group_size", size, text, divisors(ranks))


@_rule(lambda _, c: c.dp * c.cp % c.copies != 0)
def _stated_copies(job: Job) -> ConfigError:
    split, key = job.parallelism, "num_distributed_optimizer_instances"
    copies, ranks = split.num_distributed_optimizer_instances, data_parallel(job) * split.cp
    text = f"{copies} does not divide the {ranks} ranks of dp * cp"
    return _error(f"parallelism.{key}", copies, text, divisors(ranks))


@_rule(lambda b, c: (b.model.is_moe == 1) & (c.edp % c.copies != 0))
def _expert_copies(job: Job) -> ConfigError:
    split, gpus = job.parallelism, job.cluster.gpus
    edp = gpus // (split.expert_tp * split.ep * split.pp)
    copies = split.num_distributed_optimizer_instances
    if split.sharding_group_size:
        copies = data_parallel(job) * split.cp // split.sharding_group_size
    text = f"{copies} copies of sharded states do not divide the {edp} copies of each expert"
    return _error("parallelism.num_distributed_optimizer_instances", copies, text, divisors(edp))


@_rule(
    lambda b, c: (
        (b.model.is_moe == 1) & ((b.parallelism.pp_is_last == 0) & (c.pp > 1)) & (c.dp != c.edp)
    )
)
def _expert_order(job: Job) -> ConfigError:
    order = job.parallelism.rank_order
    text = (
        "experts need as many copies (etp * ep) as dense layers (tp * cp) where the order does not "
        f"end with pp, as in Megatron; it is {order}"
    )
    return _error("parallelism.rank_order", order, text, "an order that ends with pp")


@_rule(lambda b, c: b.training.global_batch % (c.micro_batch * c.dp) != 0)
def _batch(job: Job) -> ConfigError:
    training, dp = job.training, data_parallel(job)
    step = training.micro_batch_size * dp
    below = training.global_batch_size // step * step
    nearest = [value for value in (below, below + step) if value]
    text = (
        f"global_batch_size ({training.global_batch_size}) is not a multiple of micro_batch_size "
        f"({training.micro_batch_size}) * dp ({dp}) = {step}; nearest: "
        f"{' or '.join(map(str, nearest))}"
    )
    return _error("training.global_batch_size", training.global_batch_size, text, nearest)


@_rule(lambda b, _: b.cluster.native_mask >> b.training.dtype & 1 == 0, of_machine=True)
def _precision(job: Job) -> ConfigError:
    precision, device = job.training.precision, job.cluster.device
    legal = [name for name in device.matrix_flop_per_clk_per_cu if name in get_args(Precision)]
    text = f"{device.name} has no native {precision} matrix rate; it has {_list(legal)}"
    return _error("training.precision", precision, text, legal)


def _unknown_attention(batch: JobBatch, columns: JobColumns) -> Flags:
    del columns
    training, cluster = batch.training, batch.cluster
    if training.default_attention.all():
        return np.zeros(len(batch), np.bool_)
    first, group = group_rows(training.attention_key, cluster.pipeline_key)
    unknown = []
    for row in first.tolist():
        name = attention_name(training.of(row))
        fp8 = uses_fp8_attention(training.of(row))
        unknown.append(name not in _trained_attentions(cluster.of(row).device, fp8=fp8))
    return np.array(unknown, np.bool_)[group]


@_rule(_unknown_attention, of_machine=True)
def _attention(job: Job) -> ConfigError:
    name, device = job.training.attention_kernel, job.cluster.device
    if uses_fp8_attention(job.training):
        variants = [each.removesuffix("_fp8") for each in _trained_attentions(device, fp8=True)]
        text = (
            f"{device.name} has no FP8 variant of the attention kernel {name!r}; "
            f"it has those of: {_list(variants) or 'none'}"
        )
        return _error("training.fp8_attention", True, text, variants)
    legal = _trained_attentions(device)
    if name in device.attention_kernels:
        types = ", ".join(device.attention_kernels[name].dtypes)
        text = (
            f"attention kernel {name!r} of {device.name} supports only {types}, but training has "
            f"Q, K and V in 16 or 32 bits; legal: {_list(legal)}"
        )
    else:
        text = f"{device.name} has no attention kernel {name!r}; it has {_list(legal)}"
    return _error("training.attention_kernel", name, text, legal)


def _trained_attentions(device: Device, *, fp8: bool = False) -> list[str]:
    """Return the attentions that a job may run, with Q, K and V in FP8 or wide."""
    kernels = device.attention_kernels.items()
    if fp8:
        return [name for name, kernel in kernels if "fp8" in kernel.dtypes]
    wide = [name for name, kernel in kernels if not kernel.dtypes or WIDE & {*kernel.dtypes}]
    return ["default", *wide]


@_rule(lambda b, _: (b.training.adapted == 1) & (b.training.adapter_sites & b.model.sites == 0))
def _adapts_nothing(job: Job) -> ConfigError:
    targets = list(_adapter(job).targets)
    text = f"{job.model.name} has none of {', '.join(targets)}"
    allowed = f"names of {', '.join(sorted(model_sites(job.model)))}"
    return _error("training.adapter.targets", targets, text, allowed)


def _uneven_rank(batch: JobBatch, columns: JobColumns) -> Flags:
    training = batch.training
    uneven = training.adapter_rank % columns.tp != 0
    uneven_experts = training.adapter_expert_rank % np.maximum(1, columns.etp) != 0
    return np.asarray(uneven | (uneven_experts & (batch.model.is_moe == 1)))


@_rule(_uneven_rank)
def _adapter_rank(job: Job) -> ConfigError:
    adapter, split = _adapter(job), job.parallelism
    key, rank, degree, ranks = "training.adapter.rank", adapter.rank, "tp", split.tp
    if rank % ranks == 0:
        key, rank = "training.adapter.expert_rank", adapter.rank_of_experts
        degree, ranks = "etp", split.expert_tp
    msg = f"{key} ({rank}) must be a multiple of {degree} ({ranks}), over which A is divided"
    return ConfigError(msg, key=key, value=rank, allowed=f"a multiple of {ranks}")


def _adapter(job: Job) -> AdapterConfig:
    adapter = job.training.adapter
    assert adapter is not None
    return adapter


def _list(values: Sequence[object]) -> str:
    shown = [str(value) for value in values[:16]]
    return ", ".join(shown) + (" ..." if len(values) > len(shown) else "")


RULES: tuple[Rule, ...] = (
    _divides("tp", "heads", "num_attention_heads"),
    _key_heads,
    _divides(
        "tp",
        "ffn",
        "ffn_hidden_size",
        where=lambda batch: batch.model.has_mlp == 1,
        legal=lambda job, value: job.model.num_attention_heads % value == 0,
    ),
    _divides("tp", "vision_heads", "the heads of the vision tower"),
    _divides("tp", "vision_ffn", "the vision tower's MLP"),
    _images,
    _divides("tp", "state_heads", "the heads of the recurrent layers"),
    _divides("tp", "state_groups", "the groups of the recurrent layers"),
    _dense_experts,
    _divides("ep", "experts", "num_experts"),
    _divides("etp", "expert_ffn", "the expert width"),
    _divides("tp", "shared_ffn", "the shared experts' width", lists=False),
    _expert_world,
    _expert_sequence,
    _world,
    _stated_dp,
    _sequence,
    _split_sequence,
    _exchanged_heads,
    _exchanged_states,
    _streams,
    _not_of_latents("adapter", lambda batch: batch.training.adapted == 1),
    _not_of_latents("packed_tokens", lambda batch: batch.training.packed > 0),
    _positions,
    _stated_part,
    _stated_copies,
    _expert_copies,
    _expert_order,
    _batch,
    _precision,
    _attention,
    _adapts_nothing,
    _adapter_rank,
)
"""Every rule that spans sections; the first broken rule is reported."""

EVEN_STEP = RULES.index(_batch)
"""The rule that looks at the global batch: the number of microbatches is whole."""
