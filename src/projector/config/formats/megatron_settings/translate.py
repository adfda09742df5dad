"""Turning Megatron settings into a native job: the rules in their order."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from projector.config.formats.megatron_settings import model, parallelism, training
from projector.config.formats.megatron_settings.fields import FIELDS, TAKEN_OVER
from projector.config.formats.megatron_settings.others import (
    IGNORED,
    IGNORED_PREFIXES,
    UNMODELLED,
    UNSUPPORTED,
)
from projector.config.formats.megatron_settings.settings import Dialect, Settings

Triple = tuple[dict[str, Any], tuple[str, ...], dict[str, str]]
"""Job mapping, warnings, and origins of values that the file does not state."""

_KNOWN = TAKEN_OVER | UNSUPPORTED.keys()


def translate(
    stated: Mapping[str, Any],
    dialect: Dialect,
    *,
    base: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
) -> Triple:
    """Turn Megatron settings into a native job mapping.

    Parameters
    ----------
    stated : mapping
        Settings by Megatron's name in code; None means Megatron's own None.
    dialect : Dialect
        Defaults and spelling of the tool the settings come from.
    base : mapping, optional
        A native architecture that the settings override; without it they describe all of it.
    sources : mapping, optional
        Setting -> where it came from, if not from the file.

    Returns
    -------
    tuple
        Job mapping, warnings, and origins of values that the file does not state.
    """
    settings = Settings(stated, dialect, base, sources or {})
    for rule in _RULES:
        rule(settings)
    return settings.job, tuple(settings.warnings), settings.origins


def _refuse(settings: Settings) -> None:
    for name, reason in UNSUPPORTED.items():
        value = settings.stated.get(name)
        if value not in (None, False, 0, 0.0, "0", "0.0", "false"):
            settings.refuse(name, f": {reason}", value=value)


def _take_over(settings: Settings) -> None:
    """Take over every plain field; a base architecture outranks defaults of the model."""
    for field in FIELDS:
        assumed = field.section == "model" and not settings.has(field.name)
        if settings.get(field.name) is not None and not (assumed and settings.base is not None):
            settings.put(field.target, settings.read(field.name, field.convert), field.name)


def _report_rest(settings: Settings) -> None:
    """Name what was not taken over, unless it cannot matter."""
    for name, value in settings.stated.items():
        if name in _KNOWN or value is None:
            continue
        if name in UNMODELLED:
            without_effect, note = UNMODELLED[name]
            if not any(_same(value, one) for one in without_effect):
                settings.warn(name, f" is not modelled: {note}")
        elif name not in IGNORED and not name.startswith(IGNORED_PREFIXES):
            close = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.85)
            hint = f"; did you mean {settings.spell(close[0])}?" if close else ""
            label = settings.dialect.label
            spelt = settings.spell(name)
            settings.warn_that(f"unknown Megatron {label} {spelt} was ignored{hint}")


def _same(value: Any, other: Any) -> bool:
    return value == other or str(value).lower() == str(other).lower()


_RULES: tuple[Callable[[Settings], None], ...] = (
    _refuse,
    model.layer_spec,
    _take_over,
    *model.RULES,
    parallelism.virtual_stages,
    parallelism.context,
    parallelism.placement,
    parallelism.sharding,
    training.precision,
    training.optimizer,
    training.recompute,
    training.dispatch,
    training.kernels,
    parallelism.schedule,
    parallelism.batch,
    _report_rest,
)
"""Each looks at the settings in turn; later ones see what earlier ones have set."""
