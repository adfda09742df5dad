"""A search for what serves a load: the ranking, each device by itself, and their fronts."""

from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.arrays import front_rows
from projector.config.bands import LATENCY, serving_band
from projector.report.document import Column, Document, Media, Section, Table, words
from projector.report.figures import figure as fig
from projector.report.serve import bands_text
from projector.report.speed_front import Curve, chart, draw
from projector.report.terminal.grid import Pasted, assignments
from projector.searches.limits import OUT_OF_TIME
from projector.searches.serving import COST, GPUS, ServingChoice, ServingPoints, ServingSearch
from projector.units import to_ms

RANKED = 200
"""Configurations of the table of a page."""

BEST_BY = {COST: "cost of a token", GPUS: "devices for the rate"}


def serve_search_report(result: ServingSearch) -> Document:
    """Return the report of a search."""
    title = f"Serving {result.model} on {_counts(result)}"
    lead = (
        f"{_asked(result)}. {result.evaluated:,} points in {result.seconds:.1f} s: "
        f"{result.fitting:,} fit, {result.within:,} keep what is asked."
    )
    if result.left_out:
        lead += f" STOPPED, {OUT_OF_TIME}: at least {result.left_out:,} deployments were left out."
    head: list[RenderableType] = [Text(title, style="bold"), Padding(Text(lead), (0, 0, 0, 2))]
    sections = [*_ranked(result), _picture(result)]
    if not result.configurations:
        out = ways_out(result)
        head += [Text(), Text("NOTHING KEEPS WHAT IS ASKED", style="bold red"), *map(Text, out)]
        head += [Pasted(assignments(result.least.overrides))] if result.least else []
        sections.insert(0, Section("Nothing keeps what is asked", items=out, media=Media.PAGE))
    return Document(title, lead, sections, [*head, Text()])


def fronts_figure(result: ServingSearch) -> fig.Figure:
    """Draw the fronts of all devices."""
    title = f"{result.model} on {_counts(result)}"
    return draw(title, _asked(result), _curves(result), _least_speed(result))


def _counts(result: ServingSearch) -> str:
    counts = result.goal.counts
    several = " or ".join(f"{each:,}" for each in counts)
    if result.goal.objective == GPUS:
        several = f"at most {counts[-1]:,}"
    return f"{several} GPU{'' if counts[-1] == 1 else 's'}"


def _asked(result: ServingSearch) -> str:
    traffic, limits = result.goal.traffic, result.goal.targets.limits_ms
    output = [f"{traffic.output:,} generated"] if traffic.output else []
    rate = [] if traffic.rate_per_s is None else [f"{traffic.rate_per_s:g} requests/s"]
    kept = [f"{name.upper()} up to {limit:g} ms" for name, limit in limits.items()]
    return ", ".join([f"Prompts of {traffic.context:,} tokens", *output, *rate, *kept])


def _least_speed(result: ServingSearch) -> float | None:
    limit_ms = result.goal.targets.tpot_ms
    return None if limit_ms is None else 1000.0 / limit_ms


def split_of(each: ServingChoice) -> str:
    """Name the split, and that of what prefills apart."""
    decode, apart = _degrees(each.overrides), each.deployment.disaggregated
    if apart is None:
        return decode
    prefill = _degrees({"tp": each.deployment.tp, **apart.prefill})
    return f"{each.prefill_replicas}x({prefill}) + {each.decode_replicas}x({decode})"


def _degrees(fields: Mapping[str, int]) -> str:
    names = {"tp": "TP", "pp": "PP", "attention_dp": "ADP", "ep": "EP"}
    many = [f"{name}{fields[key]}" for key, name in names.items() if fields.get(key, 1) > 1]
    return " ".join(many) or "TP1"


def _short(device: str) -> str:
    return device.removeprefix("NVIDIA ").removeprefix("AMD Instinct ").split()[0]


def _ranked(result: ServingSearch) -> list[Section]:
    """Return the best, with groups; a terminal shows the first."""
    shown = result.configurations[:RANKED]
    if not shown:
        return []
    count, types = len(shown), {each.deployment.dtype for each in shown}
    drafts = [each.deployment.speculative for each in shown]
    columns = [
        Column("#", range(1, count + 1)),
        Column("group", result.groups[:count], short="gr"),
        words("device", [each.deployment.cluster.device.name for each in shown], write=_short),
        words("type", [each.deployment.dtype if len(types) > 1 else None for each in shown]),
        words("replicas", [f"{each.units} x {each.unit_gpus}" for each in shown]),
        words("split", [split_of(each) for each in shown]),
        Column("drafts", [each.tokens if each else None for each in drafts]),
        Column("batch", [each.traffic.batch for each in shown], "{:,}".format),
        Column("TTFT ms", [to_ms(each.ttft_s) for each in shown], "{:,.0f}".format, 1),
        Column("TPOT ms", [to_ms(each.tpot_s) for each in shown], "{:,.1f}".format, 2),
        Column("tokens/s/GPU", [each.tokens_per_s_per_gpu for each in shown], "{:,.0f}".format,
               short="tok/s/GPU"),
        Column("USD/M tokens", [result.usd_per_million_tokens(each) for each in shown],
               "{:,.3g}".format, 3, short="USD/M"),
        words("settings", [assignments(each.overrides) for each in shown], media=Media.PAGE),
    ]  # fmt: skip
    table = Table(columns, {0: "bold"}, gap=1, brief=range(min(result.top, count)))
    same = result.groups.count(1)
    told = [f"Group 1: {same:,} that differ from the first by less than a projection can tell."]
    told = [*(told if same > 1 else []), *_simulated(result)]
    closing: list[RenderableType] = [
        Text(),
        *map(Text, told),
        Text("The first as overrides of projector serve:", style="dim"),
        Pasted(assignments(shown[0].overrides)),
    ]
    by = BEST_BY.get(result.goal.objective, "throughput of a device")
    text = f"The best batch of each split, {count:,} of {len(result.configurations):,}."
    text = " ".join([text, *told, "A click on a head sorts."])
    note = "replicas x GPUs of each; prefill + decode where these lie apart"
    return [Section(f"Ranked by {by}", text, table, note=note, closing=closing)]


def _simulated(result: ServingSearch) -> list[str]:
    """Say what the first keeps request by request, and how sure its times are."""
    best, told = result.best, []
    if best is not None and (found := best.capacity) is not None:
        share = f"the targets for {found.targets.percentile:g} % of simulated requests"
        if found.replicas is None:
            told.append(f"No number of replicas of the first keeps {share}.")
        else:
            gpus = f"{found.gpus:,} GPUs with replicas of the first"
            told.append(f"{gpus} keep {share}; {result.configurations[0].gpus:,} keep the mean.")
    if best is not None and (bands := bands_text(best)):
        told.append(f"{bands}.")
    return told


def ways_out(result: ServingSearch) -> list[str]:
    """Say what would do where nothing does."""
    told, least = [], result.least
    if not result.fitting:
        told.append(f"Nothing fits on {result.goal.counts[-1]:,} GPUs, not even one sequence.")
    if result.relaxed:
        # Rounded up: what is said must do.
        texts = [
            " with ".join(f"{name[:4].upper()} {1.0005 * value:,.4g} ms" for name, value in item)
            for item in (each.items() for each in result.relaxed)
        ]
        told.append(f"On these GPUs {' or '.join(texts)} would do.")
    if least is None and result.left_out:
        return [*told, "More may do: the search was stopped."]
    if least is None:
        return [*told, "No number of GPUs that was tried would do."]
    name, batch = least.deployment.cluster.device.name, least.traffic.batch
    what = f"{name}, {split_of(least)}, batch {batch:,}"
    return [*told, f"{least.gpus:,} GPUs would do, the least of those tried: {what}."]


def _curves(result: ServingSearch) -> list[Curve]:
    return [_curve(result, points) for points in result.by_device.values()]


def _curve(result: ServingSearch, parts: Sequence[ServingPoints]) -> Curve:
    """Return the points of one device; they keep the target of the first token, if any does."""
    traffic, begins = result.goal.traffic, np.cumsum([0, *(len(part.grid) for part in parts)])

    def at(row: int) -> ServingChoice:
        part = int(np.searchsorted(begins, row, "right")) - 1
        return parts[part].choice(row - int(begins[part]), traffic)

    def label(row: int) -> str:
        return f"{split_of(at(row))}  batch {at(row).traffic.batch:,}"

    def hover(row: int) -> str:
        each = at(row)
        times = f"TTFT {to_ms(each.ttft_s):,.1f} ms, TPOT {to_ms(each.tpot_s):,.2f} ms"
        return f"{each.deployment.dtype}, {each.units} x {each.unit_gpus} GPUs<br>{times}"

    user = np.concatenate([part.rates.tokens_per_s_per_user for part in parts])
    gpu = np.concatenate([part.per_gpu for part in parts])
    drawn = np.concatenate([part.drawn for part in parts])
    shown = np.flatnonzero(drawn if drawn.any() else np.concatenate([p.possible for p in parts]))
    rows = shown[front_rows(-gpu[shown], -user[shown])]
    best = [
        (part.value[row], int(begin) + row)
        for part, begin in zip(parts, begins, strict=False)
        for row in part.best[:1].tolist()
    ]
    ends = serving_band(parts[0].device, LATENCY).limits(68)
    return Curve(
        name=parts[0].device.name,
        user=user,
        gpu=gpu,
        shown=shown,
        front=rows,
        mark=min(best)[1] if best else None,
        mark_name="best within the targets" if result.goal.targets.limits_ms else "best",
        label=label,
        hover=hover,
        ends=None if ends is None else (user[rows] / ends[1], user[rows] / ends[0]),
    )


def _picture(result: ServingSearch) -> Section:
    text = (
        f"{_asked(result)}. Lines join what no other of the device beats in both. Bars hold 68 % "
        "of measured speeds, where any are known."
    )
    figure = chart(_curves(result), _least_speed(result))
    title = "Throughput against speed"
    return Section(title, text, media=Media.PAGE, figures=[("", lambda: figure)])
