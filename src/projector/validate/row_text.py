"""What a row of a training table says, column by column, and where each setting came from."""

import re

from projector.validate.kind import FROM_RECIPE, FROM_ROW, FROM_RULE, Row, integer

MAX_COUNT = 1 << 28
"""Largest size of a job; larger ones would not fit into memory."""

_LARGEST = {"num_layers": 10_000, "pp": 1024, "vpp": 64, "tp": 1 << 20, "n_gpus": 1 << 24}
_RANK = {FROM_ROW: 0, FROM_RECIPE: 1, FROM_RULE: 2}


class RowText:
    """The text of a row and of its recipe; remembers where settings came from."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.mark = FROM_ROW
        self.notes: list[str] = []
        self.key = ""
        """Equal for equal jobs, once `job` was called."""
        self.flags = self.text("other_flags")
        self.source = self.text("source")
        self.other = self.text("recipe_other")
        self.tp = self._degree("tp")
        self.pp = self._degree("pp")
        self.cp = self._degree("cp")
        self.ep = self._degree("ep")
        self.gpus = self._gpus()
        self.seq = self.count("seq_len")

    def text(self, column: str) -> str:
        """Return a column without surrounding blanks."""
        return (self.row.get(column) or "").strip()

    def recipe(self, column: str) -> str:
        """Return a recipe column, ``""`` if it does not apply to the row."""
        text = self.text(f"recipe_{column}")
        return "" if text.lower().startswith(("unknown", "n/a")) else text

    def count(self, column: str) -> int:
        """Return a column that must hold a positive whole number."""
        value = integer(self.row, column)
        if value is None or not 1 <= value <= _LARGEST.get(column, MAX_COUNT):
            raise ValueError(f"{column} is {self.row.get(column)!r}, not a count")
        return value

    def weaken(self, mark: str, note: str = "") -> None:
        """Record that a setting came from ``mark``."""
        if mark == FROM_RECIPE and self.text("recipe_match") == "stated":
            mark = FROM_ROW  # the recipe columns repeat what the source of the row says itself
        if _RANK[mark] > _RANK[self.mark]:
            self.mark = mark
        if note and note not in self.notes:
            self.notes.append(note)

    def says(self, *words: str) -> bool:
        """Whether the remarks of the row or of its recipe hold one of ``words``."""
        text = f"{self.flags} {self.other}".lower()
        return any(word in text for word in words)

    def _degree(self, column: str) -> int:
        return self.count(column) if self.text(column) else 1

    def _gpus(self) -> int:
        """Return the GPUs of the row, or where it has none their product."""
        if self.text("n_gpus") or not self.text("dp"):
            return self.count("n_gpus")
        self.weaken(FROM_RULE, "GPUs from the degrees")
        return self.tp * self.pp * self.cp * self.count("dp")

    @property
    def _is_torchtitan(self) -> bool:
        return "torchtitan" in self.source.lower()

    @property
    def _primus(self) -> str:
        """Source of a run of Primus without its commit, in lower case; else ``""``."""
        found = "primus" in f"{self.source} {self.flags}".lower()
        return re.sub(r"@\w+", "", self.source).lower() if found else ""

    @property
    def _is_nvidia(self) -> bool:
        return self.source.lower().startswith("nvidia")
