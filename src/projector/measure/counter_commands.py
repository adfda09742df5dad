"""The commands of a second run, which collects hardware counters kernel by kernel.

Counters come from a run whose kernels wait for each other, so that neither its times nor its
overlap mean anything: the timed trace gives those. ``projector trace`` joins both runs.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from projector.trace.counters import load_metrics

SCRIPT = "counters.sh"
_LIST = "counters.txt"

_ABOUT = """\
#!/bin/sh
# Collects hardware counters in a run of its own. Kernels wait for each other in it, so its counters
# count and its times do not: `projector trace gap TRACES --counters FILE` joins both runs.
# Make the run short: a few iterations are enough. The command below is that of one rank. Of several
# ranks, start all through their launcher (torchrun ...), here in the place of python.
"""


def write_counter_commands(folder: Path, command: Sequence[str], vendor: str) -> Path:
    """Write ``counters.sh``, and for AMD the list of counters that it reads.

    Parameters
    ----------
    folder : Path
        Folder of the trace, which must be there.
    command : sequence of str
        The training run.
    vendor : str
        ``AMD`` or ``NVIDIA``.

    Returns
    -------
    Path
        The script.
    """
    sets = load_metrics().collect[vendor]
    script = folder / SCRIPT
    if vendor == "AMD":
        # Each line of the list is a run of the whole program.
        lines = [f"pmc: {' '.join(each)}\n" for each in sets]
        (folder / _LIST).write_text("".join(lines), encoding="utf-8")
    line = f"{_CALLS[vendor](folder, sets)}{shlex.join(command)}\n"
    script.write_text(_ABOUT + line, encoding="utf-8")
    script.chmod(0o755)
    return script


def _amd(folder: Path, sets: Sequence[Sequence[str]]) -> str:
    """Return the call of rocprofv3, which runs the program once for each line of its list."""
    del sets
    out = shlex.quote(str(folder / "counters"))
    listed = shlex.quote(str(folder / _LIST))
    return f"rocprofv3 -i {listed} -d {out} --output-format csv -- "


def _nvidia(folder: Path, sets: Sequence[Sequence[str]]) -> str:
    """Return the call of ncu; it replays each kernel until all metrics are there."""
    metrics = ",".join(name for each in sets for name in each)
    out = shlex.quote(str(folder / "counters.csv"))
    return f"ncu --csv --page raw --target-processes all --metrics {metrics} --log-file {out} "


_CALLS: Mapping[str, Callable[[Path, Sequence[Sequence[str]]], str]] = {
    "AMD": _amd,
    "NVIDIA": _nvidia,
}
