"""Reports of first-order projections and deployments."""

from collections.abc import Mapping

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.config.first_order import FirstOrderConfig
from projector.config.first_order_job import AnyJob
from projector.config.resources import hardware_table
from projector.first_order.results import FirstOrderMemory, FirstOrderPerformance, FirstOrderRun
from projector.first_order.serving import FirstOrderServing
from projector.report.terminal import grid

PLAIN_WORDS = (
    "FIRST-ORDER MODEL: closed forms with fixed derates; no tiles, no replay, no band. "
    "docs/first_order.md lists where they are wrong."
)

TERMS: Mapping[str, str] = hardware_table("report_words.yaml")["first_order_terms"]
"""What each term of a step is."""


def performance_report(result: FirstOrderPerformance) -> list[RenderableType]:
    """Return the parts of the report of a step, in the order of printing."""
    return [*_head(result), *_step(result), *constants(result.job.first_order)]


def memory_report(result: FirstOrderMemory) -> list[RenderableType]:
    """Return the parts of the report of memory."""
    return [
        _title(result.job),
        Text(PLAIN_WORDS, style="bold yellow"),
        Text(),
        _verdict(result),
        *_memory(result),
        *constants(result.job.first_order),
    ]


def both_report(result: FirstOrderPerformance) -> list[RenderableType]:
    """Return the parts of both reports, what they share once."""
    return [
        *_head(result),
        *_memory(result.memory),
        *_step(result),
        *constants(result.job.first_order),
    ]


def _head(result: FirstOrderPerformance) -> list[RenderableType]:
    figures = (
        f"{grid.milliseconds(result.iteration_time_s)} ms/step",
        f"{result.tokens_per_s_per_gpu:,.0f} tokens/s/GPU",
        f"{result.tflops_per_gpu:,.1f} TFLOP/s/GPU",
        f"MFU {grid.percent(result.mfu)} of {result.peak_tflops:,.0f} TFLOP/s",
    )
    degrees = {name.upper(): value for name, value in result.degrees.items()}
    layout = [f"{name} {value:,}" for name, value in degrees.items()]
    return [
        _title(result.job),
        Padding(grid.entries([*layout, f"bubble of {result.schedule}"], grid.DIM), (0, 0, 0, 2)),
        Text(PLAIN_WORDS, style="bold yellow"),
        Text(),
        _verdict(result.memory),
        grid.entries(figures, "bold"),
        Text(f"limited by {result.bound}"),
        *_run(result.run),
    ]


def _run(run: FirstOrderRun | None) -> list[RenderableType]:
    if run is None:
        return []
    money = "" if run.cost_usd is None else f", {run.cost_usd:,.0f} USD"
    text = f"{run.days:,.1f} days of steps for {run.tokens:.3g} tokens, {run.gpu_hours:,.0f} "
    return [Text(f"{text}GPU-hours{money}; no warm-up, failures, checkpoints or stragglers")]


def _title(job: AnyJob) -> Text:
    cluster, training = job.cluster, job.training
    line = Text(f"{job.model.name} on {cluster.gpus:,} x {cluster.device.name}", style="bold")
    batch = f"MBS {training.micro_batch_size}, GBS {training.global_batch_size:,}"
    line.append(
        f" ({cluster.nodes:,} x {cluster.gpus_per_node}), {training.precision.upper()}, {batch}, "
        f"sequence {training.seq_length:,}",
        style="not bold",
    )
    return line


def _verdict(result: FirstOrderMemory) -> Text:
    word, style = ("FITS", "bold green") if result.fits else ("DOES NOT FIT", "bold red")
    line = Text(word, style=style)
    whole = grid.gib(result.device_memory_bytes)
    text = f"  {grid.gib(result.peak_bytes)} of {whole} GiB on every rank; nothing is reserved"
    return line.append(text, style="not bold default")


def _memory(result: FirstOrderMemory) -> list[RenderableType]:
    table = grid.Grid("=term", "GiB")
    for name, value in result.terms_bytes.items():
        table.add_row(name, grid.gib(value))
    table.add_row("total", grid.gib(result.peak_bytes), style="bold")
    total, active = result.parameters_total, result.parameters_active
    note = f"{grid.count(total)} parameters" + (
        "" if total == active else f", {grid.count(active)} active"
    )
    return grid.section("Memory of one device", note, table)


def _step(result: FirstOrderPerformance) -> list[RenderableType]:
    table = grid.Grid("=term", "<", "ms", "share", "|")
    terms = result.breakdown_s
    for name, seconds in terms.items():
        if seconds > 0.0:
            share = seconds / result.iteration_time_s
            what = Text(TERMS[name], grid.DIM)
            length = grid.bar(seconds / max(terms.values()))
            table.add_row(name, what, grid.milliseconds(seconds), grid.percent(share), length)
    total = grid.milliseconds(result.iteration_time_s)
    table.add_row("total", "", total, grid.percent(1.0), "", style="bold")
    return grid.section(
        "Time of one step", "max + (1 - overlap) min of compute and the others", table
    )


def constants(config: FirstOrderConfig) -> list[RenderableType]:
    """Return what the closed forms assume."""
    values = grid.entries(
        (f"{name}={value:g}" for name, value in config.model_dump().items()), grid.DIM
    )
    return grid.section(
        "Constants", "override with first_order.NAME=VALUE", Padding(values, (0, 0, 0, 2))
    )


# The report of first-order deployments.
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
    cache = f"cache {grid.gib(result.kv_cache_bytes)} GiB a device"
    verdict.append(f"  largest batch {result.max_batch:,}, {cache}", style="not bold")
    table = grid.Grid("=phase", "ms", "<bound by")
    table.add_row("prompt to first token", grid.milliseconds(result.ttft_s), result.bound_prefill)
    table.add_row("decode step", grid.milliseconds(result.tpot_s), result.bound_decode)
    return [
        head,
        Text(PLAIN_WORDS, style="bold yellow"),
        Text(),
        verdict,
        *grid.section("Steps", f"{result.tokens_per_s_per_gpu:,.1f} tokens/s/GPU", table),
        *constants(result.constants),
    ]
