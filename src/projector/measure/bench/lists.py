"""Lists of shapes from CSV tables and from options, as cases to measure.

Options are sizes to sweep: ``512,1024``, ``256:8192``, ``1KiB:64MiB``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from projector.config.formats.shape_table import ShapeRow, byte_count, read_extent, shape_rows
from projector.errors import ConfigError, one_of
from projector.measure.bench import cases as bench_cases

MOST_SIZES = 10_000

FORMS = "N,N,...; LOW:HIGH, doubling; LOW:HIGH:xF, times F; LOW:HIGH:N, adding N"
"""How sizes may be written."""

Read = Callable[[str, str], int]


def extent(key: str, text: str, where: str = "") -> int:
    """Return an extent of at least 1 from its text; ``where`` begins the message of an error."""
    value = read_extent(key, text, where)
    if value < 1:
        msg = f"{where}{key} must be at least 1, got {text!r}"
        raise ConfigError(msg, key=key, value=text, allowed="1 <= integer <= 2**40")
    return value


def whole_bytes(key: str, text: str) -> int:
    """Return a number of bytes of at least 1 from its text, with or without a unit."""
    value = byte_count(key, text)
    if value < 1.0 or value != int(value):
        msg = f"{key} must be whole bytes, at least 1, got {text!r}"
        raise ConfigError(msg, key=key, value=text, allowed="65536, 64MiB, 1GB ...")
    return int(value)


def read_sizes(key: str, text: str, read: Read = extent) -> list[int]:
    """Return the sizes of one option, written as any of `FORMS`, in that order, each once."""
    sizes: dict[int, None] = {}
    for part in text.split(","):
        for size in _part(key, part.strip(), read):
            sizes[size] = None
            if len(sizes) > MOST_SIZES:
                msg = f"{key}: {text!r} has more than {MOST_SIZES:,} sizes"
                raise ConfigError(msg, key=key, value=text, allowed=f"up to {MOST_SIZES:,}")
    return list(sizes)


def _part(key: str, part: str, read: Read) -> list[int]:
    pieces = [piece.strip() for piece in part.split(":")]
    if len(pieces) == 1:
        return [read(key, part)]
    if len(pieces) > 3:
        msg = f"{key}: {part!r} must be one of {FORMS}"
        raise ConfigError(msg, key=key, value=part, allowed=FORMS)
    low, high = (read(key, piece) for piece in pieces[:2])
    if high < low:
        msg = f"{key}: the range {part!r} goes down"
        raise ConfigError(msg, key=key, value=part, allowed="LOW:HIGH with LOW <= HIGH")
    step = pieces[2] if len(pieces) == 3 else "x2"
    if step.lower().startswith("x"):
        return _growing(key, part, low, high, step[1:])
    by = read(key, step)
    # A long range is cut where `read_sizes` refuses it.
    return list(range(low, min(high + 1, low + (MOST_SIZES + 1) * by), by))


def _growing(key: str, part: str, low: int, high: int, factor: str) -> list[int]:
    try:
        times = float(factor)
    except ValueError:
        times = 0.0
    if not 1.001 <= times <= 1e6:
        msg = f"{key}: the factor of {part!r} must be a number above 1, such as x2 or x1.5"
        raise ConfigError(msg, key=key, value=part, allowed="x1.001 to x1e6")
    sizes: list[int] = []
    at = float(low)
    while at <= high and len(sizes) <= MOST_SIZES:
        sizes.append(round(at))
        at *= times
    return sizes


MOST_CASES = 100_000

GEMM_COLUMNS = ("m", "n", "k")
GEMM_MORE = ("batch", "groups", "dtype")
ATTENTION_COLUMNS = ("batch", "heads", "seq")
ATTENTION_MORE = ("seq_kv", "kv_heads", "head_dim", "v_head_dim", "window", "dtype")


@dataclass(frozen=True, slots=True)
class GemmOptions:
    """What a list of GEMMs is made of."""

    table: str | None = None
    sizes: str = ""
    """Sizes of the extents that are not given."""
    m: str = ""
    n: str = ""
    k: str = ""
    dtypes: str = "bf16"
    """Types of rows that do not name their own, with commas; each row is measured in every one."""
    batch: int = 1
    groups: int = 0
    layout: str = "tn"
    pad: bool = True


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """What a list of attentions is made of."""

    table: str | None = None
    sizes: str = ""
    batch: int = 1
    heads: int = 32
    kv_heads: int | None = None
    head_dim: int = 128
    v_head_dim: int | None = None
    window: int = 0
    causal: bool = True
    dtypes: str = "bf16"
    passes: str = "fwd,bwd"
    backend: str = "flash"


def gemm_list(options: GemmOptions) -> list[bench_cases.Case]:
    """Return the GEMMs of a CSV list (m, n, k, and batch, groups, dtype), or of a sweep.

    Without a list, the product of ``m``, ``n`` and ``k`` is measured. Those that are not given
    take the sizes of ``sizes`` together: ``sizes`` alone gives square problems.
    """
    one_of("layout", options.layout, bench_cases.LAYOUTS)
    dtypes = types_of(options.dtypes)
    given = {"m": options.m, "n": options.n, "k": options.k}
    swept = bool(options.sizes or any(given.values()))
    if (options.table is None) != swept:
        msg = "give a list with --csv FILE.csv, or --sizes, --m, --n and --k, but not both"
        raise ConfigError(msg, key="sizes", value=options.sizes, allowed="--csv or --sizes")
    count_of("batch", options.batch)
    count_of("groups", options.groups, least=0)
    if options.table is not None:
        return _limited(_table_gemms(options, dtypes))
    _one_kind(options.batch, options.groups)
    shapes = [(m, n, k, options.batch, options.groups) for m, n, k in _swept(given, options.sizes)]
    return _limited([_gemm(shape, dtype, options) for dtype in dtypes for shape in shapes])


def _table_gemms(options: GemmOptions, dtypes: Sequence[str]) -> list[bench_cases.Case]:
    assert options.table is not None
    cases: list[bench_cases.Case] = []
    for row in shape_rows(options.table, GEMM_COLUMNS, GEMM_MORE):
        m, n, k = (_positive(row, name) for name in GEMM_COLUMNS)
        batch = _positive(row, "batch") if row.text("batch") else options.batch
        groups = row.extent("groups") if row.text("groups") else options.groups
        _one_kind(batch, groups, row.where)
        own = row.text("dtype")
        kinds = [bench_cases.named_type(own, row.where)] if own else dtypes
        cases += [_gemm((m, n, k, batch, groups), dtype, options) for dtype in kinds]
    return cases


def _one_kind(batch: int, groups: int, where: str = "") -> None:
    """Refuse a batch of grouped GEMMs, which no kernel runs."""
    if groups and batch > 1:
        msg = f"{where}groups and batch cannot both be above 1, got {groups} and {batch}"
        raise ConfigError(msg, key="batch", value=batch, allowed=1)


def _gemm(shape: tuple[int, ...], dtype: str, options: GemmOptions) -> bench_cases.Case:
    m, n, k, batch, groups = shape
    return bench_cases.gemm_case(
        m, n, k, dtype, batch=batch, groups=groups, layout=options.layout, pad=options.pad
    )


def _swept(given: Mapping[str, str], sizes: str) -> list[tuple[int, ...]]:
    fixed = {name: read_sizes(name, text) for name, text in given.items() if text}
    free = [name for name in given if name not in fixed]
    if free and not sizes:
        msg = f"give --{free[0]} too, or --sizes for the extents that are not given"
        raise ConfigError(msg, key=free[0], value="", allowed="--sizes")
    if sizes and not free:
        msg = "--m, --n and --k leave no extent for --sizes; leave one of them out"
        raise ConfigError(msg, key="sizes", value=sizes, allowed="without one of --m, --n, --k")
    shapes = []
    for values in product(*fixed.values()):
        named = dict(zip(fixed, values, strict=True))
        for size in read_sizes("sizes", sizes) if free else [0]:
            shapes.append(tuple(named.get(name, size) for name in "mnk"))
            if len(shapes) > MOST_CASES:
                msg = f"--m, --n, --k and --sizes make more than {MOST_CASES:,} problems"
                raise ConfigError(msg, key="sizes", value=sizes, allowed=f"up to {MOST_CASES:,}")
    return shapes


def attention_list(options: AttentionOptions) -> list[bench_cases.Case]:
    """Return the attentions of a CSV list, as `projector attention` reads it, or of a sweep."""
    one_of("kernel", options.backend, bench_cases.ATTENTION_BACKENDS)
    passes = [name.strip() for name in options.passes.split(",") if name.strip()]
    for name in passes or [""]:
        one_of("pass", name, bench_cases.PASSES)
    dtypes = types_of(options.dtypes)
    if (options.table is None) == (not options.sizes):
        msg = "give a list with --csv FILE.csv, or lengths with --sizes, but not both"
        raise ConfigError(msg, key="sizes", value=options.sizes, allowed="--csv or --sizes")
    cases: list[bench_cases.Case] = []
    for shape, own in _attention_shapes(options):
        for dtype in [own] if own else dtypes:
            cases += [
                bench_cases.attention_case(shape, dtype, name, options.backend) for name in passes
            ]
    return _limited(cases)


def _attention_shapes(options: AttentionOptions) -> list[tuple[bench_cases.AttentionShape, str]]:
    for name, value in _own(options).items():
        count_of(name, value, least=0 if name == "window" else 1)
    if options.table is None:
        return [
            (_attention({**_own(options), "seq": seq}, options), "")
            for seq in read_sizes("sizes", options.sizes)
        ]
    shapes = []
    for row in shape_rows(options.table, ATTENTION_COLUMNS, ATTENTION_MORE):
        numbers = _own(options)
        for name in (*ATTENTION_COLUMNS, *ATTENTION_MORE[1:4]):
            if row.text(name) or name in ATTENTION_COLUMNS:
                numbers[name] = _positive(row, name)
        if row.text("window"):
            numbers["window"] = row.extent("window")
        if row.text("seq_kv") and row.extent("seq_kv") != numbers["seq"]:
            msg = f"{row.where}seq_kv must be seq ({numbers['seq']}): tables have one length"
            raise ConfigError(msg, key="seq_kv", value=row.text("seq_kv"), allowed=numbers["seq"])
        heads, shared = numbers["heads"], numbers.get("kv_heads", numbers["heads"])
        if heads % shared:
            msg = f"{row.where}kv_heads ({shared}) does not divide heads ({heads})"
            raise ConfigError(msg, key="kv_heads", value=shared, allowed=f"a divisor of {heads}")
        own = bench_cases.named_type(row.text("dtype"), row.where) if row.text("dtype") else ""
        shapes.append((_attention(numbers, options), own))
    return shapes


def _own(options: AttentionOptions) -> dict[str, int]:
    names = ("batch", "heads", "kv_heads", "head_dim", "v_head_dim", "window")
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _attention(numbers: Mapping[str, int], options: AttentionOptions) -> bench_cases.AttentionShape:
    same = {"kv_heads": numbers["heads"], "v_head_dim": numbers["head_dim"]}
    return bench_cases.AttentionShape(**{**same, **numbers}, causal=options.causal)


def types_of(text: str) -> list[str]:
    """Return matrix types from their names with commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    return list(dict.fromkeys(bench_cases.named_type(name) for name in names or [text]))


def count_of(key: str, value: int, *, least: int = 1) -> None:
    """Refuse a number that is no count."""
    if value < least:
        msg = f"{key} must be at least {least}, got {value}"
        raise ConfigError(msg, key=key, value=value, allowed=f"at least {least}")
    read_extent(key, str(value))


def _positive(row: ShapeRow, name: str) -> int:
    return extent(name, row.text(name), row.where)


def _limited(cases: list[bench_cases.Case]) -> list[bench_cases.Case]:
    kept = bench_cases.once(cases)
    if len(kept) > MOST_CASES:
        msg = f"{len(kept):,} cases are more than {MOST_CASES:,}"
        raise ConfigError(msg, key="csv", value=len(kept), allowed=f"up to {MOST_CASES:,}")
    return kept
