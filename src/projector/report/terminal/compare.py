"""Differences between two jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from projector.config.bands import SHARES, Band
from projector.config.job import Job
from projector.config.resources import hardware_table
from projector.envelope import envelope, flatten, told
from projector.projection.bands import changed_settings, ratio_band
from projector.projection.performance import PerformanceProjection
from projector.projection.results import SCALARS
from projector.projection.terms import MEMORY_TERMS
from projector.report.terminal.grid import DIM, Grid, heading, plain, section
from projector.report.terminal.job import title, verdict
from projector.units import to_gib, to_ms

HEADLINE: Sequence[str] = hardware_table("report_words.yaml")["headline"]
"""Scalars that people ask for first."""

OF_RUNS = ("days", "gpu_hours", "goodput")
"""The same of whole runs, where both jobs say how much is trained."""

_SHARES = {"goodput", *(scalar.name for scalar in SCALARS if scalar.unit == "1")}

_UNSHOWN = {"name", "model.source", "model.name", "parallelism.dp"}
"""Settings that change no result, or that follow from others."""

_WHOLE = {
    "cluster.device.": "cluster.device.name", "cluster.network.": "cluster.network.name",
    "model.": "model",
}  # fmt: skip
"""Settings that are not told where another device, network or model is, which this one says."""


@dataclass(frozen=True, slots=True)
class Change:
    """One number in both jobs."""

    first: float
    second: float

    @property
    def difference(self) -> float:
        """Second less first."""
        return self.second - self.first

    @property
    def relative(self) -> float | None:
        """Difference over the first; none where that is 0."""
        return self.difference / self.first if self.first else None

    def to_dict(self) -> dict[str, float | None]:
        """Return the change as ``--json`` prints it."""
        return {"a": self.first, "b": self.second, **told(self, "difference relative")}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two projections side by side."""

    first: PerformanceProjection
    second: PerformanceProjection

    @property
    def headline(self) -> dict[str, Change]:
        """Scalars of `HEADLINE`, and `OF_RUNS` where both jobs have a run."""
        first, second = self.first.scalars, self.second.scalars
        changes = {name: Change(first[name], second[name]) for name in HEADLINE}
        runs = self.first.run, self.second.run
        if runs[0] is not None and runs[1] is not None:
            changes |= {
                name: Change(getattr(runs[0], name), getattr(runs[1], name)) for name in OF_RUNS
            }
        return changes

    @property
    def breakdown_ms(self) -> dict[str, Change]:
        """Terms of the step, the one that moved most first."""
        sides = self.first.breakdown_s, self.second.breakdown_s
        names = dict.fromkeys(chain(*sides))
        return _by_size(
            {name: Change(*(to_ms(each.get(name, 0.0)) for each in sides)) for name in names}
        )

    @property
    def memory_gib(self) -> dict[str, Change]:
        """Memory terms of the peak stage of each job, the one that moved most first."""
        memory = self.first.memory, self.second.memory
        stages = [each.stages[each.peak_stage] for each in memory]
        return _by_size(
            {term.name: Change(*(to_gib(term.of(s)) for s in stages)) for term in MEMORY_TERMS}
        )

    @property
    def time_ratio(self) -> float:
        """Time that B takes for a token on each of its devices, over that of A."""
        return self.first.tokens_per_s_per_gpu / self.second.tokens_per_s_per_gpu

    @property
    def ratio_band(self) -> Band:
        """Band of `time_ratio`: what both jobs have in common cancels."""
        changed = changed_settings(self.first.job, self.second.job)
        return ratio_band(changed, self.first.band, self.second.band)

    @property
    def settings(self) -> dict[str, tuple[Any, Any]]:
        """Settings that differ, by dotted field, defaults filled in."""
        first, second = job_settings(self.first.job), job_settings(self.second.job)
        return {
            key: (first.get(key), second.get(key))
            for key in dict.fromkeys([*first, *second])
            if first.get(key) != second.get(key)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return exactly the object that ``projector compare --json`` prints."""
        first, second = self.first, self.second
        ratio, band = self.time_ratio, self.ratio_band
        sides = {
            side: {
                f"{share}": None if factor is None else ratio * factor
                for share in SHARES
                for factor in [getattr(band, f"{side}_{share}")]
            }
            for side in ("low", "high")
        }
        return {
            **envelope(dict.fromkeys([*first.warnings, *second.warnings]), first.uncertainty),
            **told(self, "headline"),
            "time_ratio": {"value": ratio, **sides, "basis": band.basis},
            **told(self, "breakdown_ms memory_gib"),
            "fits": {"a": first.memory.fits, "b": second.memory.fits},
            "verdict": {"a": first.memory.verdict, "b": second.memory.verdict},
            "bound": {"a": first.bound, "b": second.bound},
            "settings": {key: {"a": a, "b": b} for key, (a, b) in self.settings.items()},
        }


def compare_report(comparison: Comparison) -> list[RenderableType]:
    """Return the parts of the report, in the order of printing."""
    parts: list[RenderableType] = []
    for label, result in (("A", comparison.first), ("B", comparison.second)):
        parts.append(Text(f"{label}  ", style="bold").append_text(title(result.job)))
        parts.append(Text("   ").append_text(verdict(result.memory)))
    if comparison.settings:
        parts.append(_ratio_line(comparison))
    parts.append(Text())
    parts += _changes("Result", comparison.headline, keep_all=True)
    parts += _changes("Time of one step", comparison.breakdown_ms, unit="ms")
    parts += _changes("Memory of the peak stage", comparison.memory_gib, unit="GiB")
    parts += _settings(comparison.settings)
    return parts


def _ratio_line(comparison: Comparison) -> Text:
    ratio, band = comparison.time_ratio, comparison.ratio_band
    line = Text(f"B/A {ratio:.3f} of the time for a token on each GPU", style="bold")
    if band.low_68 is None or band.high_68 is None or band.low_90 is None or band.high_90 is None:
        return line.append(f"; {band.basis}", style=DIM)
    texts = [
        f"{ratio * low:.3f} to {ratio * high:.3f} ({share} %)"
        for share, low, high in ((68, band.low_68, band.high_68), (90, band.low_90, band.high_90))
    ]
    line.append(f"; {', '.join(texts)}", style="default")
    if ratio * band.low_68 < 1.0 < ratio * band.high_68:
        line.append("; within noise of each other", style="default")
    elif ratio * band.low_90 < 1.0 < ratio * band.high_90:
        line.append(f"; {'B' if ratio < 1.0 else 'A'} is likely faster", style="default")
    return line.append(f"\n    {band.basis}", style=DIM)


def job_settings(job: Job) -> dict[str, Any]:
    """Return every setting of a job by dotted field, sources and names left out."""
    sections = {
        name: getattr(job, name).model_dump(mode="json")
        for name in ("model", "parallelism", "training", "cluster", "run", "first_order")
    }
    settings = {
        key: value
        for key, value in flatten(sections).items()
        if key not in _UNSHOWN and ".sources" not in key
    }
    settings["model"] = job.model.name
    if job.parallelism.etp is None and job.model.moe is None:
        settings.pop("parallelism.etp", None)
    return settings


def _by_size(changes: dict[str, Change]) -> dict[str, Change]:
    return dict(sorted(changes.items(), key=lambda item: -abs(item[1].difference)))


def _changes(
    name: str, changes: Mapping[str, Change], *, unit: str = "", keep_all: bool = False
) -> list[RenderableType]:
    table = Grid(f"={unit}", "A", "B", "difference", "%")
    for term, change in changes.items():
        if change.first == change.second == 0.0 and not keep_all:
            continue
        digits = 4 if term in _SHARES else 2
        relative = change.relative
        table.add_row(
            term,
            f"{change.first:,.{digits}f}",
            f"{change.second:,.{digits}f}",
            f"{change.difference:+,.{digits}f}" if change.difference else "=",
            "" if relative is None or not change.difference else f"{relative * 100:+,.1f}",
            style=None if change.difference else DIM,
        )
    return section(name, "", table)


def _settings(settings: Mapping[str, tuple[Any, Any]]) -> list[RenderableType]:
    if not settings:
        return [heading("Settings", "the same in both")]
    table = Grid("=setting", "<A", "<B")
    parts = tuple(part for part, name in _WHOLE.items() if name in settings)
    shown = [key for key in settings if key in _WHOLE.values() or not key.startswith(parts)]
    for key in shown:
        table.add_row(key, *map(plain, settings[key]))
    hidden = len(settings) - len(shown)
    note = f"{hidden} more of another model, device or network: --json lists them" if hidden else ""
    return section("Settings that differ", note, table)
