"""The report of first-order deployments."""

from rich.console import RenderableType
from rich.text import Text

from projector.first_order.serving import FirstOrderServing
from projector.report.terminal.first_order import PLAIN_WORDS, constants
from projector.report.terminal.tables import add_row, gib, grid, milliseconds, section


def serve_report(result: FirstOrderServing) -> list[RenderableType]:
    """Return what a deployment reaches."""
    c = result.columns
    head = Text(f"{result.model.name} on {result.gpus:,} x {result.device.name}", style="bold")
    head.append(
        f", TP {int(c.tp[0])} PP {int(c.pp[0])}, batch {int(c.batch[0]):,}, "
        f"{int(c.context[0]):,} tokens in, {int(c.output[0]):,} out",
        style="not bold",
    )
    verdict = Text("FITS" if result.fits else "DOES NOT FIT", style="bold")
    verdict.append(
        f"  largest batch {result.max_batch:,}, cache {gib(result.kv_cache_bytes)} GiB a device",
        style="not bold",
    )
    table = grid("=phase", "ms", "<bound by")
    add_row(table, "prompt to first token", milliseconds(result.ttft_s), result.bound_prefill)
    add_row(table, "decode step", milliseconds(result.tpot_s), result.bound_decode)
    note = f"{result.tokens_per_s_per_gpu:,.1f} tokens/s/GPU"
    return [
        head,
        Text(PLAIN_WORDS, style="bold yellow"),
        Text(),
        verdict,
        *section("Steps", note, table),
        *constants(result.constants),
    ]
