"""A launch script of Megatron-LM."""

import shlex
from collections.abc import Mapping
from typing import Any, Final

from projector.config.formats.carried import comment_lines
from projector.config.formats.emit.megatron_arguments import megatron_arguments
from projector.config.job import Job
from projector.distribution import package_version

SUFFIX: Final = ".sh"

_SPELLINGS: Final = {
    "fp8": "fp8_format",
    "fp4": "fp4_format",
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage",
}
"""Name in code -> argument, where it is another one."""

_SWITCHES_OFF: Final = {
    "add_bias_linear": "disable_bias_linear",
    "gradient_accumulation_fusion": "no_gradient_accumulation_fusion",
    "overlap_p2p_comm": "no_overlap_p2p_communication",
    "torch_fsdp2_reshard_after_forward": "torch_fsdp2_no_reshard_after_forward",
}
"""Settings that are on unless this argument turns them off; others are off unless given."""

_HEAD: Final = """\
#!/usr/bin/env bash
# {title}: a launch script of Megatron-LM, written by projector {version}.
# Run it once on each node with NODE_RANK and MASTER_ADDR set. The data is Megatron's mock data;
# tokenizer, learning rate, iterations and checkpoints are yours to set.
# The next comments say what the arguments cannot; projector reads them with the arguments.
{carried}set -euo pipefail
"""

_LAUNCH: Final = """
DATA_ARGS=(
  --mock-data
  --tokenizer-type NullTokenizer
  --train-iters 20
  --lr 1.0e-4
)

torchrun \\
  --nnodes {nodes} --nproc-per-node {gpus_per_node} \\
  --node-rank "${{NODE_RANK:-0}}" \\
  --master-addr "${{MASTER_ADDR:-localhost}}" --master-port "${{MASTER_PORT:-29500}}" \\
  pretrain_gpt.py \\
  {arrays} "${{DATA_ARGS[@]}}"
"""


def own(job: Job) -> dict[str, Any]:
    """Return nothing: the launcher names the nodes."""
    del job
    return {}


def write(job: Job, carried: Mapping[str, Any]) -> str:
    """Return the script of a job; see `projector.config.formats.emit.emitted.Writer`."""
    title = " ".join((job.name or job.model.name).split())
    text = _HEAD.format(title=title, version=package_version(), carried=comment_lines(carried))
    groups = megatron_arguments(job)
    if "padded_vocab_size" not in groups["model"]:
        # The NullTokenizer of the script adds the end of a document before Megatron pads.
        groups["model"]["vocab_size"] -= 1
    for group, settings in groups.items():
        lines = [f"  {line}\n" for name, value in settings.items() if (line := _line(name, value))]
        text += f"\n{_array(group)}=(\n{''.join(lines)})\n"
    return text + _LAUNCH.format(
        nodes=job.cluster.nodes,
        gpus_per_node=job.cluster.gpus_per_node,
        arrays=" ".join(f'"${{{_array(group)}[@]}}"' for group in groups),
    )


def _array(group: str) -> str:
    return f"{group.upper()}_ARGS"


def _line(name: str, value: Any) -> str:
    """Return one argument, nothing for a switch that is off by default."""
    if value is False:
        switch = _SWITCHES_OFF.get(name)
        return "" if switch is None else _argument(switch)
    argument = _argument(_SPELLINGS.get(name, name))
    if value is True:
        return "" if name in _SWITCHES_OFF else argument
    words = value if isinstance(value, list) else [value]
    return " ".join([argument, *(shlex.quote(str(word)) for word in words)])


def _argument(name: str) -> str:
    return f"--{name.replace('_', '-')}"
