"""Names and numbers of traces, as reports write them."""

import re
from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from projector.report.terminal.tables import percent

LONGEST_NAME = 50
"""Characters of a name that a table shows."""

_CALL = re.compile(r"\w+\(")
"""A function with its arguments; ``Memcpy HtoD (Host -> Device)`` is none."""

_PURPOSE = re.compile(
    r"\b(\w+?)(?:_kernel_cuda|_cuda_kernel|_kernel_impl)\b|\b(\w*Functor\w*|\w+_functor|\w+Ops)\b"
)
"""How templates of PyTorch name the function that they wrap."""


def ms(time_ns: float) -> str:
    """Format nanoseconds as milliseconds, with fewer decimals where there are more digits."""
    value = time_ns / 1e6
    decimals = next((n for least, n in ((1000, 1), (10, 2)) if abs(value) >= least), 3)
    return f"{value:,.{decimals}f}"


def short(name: str, width: int = LONGEST_NAME) -> str:
    """Return a name as a table shows it, in so many characters.

    Of a C++ function the last part of its name and what its template is for, as in
    ``elementwise_kernel<direct_copy>``; of everything else the begin.
    """
    if "::" in name and ("<" in name or "(" in name):
        plain = name.replace("(anonymous namespace)::", "")
        head = re.findall(r"\w+", _outside_templates(plain).split("(")[0])[-1:]
        found = (first or second for first, second in _PURPOSE.findall(plain))
        inside = next((word for word in found if word != "gpu"), "")
        name = f"{head[0]}<{inside}>" if head and inside else (head or [name])[0]
    elif _CALL.match(name):
        name = name.split("(")[0]
    name = name.removeprefix("torch::autograd::")
    return name if len(name) <= width else f"{name[: width - 3]}..."


def _outside_templates(text: str) -> str:
    depth, kept = 0, []
    for char in text:
        depth += char == "<"
        if not depth:
            kept.append(char)
        depth -= char == ">" and depth > 0
    return "".join(kept) or text


def us(time_ns: float | None) -> str:
    """Format nanoseconds as microseconds; nothing where they are not known."""
    if time_ns is None:
        return ""
    value = time_ns / 1e3
    return f"{value:,.0f}" if abs(value) >= 1000.0 else f"{value:,.3g}"


def share(part: float, whole: float) -> str:
    """Format a share as percent; nothing where there is no whole."""
    return percent(part / whole) if whole else ""


def title(shown: Mapping[str, Any]) -> list[RenderableType]:
    """Return what was read: ranks, devices, events, iterations, clocks."""
    files = shown["files"]
    events = sum(each["events"] for each in files)
    line = Text("Trace", style="bold")
    ranks = f"{len(files)} ranks" if len(files) > 1 else f"rank {files[0]['rank']}"
    devices = sorted({name for each in files for name in each["devices"]})
    where = f" on {', '.join(devices)}" if devices else ""
    line.append(f"  {ranks}{where}: {events:,} events", style="not bold")
    numbers = shown["iterations"]
    below = "no iterations" if not numbers else f"iterations {runs_of(numbers)}"
    if shown["frameworks"]:
        below += f"; {', '.join(name.upper() for name in shown['frameworks'])}"
    aligned = [each for each in shown["clocks"] if each["collectives"]]
    if aligned:
        apart = max(each["spread_ns"] for each in aligned)
        below += f"\nclocks aligned on collectives, which end within {us(apart)} us of each other"
    return [line, Padding(Text(below), (0, 0, 1, 2))]


def runs_of(numbers: list[int]) -> str:
    """Write 3, 4, 5, 8 as 3-5, 8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
