"""Shared parts of the commands with ``--plot`` and ``--html``."""

from typing import TYPE_CHECKING

from projector.cli.output import say

if TYPE_CHECKING:
    from projector.config.job import Job
    from projector.report.figures.pictures import Picture
    from projector.searches.result import SearchResult
    from projector.sweeps.result import SweepResult


def read_pictures(plots: tuple[str, ...], html: str | None, kinds: str) -> "tuple[Picture, ...]":
    """Check the requested pictures before anything is computed.

    Parameters
    ----------
    plots : tuple of str
        ``KIND=FIGURE``.
    html : str or None
        Page to write.
    kinds : str
        Name of the kinds of this command in `projector.report.figures.pictures`.
    """
    if html is not None:
        from projector.report.pages.page import check_page

        check_page(html)
    if not plots:
        return ()
    from projector.report.figures import pictures

    return pictures.read_pictures(plots, getattr(pictures, kinds))


def write_pictures(
    pictures: "tuple[Picture, ...]", result: "SweepResult | SearchResult | Job", *, quiet: bool
) -> None:
    """Draw the pictures and report each file."""
    if not pictures:
        return
    from projector.report.figures import pictures as report

    report.write_pictures(pictures, result)
    for picture in pictures:
        say_written(picture.path, quiet=quiet)


def say_written(path: str, *, quiet: bool) -> None:
    """Report a written file."""
    if not quiet:
        say(f"wrote {path}")
