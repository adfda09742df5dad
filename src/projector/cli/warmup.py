"""``projector warmup``."""

import time

import click

from projector.cli.job_options import output_options
from projector.cli.output import announce_compilation, plain_envelope, print_json


@click.command("warmup")
@output_options
def command(as_json: bool, quiet: bool) -> None:
    """Compile all kernels for this machine and keep them, so that later runs start fast."""
    announce_compilation(quiet=quiet)
    begin = time.perf_counter()
    from projector.kernels._jit import cache_dir
    from projector.report.warmup import compile_kernels

    compile_kernels()
    seconds = time.perf_counter() - begin
    if as_json:
        print_json({**plain_envelope(), "cache": str(cache_dir()), "seconds": seconds})
    elif not quiet:
        click.echo(f"kernels are ready after {seconds:.1f} s, in {cache_dir()}")
