"""``projector warmup``."""

import time

from projector.cli.options import command
from projector.cli.output import Printer, announce_compilation, print_plain, say, write


@command()
def warmup(*, printer: Printer) -> None:
    """Compile all kernels for this machine and keep them, so that later runs start fast.

    Without it, the first projections run kernels as Python, and a process in the background
    compiles them afterwards. PROJECTOR_BACKGROUND=0 in the environment forbids that process;
    PROJECTOR_CACHE_DIR names the folder of kernels.
    """
    announce_compilation(quiet=printer.quiet)
    begin = time.perf_counter()
    from projector.compiling.warmup import compile_kernels
    from projector.kernels._cache import cache_dir, cache_fault

    compile_kernels(None if printer.quiet else lambda part: say(f"kernels of {part} ..."))
    seconds = time.perf_counter() - begin
    fault = cache_fault()
    warnings = [f"the kernels cannot be kept: {fault}"] if fault else []
    if printer.as_json:
        print_plain({"warnings": warnings, "cache": str(cache_dir()), "seconds": seconds})
        return
    if not printer.quiet and not warnings:
        write(f"kernels are ready after {seconds:.1f} s, in {cache_dir()}\n")
    printer.warn(warnings)
