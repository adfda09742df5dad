"""Pictures as commands ask for them: ``KIND=FIGURE``, checked before anything is computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from projector.config.job import Job
from projector.config.space import Space
from projector.errors import ConfigError
from projector.report.figures.figure import check_figure
from projector.report.figures.heat_map import check_fields, write_heat_map
from projector.report.figures.interval import write_interval
from projector.report.figures.pareto import write_pareto
from projector.report.figures.roofline import write_roofline
from projector.report.figures.rows import RATE, check_apart, serves
from projector.report.figures.scaling import write_scaling
from projector.report.speed_front import write_front_of_sweep
from projector.searches.result import SearchResult
from projector.sweeps.result import SweepResult
from projector.sweeps.store import Plan
from projector.sweeps.table import axis_kinds, column_kinds, results_of

KEY = "plot"
PARETO, HEAT_MAP, SCALING, ROOFLINE = "pareto", "heatmap", "scaling", "roofline"
INTERVAL = "interval"

OF_SWEEP = (PARETO, HEAT_MAP, SCALING)
OF_SEARCH = (PARETO,)
OF_JOB = (ROOFLINE, INTERVAL)

_FORMS = {HEAT_MAP: "heatmap:AXIS,AXIS[,COLUMN]"}


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure that was asked for."""

    kind: str
    path: str
    fields: tuple[str, ...] = ()
    """Axes of a heat map, in full."""
    column: str = RATE
    """Column that a heat map shows."""


def read_pictures(texts: Sequence[str], kinds: Sequence[str]) -> tuple[Picture, ...]:
    """Read ``KIND=FIGURE``, where KIND may have ``:FIELD,FIELD`` behind it."""
    pictures: list[Picture] = []
    for text in texts:
        selector, equals, path = text.partition("=")
        kind, colon, names = selector.partition(":")
        forms = [_FORMS.get(name, name) for name in kinds]
        if not equals or not path or kind not in kinds or bool(colon) != (kind == HEAT_MAP):
            known = ", ".join(f"{form}=FIGURE" for form in forms)
            msg = f"{KEY} must be one of {known}, got {text!r}"
            raise ConfigError(msg, key=KEY, value=text, allowed=forms)
        check_figure(path)
        if any(Path(path) == Path(picture.path) for picture in pictures):
            raise ConfigError(f"{KEY}: two figures cannot both be {path}", key=KEY, value=path)
        fields = tuple(part.strip() for part in names.split(",")) if colon else ()
        column = fields[2] if len(fields) == 3 else RATE
        pictures.append(Picture(kind, path, fields[:2] if len(fields) == 3 else fields, column))
    return tuple(pictures)


def check_pictures(pictures: Sequence[Picture], space: Space) -> tuple[Picture, ...]:
    """Return pictures with the full names of their fields."""
    if not any(picture.kind == HEAT_MAP for picture in pictures):
        return tuple(pictures)
    plan = Plan.of(space, column_kinds(axis_kinds(space), results_of(space)), 1)
    return tuple(_resolved(picture, plan) for picture in pictures)


def _resolved(picture: Picture, plan: Plan) -> Picture:
    if picture.kind != HEAT_MAP:
        return picture
    first, second, column = check_fields(picture.fields, picture.column, plan.kinds)
    check_apart(plan, first, second, KEY)
    return Picture(picture.kind, picture.path, (first, second), column)


def write_pictures(pictures: Sequence[Picture], result: SweepResult | SearchResult | Job) -> None:
    """Draw every picture of a result."""
    for picture in pictures:
        if isinstance(result, Job):
            (write_interval if picture.kind == INTERVAL else write_roofline)(result, picture.path)
        elif picture.kind == PARETO and isinstance(result, SweepResult) and serves(result):
            write_front_of_sweep(result, picture.path)
        elif picture.kind == PARETO:
            write_pareto(result, picture.path)
        elif isinstance(result, SweepResult) and picture.kind == SCALING:
            write_scaling(result, picture.path)
        elif isinstance(result, SweepResult) and picture.kind == HEAT_MAP:
            write_heat_map(result, picture.fields, picture.path, picture.column)
        else:
            msg = f"{KEY}: {picture.kind} cannot be drawn for this result"
            raise ConfigError(msg, key=KEY, value=picture.kind)
