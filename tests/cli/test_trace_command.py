"""``projector trace``."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import projector as pj
from projector.cli.main import run
from synthetic import Host, collective, compute, copy, kineto, step, write

DATA = Path(__file__).parents[1] / "trace" / "data"
MI250, MI300X = DATA / "mi250_toy.json.gz", DATA / "mi300x_resnet_ddp8.json.gz"

ROW_KEYS = {
    "rank", "span_ns", "busy_ns", "idle_ns", "compute_ns", "communication_ns",
    "exposed_communication_ns", "memcpy_ns", "exposed_memcpy_ns", "kernels",
}  # fmt: skip


@pytest.fixture
def trace(capsys):
    def call(*arguments):
        code = run(["trace", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def run_of_two(tmp_path):
    """Two iterations of two ranks, the second of which computes longer."""
    for rank in range(2):
        late = rank * 1000
        lines = [step(7, 0, 10_000), step(8, 10_000, 20_000)]
        for begin in (0, 10_000):
            lines += [
                compute(begin + 2000, begin + 4000 + late, launch=begin + 500, rank=rank),
                collective(begin + 3000, begin + 6000, launch=begin + 600, rank=rank),
                copy(begin + 5000, begin + 7000, launch=begin + 700, rank=rank),
            ]
        write(tmp_path / f"rank{rank}.json", kineto(*lines, rank=rank, world_size=2))
    return tmp_path


def test_the_summary_adds_up(trace, run_of_two):
    code, out, err = trace("summary", run_of_two, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert {"schema_version", "version", "warnings", "problems"} <= found.keys()
    assert found["warnings"] == []
    assert found["iterations"] == [7, 8]
    first, second = found["ranks"]
    assert first.keys() >= ROW_KEYS
    assert {key: first[key] for key in sorted(ROW_KEYS)} == {
        "rank": 0, "span_ns": 15000, "busy_ns": 10000, "idle_ns": 5000, "compute_ns": 4000,
        "communication_ns": 6000, "exposed_communication_ns": 4000, "memcpy_ns": 4000,
        "exposed_memcpy_ns": 2000, "kernels": 4,
    }  # fmt: skip
    assert (second["rank"], second["compute_ns"]) == (1, 6000)
    assert [each["rank"] for each in found["files"]] == [0, 1]
    assert all(type(first[key]) is int for key in ROW_KEYS)


def test_the_summary_is_readable(trace, run_of_two):
    code, out, err = trace("summary", run_of_two)
    assert (code, err) == (0, "")
    for text in ("2 ranks", "iterations 7-8", "0.015", "26.7 %", "33.3 %", "Idle time"):
        assert text in out
    assert "Ranks against each other" in out
    _, out, _ = trace("summary", run_of_two, "--tokens", 10_000)
    assert "tokens/s by the slowest rank of each iteration (rank 0 in 1, rank 1 in 1)" in out


def test_why_waits_are_blank(trace, run_of_two):
    (run_of_two / "rank1.json").unlink()
    late = collective(1000, 9000, launch=900, rank=2, detail={"collective": "c", "group": "0"})
    lines = [step(7, 0, 10_000), compute(2000, 4000, launch=500, rank=2), late]
    write(run_of_two / "rank2.json", kineto(*lines, rank=2, world_size=3))
    _, out, _ = trace("summary", run_of_two)
    words = " ".join(out.split())
    no_group = "the trace does not tell the groups of its collectives"
    alone = "no other rank of its groups is in the trace"
    assert f"Waits of rank 0 are not known: {no_group}." in words
    assert f"Waits of rank 2 are not known: {alone}." in words
    found = json.loads(trace("summary", run_of_two, "--json")[1])
    assert [row["waiting_unknown"] for row in found["stragglers"]] == [no_group, alone]
    found = json.loads(trace("summary", run_of_two / "rank0.json", "--json")[1])
    assert [row["waiting_unknown"] for row in found["stragglers"]] == [
        "no other rank is in the trace"
    ]


def test_late_links_are_told(trace, tmp_path):
    for rank in range(4):
        name = str(rank // 2)
        detail = {"collective": "all_gather", "group": name, "in_elements": 8, "dtype": "Float",
                  "group_ranks": f"[{rank // 2 * 2}, {rank // 2 * 2 + 1}]"}  # fmt: skip
        line = collective(2000, 4000 + rank // 2 * 3000, launch=500, rank=rank, detail=detail)
        lines = [step(7, 0, 10_000), compute(600, 1000, launch=500, rank=rank), line]
        write(tmp_path / f"rank{rank}.json", kineto(*lines, rank=rank, world_size=4))
    late, other = json.loads(trace("summary", tmp_path, "--json")[1])["links"]
    assert (late["group"], late["cost_ns"], late["relative"]) == ("1: ranks 2-3", 3000.0, 2.5)
    assert (other["group"], other["cost_ns"], other["relative"]) == ("0: ranks 0-1", 0.0, 0.4)
    out = trace("summary", tmp_path)[1]
    assert "Links against each other" in out
    assert "1: ranks 2-3      1  0.005      0.002    250.0 %     0.003" in out


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--ranks", 1], 6),
        (["--iterations", 8], 6),
        (["--skip-warmup", 1], 6),
        (["--ranks", "0-1", "--iterations", "7,8"], 12),
    ],
)
def test_what_is_chosen_counts(trace, run_of_two, tmp_path, options, count):
    table = tmp_path / "out.parquet"
    code, _, err = trace("summary", run_of_two, *options, "--parquet", table)
    assert (code, err) == (0, f"wrote {table}\n")
    found = pq.read_table(table)
    assert len(found) == count
    assert {"rank", "start_ps", "name", "class", "phase", "iteration"} <= set(found.column_names)


def test_rows_of_other_commands(trace, run_of_two, tmp_path):
    table = tmp_path / "out.parquet"
    for command in ("operations", "launch"):
        code, out, _ = trace(command, run_of_two, "--json", "--by", "type", "--parquet", table)
        found = json.loads(out)
        assert code == 0
        assert found["by"] == ["type"]
        assert len(pq.read_table(table)) == len(found["operations"])
    rows = json.loads(trace("operations", run_of_two, "--json", "--by", "type")[1])["operations"]
    assert sum(row["activities"] for row in rows) == 12
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    only = json.loads(trace("operations", run_of_two, "--json", "--type", "communication")[1])
    assert [row["type"] for row in only["operations"]] == ["communication"]
    assert only["selection"] == {"types": ["communication"]}


@pytest.mark.parametrize("command", ["operations", "overlap", "launch"])
def test_real_traces_are_readable(trace, command):
    code, out, err = trace(command, MI300X)
    assert code == 0
    assert "Conv2d" in out
    assert err == (
        "warning: 968 of 3,653 activities lie outside iterations: the spans of the summary hold "
        "them, medians and shares of operations do not\n"
        "warning: rank 0: 968 activities were launched before the trace began; what they are was "
        "inferred from the iteration after them\n"
        "warning: the trace has 1 of 8 ranks (rank 0): how the others did is not known\n"
    )


def test_the_curves_of_overlap(trace, run_of_two):
    plain = json.loads(trace("overlap", run_of_two, "--json")[1])["operations"]
    curved = json.loads(trace("overlap", run_of_two, "--json", "--cdf")[1])["operations"]
    assert [{**row, "cdf": None} for row in curved] == [{**row, "cdf": None} for row in plain]
    (row,) = curved
    assert len(row["cdf"]["duration"]) == row["instances"]
    assert row["cdf"]["cumulative"] == sorted(row["cdf"]["cumulative"])
    assert row["cdf"]["cumulative"][-1] == pytest.approx(1.0)


def test_clocks_of_ranks_are_aligned(trace, tmp_path):
    for rank, ahead in ((0, 0), (1, 500_000)):
        lines = [
            line
            for number in range(20)
            for begin in [ahead + number * 10_000]
            for line in (
                step(number, begin, begin + 10_000),
                compute(begin + 1000, begin + 3000, launch=begin + 500, rank=rank),
                collective(begin + 3000, begin + 9000, launch=begin + 600, rank=rank),
            )
        ]
        write(tmp_path / f"rank{rank}.json", kineto(*lines, rank=rank, world_size=2))
    code, out, _ = trace("summary", tmp_path, "--json")
    found = json.loads(out)
    assert code == 0
    first, second = found["ranks"]
    assert {**second, "rank": 0, "device": 0} == first
    assert [each["rank"] for each in found["clocks"]] == [0, 1]
    assert "2 ranks" in trace("summary", tmp_path)[1]


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("command", ["summary", "operations", "overlap", "launch"])
def test_reports_fit_the_terminal(trace, run_of_two, monkeypatch, command, width):
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = trace(command, run_of_two)
    assert max(map(len, out.splitlines())) <= width
    last = {"summary": "kernels", "operations": "overlap", "overlap": "D50/D0", "launch": "call"}
    assert last[command] in out


@pytest.fixture
def half(tmp_path):
    """A folder of four ranks, of which one breaks off and one has no file."""
    folder = tmp_path / "half"
    folder.mkdir()
    for rank in (0, 1, 2):
        lines = []
        for number in range(6):
            begin = number * 10_000
            lines.append(step(number, begin, begin + 10_000))
            lines.append(compute(begin + 2000, begin + 4000, launch=begin + 500, rank=rank))
        write(folder / f"rank{rank}.json", kineto(*lines, rank=rank, world_size=4))
    cut = folder / "rank1.json"
    text = cut.read_bytes()
    cut.write_bytes(text[: text.index(b"ProfilerStep#3")])
    return folder


def test_half_a_trace_is_said_in_one_sentence(trace, half, tmp_path):
    sentence = (
        "half a trace: rank 1 breaks off ({path} at byte {byte}, 9 events are read, iterations 0-2 "
        "of 0-5); 3 of 4 ranks (ranks 0, 1, 2): how the others did is not known"
    )
    told = []
    for command in ("summary", "operations", "launch", "overlap", "gap"):
        code, out, err = trace(command, half, "--json")
        assert code == 0
        (warning,) = json.loads(out)["warnings"][:1]
        byte = warning.partition("at byte ")[2].partition(", ")[0]
        assert warning == sentence.format(path=half / "rank1.json", byte=byte)
        assert int(byte.replace(",", "")) <= (half / "rank1.json").stat().st_size
        told.append([text for text in json.loads(out)["warnings"] if "rank1.json" in text])
        assert err == ""
    assert told == [told[0]] * 5
    assert len(told[0]) == 1
    # Chosen ranks do not miss the others, and what is left out of a whole trace is no half of it.
    alone = json.loads(trace("summary", half, "--ranks", 1, "--json")[1])["warnings"]
    assert alone[0].endswith("iterations 0-2 of 0-2)")
    whole = tmp_path / "whole"
    whole.mkdir()
    write(whole / "rank0.json", kineto(step(0, 0, 9), compute(2, 4, launch=1)))
    (whole / "job.json").write_text("{}")
    (other,) = json.loads(trace("summary", whole, "--json")[1])["warnings"]
    assert other.startswith(f"{whole / 'job.json'}: left out:")
    (half / "rank3.json").write_text("")
    left = json.loads(trace("summary", half, "--json")[1])["warnings"][0]
    assert f"; {half / 'rank3.json'} is empty and is left out; 3 of 4 ranks" in left


def test_nothing_is_written_of_a_trace_that_cannot_be_read(trace, half, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for rank in range(2):
        (broken / f"rank{rank}.json.gz").write_bytes(b"\x1f\x8b")
    before = sorted(tmp_path.rglob("*"))
    table, page = tmp_path / "t.parquet", tmp_path / "p.html"
    for arguments in (
        ("summary", broken, "--parquet", table),
        ("operations", broken, "--parquet", table),
        ("plot", broken, "--html", page, "--out", tmp_path / "new" / "pictures"),
        ("plot", broken, "--plot", f"breakdown={tmp_path / 'b.png'}"),
        ("compare", half, broken, "--html", page, "--parquet", table),
        ("gap", broken, "--plot", tmp_path / "g.png"),
    ):
        code, out, err = trace(*arguments, "--json")
        assert code == 2
        assert "is empty" in json.loads(out)["error"]
        assert err.count("\n") == 1
        assert sorted(tmp_path.rglob("*")) == before
    # Of half a trace files are whole.
    code, _, _ = trace("summary", half, "--parquet", table)
    assert code == 0
    assert len(pq.read_table(table)) == 6 + 6 + 3
    assert trace("plot", half, "--html", page)[0] == 0
    assert page.read_text().rstrip().endswith("</html>")


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_names_are_folded_and_never_cut(trace, tmp_path, monkeypatch, width):
    def named(what):
        return f"{what}_" + "".join(f"{number}_of_many_parts_" for number in range(9)) + "end"

    kernel, operation, group = map(named, ("kernel", "operation", "group"))
    detail = {"collective": named("collective"), "group": group}
    for rank in range(2):
        late = 1000 * rank
        lines = [step(7, 0, 20_000)]
        for begin in (0, 10_000):
            around = Host(name=operation, start=begin + 400, end=begin + 550)
            work = compute(begin + 2000, begin + 4000 + late, launch=begin + 500, name=kernel,
                           rank=rank)  # fmt: skip
            talk = collective(begin + 3000, begin + 6000, launch=begin + 600, detail=detail,
                              rank=rank)  # fmt: skip
            lines += [around, work, talk]
        write(tmp_path / f"rank{rank}.json", kineto(*lines, rank=rank, world_size=2))
    monkeypatch.setenv("COLUMNS", str(width))

    def shown(*arguments):
        code, out, _ = trace(*arguments)
        assert code == 0
        assert max(map(len, out.splitlines())) <= width
        assert "..." not in out
        return out

    out = shown("summary", tmp_path)
    for name in (operation, group, detail["collective"], kernel):
        assert _folded(name, out)
    for command in ("operations", "launch", "overlap"):
        assert _folded(operation, shown(command, tmp_path))
    for by, name in (("kernel", kernel), ("group", group), ("kernel,phase", kernel)):
        assert _folded(name, shown("operations", tmp_path, "--by", by))
    assert _folded(operation, shown("compare", tmp_path / "rank0.json", tmp_path / "rank1.json"))
    around = Host(name=operation, start=400, end=550)
    lines = [step(7, 0, 20_000), around, compute(2000, 4000, launch=500, name="ampere_gemm")]
    alone = write(tmp_path / "alone.json", kineto(*lines))
    assert _folded(operation, shown("gap", alone))


def _folded(name, out):
    """Whether a column holds a name: its parts stand below each other and are the whole name."""
    lines = out.splitlines()
    for number, line in enumerate(lines):
        at = line.find(name[:8])
        found = ""
        for below in lines[number:] if at >= 0 else ():
            found += below[at:].split(" ")[0]
            if found == name:
                return True
            if not name.startswith(found):
                break
    return False


def test_quiet_has_no_warnings(trace):
    code, out, err = trace("summary", MI250)
    assert (code, err) == (0, "")
    assert trace("summary", MI250, "--quiet") == (0, out, "")
    b200 = DATA / "b200_eager_rank0.json.gz"
    assert "no annotated iterations" in trace("launch", b200)[2]
    assert trace("launch", b200, "--quiet")[2] == ""


@pytest.mark.parametrize(
    ("arguments", "key", "text"),
    [
        (["summary", "nowhere.json"], "trace", "nowhere.json does not exist"),
        (["summary", MI250, "--ranks", "3"], "ranks", "[3] are not among those"),
        (["summary", MI250, "--ranks", "a"], "ranks", "no list of numbers"),
        (["summary", MI250, "--iterations", "3"], "iterations", "it has 1"),
        (["summary", MI250, "--skip-warmup", "1"], "skip_warmup", "leaves nothing"),
        (["summary", MI250, "--parquet", "no/such/place"], "parquet", "no folder no/such"),
        (["summary", "a" * 5000], "trace", "File name too long"),
        (["summary", ""], "trace", "it has no name"),
        (["summary", MI250, "--counters", "a" * 5000], "counters", "File name too long"),
        (["summary", MI250, "--samples", "/nowhere/*.csv"], "samples", "does not exist"),
        (["summary", MI250, "--tokens", "inf"], "tokens", "positive number"),
        (["compare", MI250, "--config", "no.yaml", f"model={'a' * 300}"], "config", "no.yaml"),
        (["summary", MI250, "--parquet", "/proc/nothing"], "parquet", "cannot be written"),
        (["summary", MI250, "--tokens", "0"], "tokens", "positive number"),
        (["operations", MI250, "--by", "colour"], "by", "colour"),
        (["operations", MI250, "--phase", "forth"], "phase", "known: forward"),
        (["operations", MI250, "--type", "matmul"], "type", "known: gemm"),
    ],
)
def test_what_is_wrong_is_said(trace, arguments, key, text):
    code, out, err = trace(*arguments, "--json")
    assert code == 2
    assert json.loads(out)["key"] == key
    assert text in err
    assert text in json.loads(out)["error"]


def test_a_choice_that_leaves_nothing_is_told(trace):
    for command in ("operations", "overlap", "launch"):
        code, _, err = trace(command, MI250, "--type", "attention", "--phase", "forward")
        assert code == 0
        assert "nothing of the trace is left by what was chosen" in err
        assert "['attention']" in err


def test_from_python(run_of_two):
    run_ = pj.load_trace(run_of_two)
    assert repr(run_) == "<trace of 2 ranks, 28 events>"
    assert run_.summary().rows[0]["busy_ns"] == 10000
    assert len(run_.to_arrow()) == 12
    late = run_.select(iterations=[8], ranks=range(1, 2))
    assert len(late.to_arrow()) == 3
    assert "communication" in late.operations("type")._repr_html_()
    assert run_.operations("type").to_arrow().num_rows == 3
    assert repr(run_.summary()) == "<summary of a trace: 2 ranks>"
