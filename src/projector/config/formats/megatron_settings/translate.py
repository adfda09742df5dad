"""Turning Megatron settings into a native job: the rules in their order."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from projector.config.formats.megatron_settings import model, training
from projector.config.formats.megatron_settings.fields import (
    FIELDS,
    OPEN,
    TAKEN_OVER,
    Dialect,
    Settings,
)
from projector.config.formats.megatron_settings.others import (
    UNMODELLED,
    UNSUPPORTED,
    is_harmless,
)
from projector.config.formats.read_job import ReadJob
from projector.config.formats.values import is_off, is_unresolved, not_set
from projector.errors import shown

_KNOWN = TAKEN_OVER | training.ADAPTERS | UNSUPPORTED.keys()


def translate(
    stated: Mapping[str, Any],
    dialect: Dialect,
    *,
    base: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
) -> ReadJob:
    """Turn settings by Megatron's name in code, None for Megatron's own None, into a native job.

    They override the native architecture ``base``; without it they describe all of the model.
    ``sources`` says where a setting came from, if not from the file.
    """
    settings = Settings(stated, dialect, base, sources or {})
    for rule in _RULES:
        rule(settings)
    return ReadJob(
        settings.job,
        tuple(settings.warnings),
        settings.origins,
        tuple(settings.ignored),
        settings.missing,
        derive=settings.derive if settings.derived else None,
    )


def _refuse(settings: Settings) -> None:
    """Refuse what makes another model of it, by the name that the user wrote."""
    for name, unsupported in UNSUPPORTED.items():
        value = settings.stated.get(name)
        if is_off(value) or any(_same(value, one) for one in unsupported.without_effect):
            continue
        legal = unsupported.instead
        given = "" if value is True else f" ({shown(value)})"
        text = f"{given}: {unsupported.what} not supported; supported: {legal}"
        settings.refuse(name, text, value=value, allowed=legal)


def _open(settings: Settings) -> None:
    """Leave to the user what hangs on a variable that the script does not set."""
    for name, target in OPEN.items():
        value = settings.stated.get(name)
        if is_unresolved(value):
            settings.leave_open(target, name, not_set(value), allowed="a value")
            settings.stated[name] = None


def _take_over(settings: Settings) -> None:
    """Take over every plain field; a base architecture outranks defaults of the model."""
    for field in FIELDS:
        assumed = field.section == "model" and not settings.has(field.name)
        if settings.get(field.name) is not None and not (assumed and settings.base is not None):
            settings.put(field.target, settings.read(field.name, field.convert), field.name)


def _report_rest(settings: Settings) -> None:
    """Name what was not taken over: by what is done instead, as unknown, or as harmless."""
    by_note: dict[str, list[str]] = {}
    unknown: list[str] = []
    for name, value in settings.stated.items():
        if name in _KNOWN or value is None:
            continue
        without_effect, note = UNMODELLED.get(name, ((), ""))
        if note and not any(_same(value, one) for one in without_effect):
            by_note.setdefault(note, []).append(settings.spell(name))
        elif note or is_harmless(name):
            settings.ignored.append(settings.spell(name))
        else:
            unknown.append(name)
    for note, names in by_note.items():
        verb = "is" if len(names) == 1 else "are"
        settings.warn_that(f"{_listed(names)} {verb} not modelled: {note}")
    if unknown:
        settings.warn_that(_about_unknown(settings, unknown))


def _about_unknown(settings: Settings, names: list[str]) -> str:
    """Return one warning about all unknown settings, with the known ones they resemble."""
    label = settings.dialect.label
    close = {name: difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.85) for name in names}
    if len(names) == 1:
        hint = [f"; did you mean {settings.spell(near)}?" for near in close[names[0]]]
        return f"unknown Megatron {label} {settings.spell(names[0])} was ignored{''.join(hint)}"
    told = [
        "".join([settings.spell(name), *(f" (or {settings.spell(near)}?)" for near in close[name])])
        for name in names
    ]
    return f"{len(names)} unknown Megatron {label}s were ignored: {', '.join(told)}"


def _listed(names: list[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _same(value: Any, other: Any) -> bool:
    return value == other or str(value).lower() == str(other).lower()


_RULES: tuple[Callable[[Settings], None], ...] = (
    _refuse,
    _open,
    model.layer_spec,
    _take_over,
    *model.RULES,
    model.virtual_stages,
    model.context,
    model.placement,
    model.sharding,
    training.precision,
    training.optimizer,
    training.recompute,
    training.dispatch,
    training.kernels,
    training.adapter,
    model.schedule,
    model.batch,
    _report_rest,
)
"""Each looks at the settings in turn; later ones see what earlier ones have set."""
