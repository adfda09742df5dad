"""A morning on a GPU: everything of the measuring path, in order of worth, within so many minutes.

``python validation/on_gpu.py --minutes 40 --out FOLDER`` measures on one GPU of this machine. What
was done is in the folder as it goes: the same command again goes on where the last one ended, and
tries again what failed. It ends in ``on_gpu.html`` and ``on_gpu.json``: what ran, what failed and
why, and how far projections are off. ``--rehearse`` walks the same path on this processor with
small shapes, whose numbers mean nothing. docs/on_gpu.md says what each part does.
"""

import argparse
import contextlib
import hashlib
import json
import math
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import yaml
from on_gpu_page import document
from on_gpu_parts import PARTS, Found, NotPossibleError, OutOfTimeError, Place

from projector.config.device_file import load_device
from projector.distribution import package_version
from projector.errors import ConfigError, MeasurementError, ProjectorError
from projector.files import made_folder, write_whole
from projector.measure.devices import cpu_name, gpus_at_hand, profile_of, stands_for
from projector.measure.probe import identify
from projector.measure.process import check_torch
from projector.measure.smi import open_library
from projector.measure.task import Environment
from projector.report.pages.page import check_page, write_page
from projector.units import GIB

HERE = Path(__file__).parent
PLAN = HERE / "on_gpu.yaml"
REHEARSED = HERE / "probed_cpu_profile.yaml"
"""Profile that a rehearsal renames to this processor."""

STATE, PAGE = "on_gpu.json", "on_gpu.html"
LAYOUT = 1

MOST_MINUTES = 24 * 60.0
LEAST_S = 20.0
"""A part is not begun with less."""

GRACE_S = 60.0
"""A part that looks at no clock is cut so long after its time."""

OK, CUT, FAILED, LEFT_OUT, NOT_POSSIBLE = "ok", "cut off", "failed", "left out", "not possible"
DONE = (OK, NOT_POSSIBLE)
"""What is not done again."""


@dataclass
class State:
    """What is known so far, as the file has it."""

    rehearsal: bool
    device: str
    """Shipped profile, or a file of the folder."""
    environment: dict[str, Any]
    plan: str
    """Digest of the section of ``on_gpu.yaml``."""
    version: str = field(default_factory=package_version)
    layout: int = LAYOUT
    facts: dict[str, str] = field(default_factory=dict)
    """Of the machine before any load."""
    runs: list[dict[str, Any]] = field(default_factory=list)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def status(self, name: str) -> str:
        """Return how a part ended, ``""`` if it never began."""
        return str(self.parts.get(name, {}).get("status", ""))

    def write(self, folder: Path) -> None:
        """Write the file; it appears whole."""
        text = json.dumps(asdict(self), indent=1, allow_nan=False)
        write_whole(folder / STATE, text.encode(), key="out")


def read_state(folder: Path, fresh: State) -> State:
    """Return what the folder has of the same run, or a new state; refuse that of another."""
    path = folder / STATE
    try:
        known = State(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return fresh
    except (OSError, ValueError, TypeError) as error:
        msg = f"out: {path} cannot be read ({error}); name another folder"
        raise ConfigError(msg, key="out", value=str(folder), allowed="another folder") from None
    for what, before, now in (
        ("layout", known.layout, fresh.layout),
        ("rehearsal", known.rehearsal, fresh.rehearsal),
        ("device", known.environment.get("device"), fresh.environment["device"]),
        ("torch", known.environment.get("torch"), fresh.environment["torch"]),
        ("projector", known.version, fresh.version),
        ("plan", known.plan, fresh.plan),
    ):
        if before != now:
            msg = f"out: {folder} holds a run with {what} {before}, and this one has {now}"
            raise ConfigError(msg, key="out", value=str(folder), allowed="another folder")
    known.facts = fresh.facts or known.facts
    return known


def share_s(left_s: float, minutes: Sequence[float]) -> float:
    """Return the seconds of the first of some parts: its share of what is left for all of them.

    What is left of a short time goes to the part that comes first.
    """
    return max(left_s * minutes[0] / sum(minutes), min(left_s, LEAST_S))


@contextlib.contextmanager
def cut_after(seconds: float) -> Iterator[None]:
    """End what looks at no clock itself, such as a fit."""

    def late(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        raise OutOfTimeError

    former = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former)


def errors_of(found: Found) -> dict[str, dict[str, Any]]:
    """Return count, median and p90 of |projected / measured - 1| and mean ratio, by term."""
    errors = {}
    for term in dict.fromkeys(row.term for row in found.rows):
        ratio = np.array([row.ratio for row in found.rows if row.term == term])
        error = np.abs(ratio - 1.0)
        errors[term] = {
            "count": len(ratio),
            "median_ape": float(np.median(error)),
            "p90_ape": float(np.percentile(error, 90.0)),
            "geomean_ratio": float(math.exp(np.mean(np.log(ratio)))),
        }
    return errors


def _line_of(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def run_part(place: Place, run: Callable[[Place, Found], None], seconds: float) -> dict[str, Any]:
    """Run one part within its time; whatever it raises is an outcome."""
    found, begun = Found(), time.monotonic()
    place.deadline = begun + seconds
    status, error = OK, ""
    try:
        with cut_after(seconds + GRACE_S):
            run(place, found)
    except OutOfTimeError:
        status, error = CUT, f"its {seconds:.0f} s were over; the same command goes on"
    except NotPossibleError as why:
        status, error = NOT_POSSIBLE, str(why)
    except ProjectorError as why:
        status, error = FAILED, why.message
    except Exception as why:  # a defect of one part must not cost the others
        status, error = FAILED, f"{type(why).__name__}: {why} ({_line_of(why)})"
    return {
        "status": status,
        "error": error,
        "seconds": round(time.monotonic() - begun, 1),
        "errors": errors_of(found),
        "failures": found.failures,
        "facts": found.facts,
        "files": found.files,
        "rows": [{**asdict(row), "ratio": row.ratio} for row in found.rows],
    }


def go(
    place: Place,
    state: State,
    plan: Mapping[str, Mapping[str, Any]],
    minutes: float,
    parts: Mapping[str, Callable[[Place, Found], None]] = PARTS,
) -> None:
    """Run what is to be done, each part within its share of what is left."""
    begun = time.monotonic()
    this: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"), "minutes": minutes
    }  # fmt: skip
    state.runs.append(this)
    todo = [name for name in plan if state.status(name) not in DONE]
    for number, name in enumerate(todo):
        left_s = begun + 60.0 * minutes - time.monotonic()
        seconds = share_s(left_s, [plan[each]["minutes"] for each in todo[number:]])
        title = plan[name]["title"]
        if seconds < LEAST_S:
            if not state.status(name):
                why = "no time was left; the same command goes on"
                state.parts[name] = {"title": title, "status": LEFT_OUT, "error": why}
            continue
        print(f"{title}: at most {seconds:.0f} s", flush=True)
        try:
            state.parts[name] = {"title": title, **run_part(place, parts[name], seconds)}
        finally:
            this["seconds"] = round(time.monotonic() - begun, 1)
            state.parts = {each: state.parts[each] for each in plan if each in state.parts}
            state.write(place.folder)
        done = state.parts[name]
        print(f"  {done['status']} in {done['seconds']} s {done['error']}".rstrip(), flush=True)


def device_of(name: str | None, environment: Environment, folder: Path) -> str:
    """Return the profile of a GPU: shipped, or one of the folder that extends the one named."""
    shipped = profile_of(environment.device)
    if name is None:
        if shipped is None:
            msg = f"device: no shipped device is {environment.device!r}; --device names one like it"
            allowed = "a device of `projector hardware`"
            raise ConfigError(msg, key="device", value=environment.device, allowed=allowed)
        return shipped
    if stands_for(load_device(name, key="device"), environment.device):
        return name
    return _profile(folder, {"extends": name, "name": environment.device})


def _profile(folder: Path, data: Mapping[str, Any]) -> str:
    path = folder / "device.yaml"
    write_whole(path, yaml.safe_dump(dict(data), sort_keys=False).encode(), key="out")
    return str(path)


def _told(value: float | None, unit: str) -> str:
    return "not told" if value is None else f"{value:g} {unit}"


def at_rest(environment: Environment, device: str) -> dict[str, str]:
    """Return what the machine tells before any load, beside its profile."""
    profile = load_device(device)
    facts = {
        "memory": f"{environment.memory_bytes / GIB:.2f} GiB, profile {profile.hbm_gib:.2f} GiB"
    }
    library = None if environment.backend == "cpu" else open_library(0)
    if library is None:
        return {**facts, "clock and power": "no library of the vendor is there, or none is needed"}
    try:
        read = {
            what: _told(library.read(what), unit)
            for what, unit in (
                ("clock_mhz", "MHz"), ("memory_clock_mhz", "MHz"), ("power_w", "W"),
                ("power_limit_w", "W"), ("temperature_c", "°C"),
            )
        }  # fmt: skip
        limit, tdp = read["power_limit_w"], f"{profile.tdp_w:g} W"
        facts |= {
            "read through": type(library).__name__,
            "clock": f"{read['clock_mhz']}, memory {read['memory_clock_mhz']}",
            "power": f"{read['power_w']}, limit {limit}, TDP of the profile {tdp}",
            "temperature": read["temperature_c"],
            "clock held down by": ", ".join(library.reasons()) or "nothing that is told",
        }
    finally:
        library.close()
    return facts


def forget(folder: Path, state: State, names: Sequence[str]) -> None:
    """Drop what some parts have measured, so that they are measured anew."""
    for name in names:
        if name not in PARTS:
            msg = f"again: there is no part {name!r}; known: {', '.join(PARTS)}"
            raise ConfigError(msg, key="again", value=name, allowed=list(PARTS))
    for name in names:
        for file in state.parts.pop(name, {}).get("files", ()):
            path = folder / file
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def begin(options: argparse.Namespace) -> tuple[Place, State]:
    """Check everything that could stop a run, and return where it goes on."""
    if not 0.0 < options.minutes <= MOST_MINUTES:
        msg = f"minutes must be above 0 and up to {MOST_MINUTES:g}, got {options.minutes:g}"
        allowed = f"0 to {MOST_MINUTES:g}"
        raise ConfigError(msg, key="minutes", value=options.minutes, allowed=allowed)
    hand = gpus_at_hand()
    if hand is None and not options.rehearse:
        msg = (
            "no GPU is at hand, or all are hidden (CUDA_VISIBLE_DEVICES); --rehearse walks the "
            "same path on this processor"
        )
        raise MeasurementError(msg, key="device", value=cpu_name(), allowed="a GPU")
    folder = made_folder(options.out, key="out")
    check_page(folder / PAGE)
    check_torch()
    environment = identify("cpu" if options.rehearse else "cuda")
    if options.rehearse:
        data = yaml.safe_load(REHEARSED.read_text(encoding="utf-8"))
        device = _profile(folder, {**data, "name": environment.device})
    else:
        device = device_of(options.device, environment, folder)
    sizes = yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    section = sizes["rehearsal" if options.rehearse else "gpu"]
    facts = at_rest(environment, device)
    plan = hashlib.sha256(json.dumps(section).encode()).hexdigest()[:12]
    where = environment.model_dump(mode="json")
    # Pages are shown to others, whom no folder of this machine concerns.
    fresh = State(options.rehearse, Path(device).name, where, plan, facts=facts)
    state = read_state(folder, fresh)
    forget(folder, state, options.again)
    return Place(folder, environment, device, section, options.rehearse), state


def finish(place: Place, state: State) -> None:
    """Write the file and the page of what there is."""
    state.write(place.folder)
    write_page(place.folder / PAGE, document(asdict(state)))
    print(f"wrote {place.folder / PAGE} and {place.folder / STATE}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return 0 if every part is done, 1 if some is not, 2 after bad input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=40.0, help="for all parts; default 40")
    parser.add_argument("--out", required=True, help="folder of everything that is measured")
    parser.add_argument("--device", help="shipped device that an unknown GPU is like")
    parser.add_argument("--rehearse", action="store_true", help="on this processor, small shapes")
    parser.add_argument(
        "--again", nargs="+", default=[], metavar="PART", help="parts to measure anew"
    )
    options = parser.parse_args(arguments)
    try:
        place, state = begin(options)
    except ProjectorError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    plan = yaml.safe_load(PLAN.read_text(encoding="utf-8"))["parts"]
    # A scheduler's signal ends it as an interrupt does: with a page of what there is.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Compiling beside it would make launches slower.
    os.environ.setdefault("PROJECTOR_BACKGROUND", "0")
    try:
        go(place, state, plan, options.minutes)
    except KeyboardInterrupt:
        finish(place, state)
        return 130
    finish(place, state)
    return 0 if all(state.status(name) in DONE for name in plan) else 1


if __name__ == "__main__":
    raise SystemExit(main())
