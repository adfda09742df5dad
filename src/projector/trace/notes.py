"""What was wrong with a file: the same thing is said once, with its first places."""

from dataclasses import dataclass, field

from projector.trace.events import Problem

FIRST = 3
"""Places that are named of those where the same thing was wrong."""


@dataclass(slots=True)
class _Note:
    times: int = 0
    places: list[str] = field(default_factory=list)


class Notes:
    """Takes what was wrong while a file is read."""

    def __init__(self) -> None:
        self._notes: dict[str, _Note] = {}

    def __bool__(self) -> bool:
        """Whether anything was wrong."""
        return bool(self._notes)

    def wants(self, text: str) -> bool:
        """Whether a further place of it would be named."""
        note = self._notes.get(text)
        return note is None or len(note.places) < FIRST

    def add(self, text: str, where: str, times: int = 1) -> None:
        """Take one more place, which may be empty."""
        note = self._notes.setdefault(text, _Note())
        note.times += times
        if where and len(note.places) < FIRST:
            note.places.append(where)

    def problems(self, path: str) -> tuple[Problem, ...]:
        """Return what was taken, in its order."""
        return tuple(
            Problem(
                path, _places(note), text if note.times < 2 else f"{text} ({note.times:,} times)"
            )
            for text, note in self._notes.items()
        )


def _places(note: _Note) -> str:
    more = ", ..." if note.times > len(note.places) > 0 else ""
    return ", ".join(note.places) + more
