"""A step of reinforcement learning: phases, rollout, memory; and the splits that a search ranks."""

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from projector.config.resources import hardware_table
from projector.report.document import Column, Document, Section, Table, prose, words
from projector.report.terminal.grid import DIM, Pasted, assignments, percent
from projector.rl.job import APART
from projector.rl.step import ROLLOUT, TRAINING, RLProjection
from projector.serving.deployment import degrees
from projector.units import to_gib

TERMS: Mapping[str, str] = hardware_table("report_words.yaml")["rl_phases"]
"""What the phases of a step are."""


def rl_report(result: RLProjection) -> Document:
    """Return the report of a step."""
    job, asked, rollout = result.job, result.job.responses, result.rollout
    device = job.training.cluster.device.name
    title = f"{job.training.model.name} on {result.update.gpus:,} x {device}"
    where = str(job.placement)
    if job.placement == APART:
        title += f" and {job.rollout_gpus:,} x {job.rollout.cluster.device.name}"
        where += f": {result.update.gpus:,} GPUs train, {job.rollout_gpus:,} generate"
        where += ", one step off-policy" if job.staleness else ", in turn"
        where += f"; idle {percent(result.idle[TRAINING])} and {percent(result.idle[ROLLOUT])}"
    band = f"; 68 % of measured times lie {result.band.words}" if result.band.words else ""
    lead = (
        f"{asked.total:,} responses to {asked.prompts:,} prompts, {asked.mean_tokens:,.0f} tokens "
        f"each with the prompt, {asked.longest:,} at most. {where[0].upper()}{where[1:]}.\n"
        f"{result.step_s:,.1f} s a step, {result.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, limited "
        f"by the {result.bound}{band}."
    )
    names = [*result.phases_s, "step"]
    seconds = [*result.phases_s.values(), result.step_s]
    columns = [
        words("phase", names),
        prose("", [TERMS.get(name, "") for name in names], style=DIM),
        Column("s", seconds, "{:,.2f}".format, 3),
        Column("share", [100.0 * each / result.step_s for each in seconds], "{:.1f} %".format, 1),
    ]
    phases = Section("Time of one step", table=Table(columns, {len(names) - 1: "bold"}))
    text = (
        f"{job.rollout_gpus // job.rollout.gpus:,} x {_split(result)} with {rollout.responses:,} "
        f"responses each: up to {rollout.slots:,} at once, {rollout.mean_batch:,.0f} on average; "
        f"less than half of them during {percent(rollout.tail_s / rollout.decode_s)} of decode."
    )
    words_of = result.verdict.replace("_", " ").upper()
    verdict = Text(words_of, style="bold green" if result.fits else "bold red")
    head = [Text(title, style="bold"), Text(lead), verdict, Text()]
    return Document(title, lead, [phases, Section("Rollout", lead=text), _memory(result)], head)


def _split(result: RLProjection) -> str:
    many = {name: each for name, each in degrees(result.job.rollout).items() if each > 1}
    return assignments(many or {"tp": 1})


def _memory(result: RLProjection) -> Section:
    """Return what the fullest device holds at work on either side."""
    sides = result.held_bytes.items()
    rows = [(side, name, held) for side, each in sides for name, held in each.items()]
    columns = [
        words("during", [side for side, *_ in rows]),
        words("held", [name for _, name, _ in rows]),
        Column("GiB", [to_gib(held) for *_, held in rows], "{:,.1f}".format, 1),
    ]
    bold = {row: "bold" for row, (_, name, _) in enumerate(rows) if name == "usable"}
    return Section("Memory of one GPU", table=Table(columns, bold))


def rl_search_report(found: Sequence[RLProjection], shown: int = 20) -> Document:
    """Return the ranking of a search, which found something."""
    title, rows = f"{len(found):,} splits of {found[0].job.gpus:,} GPUs fit", found[:shown]
    columns = [
        Column("#", range(1, len(rows) + 1)),
        words("placement", [each.job.placement for each in rows]),
        Column("train", [each.update.gpus for each in rows], "{:,}".format),
        Column("generate", [each.job.rollout_gpus for each in rows], "{:,}".format),
        words("replica", [_split(each) for each in rows]),
        Column("step s", [each.step_s for each in rows], "{:,.1f}".format, 1),
        *(Column(f"{side} s", [each.sides_s[side] for each in rows], "{:,.1f}".format, 1)
          for side in (ROLLOUT, TRAINING)),
    ]  # fmt: skip
    told = Text("\nThe first as overrides of projector rl:", style=DIM)
    closing: list[RenderableType] = [told, Pasted(assignments(found[0].overrides))]
    table = Section("Ranked by time of a step", table=Table(columns, {0: "bold"}), closing=closing)
    return Document(title, "", [table], [Text(title, style="bold"), Text()])
