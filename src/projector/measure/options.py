"""Options that say where times come from, checked before anything is loaded."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from projector.errors import ConfigError
from projector.files import check_place

AUTO, SIMULATE, BENCHMARK, BOTH = MODES = ("auto", "simulate", "benchmark", "both")
"""``auto`` is ``benchmark`` where something was measured or can be, else ``simulate``."""


def check_options(
    mode: str,
    records: Sequence[object],
    benchmark_gpus: int | None = None,
    save: str | Path | None = None,
) -> None:
    """Refuse options that contradict each other."""
    if mode not in MODES:
        msg = f"profiling_mode: {mode!r} is none of {', '.join(MODES)}"
        raise ConfigError(msg, key="profiling_mode", value=mode, allowed=list(MODES))
    if benchmark_gpus is not None and benchmark_gpus < 1:
        msg = f"benchmark_gpus: {benchmark_gpus} GPUs measure nothing; 1 is enough"
        raise ConfigError(msg, key="benchmark_gpus", value=benchmark_gpus, allowed="at least 1")
    measuring = {"benchmark_gpus": benchmark_gpus, "save_benchmark": save}
    if mode == SIMULATE:
        given = {"load_benchmark": tuple(records) or None, **measuring}
        reason = "--profiling-mode simulate takes nothing that is measured"
        _refuse(given, reason, "--profiling-mode benchmark")
    if records:
        reason = "a record that is loaded is not measured again"
        _refuse(measuring, reason, "without --load-benchmark")
    if save is not None:
        check_place(save, key="save_benchmark")


def _named(value: object) -> str:
    """Return the names of files; records have none."""
    listed = value if isinstance(value, tuple) else (value,)
    return ", ".join(str(one) if isinstance(one, str | Path) else "a record" for one in listed)


def _refuse(given: Mapping[str, object], reason: str, allowed: str) -> None:
    for key, value in given.items():
        if value is not None:
            shown = value if isinstance(value, int) else _named(value)
            raise ConfigError(f"{key}: {reason}", key=key, value=shown, allowed=allowed)
