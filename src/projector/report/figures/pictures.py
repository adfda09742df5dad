"""Pictures as commands ask for them: ``KIND=FIGURE``, checked before anything is computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from projector.config.job import Job
from projector.config.space import Space
from projector.errors import ConfigError
from projector.report.figures.best_cells import check_fields
from projector.report.figures.figure import check_figure
from projector.report.figures.heat_map import write_heat_map
from projector.report.figures.pareto import write_pareto
from projector.report.figures.roofline import write_roofline
from projector.report.figures.rows import RATE
from projector.report.figures.scaling import write_scaling
from projector.searches.configurations import SearchResult
from projector.sweeps.result import SweepResult
from projector.sweeps.rows import column_kinds
from projector.sweeps.space import axis_kinds

KEY = "plot"
PARETO, HEAT_MAP, SCALING, ROOFLINE = "pareto", "heatmap", "scaling", "roofline"

OF_SWEEP = (PARETO, HEAT_MAP, SCALING)
OF_SEARCH = (PARETO,)
OF_JOB = (ROOFLINE,)

_FORMS = {HEAT_MAP: "heatmap:AXIS,AXIS[,COLUMN]"}


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure that was asked for."""

    kind: str
    path: str
    fields: tuple[str, ...] = ()
    """Axes of a heat map, in full."""
    column: str = RATE
    """What a heat map shows."""


def read_pictures(texts: Sequence[str], kinds: Sequence[str]) -> tuple[Picture, ...]:
    """Read ``KIND=FIGURE``, where KIND may have ``:FIELD,FIELD`` behind it.

    Raises
    ------
    ConfigError
        If there is no such kind here, the figure could not be written, or two have one name.
    """
    found: list[Picture] = []
    for text in texts:
        what, equals, path = text.partition("=")
        kind, colon, rest = what.partition(":")
        forms = [_FORMS.get(each, each) for each in kinds]
        if not equals or not path or kind not in kinds or bool(colon) != (kind == HEAT_MAP):
            msg = f"{KEY} is one of {', '.join(f'{form}=FIGURE' for form in forms)}, got {text!r}"
            raise ConfigError(msg, key=KEY, value=text, allowed=forms)
        check_figure(path)
        if any(Path(path) == Path(each.path) for each in found):
            msg = f"{KEY}: two figures cannot both be {path}"
            raise ConfigError(msg, key=KEY, value=path)
        fields = tuple(part.strip() for part in rest.split(",")) if colon else ()
        column = fields[2] if len(fields) == 3 else RATE
        found.append(Picture(kind, path, fields[:2] if len(fields) == 3 else fields, column))
    return tuple(found)


def check_pictures(pictures: Sequence[Picture], space: Space) -> tuple[Picture, ...]:
    """Return pictures with the full names of their fields.

    Raises
    ------
    ConfigError
        If a heat map names what the space does not have.
    """
    if not any(each.kind == HEAT_MAP for each in pictures):
        return tuple(pictures)
    kinds = column_kinds(axis_kinds(space))
    return tuple(_resolved(each, kinds) for each in pictures)


def _resolved(each: Picture, kinds: Mapping[str, str]) -> Picture:
    if each.kind != HEAT_MAP:
        return each
    first, second, column = check_fields(each.fields, each.column, kinds)
    return Picture(each.kind, each.path, (first, second), column)


def write_pictures(pictures: Sequence[Picture], found: SweepResult | SearchResult | Job) -> None:
    """Draw every picture of a result.

    Raises
    ------
    ConfigError
        If a file cannot be written.
    """
    for each in pictures:
        if isinstance(found, Job):
            write_roofline(found, each.path)
        elif each.kind == PARETO:
            write_pareto(found, each.path)
        elif isinstance(found, SweepResult) and each.kind == SCALING:
            write_scaling(found, each.path)
        elif isinstance(found, SweepResult) and each.kind == HEAT_MAP:
            write_heat_map(found, each.fields, each.path, each.column)
        else:
            msg = f"{KEY}: there is no {each.kind} of this"
            raise ConfigError(msg, key=KEY, value=each.kind)
