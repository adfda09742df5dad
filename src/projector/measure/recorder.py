"""Records a training loop: torch's profiler, and samples of the machine beside it.

A second run collects hardware counters. Its kernels wait for each other, so that neither its times
nor its overlap mean anything: the timed trace gives those. ``projector trace`` joins both runs.

This file imports torch, into the process of the user who trains with it.
"""

import argparse
import os
import runpy
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from projector.config.resources import hardware_table
from projector.errors import ConfigError, shown
from projector.files import made_folder
from projector.measure.sampling import RunSampler, core_quantities, device_quantities
from projector.measure.smi import Library, address_of, open_library
from projector.trace.counters import load_metrics
from projector.trace.host import PREFIX
from projector.units import unwrapped

SCRIPT = "counters.sh"
_LIST = "counters.txt"


def write_counter_commands(folder: Path, command: Sequence[str], vendor: str) -> Path:
    """Write ``counters.sh`` into the folder of a trace, and for AMD the list of counters it reads.

    The vendor is ``AMD`` or ``NVIDIA``. Returns the script.
    """
    sets = load_metrics().collect[vendor]
    script, listed = folder / SCRIPT, folder / _LIST
    if vendor == "AMD":
        # Each line of the list is a run of the whole program.
        lines = [f"pmc: {' '.join(each)}\n" for each in sets]
        listed.write_text("".join(lines), encoding="utf-8")
        files = f"-i {shlex.quote(str(listed))} -d {shlex.quote(str(folder / 'counters'))}"
        call = f"rocprofv3 {files} --output-format csv --"
    else:
        # It replays each kernel until all metrics are there.
        metrics = ",".join(name for each in sets for name in each)
        out = shlex.quote(str(folder / "counters.csv"))
        call = f"ncu --csv --page raw --target-processes all --metrics {metrics} --log-file {out}"
    line = f"{call} {shlex.join(command)}\n"
    about = hardware_table("report_words.yaml")["counter_script"]
    script.write_text(about + line, encoding="utf-8")
    script.chmod(0o755)
    return script


WARMUP, ACTIVE = 10, 10
"""Iterations of the study: the profiler warms up in the first ten and records the next ten."""

_SAMPLES_PERIOD_S = 0.1
"""A reading of all cores takes about a millisecond on 192 of them."""


_WRAPPERS = ("module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
"""Names under which DistributedDataParallel, FSDP, checkpoints and torch.compile hold a module."""


_RUNNING: list[Path] = []
"""The file that is being recorded; torch does not say so during the warm-up."""


class TraceRecorder:
    """What the loop calls; `record_trace` makes it."""

    def __init__(self, profiler: Any, path: Path, rank: int) -> None:
        """Take over a running profiler."""
        self.path = path
        """File of this rank's trace, once enough iterations have ended."""
        self.rank = rank
        self.steps = 0
        """Iterations so far."""
        self._profiler = profiler

    def step(self) -> None:
        """Say that an iteration has ended."""
        self.steps += 1
        self._profiler.step()


@contextmanager
def record_trace(
    folder: str | Path,
    *,
    warmup: int = WARMUP,
    active: int = ACTIVE,
    modules: bool = True,
    shapes: bool = True,
    stacks: bool = False,
    samples: bool = True,
    period_s: float = _SAMPLES_PERIOD_S,
    every_step: bool = False,
    command: Sequence[str] | None = None,
) -> Iterator[TraceRecorder]:
    """Record some iterations of a training loop into a folder, one trace a rank.

    Beside ``rank0.json.gz`` the first rank of a machine writes the utilisation of its cores, each
    rank clocks and power of its GPU (``rank0.samples.jsonl``), and rank 0 of a run on GPUs the
    command of a second, serialised run that collects hardware counters (``counters.sh``).

    Args:
        folder (str or Path): Made where it is not there.
        warmup, active (int): Iterations that are left out, and those that are recorded after them.
        modules (bool): Whether modules are named in the trace, so that operations fall into layers.
            It adds two calls to each module's forward; a compiled model is better recorded without.
        shapes, stacks (bool): Whether shapes of operands and Python stacks are recorded.
        samples (bool): Whether cores, clocks and power are sampled.
        period_s (float): Seconds from one sample to the next.
        every_step (bool): Whether each step of an optimizer ends an iteration, so that the loop
            need not say so.
        command (sequence of str, optional): What ``counters.sh`` runs, by default the command of
            this process.

    Yields:
        TraceRecorder: call its ``step()`` at the end of each iteration.

    Raises:
        ConfigError: If a count or the period makes no sense, or the folder cannot be made.
    """
    _check(warmup, active, period_s)
    rank, local_rank, _ = _place()
    # From the root, because training scripts change their working folder.
    place = made_folder(folder, key="folder")
    path = place / f"rank{rank}.json.gz"
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=warmup, active=active, repeat=1),
        on_trace_ready=lambda done: _export(done, path),
        record_shapes=shapes,
        with_stack=stacks,
        with_modules=stacks,
    )
    recorder = TraceRecorder(profiler, path, rank)
    with ExitStack() as stack:
        _RUNNING.append(path)
        stack.callback(_RUNNING.clear)
        # Whatever ends the loop, also a script's own exit, this comes last.
        stack.callback(_finish, recorder, warmup, command or sys.orig_argv)
        if samples:
            stack.enter_context(_sampler(place, rank, local_rank, period_s, stack))
        if modules:
            stack.enter_context(named_modules())
        stack.enter_context(profiler)
        if every_step:
            handle = register_optimizer_step_post_hook(_first_optimizer(recorder))
            stack.callback(handle.remove)
        yield recorder


def _export(profiler: Any, path: Path) -> None:
    """Write the trace; where that fails, the training goes on."""
    try:
        profiler.export_chrome_trace(str(path))
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        sys.stderr.write(f"projector: {path} cannot be written: {error.strerror or error}\n")


def _finish(recorder: TraceRecorder, warmup: int, command: Sequence[str]) -> None:
    if recorder.rank == 0 and torch.cuda.is_available():
        vendor = "AMD" if torch.version.hip else "NVIDIA"
        write_counter_commands(recorder.path.parent, command, vendor)
    if recorder.steps <= warmup:
        sys.stderr.write(
            f"projector: nothing was recorded: the loop ended after {recorder.steps} iterations, "
            f"and {warmup} are warm-up\n"
        )


@contextmanager
def named_modules() -> Iterator[None]:
    """Name the forward of modules in the trace by their place in the outermost one called."""
    names: dict[int, str] = {}
    running: list[Any] = []

    def enter(module: Any, *_: Any) -> None:
        if not running and id(module) not in names:
            for name, each in module.named_modules(remove_duplicate=False):
                names.setdefault(id(each), plain_name(name) or type(module).__name__)
        span = record_function(f"{PREFIX}{names.get(id(module), type(module).__name__)}")
        span.__enter__()
        running.append(span)

    def leave(*_: Any) -> None:
        if running:
            running.pop().__exit__(None, None, None)

    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def plain_name(name: str) -> str:
    """Return the name of a module without the wrappers of torch around it and its parents."""
    return ".".join([part for part in name.split(".") if part not in _WRAPPERS])


def _check(warmup: Any, active: Any, period_s: Any) -> None:
    for key, value in (("warmup", warmup), ("active", active)):
        if not isinstance(unwrapped(value), int) or value < 1:
            msg = f"{key} counts iterations, 1 or more, and cannot be {shown(value)}"
            raise ConfigError(msg, key=key, value=value, allowed="at least 1")
    if not isinstance(unwrapped(period_s), int | float) or not 0 < period_s < float("inf"):
        msg = f"period_s: samples need time between them, and {shown(period_s)} is none"
        raise ConfigError(msg, key="period_s", value=period_s, allowed="more than 0")
    # Torch has one profiler in a process, and a second one ends the process with a fault.
    if torch.autograd._profiler_enabled() or _RUNNING:  # noqa: SLF001
        msg = "record_trace: this process is being profiled already; end that profiler first"
        raise ConfigError(msg, key="record_trace", value="a second profiler", allowed="one")


def _place() -> tuple[int, int, int]:
    """Return rank, rank on this machine and number of ranks, as torchrun sets them."""
    rank, local, world = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))
    )
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return rank, local, world


def _sampler(
    folder: Path, rank: int, local_rank: int, period_s: float, stack: ExitStack
) -> RunSampler:
    quantities, about = core_quantities() if local_rank == 0 else ([], {})
    library = _library()
    if library is not None:
        stack.callback(library.close)
        quantities += device_quantities(library, f"GPU {torch.cuda.current_device()}")
    path = folder / f"rank{rank}.samples.jsonl"
    return RunSampler(path, quantities, period_s=period_s, about={"rank": rank, **about})


def _library() -> Library | None:
    if not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device()
    return open_library(index, address_of(torch.cuda.get_device_properties(index)))


def _first_optimizer(recorder: TraceRecorder) -> Callable[..., None]:
    """Return a hook that ends an iteration where the first optimizer that steps does so again.

    A program with several optimizers steps each of them in an iteration.
    """
    first: list[int] = []

    def hook(optimizer: Any, *_: Any) -> None:
        if not first:
            first.append(id(optimizer))
        if first[0] == id(optimizer):
            recorder.step()

    return hook


def _leave(number: int, _: Any) -> None:
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a script of the user with the profiler around it."""
    parser = argparse.ArgumentParser(prog="projector trace record")
    parser.add_argument("--out", required=True)
    parser.add_argument("--warmup", type=int, default=WARMUP)
    parser.add_argument("--active", type=int, default=ACTIVE)
    parser.add_argument("--stacks", action="store_true")
    parser.add_argument("--no-modules", dest="modules", action="store_false")
    parser.add_argument("--module", action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    asked = parser.parse_args(arguments)
    sys.argv = [asked.script, *asked.arguments]
    command = [sys.executable, *["-m"] * asked.module, *sys.argv]
    # Schedulers end jobs so; what was recorded until then is written.
    signal.signal(signal.SIGTERM, _leave)
    try:
        _check_script("" if asked.module else asked.script)
        with record_trace(
            asked.out, warmup=asked.warmup, active=asked.active, stacks=asked.stacks,
            modules=asked.modules, every_step=True, command=command,
        ):  # fmt: skip
            program = asked.script
            if asked.module:
                runpy.run_module(program, run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = str(Path(program).resolve().parent)
                runpy.run_path(program, run_name="__main__")
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


def _check_script(script: str) -> None:
    if script and not os.path.exists(script):  # noqa: PTH110  # of any name
        msg = f"command: {shown(script)} does not exist"
        raise ConfigError(msg, key="command", value=script, allowed="a Python script")


if __name__ == "__main__":
    main()
