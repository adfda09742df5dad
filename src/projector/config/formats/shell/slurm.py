"""What options of Slurm say about nodes and GPUs."""

import re
from collections.abc import Sequence

_LINE = re.compile(r"^#SBATCH[ \t]+([^\n#]*)", re.MULTILINE)
_OPTIONS = {
    "--nodes": "nnodes",
    "-N": "nnodes",
    "--ntasks-per-node": "nproc_per_node",
    "--gpus-per-node": "nproc_per_node",
    "--gres": "nproc_per_node",
}
"""Option -> argument of torchrun that says the same."""

_LAUNCHERS = {"sbatch", "srun", "salloc"}
_GPUS = re.compile(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d{1,6})", re.ASCII)


def batch_options(text: str) -> dict[str, int]:
    """Return what ``#SBATCH`` lines give: ``nnodes`` and ``nproc_per_node``."""
    return _read([word for line in _LINE.findall(text) for word in line.split()])


def launcher_options(words: Sequence[str]) -> dict[str, int]:
    """Return the same of a command of Slurm, nothing of any other command."""
    program = words[0].rpartition("/")[2] if words else ""
    return _read(words[1:]) if program in _LAUNCHERS else {}


def _read(words: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word.startswith("-N") and word[2:].isdecimal():
            name, equals, value = "-N", "=", word[2:]
        target = _OPTIONS.get(name)
        if target is None:
            continue
        if not equals:
            value = words[place + 1] if place + 1 < len(words) else ""
        count = _GPUS.fullmatch(value.rpartition("-")[2] if target == "nnodes" else value)
        # One task a node starts all of its GPUs by itself.
        if count is not None and not (name == "--ntasks-per-node" and count[1] == "1"):
            found[target] = int(count[1])
    return found
