"""``projector serve``."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from projector.cli import output
from projector.cli.job import ASSIGNMENTS, FIDELITY, is_first_order, refuse_options
from projector.cli.options import command, flag, option, refuse_idle
from projector.envelope import envelope
from projector.errors import ConfigError, one_of

if TYPE_CHECKING:
    from projector.serving.deployment import Deployment
    from projector.serving.load import Traffic


@dataclass(frozen=True)
class _Deployment:
    model: str | None = option("NAME", "Model: a shipped name or a file.")
    device: str | None = option("D[,D..]", "Device: a shipped name or a file; several to search.")
    tp: int | None = option("N", "Tensor-parallel devices.")
    pp: int | None = option("N", "Pipeline stages.")
    dtype: str | None = option("TYPE[,..]", "Type of the linear layers' operands; or several.")
    weights: str | None = option("TYPE", "Type that weights are stored in.")


@dataclass(frozen=True)
class _Load:
    batch: int | None = option("N", "Sequences that generate at once.")
    context: int | None = option("N", "Tokens of a prompt; 2048 by default.")
    output: int | None = option("N", "Tokens that are generated for a prompt.")
    rate_per_s: float | None = option("R", "Requests a second: simulate.", names="--rate")
    requests: int | None = option("N", "Requests to simulate; 1000 by default.")
    ttft_ms: float | None = option(
        "T", "Promised time to the first token.", names=("--ttft-ms", "--max-ttft-ms")
    )
    tpot_ms: float | None = option(
        "T", "Promised time of a further token.", names=("--tpot-ms", "--max-tpot-ms")
    )
    percentile: float | None = option("P", "Users it holds for; 99 by default.")
    usd_per_gpu_hour: str | None = option(
        "X|listed", "Rent: cost of generated tokens; a search takes listed ones too."
    )


@command()
def serve(
    *,
    assignments: tuple[str, ...] = ASSIGNMENTS,
    config: str | None = option("FILE", "Serving file: a deployment and its load."),
    deployment: _Deployment,
    load: _Load,
    front: bool = flag("Try every split and batch, up to --gpus devices."),
    search: bool = flag("Rank all deployments on --gpus devices that keep what is promised."),
    objective: str | None = option(
        "throughput|cost|gpus",
        "What a search ranks by: tokens/s/GPU, USD a token, or GPUs for the rate.",
    ),
    top: int | None = option("N", "Configurations of a search to show; 20 by default."),
    most_seconds: float | None = option("S", "Begin nothing of a search after S seconds."),
    gpus: str | None = option("N[,N..]", "GPUs of a search, or most of a front; default: a node."),
    plot: str | None = option("FIGURE.png|.svg|.pdf", "Draw the front."),
    html: str | None = option("FILE.html", "Write one page that works offline."),
    csv: str | None = output.CSV,
    emit: str | None = option(
        "vllm|sglang|trtllm|dynamo[=FOLDER]",
        "Write what starts the deployment, or the first of a search, in an engine (dynamo: its own "
        "in Kubernetes): to a folder, or to standard output in place of the report.",
    ),
    fidelity: str = FIDELITY,
    printer: output.Printer,
) -> int:
    """Project how a deployment serves a model: latencies, throughput, memory.

    The prefill of prompts gives the time to the first token (TTFT), a decode step of the batch the
    time of each further one (TPOT). Requests are equal; without --output prompts take no part of
    the throughput. Without --batch the answer is the knee of throughput against speed, over --tp
    too where it is left out. With --rate requests are simulated one by one, and promised times
    give the replicas that keep them. KEY=VALUE sets a field of the deployment or of its load, for
    example kv_cache_bytes=1 or load.prompts=4.

    With --search deployments are ranked that keep the promised times: every split, batch, limit of
    a step's tokens and number of drafts, of each --device and --dtype, with prefill and decode on
    the same devices or apart. What is stated, as --tp 8, is kept. Where nothing does, the report
    names the times and the GPUs that would.

    Exit code 3: the batch does not fit; it is projected all the same. Or a search found nothing.
    Exit code 4: --most-seconds stopped a search; what it found is ranked.

    \b
    Examples:
      projector serve --model llama3.1_70b --device h100 --tp 8 --batch 64 --context 4096
      projector serve --model deepseek_v3 --device h200 --front --gpus 32 --dtype fp8 --html f.html
      projector serve --model llama3.1_8b --device h100 --output 256 --rate 20 --ttft-ms 500
      projector serve --config examples/serve_llama70b.yaml --output 512
      projector serve --search --model llama3.1_70b --device h100,mi300x --gpus 8,16 --tpot-ms 40
    """  # noqa: D301  click looks for the backspace
    from projector.config.load import parse_override

    given = asdict(deployment) | {f"load.{name}": value for name, value in asdict(load).items()}
    changes = {name: value for name, value in given.items() if value is not None}
    changes |= dict(parse_override(text) for text in assignments)
    if is_first_order(fidelity):
        refuse_options(front=front or None, search=search or None, gpus=gpus, plot=plot)
        refuse_options(emit=emit, most_seconds=most_seconds, csv=csv, html=html)
        return _first_order(config, changes, printer)
    output.check_files(plot, html, csv=csv)
    if emit is not None:
        from projector.serving.launch import TARGETS

        one_of("emit", emit.partition("=")[0], TARGETS)
        if emit.endswith("="):
            msg = f"emit: {emit} names no folder"
            raise ConfigError(msg, key="emit", value=emit, allowed="ENGINE=FOLDER, or ENGINE")
    output.interpret_at_first(quiet=printer.quiet)
    if search:
        if front:
            msg = "--search draws the fronts too; leave out --front"
            raise ConfigError(msg, key="front", value=True, allowed="without --search")
        ranking: dict[str, Any] = {"objective": objective, "top": top, "gpus": _numbers(gpus)}
        ranking["most_seconds"] = most_seconds
        return _search(config, changes, ranking, (plot, html, csv), emit, printer)
    refuse_idle("objective", "top", "most_seconds", "csv", needs="--search")
    from projector.serving.api import project_case, read_case

    numbers = _numbers(gpus)
    if numbers is not None and len(numbers) > 1:
        msg = "several numbers of GPUs belong to a search; give --search too, or one number"
        raise ConfigError(msg, key="gpus", value=gpus, allowed="one number")
    case = read_case(config, changes)
    with output.compiling_load() if case.traffic.rate_per_s is not None else nullcontext():
        result = project_case(case, front=front, gpus=numbers[0] if numbers else None)
    from projector.report.serve import serve_report

    output.draw(plot, "serve.front_figure", result)
    output.write_page(html, lambda: serve_report(result))
    printer.wrote(plot, html)
    traffic = result.traffic.model_copy(update={"batch": result.batch})
    alone = result.capacity.replicas if result.capacity else 1
    replicas = result.disaggregated.balanced() if result.disaggregated else (0, alone or 1)
    launched = _launched(emit, result.deployment, traffic, replicas, printer)
    if printer.as_json:
        output.print_json({**result.to_dict(), **({"launch": launched} if emit else {})})
    elif not launched or (emit and "=" in emit):
        output.print_report([serve_report(result)])
        printer.warn(result.warnings)
    return output.SUCCESS if result.fits else output.DOES_NOT_FIT


def _launched(
    emit: str | None,
    deployment: "Deployment",
    traffic: "Traffic",
    replicas: tuple[int, int],
    printer: output.Printer,
) -> list[dict[str, Any]]:
    """Write what starts a deployment, if that is asked for; return what JSON has of it."""
    if emit is None:
        return []
    from projector.files import made_folder, write_whole
    from projector.serving.launch import launches

    engine, equals, folder = emit.partition("=")
    found = launches(engine, deployment, traffic, replicas)
    for each in found:
        for name, text in each.files.items():
            if equals:
                path = made_folder(folder, key="emit") / name
                write_whole(path, text.encode(), key="emit")
                printer.wrote(str(path))
            elif not printer.as_json:
                output.write(text if name.endswith(".sh") else f"# {name}\n{text}")
        name = next(iter(each.files))
        printer.warn_beside_report(f"{name} does not say {what}" for what in each.unsaid)
    return [{"engine": engine, **each._asdict()} for each in found]


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        msg = f"gpus: whole numbers with commas between them, as 8,16, got {text!r}"
        raise ConfigError(msg, key="gpus", value=text, allowed="N[,N..]") from None


def _search(
    config: str | None,
    changes: dict[str, Any],
    ranking: dict[str, Any],
    files: tuple[str | None, str | None, str | None],
    emit: str | None,
    printer: output.Printer,
) -> int:
    from projector.report import serve_search as report
    from projector.report.terminal.progress import SweepProgress
    from projector.searches.serving import search_serving

    for name in {"device", "dtype"} & set(changes):
        ranking[name] = str(changes.pop(name)).split(",")
    ranking["usd_per_gpu_hour"] = changes.pop("load.usd_per_gpu_hour", None)
    stated = {name: value for name, value in ranking.items() if value is not None}
    is_rated = "load.rate_per_s" in changes
    with (
        output.compiling_load() if is_rated else nullcontext(),
        SweepProgress(quiet=printer.quiet, found="points") as progress,
    ):
        result = search_serving(deployment=config, overrides=changes, progress=progress, **stated)
    output.draw(files[0], "serve_search.fronts_figure", result)
    output.write_page(files[1], lambda: report.serve_search_report(result))
    printer.wrote(*files[:2])
    output.write_csv(result, files[2], printer)
    warnings = result.best.warnings if result.best else ()
    first = result.configurations[0] if result.configurations else None
    launched = []
    if first:
        counts = first.units * first.prefill_replicas, first.units * first.decode_replicas
        launched = _launched(emit, first.deployment, first.traffic, counts, printer)
    if emit and not first:
        printer.say("--emit wrote nothing: no deployment keeps what is promised")
    if printer.as_json:
        whole = {**envelope(warnings, result.uncertainty), **result.to_dict()}
        output.print_json(whole if emit is None else {**whole, "launch": launched})
    elif not launched or (emit and "=" in emit):
        output.print_report([report.serve_search_report(result)])
        printer.warn(warnings)
    if result.left_out:
        return output.OUT_OF_TIME
    return output.SUCCESS if result.configurations else output.DOES_NOT_FIT


def _first_order(config: str | None, changes: dict[str, Any], printer: output.Printer) -> int:
    from projector.first_order.serving import project_deployment
    from projector.report.terminal.first_order import serve_report

    result = project_deployment(config, changes)
    printer.show(result.to_dict(), lambda _: serve_report(result), result.warnings)
    return output.SUCCESS if result.fits else output.DOES_NOT_FIT
