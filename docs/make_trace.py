"""Write what the examples of docs/trace.md print; with --check only say whether it is current."""

import contextlib
import io
import os
import re
import sys
from pathlib import Path

from projector.cli.main import run

PAGE = Path(__file__).with_name("trace.md")
WIDTH = "100"
EXAMPLE = re.compile(r"```\n\$ projector (trace .*)\n(?:(?!```).*\n)*```")


def current(page: str) -> str:
    """Return the page with what each of its commands prints now."""
    return EXAMPLE.sub(_printed, page)


def _printed(match: re.Match[str]) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(io.StringIO()):
        command, _, lines = match[1].partition(" | head -")
        if run(command.split()) != 0:
            msg = f"projector {command} failed"
            raise RuntimeError(msg)
    shown = text.getvalue().rstrip().split("\n")[: int(lines) if lines else None]
    return "\n".join(["```", f"$ projector {match[1]}", *shown, "```"])


if __name__ == "__main__":
    os.chdir(PAGE.parents[1])
    os.environ["COLUMNS"] = WIDTH
    found = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        sys.exit(found != current(found))
    PAGE.write_text(current(found), encoding="utf-8")
