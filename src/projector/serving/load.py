"""What arrives at a deployment, how its engine schedules it, and the requests that follow."""

import csv
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from projector.arrays import Floats, Ints
from projector.config._base import Config, Count, NotNegative, Positive
from projector.errors import ConfigError
from projector.files import open_table

MAX_TOKENS = 1 << 24
"""Longest prompt or output."""

MAX_REQUESTS = 1 << 22

_ARRIVALS, _INPUTS, _OUTPUTS, _PAIRS = range(4)
"""Streams of random numbers; each draws alike whatever the others draw."""

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class Lengths(Config):
    """How many tokens a prompt or an output has."""

    kind: Literal["fixed", "uniform", "lognormal"] = "fixed"
    """``fixed``: always ``mean``; ``uniform``: whole numbers from ``low`` to ``high``;
    ``lognormal``: of this ``mean`` and ``cv``, rounded, at least 1 and at most ``high``."""
    mean: float | None = Field(default=None, ge=1, le=MAX_TOKENS)
    """Tokens, of ``fixed`` and ``lognormal``."""
    cv: float = Field(default=1.0, gt=0, le=100)
    """Standard deviation over mean, of ``lognormal``."""
    low: Tokens = 1
    """Fewest tokens, of ``uniform``."""
    high: Tokens | None = None
    """Most tokens; required for ``uniform``."""

    @model_validator(mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return {"kind": "fixed", "mean": value} if is_number else value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "uniform":
            if self.high is None or self.high < self.low:
                msg = f"uniform lengths need high of at least low ({self.low})"
                raise ConfigError(msg, key="high", value=self.high, allowed=f">= {self.low}")
        elif self.mean is None:
            msg = f"{self.kind} lengths need a mean"
            raise ConfigError(msg, key="mean", value=None, allowed="tokens")
        return self

    def draw(self, count: int, bits: "_Bits") -> Ints:
        """Return int64[count]."""
        drawn = bits.normal(count) if self.kind == "lognormal" else bits.uniform(count)
        return self._tokens(drawn)

    def quantiles(self, levels: Floats) -> Ints:
        """Return the lengths below which shares of all lie, int64; levels are above 0, below 1."""
        if self.kind != "lognormal":
            return self._tokens(levels)
        from scipy.special import ndtri  # type: ignore[import-untyped,unused-ignore]

        return self._tokens(ndtri(levels))

    def _tokens(self, drawn: Floats) -> Ints:
        """Return lengths from numbers of the unit interval, or normal ones where lognormal."""
        if self.kind == "fixed":
            return np.full(len(drawn), max(1, round(self.mean or 0)), np.int64)
        if self.kind == "uniform":
            high = self.high or self.low
            scaled = self.low + np.floor(drawn * (high - self.low + 1))
            whole: Ints = np.minimum(scaled, high).astype(np.int64)
            return whole
        spread = np.sqrt(np.log1p(self.cv**2))
        middle = np.log(self.mean or 1.0) - spread**2 / 2.0
        rounded = np.rint(np.exp(middle + spread * drawn))
        clipped: Ints = np.clip(rounded, 1, self.high or MAX_TOKENS).astype(np.int64)
        return clipped


class Load(Config):
    """Requests that arrive, with their lengths."""

    arrival: Literal["poisson", "gamma", "constant", "offline", "closed"] = "poisson"
    """``poisson``: independent arrivals; ``gamma``: gaps between arrivals with the given ``cv``;
    ``constant``: equal gaps; ``offline``: all are there at the start; ``closed``: ``concurrency``
    are there, and the next arrives when one ends."""
    rate_per_s: Positive | None = None
    """Requests per second over all replicas that are simulated as one; of the first three."""
    cv: float = Field(default=1.0, gt=0, le=100)
    """Standard deviation of the gaps over their mean, of ``gamma``; above 1 they come in bursts."""
    concurrency: Count | None = Field(default=None, le=MAX_REQUESTS)
    """Requests in flight, of ``closed``."""
    input_tokens: Lengths = Lengths(mean=1024)
    """Prompts: a number, or a distribution."""
    output_tokens: Lengths = Lengths(mean=256)
    """Outputs, the same."""
    table: str | None = None
    """A CSV file with the columns ``input_tokens`` and ``output_tokens``: pairs are drawn from its
    rows with equal chances. It replaces both distributions."""
    requests: int = Field(default=1000, gt=0, le=MAX_REQUESTS)
    """Requests that are simulated."""
    duration_s: Positive | None = None
    """Arrivals after this are left out, of the arrivals with a rate."""
    warm_up: float = Field(default=0.1, ge=0, lt=0.5)
    """Share of the requests that no figure counts, at the start and again at the end: the batch
    fills at the start and drains at the end. ``offline`` counts all."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Random numbers depend on this and on the position of a request alone."""
    aliases: ClassVar = {
        "input_len": "input_tokens",
        "output_len": "output_tokens",
        "request_rate": "rate_per_s",
        "num_prompts": "requests",
        "max_concurrency": "concurrency",
    }

    @model_validator(mode="after")
    def _complete(self) -> Self:
        rated = self.arrival in ("poisson", "gamma", "constant")
        if rated and self.rate_per_s is None:
            msg = f"{self.arrival} arrivals need rate_per_s"
            raise ConfigError(msg, key="rate_per_s", value=None, allowed="requests per second")
        if not rated and self.rate_per_s is not None:
            msg = f"rate_per_s has no effect on {self.arrival} arrivals"
            raise ConfigError(msg, key="rate_per_s", value=self.rate_per_s, allowed=None)
        if (self.arrival == "closed") != (self.concurrency is not None):
            msg = "concurrency belongs to closed arrivals, which need it"
            raise ConfigError(msg, key="concurrency", value=self.concurrency, allowed="closed")
        if self.duration_s is not None and not rated:
            msg = f"duration_s has no effect on {self.arrival} arrivals"
            raise ConfigError(msg, key="duration_s", value=self.duration_s, allowed=None)
        return self

    @field_validator("table")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is not None:
            _read_table(value)
        return value

    def draw(self) -> "Drawn":
        """Draw the requests."""
        count = self.requests
        arrival_s = self._arrivals(count)
        if self.table is not None:
            pairs = _read_table(self.table)
            rows = np.floor(_Bits(self.seed, _PAIRS).uniform(count) * len(pairs)).astype(np.int64)
            tokens_in, tokens_out = pairs[np.minimum(rows, len(pairs) - 1)].T
        else:
            tokens_in = self.input_tokens.draw(count, _Bits(self.seed, _INPUTS))
            tokens_out = self.output_tokens.draw(count, _Bits(self.seed, _OUTPUTS))
        if self.duration_s is not None:
            count = int(np.searchsorted(arrival_s, self.duration_s, side="right"))
            if count == 0:
                msg = f"no request arrives within duration_s ({self.duration_s} s)"
                raise ConfigError(msg, key="duration_s", value=self.duration_s)
        return Drawn(
            arrival_s[:count],
            np.ascontiguousarray(tokens_in[:count]),
            np.ascontiguousarray(tokens_out[:count]),
        )

    def _arrivals(self, count: int) -> Floats:
        if self.rate_per_s is None:
            return np.zeros(count)
        bits = _Bits(self.seed, _ARRIVALS)
        gaps: Floats
        if self.arrival == "constant":
            gaps = np.ones(count)
        elif self.arrival == "poisson":
            gaps = bits.exponential(count)
        else:
            gaps = bits.gamma(count, self.cv)
        return np.asarray(np.cumsum(gaps) / self.rate_per_s, np.float64)

    def at_rate(self, rate_per_s: float) -> Self:
        """Return the load at another rate, with the same random numbers."""
        return self.model_copy(update={"rate_per_s": rate_per_s})


class Drawn(NamedTuple):
    """Requests in the order of their arrival."""

    arrival_s: Floats
    """float64[n]"""
    input_tokens: Ints
    """int64[n]"""
    output_tokens: Ints
    """int64[n]"""


class Scheduler(Config):
    """How an engine fills its steps.

    The defaults are those of vLLM V1 as an API server on devices of 70 GiB and more
    (``EngineArgs.get_batch_defaults``, and vLLM's page on optimisation and tuning).
    """

    max_num_seqs: int = Field(default=1024, gt=0, le=1 << 16)
    """Most sequences of a step, for each attention group. vLLM: 1024; 256 on devices below 70 GiB
    and on A100."""
    max_num_batched_tokens: int = Field(default=8192, gt=0, le=MAX_TOKENS)
    """Most new tokens of a step, for each attention group. vLLM: 8192 as a server and 16384
    offline; 2048 and 8192 on smaller devices. TensorRT-LLM (``max_num_tokens``): 8192."""
    chunk_tokens: Count | None = Field(default=None, le=MAX_TOKENS)
    """Most tokens of one prompt in a step; none: what the step has room for (vLLM's default)."""
    prompts: Literal["chunked", "whole", "first"] = "chunked"
    """``chunked``: prompts are cut to what a step has room for, beside decode (vLLM V1);
    ``whole``: beside decode, uncut (TensorRT-LLM without chunked context); ``first``: whole, in
    steps of their own before any decode (vLLM V0)."""
    admission: Literal["free_pages", "whole_sequence"] = "free_pages"
    """What a waiting request needs free: the pages of its prompt, so that running requests can run
    out of pages and are preempted (vLLM); or those of its whole length, so that none is (the
    ``GUARANTEED_NO_EVICT`` of TensorRT-LLM)."""
    page_tokens: Count | None = Field(default=None, le=1 << 20)
    """Tokens of a page; none: the deployment's."""
    aliases: ClassVar = {
        "max_num_tokens": "max_num_batched_tokens",
        "max_batch_size": "max_num_seqs",
        "block_size": "page_tokens",
        "long_prefill_token_threshold": "chunk_tokens",
    }


class _Bits:
    """Random numbers of one stream, by counter (Philox), alike on every machine."""

    def __init__(self, seed: int, stream: int) -> None:
        self._philox = np.random.Philox(key=seed + (stream << 64))

    def uniform(self, count: int) -> Floats:
        """Return float64[count] in [0, 1)."""
        return np.asarray((self._philox.random_raw(count) >> np.uint64(11)) * 2.0**-53, np.float64)

    def exponential(self, count: int) -> Floats:
        """Return float64[count] of mean 1."""
        drawn: Floats = np.negative(np.log1p(-self.uniform(count)))
        return drawn

    def normal(self, count: int) -> Floats:
        """Return float64[count] by Box and Muller."""
        both = self.uniform(2 * count).reshape(count, 2)
        radius = np.sqrt(-2.0 * np.log1p(-both[:, 0]))
        return np.asarray(radius * np.cos(2.0 * np.pi * both[:, 1]), np.float64)

    def gamma(self, count: int, cv: float) -> Floats:
        """Return float64[count] of mean 1 and the given coefficient of variation."""
        shape = cv**-2
        return np.random.Generator(self._philox).standard_gamma(shape, count) / shape


def _read_table(path: str) -> Ints:
    """Return int64[rows, 2] of a table of lengths."""
    columns = ("input_tokens", "output_tokens")
    try:
        with open_table(path, key="") as file:
            rows = [[int(row[name]) for name in columns] for row in csv.DictReader(file)]
    except KeyError as error:
        msg = f"{path} has no column {error}"
        raise ConfigError(msg, value=path, allowed=list(columns)) from None
    except (csv.Error, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        msg = f"{path} is no table of lengths: {error}"
        raise ConfigError(msg, value=path, allowed=list(columns)) from None
    if not rows:
        raise ConfigError(f"{path} has no rows", value=path, allowed="a row a request")
    lengths = np.array(rows, np.int64)
    if lengths.min() < 1 or lengths.max() > MAX_TOKENS:
        msg = f"lengths of {path} must be from 1 to {MAX_TOKENS}"
        raise ConfigError(msg, value=path, allowed=f"1 to {MAX_TOKENS}")
    return lengths


MAX_LENGTH = 1 << 27
"""Longest sequence, in tokens."""

MAX_BATCH = 1 << 20


PROMISES = ("ttft_ms", "tpot_ms")
"""Fields that are the targets of a search, or of a load with a rate."""

_OF_RATE = ("percentile", "requests")


class Traffic(Config):
    """Requests of equal length, as many at once as the batch says."""

    batch: Count | None = Field(default=None, le=MAX_BATCH)
    """Sequences that the replica generates tokens for at once. None given: the knee of
    throughput against speed among the batches that fit."""
    context: int = Field(default=2048, gt=0, le=MAX_LENGTH)
    """Tokens of a prompt, which are cached when the first token is generated."""
    output: Count | None = Field(default=None, le=MAX_LENGTH)
    """Tokens that are generated for a prompt. None given: a step is timed at ``context`` cached
    tokens, and prompts take no part of the throughput."""
    prompts: Count | None = Field(default=None, le=MAX_BATCH)
    """Prompts that go through the model together. None given: one in each attention group."""
    chunk_tokens: Count | None = Field(default=None, le=MAX_LENGTH)
    """Most new tokens of a step of prompts, for each attention group. None given: whole prompts."""
    rate_per_s: Positive | None = None
    """Requests that arrive a second, independently of each other. With it the load is simulated
    request by request."""
    requests: int = Field(default=1000, gt=0, le=MAX_REQUESTS)
    """Requests that are simulated."""
    ttft_ms: Positive | None = None
    """What users are promised: time to the first token."""
    tpot_ms: Positive | None = None
    """The same for the mean time of each further token of a request."""
    percentile: float = Field(default=99.0, gt=0, le=100)
    """Percent of the requests that the promises hold for."""
    usd_per_gpu_hour: NotNegative | None = None
    """Rent of a device. Nothing is assumed; without it no cost is projected."""
    aliases: ClassVar = {"rate": "rate_per_s", "input": "context"}

    @model_validator(mode="after")
    def _rate_is_complete(self) -> Self:
        if self.rate_per_s is None:
            stated = [name for name in _OF_RATE if name in self.model_fields_set]
            if any(getattr(self, name) is not None for name in stated):
                msg = f"{stated[0]} belongs to a load with a rate; give rate_per_s (--rate)"
                raise ConfigError(msg, key=stated[0], value=getattr(self, stated[0]))
        elif self.output is None:
            msg = "a load with a rate needs the tokens that are generated; give output"
            raise ConfigError(msg, key="output", allowed="tokens of an answer")
        return self

    @model_validator(mode="after")
    def _prompts_within_batch(self) -> Self:
        if self.batch is not None and (self.prompts or 1) > self.batch:
            msg = f"prompts ({self.prompts}) exceeds batch ({self.batch})"
            raise ConfigError(msg, key="prompts", value=self.prompts, allowed=f"<= {self.batch}")
        return self

    @property
    def longest(self) -> int:
        """Tokens of a sequence when its last token is generated."""
        return self.context + (self.output or 0)
