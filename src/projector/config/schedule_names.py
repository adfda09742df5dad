"""Names of pipeline schedules, and the chunks that each needs."""

from collections.abc import Callable

from projector.config.resources import normalise

AUTO, ALL = "auto", "all"

_CHUNKS: dict[str, Callable[[int], int]] = {
    "gpipe": lambda _: 1,
    "1f1b": lambda _: 1,
    "interleaved": lambda vpp: max(2, vpp),
    "zerobubble": lambda _: 1,
    "zerobubble-h2": lambda _: 1,
    "zbv-formatted": lambda _: 2,
    "zbv-greedy-min": lambda _: 2,
    "zbv-greedy-half": lambda _: 2,
    "zbv-greedy-zb": lambda _: 2,
    "dualpipe": lambda _: 1,
    "seaailab": lambda _: 1,
    "seaailab-ilp": lambda _: 1,
}
"""Chunks a rank of each schedule, from those that another schedule uses for the same work."""

_SPELLINGS = {
    "zerobubble": "zb-h1 zero-bubble",
    "zerobubble-h2": "zb-h2 zero-bubble-h2",
    "interleaved": "1f1b-interleaved interleaved-1f1b",
    "zbv-formatted": "zb-v zbv zbv-zero-bubble",
    "zbv-greedy-min": "v-min",
    "zbv-greedy-half": "v-half zbv-greedy",
    "zbv-greedy-zb": "v-zb",
    "seaailab": "zero-bubble-heuristic sea-ai-lab",
    "seaailab-ilp": "zero-bubble-ilp",
}
"""What papers and other tools call a schedule. Primus' ``zerobubble-heuristic`` searches by the
rules of Sea AI Lab's planner, as ``seaailab`` does (``zerobubble_heuristic.py``)."""


def _folded(name: str) -> str:
    return normalise(name).replace(".", "")


_BY_NAME = {_folded(name): name for name in (AUTO, ALL, *_CHUNKS)} | {
    _folded(spelling): name for name, all_of in _SPELLINGS.items() for spelling in all_of.split()
}


def schedule_name(given: str) -> str:
    """Return the name of a schedule for any spelling of it; an unknown one stays as it is."""
    return _BY_NAME.get(_folded(given), given)


def spellings() -> dict[str, str]:
    """Return every spelling of a name, as an error may suggest it, with the name."""
    written = {spelling: name for name, text in _SPELLINGS.items() for spelling in text.split()}
    return {name: name for name in (AUTO, *_CHUNKS)} | written


def chunks_of(name: str, vpp: int) -> int:
    """Return the chunks a rank that a schedule needs where another one uses ``vpp``."""
    rule = _CHUNKS.get(name)
    return vpp if rule is None else rule(vpp)
