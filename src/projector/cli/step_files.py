"""Files of a projected step that other tools open."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from projector.cli.output import say
from projector.errors import ConfigError

if TYPE_CHECKING:
    from projector.projection.performance import PerformanceProjection


@dataclass(frozen=True, slots=True)
class StepFiles:
    """What ``--timeline`` and ``--memory-snapshot`` ask for."""

    timeline: str | None
    memory_snapshot: str | None

    def check(self) -> None:
        """Refuse files that could not be written, before anything is projected for them."""
        if self.timeline is not None:
            from projector.report.timeline import check_timeline

            check_timeline(self.timeline)
        if self.memory_snapshot is not None:
            from projector.report.memory_snapshot import check_memory_snapshot

            check_memory_snapshot(self.memory_snapshot)
        if self.timeline is not None and self.timeline == self.memory_snapshot:
            msg = f"memory_snapshot: {self.timeline} is the file of --timeline; name another one"
            raise ConfigError(
                msg, key="memory_snapshot", value=self.memory_snapshot, allowed="a file of its own"
            )

    def write(self, result: "PerformanceProjection") -> None:
        """Write what was asked for; the step is laid out once."""
        if self.timeline is None and self.memory_snapshot is None:
            return
        from projector.projection.timeline.build import build_timeline
        from projector.report.exports import DETAIL, write_memory_snapshot, write_timeline

        step = build_timeline(result, DETAIL)
        if self.timeline is not None:
            write_timeline(result, self.timeline, timeline=step)
        if self.memory_snapshot is not None:
            write_memory_snapshot(result, self.memory_snapshot, timeline=step)

    def tell(self, *, quiet: bool) -> None:
        """Say on standard error what was written."""
        if quiet:
            return
        if self.timeline is not None:
            say(f"wrote {self.timeline}; ui.perfetto.dev opens it")
        if self.memory_snapshot is not None:
            say(f"wrote {self.memory_snapshot}; pytorch.org/memory_viz opens it")
