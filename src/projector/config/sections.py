"""Shipped tables of which a job needs one section of twenty: each is parsed when asked for."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from projector.config import resources
from projector.config.yaml_file import parse_yaml, read_text

_KEY = re.compile(r"^(?=(\w[\w.-]*):\s)", re.MULTILINE)


class Sections(Mapping[str, Any]):
    """The mapping of a YAML file whose top level is a block of keys, read in pieces.

    Parameters
    ----------
    path : Path
        A file that ships: what is wrong in a section shows no earlier than its first reader.
    """

    def __init__(self, path: Path) -> None:
        self._name = path.name
        _, *pieces = _KEY.split(read_text(path, key=path.name))
        self._texts = dict(zip(pieces[::2], pieces[1::2], strict=True))
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            self._values[key] = parse_yaml(self._text(key), name=self._name)[key]
        return self._values[key]

    def _text(self, key: str) -> str:
        """Return a section, behind those with anchors where it may refer to one."""
        text = self._texts[key]
        if "*" not in text:
            return text
        before = takewhile(lambda other: other is not text, self._texts.values())
        return "".join([*(other for other in before if "&" in other), text])

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


@cache
def hardware_table(file: str) -> Mapping[str, Any]:
    """Return a table of ``hardware/``, read once: every variant of a job asks for it."""
    return Sections(resources.data_dir("hardware") / file)
