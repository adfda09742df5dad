"""What was measured, kept as JSON: on which device, of which job, and every outcome.

JSON that a disk, an editor or a network may have spoilt is read with care.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from pydantic import Field, ValidationError, field_validator

from projector.config._base import Config, config_error
from projector.config.adapter import refuse_adapter
from projector.config.job import Job
from projector.config.load import load_job
from projector.config.model import ModelConfig
from projector.config.parallelism import ParallelismConfig
from projector.config.training import TrainingConfig
from projector.config.yaml_file import check_nesting
from projector.distribution import installed_version, package_version
from projector.envelope import told
from projector.errors import ConfigError, shown
from projector.files import check_place, read_bounded, write_whole
from projector.measure import reduction as reductions
from projector.measure import task
from projector.measure.devices import driver_at_hand, gpus_at_hand, stands_for
from projector.measure.keys import OperationKey
from projector.units import to_gib

MOST_BYTES = 64 * 1024**2
"""A record of a large model has one or two MiB."""

MOST_COLLECTIONS = 1_000_000


def read_object(path: Path, *, key: str, what: str) -> dict[str, Any]:
    """Return the object in a JSON file; messages name ``key``, and ``what`` it should be."""

    def no(why: str) -> NoReturn:
        raise ConfigError(f"{path} {why}", key=key, value=str(path), allowed=what)

    try:
        text = read_bounded(path, MOST_BYTES, key=key, allowed=what).decode()
    except UnicodeDecodeError:
        no("is no text in UTF-8")
    if not text.strip():
        no("is empty")
    try:
        data = json.loads(
            text, object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite
        )
    except json.JSONDecodeError as error:
        whole = text.strip()
        ended = whole[-1] == "}" and error.pos < len(text.rstrip())
        cut = whole[0] == "{" and not ended and error.msg != "Extra data"
        where = f"{error.msg} (line {error.lineno}, column {error.colno})"
        no(f"ends too early, it was cut off: {where}" if cut else f"is not valid JSON: {where}")
    except (ValueError, RecursionError) as error:
        no(f"is not valid JSON: {str(error) or type(error).__name__}")
    check_nesting(data, name=str(path), most=MOST_COLLECTIONS)
    if not isinstance(data, dict):
        no(f"holds a {type(data).__name__}, not {what}")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} is given twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0.0:
        raise ValueError(f"{text} is no number that can be measured")
    return number


RECORD_SCHEMA = 1
"""Version of the layout of a record; another one is refused."""

SAVE, LOAD = "save_benchmark", "load_benchmark"
"""Options that name a record, and the keys of errors."""

_LAYERS_APART = (
    "name", "source", "num_layers", "sliding_window_layers", "mtp_num_layers",
    "max_position_embeddings", "make_vocab_size_divisible_by",
)  # fmt: skip
"""Fields of a model that change no layer, only how many there are."""

_EXPERTS_APART = ("num_experts", "num_groups", "group_topk", "layer_freq", "num_shared_experts")
"""The same of its experts: a benchmark job has as many as its ranks hold."""

_KERNELS = ("precision", "fp8_recipe", "flash_attention")
"""Fields of a training that decide which kernels a layer has. Its micro-batch and the length of its
sequences only scale them."""

_STEP_APART = (
    "global_batch_size", "recompute", "recompute_early_stop", "schedule",
    "zero_bubble_max_pending_backward", "optimizer_post_validation", "schedule_solver_work",
    "activation_offload_fraction", "optimizer", "framework", "mtp_loss",
)  # fmt: skip
"""Fields of a training that belong to the step of the target; a benchmark job has its own."""


class MeasuredOperation(Config):
    """One kernel by itself."""

    key: OperationKey
    outcome: task.Outcome


class MeasuredLayer(Config):
    """Forward and backward of one real layer."""

    layer: task.LayerSpec
    outcome: task.Outcome


class MeasuredStep(Config):
    """A whole step of a few layers."""

    layers: list[task.LayerSpec]
    optimizer: Literal["adam", "sgd"] = "adam"
    outcome: task.Outcome


class MeasuredOther(Config):
    """A copy, or a clock under load."""

    program: task.CopyProgram | task.ClockProgram = Field(discriminator="program")
    outcome: task.Outcome


Section = TypeVar("Section", bound=Config)

_NAMED_BY = {"operations": "key", "layers": "layer", "others": "program"}
"""Lists of a record, and what makes two entries of one the same."""


class Record(Config):
    """Everything that one benchmark measured.

    A record holds for its device, its matrix type and the shapes of its model alone; `check`
    refuses any other job.
    """

    schema_version: int = RECORD_SCHEMA
    version: str = Field(default_factory=package_version)
    """Version of this package that wrote the record."""
    environment: task.Environment
    device: str
    """Name of the profile that the job had, which stands for the device measured."""
    precision: str
    reduction: dict[str, Any]
    """Degrees of the target and of the benchmark job, and the steps from one to the other."""
    job: dict[str, dict[str, Any]]
    """``model``, ``parallelism``, ``training`` and ``cluster`` of the benchmark job, from which it
    is lowered again."""
    operations: list[MeasuredOperation] = Field(default_factory=list)
    layers: list[MeasuredLayer] = Field(default_factory=list)
    step: MeasuredStep | None = None
    others: list[MeasuredOther] = Field(default_factory=list)

    @field_validator("reduction", mode="after")
    @classmethod
    def _reduction_is_whole(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            reductions.DescribedReduction.model_validate(value, strict=True)
        except ValidationError as error:
            raise config_error(error, "reduction") from None
        return value

    def save(self, path: str | Path) -> None:
        """Write the record as JSON; the file appears whole or not at all.

        Raises:
            ConfigError: If the file cannot be written.
        """
        check_place(path, key=SAVE)
        text = json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False)
        write_whole(Path(path), f"{text}\n".encode(), key=SAVE)

    def check(self, job: Job) -> list[str]:
        """Refuse a job that this record does not hold for.

        Args:
            job (Job): The job asked for, or its benchmark job.

        Returns:
            List of str: what differs and leaves the layers as they are: warnings for the report.

        Raises:
            ConfigError: If the device, the matrix type, the shapes of the layers or the context
                parallelism are not those that were measured.
        """
        refuse_adapter(job.training.adapter, "records have layers whose weights are all trained")
        self._check_device(job)
        self._check_shapes(job)
        return [
            *self._without_time(), *self._at_another_clock(job), *self._other_experts(job),
            *self._other_settings(job), *self._other_versions(),
        ]  # fmt: skip

    def outcomes(self) -> Iterator[task.Outcome]:
        """Yield every outcome, that of the step last."""
        for each in (*self.operations, *self.layers, *self.others, self.step):
            if each is not None:
                yield each.outcome

    def not_measured(self) -> list[tuple[str, task.Outcome]]:
        """Return operations, layers and the step that have no time, by what people call them."""
        programs = [
            *((f"{one.key.label} {one.key.phase}", one.outcome, "time") for one in self.operations),
            *((f"{one.layer.kind} layer", one.outcome, "forward") for one in self.layers),
            *([] if self.step is None else [("step", self.step.outcome, "total")]),
        ]
        return [(name, outcome) for name, outcome, part in programs if outcome.timing(part) is None]

    def _without_time(self) -> list[str]:
        """Say how much of a record is no measurement, so that models stand for it."""
        programs = len(self.operations) + len(self.layers) + (self.step is not None)
        missing = [outcome.status for _, outcome in self.not_measured()]
        if len(missing) == programs:
            return ["the record has no time of any operation or layer: all times are modelled"]
        counts = ", ".join(
            f"{count} {'without time' if status == 'ok' else status.replace('_', ' ')}"
            for status, count in Counter(missing).items()
        )
        msg = f"of {programs} operations and layers the record has no time of {len(missing)}"
        return [f"{msg} ({counts}): the models stand for them"] if missing else []

    def _at_another_clock(self, job: Job) -> list[str]:
        if (clock := job.cluster.gpu_clock_mhz) is None:
            return []
        msg = f"cluster.gpu_clock_mhz {clock:,.0f} holds for what is modelled alone"
        return [f"{msg}: measured times stay at the clock that the device had"]

    def _check_device(self, job: Job) -> None:
        profile, measured = job.cluster.device, self.environment.device
        if stands_for(profile, measured):
            return
        msg = (
            f"the record was measured on {measured!r}, and the job's device is {profile.name!r}; "
            f"measure on that device, or name a profile of the measured one"
        )
        raise _unfit(msg, "device", measured, profile.name)

    def _check_shapes(self, job: Job) -> None:
        model = self.section("model", ModelConfig)
        split = self.section("parallelism", ParallelismConfig)
        training = self.section("training", TrainingConfig)
        here, there = _shapes_of(model, split, training), _shapes_of(
            job.model, job.parallelism, job.training
        )  # fmt: skip
        for field in dict.fromkeys([*here, *there]):
            measured, asked = here.get(field), there.get(field)
            if measured != asked:
                msg = (
                    f"the record was measured with {field} {measured}, and the job has {asked}; "
                    "measure the job itself"
                )
                raise _unfit(msg, field, measured, asked)

    def _other_experts(self, job: Job) -> list[str]:
        """Say that ranks held other experts than a benchmark of the job would give them."""
        measured = self.section("model", ModelConfig).moe
        if job.model.moe is None or measured is None:
            return []
        ranks = self.section("parallelism", ParallelismConfig).ep
        here = measured.num_experts // ranks
        wanted = reductions.kept_experts(job.model.moe, job.parallelism.ep, ranks) // ranks
        msg = (
            f"the record was measured with {here} experts a rank, and a benchmark of the job has "
            f"{wanted}: times of experts are scaled, and what a layer takes besides is less sure"
        )
        return [msg] if here != wanted else []

    def _other_settings(self, job: Job) -> list[str]:
        """Name settings of the step that change single rows; those are scaled or modelled."""
        apart = {*_KERNELS, *_STEP_APART}
        measured = self.section("training", TrainingConfig).model_dump(exclude=apart)
        # Every benchmark runs eager kernels in place of fused ones.
        asked = load_job(job, reductions.AS_MEASURED).training.model_dump(exclude=apart)
        return [
            f"the record was measured with training.{name} {shown(measured[name])}, and the "
            f"job has {shown(value)}: what depends on it is scaled or modelled"
            for name, value in asked.items()
            if measured[name] != value
        ]

    def _other_versions(self) -> list[str]:
        """Name versions unlike the record's; torch and driver count where its device is at hand."""
        pairs = [("projector", self.version, package_version())]
        at_hand = gpus_at_hand()
        same_gpu = at_hand is not None and at_hand.name == self.environment.device
        if same_gpu or self.environment.backend == "cpu":
            pairs.append(("torch", self.environment.torch, installed_version("torch")))
        if same_gpu:
            pairs.append(("the driver", self.environment.driver, driver_at_hand()))
        return [
            f"the record was measured with {what} {then}, and {now} is here: times may differ"
            for what, then, now in pairs
            if then and now and then != now
        ]

    def section(self, name: str, kind: type[Section]) -> Section:
        """Return one section of the benchmark job.

        Raises:
            ConfigError: If the record has no such section, or one that describes none.
        """
        if name not in self.job:
            msg = f"the record has no job.{name}, so it fits no job"
            raise ConfigError(msg, key=LOAD, value=name, allowed="a record of measurements")
        return kind.parse(self.job[name], path=f"{LOAD}.job.{name}")


def load_record(path: str | Path) -> Record:
    """Read a record.

    Raises:
        ConfigError: If the file is missing, empty, cut off, no record, or one of another schema.
    """
    path, what = Path(path), "a record of measurements"
    data = read_object(path, key=LOAD, what=what)
    schema = data.get("schema_version")
    if not isinstance(schema, int) or isinstance(schema, bool) or "environment" not in data:
        msg = f"{path} is no record of measurements: it has no schema_version or no environment"
        raise ConfigError(msg, key=LOAD, value=str(path), allowed=what)
    if schema != RECORD_SCHEMA:
        age = "a newer" if schema > RECORD_SCHEMA else "an older"
        msg = (
            f"{path} is a record of schema {schema}, of {age} version of projector; "
            f"this one reads schema {RECORD_SCHEMA}"
        )
        raise ConfigError(msg, key=LOAD, value=schema, allowed=RECORD_SCHEMA)
    try:
        # Strict: a text is no number, and true is none.
        return Record.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = config_error(error, "")
        msg = f"{path} is no record of measurements: {first.message}"
        raise ConfigError(msg, key=LOAD, value=first.value, allowed=first.allowed) from None


def merge_records(records: Sequence[Record]) -> Record:
    """Return one record with the outcomes of several of the same benchmark job.

    What a later record measured again replaces what an earlier one has, unless it failed.
    """
    if not records:
        raise ConfigError("there is no record to merge", key=LOAD, allowed="at least one record")
    first = records[0]
    for other in records[1:]:
        for what, here, there in (
            ("device", first.environment.device, other.environment.device),
            ("backend", first.environment.backend, other.environment.backend),
            ("torch", first.environment.torch, other.environment.torch),
            ("driver", first.environment.driver, other.environment.driver),
            ("job", first.job, other.job),
        ):
            if here != there:
                both: tuple[Any, Any] = (here, there)
                one, another = _apart(first.job, other.job) if what == "job" else both
                msg = f"records of another {what} are not merged: {one} and {another}"
                raise ConfigError(msg, key=LOAD, value=another, allowed=one)
    step: MeasuredStep | None = None
    for record in records:
        if record.step and (step is None or record.step.outcome.status == "ok"):
            step = record.step
    lists = {name: _joined(records, name, key) for name, key in _NAMED_BY.items()}
    return records[-1].model_copy(update={**lists, "step": step})


def _joined(records: Sequence[Record], name: str, key: str) -> list[Any]:
    known: dict[str, Any] = {}
    for measured in (each for record in records for each in getattr(record, name)):
        same = getattr(measured, key).model_dump_json()
        if same not in known or measured.outcome.status == "ok":
            known[same] = measured
    return list(known.values())


def _apart(here: dict[str, Any], there: dict[str, Any]) -> tuple[str, str]:
    """Return the first field that differs between two benchmark jobs, as both have it."""
    for section in sorted({*here, *there}):
        one, other = here.get(section, {}), there.get(section, {})
        for field in sorted({*one, *other}):
            if one.get(field) != other.get(field):
                name = f"{section}.{field}"
                return f"{name} {shown(one.get(field))}", f"{name} {shown(other.get(field))}"
    return shown(here), shown(there)


def merge_by_job(records: Sequence[Record]) -> list[Record]:
    """Return records in order, those of one device, software and benchmark job merged."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        where = record.environment
        same = [where.device, where.backend, where.torch, where.driver, record.job]
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(record)
    return [merge_records(group) for group in groups.values()]


def _shapes_of(
    model: ModelConfig, split: ParallelismConfig, training: TrainingConfig
) -> dict[str, Any]:
    """Return what decides a layer's kernels, by field; degrees only change their extents."""
    shapes = model.model_dump(exclude={*_LAYERS_APART, "moe", "mla"})
    shapes |= {"num_query_groups": model.query_groups, "kv_channels": model.head_dim}
    for name, part, apart in (("mla", model.mla, ()), ("moe", model.moe, _EXPERTS_APART)):
        fields = part.model_dump(exclude=set(apart)) if part else {}
        shapes |= {f"{name}.{field}": value for field, value in fields.items()}
    # Without FP8 the recipe decides nothing; frameworks have defaults of their own.
    kernels = [field for field in _KERNELS if field != "fp8_recipe" or training.precision == "fp8"]
    return {
        **{f"model.{field}": value for field, value in shapes.items()},
        **{f"training.{field}": getattr(training, field) for field in kernels},
        "parallelism.cp": split.cp,
    }


def _unfit(msg: str, field: str, measured: Any, asked: Any) -> ConfigError:
    return ConfigError(f"{LOAD}: {msg}", key=f"{LOAD}.{field}", value=asked, allowed=measured)


LONGEST = 10
"""Operations that the report shows."""


def summary_of(record: Record) -> dict[str, Any]:
    """Return what was measured where, with times in ms.

    Keys are ``environment``, ``device``, ``precision``, ``model``, ``reduction``, ``layers``,
    ``step`` (or null), ``clocks``, ``longest`` (operations that take longest, each once),
    ``operations`` (by status) and ``unsettled`` (timings that did not settle while they warmed up).
    """
    longest = sorted(
        record.operations,
        key=lambda each: -max((t.median_s for t in each.outcome.times.values()), default=0.0),
    )
    return {
        "environment": record.environment.model_dump(mode="json"),
        "device": record.device,
        "precision": record.precision,
        "model": str(record.job.get("model", {}).get("name", "")),
        "reduction": reductions.reduction_lines(record.reduction),
        "layers": [
            {"layer": layer_words(each.layer), **_outcome(each.outcome)} for each in record.layers
        ],
        "step": None if record.step is None else _outcome(record.step.outcome),
        "clocks": [
            {"dtype": each.program.dtype, **_outcome(each.outcome)}
            for each in record.others
            if isinstance(each.program, task.ClockProgram)
        ],
        "longest": [
            {"label": each.key.label, "phase": each.key.phase, "shape": shape_words(each.key)}
            | _outcome(each.outcome)
            for each in longest[:LONGEST]
            if each.outcome.status == "ok"
        ],
        "operations": dict(Counter(each.outcome.status for each in record.operations)),
        "unsettled": sum(
            not timing.settled for each in record.outcomes() for timing in each.times.values()
        ),
    }


def layer_words(layer: task.LayerSpec) -> str:
    """Return what a layer is: ``dense, bf16, windowed``."""
    words = [layer.kind, layer.dtype]
    if layer.columns.get("window"):
        words.append("windowed")
    return ", ".join(words)


def shape_words(key: OperationKey) -> str:
    """Return the extents of an operation as a reader knows them."""
    if key.kind == "gemm":
        groups = f"{key.batch} x " if key.batch > 1 else ""
        return f"{groups}{key.m} x {key.n} x {key.k} {key.dtype}"
    if key.kind == "attention":
        heads = f"{key.heads}/{key.key_heads} heads"
        return f"{key.batch} x {heads}, {key.m} x {key.n}, {key.k}/{key.d_v} wide, {key.dtype}"
    if key.kind in ("collective", "exchange"):
        return f"{key.operation}, {key.bytes or key.tokens * key.token_bytes:,.0f} bytes"
    return f"{key.bytes:,.0f} bytes"


_TIMING = "median_ms low_ms high_ms repeats settled clock_mhz power_w"


def _outcome(outcome: task.Outcome) -> dict[str, Any]:
    gib = {
        f"{name.removesuffix('_bytes')}_gib": to_gib(value)
        for name, value in outcome.numbers.items()
        if name.endswith("_bytes")
    }
    numbers = {
        name: value for name, value in outcome.numbers.items() if not name.endswith("_bytes")
    }
    return {
        "status": outcome.status,
        "message": outcome.message,
        "times": {name: told(timing, _TIMING) for name, timing in outcome.times.items()},
        "numbers": {**numbers, **gib},
        "backend": outcome.backend,
    }
