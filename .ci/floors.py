"""Print the lowest version of every dependency that pyproject.toml allows, as constraints of pip.

Torch is left out: its floor is tested where it is measured with, and it is large.
"""

import re
import tomllib
from pathlib import Path

LEFT_OUT = {"torch"}

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
lists = [project["dependencies"], *project["optional-dependencies"].values()]
floors = dict(re.fullmatch(r"([\w.-]+)>=([\w.]+)", each).groups() for one in lists for each in one)
for name in sorted(floors.keys() - LEFT_OUT, key=str.lower):
    print(f"{name}=={floors[name]}")  # noqa: T201  # what the script is for
