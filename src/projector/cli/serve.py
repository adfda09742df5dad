"""``projector serve``."""

from typing import Any

import click

from projector.cli.job_options import output_options
from projector.cli.output import (
    DOES_NOT_FIT,
    SUCCESS,
    announce_compilation,
    print_json,
    print_report,
    print_warnings,
)


@click.command("serve")
@click.argument("assignments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--config", metavar="FILE", help="Serving file: a deployment and its load.")
@click.option("--model", metavar="NAME", help="Model: a shipped name or a file.")
@click.option("--device", metavar="D", help="Device: a shipped name or a file.")
@click.option("--tp", type=int, metavar="N", help="Tensor-parallel devices.")
@click.option("--pp", type=int, metavar="N", help="Pipeline stages.")
@click.option("--dtype", metavar="TYPE", help="Type of the linear layers' operands.")
@click.option("--weights", metavar="TYPE", help="Type that weights are stored in.")
@click.option("--batch", type=int, metavar="N", help="Sequences that generate at once.")
@click.option("--context", type=int, metavar="N", help="Tokens of a prompt; 2048 by default.")
@click.option("--output", type=int, metavar="N", help="Tokens that are generated for a prompt.")
@output_options
def command(
    assignments: tuple[str, ...],
    config: str | None,
    *,
    batch: int | None,
    context: int | None,
    output: int | None,
    as_json: bool,
    quiet: bool,
    **settings: Any,
) -> int:
    """Project how a deployment serves a model: latencies, throughput, memory.

    The prefill of one prompt gives the time to the first token (TTFT), a decode step of the batch
    the time of each further one (TPOT). Requests are equal; without --output no prompt takes part
    of the throughput. KEY=VALUE sets a field of the deployment or of its load, for example
    kv_cache_bytes=1 or load.prompts=4.

    Exit code 3: the batch does not fit; it is projected all the same.

    \b
    Examples:
      projector serve --model llama3.1_70b --device h100 --tp 8 --batch 64 --context 4096
      projector serve --config examples/serve_llama70b.yaml --output 512
    """  # noqa: D301  click looks for the backspace
    from projector.config.load import parse_override

    load = {"batch": batch, "context": context, "output": output}
    given = {**settings, **{f"load.{name}": value for name, value in load.items()}}
    changes = {name: value for name, value in given.items() if value is not None}
    changes |= dict(parse_override(text) for text in assignments)
    announce_compilation(quiet=quiet)
    from projector.serving.api import project_case
    from projector.serving.read import read_case

    result = project_case(read_case(config, changes))
    if as_json:
        print_json(result.to_dict())
    else:
        from projector.report.terminal.serve import serve_report

        print_report(serve_report(result))
        print_warnings(result.warnings, quiet=quiet)
    return SUCCESS if result.fits else DOES_NOT_FIT
