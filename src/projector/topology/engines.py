"""What moves data in a node: copy engines, kernels, MPI, and the ways of reading host memory."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from projector.config._base import Config, CountOrNone, NotNegative, Positive
from projector.errors import ConfigError

Place = Literal["devices", "host", "local"]
"""Between two devices, between a device and host memory, or within the memory of one device."""

Share = Annotated[float, Field(gt=0, le=1)]


class Engine(Config):
    """One way to move data. Rates hold for one direction."""

    what: str = ""
    """What it is, for reports."""

    between: tuple[Place, ...] = Field(min_length=1)
    """Where it can move data."""

    base: str | None = None
    """Engine that does the work; shares below are then shares of its rate. Its other fields hold
    here too, unless they are given."""

    share: Share = 1.0
    """Share of the narrowest link's rate that large messages reach, in one direction."""

    share_of: Literal["scale_up"] | None = None
    """Where the share stands instead: ``scale_up`` is ``scale_up_efficiency`` of the device, which
    collectives reach with copies by kernels."""

    share_both: Share | None = None
    """The same while the other direction is in use as well; left out, as in one direction."""

    most_gb_per_s: Positive | None = None
    """What the engine itself moves at most; left out, only links limit it."""

    most_of: Literal["host_link"] | None = None
    """Where that rate stands instead: ``host_link`` is ``host_link_gb_per_s`` of the device, which
    is measured with pinned memory."""

    start_us: NotNegative | None = None
    """What a message takes beside the latency of its links; left out, that of the node."""

    cached_mib: NotNegative = 0.0
    """First part of a message that the caches of the host serve, at ``cached_share``."""

    cached_share: Share | None = None
    """Share of the link's rate within ``cached_mib``."""

    repeats: Literal["once", "cached", "always"] = "once"
    """What a kernel that reads the data several times moves: ``once`` if the data then lies in
    the memory of the device, ``cached`` once if it fits in the L2, ``always`` if nothing may
    cache it (coherent memory)."""

    page_kib: NotNegative = 0.0
    """Pages, of which whole ones move; 0 moves what is asked for."""

    low_share: Share | None = None
    """Where the rate varies from run to run, the least share to expect."""

    high_share: Share | None = None
    """The most."""

    compute_units: CountOrNone = 0
    """Compute units that a kernel beside it cannot use while it runs."""

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        low, high = self.low_share or self.share, self.high_share or self.share
        if not low <= self.share <= high:
            msg = f"low_share, share and high_share must ascend, got {low}, {self.share}, {high}"
            raise ConfigError(msg, key="share", value=self.share, allowed=f"{low} to {high}")
        if (self.cached_share is None) != (self.cached_mib == 0.0):
            msg = "cached_mib and cached_share must be given together"
            raise ConfigError(msg, key="cached_share", value=self.cached_share)
        return self


class Transfers(Config):
    """What a node file says about moving data."""

    engines: dict[str, Engine] = Field(min_length=1)
    """Engines by name."""

    mpi_over_library: dict[str, Positive] = Field(default_factory=dict)
    """By operation, the time of an MPI collective over that of the collective library. MPI
    exchanges and maps pointers to the buffers of other processes."""

    @model_validator(mode="after")
    def _has_bases(self) -> Self:
        for name, engine in self.engines.items():
            base = None if engine.base is None else self.engines.get(engine.base)
            if engine.base is not None and (base is None or base.base is not None):
                known = [key for key, one in self.engines.items() if one.base is None]
                legal = ", ".join(known) or "none"
                msg = f"{name}: {engine.base!r} is not an engine by itself; known: {legal}"
                key = f"engines.{name}.base"
                raise ConfigError(msg, key=key, value=engine.base, allowed=known)
        return self

    def resolved(self, name: str) -> Engine:
        """Return an engine with what it takes from its base."""
        engine = self.engines.get(name)
        if engine is None:
            known = list(self.engines)
            msg = f"unknown engine {name!r}; known: {', '.join(known)}"
            raise ConfigError(msg, key="engine", value=name, allowed=known)
        if engine.base is None:
            return engine
        base = self.engines[engine.base]
        given = {field: getattr(engine, field) for field in engine.model_fields_set}
        most = None if base.most_gb_per_s is None else base.most_gb_per_s * engine.share
        both = base.share if base.share_both is None else base.share_both
        own_both = engine.share if engine.share_both is None else engine.share_both
        scaled = {
            "share": base.share * engine.share,
            "share_both": both * own_both,
            "most_gb_per_s": engine.most_gb_per_s or most,
        }
        return base.model_copy(update=given | scaled)
