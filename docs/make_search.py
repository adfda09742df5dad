"""Write the tables of docs/search.md; --check says whether those without a search are current.

The searches behind the ranks take a minute, too long for a test. Every table starts from the
same projections, so where those of the last table still hold, the ranks do.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from projector.config.job import Job
from projector.config.load import load_job
from projector.errors import ProjectorError
from projector.operations.table import CATEGORIES
from projector.projection.api import project_jobs
from projector.projection.bands import AT_RISK
from projector.projection.evaluate import evaluate
from projector.projection.performance import PerformanceProjection
from projector.searches.configurations import search
from projector.searches.limits import Limits
from projector.searches.ranking import Configuration
from projector.searches.result import SearchResult
from projector.units import GIB

PAGE = Path(__file__).with_name("search.md")
EXAMPLES = Path(__file__).parents[1] / "examples"

DEEPSEEK = EXAMPLES / "deepseek_v3_h800.yaml"
LLAMA = EXAMPLES / "llama3.1_405b_h100.yaml"

TP, PP, CP, EP = (f"parallelism.{name}" for name in ("tp", "pp", "cp", "ep"))
SCHEDULE, RECOMPUTE = "training.schedule", "training.recompute"
OVERLAP = {"parallelism.overlap_moe_expert_parallel_comm": True}
F1B1 = {SCHEDULE: "1f1b"}
NOTHING = {RECOMPUTE: "none"}

Overrides = Mapping[str, Any]


class Case(NamedTuple):
    """A published layout under one schedule, and what is searched beside it."""

    name: str
    path: Path
    overrides: Overrides
    schedules: tuple[str, ...]


CASES = (
    Case("DeepSeek-V3, 1F1B", DEEPSEEK, F1B1, ("1f1b",)),
    Case("DeepSeek-V3, DualPipe", DEEPSEEK, {}, ("dualpipe",)),
    Case("DeepSeek-V3, DualPipe against both", DEEPSEEK, {}, ("1f1b", "dualpipe")),
    Case("DeepSeek-V3, 1F1B, exchange hidden", DEEPSEEK, {**F1B1, **OVERLAP}, ("1f1b",)),
    Case("DeepSeek-V3, DualPipe, exchange hidden", DEEPSEEK, OVERLAP, ("dualpipe",)),
    Case("Llama 3.1 405B", LLAMA, {}, ("auto",)),
)
COMPARED = (0, 1, 5)
"""Cases whose terms are shown beside those of the best."""

CHANGES: tuple[tuple[Path, tuple[tuple[str, Overrides], ...]], ...] = (
    (
        DEEPSEEK,
        (
            ("DeepSeek-V3 as published, DualPipe", {}),
            ("EP 32", {EP: 32}),
            ("EP 16", {EP: 16}),
            ("no recompute", NOTHING),
            ("TP 2", {TP: 2, "parallelism.etp": 1}),
            ("exchange hidden", OVERLAP),
            ("as published, 1F1B", F1B1),
            ("1F1B, EP 32", {**F1B1, EP: 32}),
            ("1F1B, EP 16", {**F1B1, EP: 16}),
            ("1F1B, EP 16, TP 2", {**F1B1, EP: 16, TP: 2, "parallelism.etp": 1}),
            (
                "1F1B, EP 16, TP 2, no recompute",
                {**F1B1, **NOTHING, EP: 16, TP: 2, "parallelism.etp": 1},
            ),
        ),
    ),
    (
        LLAMA,
        (
            ("Llama 3.1 405B as published, MLP recomputed", {}),
            ("no recompute", NOTHING),
            ("CP 2", {CP: 2}),
            ("no recompute, CP 2", {**NOTHING, CP: 2}),
            ("no recompute, CP 4", {**NOTHING, CP: 4}),
            ("no recompute, CP 4, TP 4", {**NOTHING, CP: 4, TP: 4}),
            (
                "no recompute, CP 4, TP 4, keys and values gathered",
                {**NOTHING, CP: 4, TP: 4, "parallelism.cp_comm_type": "all_gather"},
            ),
            (
                "as published, on 8,192 GPUs",
                {"cluster.nodes": 1024, "training.global_batch_size": 2048},
            ),
            (
                "no recompute, on 8,192 GPUs",
                {**NOTHING, "cluster.nodes": 1024, "training.global_batch_size": 2048},
            ),
        ),
    ),
)


class Found(NamedTuple):
    """What a search says about a published layout."""

    case: Case
    published: PerformanceProjection
    result: SearchResult

    @property
    def rank(self) -> int:
        """Place of the published layout among what was found."""
        own = self.published.iteration_time_s
        return 1 + sum(each.iteration_time_s < own for each in self.result.configurations)

    def rate(self, each: Configuration) -> float:
        """Tokens per second and device."""
        return self.published.tokens_per_s_per_gpu * (
            self.published.iteration_time_s / each.iteration_time_s
        )

    @property
    def as_roomy(self) -> Configuration:
        """The fastest that leaves as much memory free as the published layout."""
        own = self.published.memory.headroom_bytes
        return next(each for each in self.result.configurations if each.headroom_bytes >= own)


def find(case: Case) -> Found:
    """Project a published layout and search beside it."""
    job = load_job(str(case.path), case.overrides)
    # A published layout ran, also where it is at risk; what is beside it has the same right.
    limits = Limits(schedules=case.schedules, allow_risk=True)
    return Found(case, project_jobs([job])[0], search(job, top=1, limits=limits))


def table(head: str, rows: list[tuple[str, ...]], left: int = 1) -> list[str]:
    """Return a Markdown table, the first ``left`` columns as text."""
    columns = len(head.split("|"))
    rule = ["---"] * left + ["---:"] * (columns - left)
    return [f"| {head} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(row)} |" for row in rows)]


def ranks(found: list[Found]) -> list[str]:
    """Return where the published layouts stand."""
    rows = []
    for each in found:
        own, best = each.published.tokens_per_s_per_gpu, each.result.configurations[0]
        rows.append(
            (
                each.case.name,
                f"{each.result.evaluated:,}",
                f"{len(each.result.configurations):,}",
                f"{own:,.0f}",
                f"{each.rank:,}",
                f"{each.rate(best):,.0f}",
                against(own, each.rate(best)),
                against(own, each.rate(each.as_roomy)),
                layout(each.result.best[0]),
            )
        )
    head = (
        "job | legal | fit or at risk | published, tokens/s/GPU | rank | best found | "
        "published is | where as much stays free | the best found"
    )
    return table(head, rows)


def against(own: float, other: float) -> str:
    """Return how far one rate is ahead of another or behind."""
    change = own / other - 1.0
    return f"{abs(change):.1%} {'ahead' if change >= 0.0 else 'behind'}"


def layout(step: PerformanceProjection) -> str:
    """Return the layout of a projection in words."""
    degrees = (f"{name.upper()} {value}" for name, value in step.degrees.items() if value > 1)
    training = step.job.training
    own = {"none": "no", "selective": "selective", "full": "full"}[training.recompute.granularity]
    return ", ".join([*degrees, f"MBS {training.micro_batch_size}", f"{own} recompute"])


def mean_terms(job: Job) -> dict[str, float]:
    """Return seconds of a step by term, in the mean over pipeline ranks.

    The breakdown of a projection is that of the rank that ends the step, which here is the last,
    with one layer; ranks of another layout are compared with each other in the mean.
    """
    evaluation = evaluate([job])
    microbatches = float(evaluation.microbatches[0])
    each_s = evaluation.inputs.costs.categories_s.sum(axis=0) * microbatches / job.parallelism.pp
    terms = dict(zip(CATEGORIES, each_s.tolist(), strict=True))
    terms["rest"] = float(evaluation.steps.iteration_s[0]) - sum(terms.values())
    return terms


def terms(found: list[Found]) -> list[str]:
    """Return the terms of published layouts beside those of the best."""
    jobs, heads = [], []
    for each in (found[place] for place in COMPARED):
        jobs += [each.published.job, each.result.best[0].job]
        heads += [each.case.name, "best found"]
    columns = [mean_terms(job) for job in jobs]
    rows = [
        (f"`{name}`" if name in CATEGORIES else name, *(f"{each[name]:,.2f}" for each in columns))
        for name in columns[0]
        if any(each[name] > 0.0 for each in columns)
    ]
    rows.append(("step", *(f"{sum(each.values()):,.2f}" for each in columns)))
    return table(" | ".join(["seconds", *heads]), rows)


def changes() -> list[str]:
    """Return what single changes of the published layouts do."""
    rows = []
    for path, variants in CHANGES:
        steps = project_jobs([load_job(str(path), overrides) for _, overrides in variants])
        first = steps[0].tokens_per_s_per_gpu
        for (name, _), step in zip(variants, steps, strict=True):
            memory = step.memory
            free = memory.headroom_bytes / GIB
            rows.append(
                (
                    name if step is steps[0] else f"… {name}",
                    f"{step.tokens_per_s_per_gpu:,.0f}",
                    "" if step is steps[0] else f"{step.tokens_per_s_per_gpu / first - 1.0:+.1%}",
                    f"{step.tflops_per_gpu:,.0f}",
                    f"{memory.peak_bytes / GIB:.1f}",
                    _room(free, memory.verdict),
                )
            )
    return table("layout | tokens/s/GPU | change | TFLOP/s/GPU | peak GiB | free GiB", rows)


def _room(free_gib: float, verdict: str) -> str:
    """Say how much stays free at the projected peak, and whether that is at risk."""
    room = f"{free_gib:.1f}" if free_gib >= 0.0 else f"over by {-free_gib:.1f}"
    return f"{room}, at risk" if verdict == AT_RISK else room


def page(parts: Mapping[str, list[str]]) -> str:
    """Return the page with its generated parts."""
    text = PAGE.read_text(encoding="utf-8")
    for marker, lines in parts.items():
        begin, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->\n"
        head, rest = text.split(begin)
        _, tail = rest.split(end)
        body = "\n".join(["", *lines, ""])
        text = f"{head}{begin}{body}\n{end}{tail}"
    return text


def main() -> int:
    """Write or check; return the exit code."""
    parts = {"changes": changes()}
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != page(parts))
    found = [find(case) for case in CASES]
    parts |= {"ranks": ranks(found), "terms": terms(found)}
    PAGE.write_text(page(parts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ProjectorError as error:
        sys.exit(f"docs/make_search.py: {error.message}")
