"""Megatron-LM's settings turned into a job; its arguments in a launch script or a plain list."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from projector.config.formats.megatron_settings import fields, model, training
from projector.config.formats.read_job import ReadJob
from projector.config.formats.shell.script import Script
from projector.config.formats.shell.values import divide
from projector.config.formats.values import is_off, is_unresolved, not_set
from projector.config.resources import settings_of
from projector.errors import ConfigError, UnsupportedError, shown

_FLAG = re.compile(r"--?[A-Za-z]")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)+", re.ASCII)
_MARKERS = ("--num-layers", "--hidden-size", "--micro-batch-size", "--tensor-model-parallel-size")

ARGUMENT = {"fp8": "fp8_format", "fp4": "fp4_format"}
"""Name in code -> argument, where it is another one."""

_TABLE = settings_of("megatron")
NEGATED: Mapping[str, str] = {
    f"no_{setting}": setting for setting in _TABLE["negated"].split()
} | _TABLE["switches_off"]
"""Switches that turn a setting off: argument -> setting."""

_PROGRAMS = {part: why for why, parts in _TABLE["programs"].items() for part in parts.split()}
"""Part of a training program's name -> why it is refused."""

_MOST_SHOWN = 12


def read_megatron(
    text: str | Sequence[str], *, name: str = "", path: Path | None = None
) -> ReadJob:
    """Read Megatron-LM arguments: a shell script, a text of arguments, or the arguments one by one.

    Files that a script reads are looked for beside ``path``. No device is set; origins name values
    that are Megatron's defaults.
    """
    warnings: list[str] = []
    launch: Mapping[str, int] = {}
    if isinstance(text, str):
        script = Script(text, path=path)
        launcher, program, words = _script_words(script)
        warnings, launch = _script_notes(script), script.launch
    else:
        launcher, program, words = _divide([str(word) for word in text])
    # The name of a program is all that tells what it trains.
    stem = program.removesuffix(".py").replace(".", "/").rpartition("/")[2].lower()
    for part in re.split(r"[^a-z0-9]+", stem):
        if part in _PROGRAMS:
            msg = f"{program}: {_PROGRAMS[part]}"
            raise UnsupportedError(msg, key="config", value=program, allowed="pretrain_gpt.py")
    stated = _settings(words)
    for key, value in _settings(launcher).items():
        if key in {"nnodes", "nproc_per_node"}:
            stated.setdefault(key, value)
    if not stated:
        msg = "no Megatron-LM arguments were found (such as --num-layers 32)"
        raise ConfigError(msg, key="config", allowed="Megatron-LM arguments")
    for key, count in launch.items():
        stated.setdefault(key, count)
    for key, field in (("nnodes", "nodes"), ("nproc_per_node", "gpus_per_node")):
        value = stated.get(key)
        if value is None:
            continue
        most = str(value).rpartition(":")[2]
        if most.isdigit():
            stated[key] = int(most)
        else:
            del stated[key]
            warnings.append(f"--{key} is {shown(value)}; give cluster.{field}=N to set it")
    spelling = {
        setting: switch for switch, setting in NEGATED.items() if stated.get(setting) is False
    }

    def spell(setting: str) -> str:
        return "--" + spelling.get(setting, ARGUMENT.get(setting, setting)).replace("_", "-")

    dialect = fields.Dialect(spell, fields.MEGATRON_DEFAULTS, "Megatron default", "argument")
    read = translate(stated, dialect)
    job = read.data
    job["name"] = name
    job.setdefault("training", {})["framework"] = "megatron_lm"
    if name:
        job["model"].setdefault("name", name)
    return read._replace(notes=(*warnings, *read.notes))


def _script_words(script: Script) -> tuple[list[str], str, list[str]]:
    """Return the program that trains, words before and after it; or arguments that stand alone."""
    training = [words for words in script.commands if any(map(_is_marker, words))]
    programs = [words for words in training if _program_at(words) >= 0]
    if programs:
        return _divide(programs[-1])
    alone = [words for words in script.commands if _FLAG.match(words[0])]
    started = [words for words in training if words not in alone]
    if started:
        return [], "", started[-1]
    held: list[str] = []
    for value in script.variables.values():
        parts = value if isinstance(value, list) else divide(value)
        if parts and parts[0].startswith("--"):
            held.extend(parts)
    words = [*held, *(word for command in alone for word in command)]
    return [], "", words if any(map(_is_marker, words)) else []


def _is_marker(word: str) -> bool:
    return word.startswith(_MARKERS)


def _script_notes(script: Script) -> list[str]:
    """Return what of a script was not followed, where its arguments may matter."""
    notes: list[str] = []
    skipped = _that_matter(script.skipped)
    if skipped:
        notes.append(
            "parts of the script that hang on files, programs or loops were skipped with their "
            f"arguments: {_some(skipped)}"
        )
    for variable, names in script.left_out.items():
        left_out = _that_matter(names)
        if left_out:
            notes.append(
                f"the script does not set {variable}, on which a condition hangs: it was taken "
                f"for unset, without {_some(left_out)}"
            )
    for variable, values in script.loops.items():
        notes.append(f"{variable} goes through {_some(values)} in a loop: {values[0]} is projected")
    if script.not_read:
        notes.append(f"the script reads {_some(script.not_read)}, which was not found")
    return notes


def _that_matter(arguments: Sequence[str]) -> list[str]:
    settings = {name: _setting(name.lstrip("-"))[0] for name in arguments}
    return [name for name, setting in settings.items() if not fields.is_harmless(setting)]


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _divide(words: list[str]) -> tuple[list[str], str, list[str]]:
    place = _program_at(words)
    if place < 0:
        return [], "", words
    return words[:place], words[place], words[place + 1 :]


def _program_at(words: Sequence[str]) -> int:
    """Return where the Python program stands, a file or a module behind ``-m``; -1 for none."""
    for place, word in enumerate(words):
        if word.endswith(".py") and not word.startswith("-"):
            return place
        module = place > 0 and words[place - 1] == "-m"
        if module and _MODULE.fullmatch(word) and not word.startswith("torch."):
            return place
    return -1


def _settings(words: Sequence[str]) -> dict[str, Any]:
    """Group words into settings; a bare switch is True, several words are a list."""
    settings: dict[str, Any] = {}
    current = ""
    values: list[str] = []
    for word in [*words, "--"]:
        if not _FLAG.match(word) and word != "--":
            if current and not (word.startswith(("${", "$(")) and values):
                values.append(word)
            continue
        if current:
            setting, switched = _setting(current)
            given: Any = True if not values else values[0] if len(values) == 1 else values
            settings[setting] = given if switched else False
        current, equals, value = word.lstrip("-").partition("=")
        values = [value] if equals else []
    return settings


def _setting(argument: str) -> tuple[str, bool]:
    """Return the setting of an argument, and whether the argument switches it on."""
    setting = argument.replace("-", "_")
    return (NEGATED[setting], False) if setting in NEGATED else (setting, True)


# Turning settings by their names in code into a native job: the rules in their order.

_KNOWN = fields.TAKEN_OVER | training.ADAPTERS | fields.UNSUPPORTED.keys()


def translate(
    stated: Mapping[str, Any],
    dialect: fields.Dialect,
    *,
    base: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
) -> ReadJob:
    """Turn settings by Megatron's name in code, None for Megatron's own None, into a native job.

    They override the native architecture ``base``; without it they describe all of the model.
    ``sources`` says where a setting came from, if not from the file.
    """
    settings = fields.Settings(stated, dialect, base, sources or {})
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


def _refuse(settings: fields.Settings) -> None:
    """Refuse what makes another model of it, by the name that the user wrote."""
    for name, unsupported in fields.UNSUPPORTED.items():
        value = settings.stated.get(name)
        if is_off(value) or any(_same(value, one) for one in unsupported.without_effect):
            continue
        legal = unsupported.instead
        given = "" if value is True else f" ({shown(value)})"
        text = f"{given}: {unsupported.what} not supported; supported: {legal}"
        settings.refuse(name, text, value=value, allowed=legal)


def _open(settings: fields.Settings) -> None:
    """Leave to the user what hangs on a variable that the script does not set."""
    for name, target in fields.OPEN.items():
        value = settings.stated.get(name)
        if is_unresolved(value):
            settings.leave_open(target, name, not_set(value), allowed="a value")
            settings.stated[name] = None


def _take_over(settings: fields.Settings) -> None:
    """Take over every plain field; a base architecture outranks defaults of the model."""
    for field in fields.FIELDS:
        assumed = field.section == "model" and not settings.has(field.name)
        if settings.get(field.name) is None or (assumed and settings.base is not None):
            continue
        value = settings.read(field.name, field.convert)
        if value is not None:
            settings.put(field.target, value, field.name)


def _report_rest(settings: fields.Settings) -> None:
    """Name what was not taken over: by what is done instead, as unknown, or as harmless."""
    by_note: dict[str, list[str]] = {}
    unknown: list[str] = []
    for name, value in settings.stated.items():
        if name in _KNOWN or value is None:
            continue
        without_effect, note = fields.UNMODELLED.get(name, ((), ""))
        if note and not any(_same(value, one) for one in without_effect):
            by_note.setdefault(note, []).append(settings.spell(name))
        elif note or fields.is_harmless(name):
            settings.ignored.append(settings.spell(name))
        else:
            unknown.append(name)
    for note, names in by_note.items():
        *most, last = names
        listed = f"{', '.join(most)} and {last} are" if most else f"{last} is"
        settings.warn_that(f"{listed} not modelled: {note}")
    if unknown:
        settings.warn_that(_about_unknown(settings, unknown))


def _about_unknown(settings: fields.Settings, names: list[str]) -> str:
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


def _same(value: Any, other: Any) -> bool:
    return value == other or str(value).lower() == str(other).lower()


_RULES: tuple[Callable[[fields.Settings], None], ...] = (
    _refuse,
    _open,
    model.layer_spec,
    _take_over,
    *model.RULES,
    model.virtual_stages,
    model.context,
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
