"""``projector warmup``."""

import time

import click

from projector.cli.job_options import output_options
from projector.cli.output import (
    announce_compilation,
    plain_envelope,
    print_json,
    print_warnings,
    say,
    write,
)


@click.command("warmup")
@output_options
def command(as_json: bool, quiet: bool) -> None:
    """Compile all kernels for this machine and keep them, so that later runs start fast.

    Without it, the first projections run kernels as Python, and a process in the background
    compiles them afterwards. PROJECTOR_BACKGROUND=0 in the environment forbids that process;
    PROJECTOR_CACHE_DIR names the folder of kernels.
    """
    announce_compilation(quiet=quiet)
    begin = time.perf_counter()
    from projector.compiling.warmup import compile_kernels
    from projector.kernels._cache import cache_dir, cache_is_writable

    compile_kernels(None if quiet else lambda part: say(f"kernels of {part} ..."))
    seconds = time.perf_counter() - begin
    warnings = []
    if not cache_is_writable():
        warnings.append(f"the kernels cannot be kept: {cache_dir()} cannot be written")
    if as_json:
        result = {"warnings": warnings, "cache": str(cache_dir()), "seconds": seconds}
        print_json({**plain_envelope(), **result})
        return
    if not quiet and not warnings:
        write(f"kernels are ready after {seconds:.1f} s, in {cache_dir()}\n")
    print_warnings(warnings, quiet=quiet)
