"""A list is measured in chunks and kept as it goes; nothing that was measured is lost."""

import csv
from contextlib import contextmanager
from pathlib import Path

import pytest

from measure.bench_stand_in import CPU, H100, StandIn, died, out_of_memory
from projector.errors import ConfigError, MeasurementError
from projector.measure.bench import session
from projector.measure.bench.cases import clock_cases, collective_cases, copy_cases
from projector.measure.bench.lists import (
    AttentionOptions,
    GemmOptions,
    attention_list,
    gemm_list,
)
from projector.measure.bench.rows import COLUMNS, TABLES, identity, identity_of
from projector.measure.bench.session import begin, settings_of
from projector.measure.task import Outcome
from projector.validate.words import columns_of

SIZES = "128:2048"


def gemms(sizes=SIZES, **options):
    return gemm_list(GemmOptions(sizes=sizes, **options))


def lists():
    return {
        "gemm": [
            *gemms("512,1024"), *gemms("256", dtypes="fp8"), *gemms("256", batch=4),
            *gemms("256", groups=4), *gemms("512", layout="nt"),
        ],
        "attention": attention_list(AttentionOptions(sizes="512,1024", window=128)),
        "collective": collective_cases(["all_reduce", "all_to_all"], [4096, 2**20], 8),
        "memory": copy_cases([2**20, 2**30]),
        "clock": clock_cases(["bf16", "fp8"], 2.0),
    }  # fmt: skip


def start(run, cases=None, kind="gemm", out=None, device=None, overwrite=False, say=None,
          lock_mhz=None, **given):  # fmt: skip
    return begin(
        kind, gemms() if cases is None else cases, device=device, out=out, overwrite=overwrite,
        settings=settings_of(**given), run=run, say=say, lock_mhz=lock_mhz,
    )  # fmt: skip


class Held:
    """A clock that remembers when it was held."""

    def __init__(self):
        self.now, self.log = set(), []

    @contextmanager
    def __call__(self, device, clock_mhz):
        self.now.add((device, clock_mhz))
        self.log.append((device, clock_mhz))
        try:
            yield
        finally:
            self.now.remove((device, clock_mhz))


def rows_of(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_row_holds_everything(tmp_path, kind):
    out, cases = tmp_path / "out.csv", lists()[kind]
    first = start(StandIn(), cases, kind, str(out)).measuring.go()
    again = StandIn()
    second = start(again, cases, kind, str(out)).measuring.go()
    assert not again.programs
    assert first == second
    assert len(first) == len(cases)
    assert all(each.status == "ok" and each.rate for each in first)
    if kind != "clock":
        assert all(each.spread.repeats == 11 and each.spread.settled for each in first)
        assert all(each.spread.low_s < each.time_s < each.spread.high_s for each in first)
        assert {each.spread.clock_mhz for each in first} == {1400.0}


@pytest.mark.parametrize("kind", TABLES)
def test_columns_are_those_of_the_published_tables(kind):
    table = Path(__file__).parents[2] / "validation" / "data" / f"{TABLES[kind]}.csv"
    with table.open(newline="") as stream:
        columns = next(csv.reader(stream))
    # Those that stand for words are filled in when a table is read, or by `--normalise`.
    words = columns_of(TABLES[kind])
    assert tuple(name for name in columns if name not in words) == COLUMNS[kind]


@pytest.mark.parametrize("kind", COLUMNS)
def test_rows_are_known_before_they_are_measured(kind):
    session = start(StandIn(), lists()[kind], kind)
    for each in session.measuring.go():
        known = identity_of(each.case, session.measuring.machine)
        assert identity(kind, each.row) == known


def test_a_list_runs_in_chunks_and_one_look_at_the_machine():
    run, said = StandIn(), []
    cases = gemms("16:640:16")
    start(run, cases, say=said.append).measuring.go()
    assert [len(task.programs) for task in run.tasks] == [0, 16, 16, 8]
    assert said[-1].startswith("measured 40 of 40")
    assert "left" in said[0]


def test_an_interrupted_list_is_continued(tmp_path):
    out, cases = tmp_path / "out.csv", gemms("16:640:16")

    def stop_late(program):
        if program.key.m == 640:
            raise KeyboardInterrupt

    first = start(StandIn(rule=stop_late), cases, out=str(out))
    with pytest.raises(KeyboardInterrupt):
        first.measuring.go()
    assert len(rows_of(out)) == len(first.measuring.finished()) == 32
    second = StandIn()
    assert len(start(second, cases, out=str(out)).measuring.go()) == 40
    assert [program.key.m for program in second.programs] == list(range(528, 641, 16))
    assert len(rows_of(out)) == 40


def test_a_line_that_was_cut_off_is_measured_again(tmp_path):
    out = tmp_path / "out.csv"
    start(StandIn(), out=str(out)).measuring.go()
    whole = out.read_text()
    out.write_text(whole[:-40])
    run = StandIn()
    start(run, out=str(out)).measuring.go()
    assert [program.key.m for program in run.programs] == [2048]
    assert out.read_text() == whole


def test_out_of_memory_and_unsupported_types_are_rows(tmp_path):
    out = tmp_path / "out.csv"

    def rule(program):
        if program.key.m == 2048:
            return out_of_memory()
        if program.key.m == 128:
            return Outcome(status="unsupported", message="no such\nkernel")
        return None

    found = start(StandIn(rule=rule), out=str(out)).measuring.go()
    assert [each.status for each in found] == ["unsupported", "ok", "ok", "ok", "out_of_memory"]
    assert found[0].message == found[0].row["doubt"].partition("; ")[2] == "no such kernel"
    assert found[-1].row["runtime_us"] == ""
    assert found[-1].row["doubt"].startswith("not measured: out of memory; ")
    # What ran out of memory would again; a type may be there in the next version.
    again = StandIn()
    found = start(again, out=str(out)).measuring.go()
    assert [program.key.m for program in again.programs] == [128]
    assert [each.status for each in found] == ["ok"] * 4 + ["out_of_memory"]
    assert len(rows_of(out)) == 5


@pytest.mark.parametrize("silent", [False, True])
def test_a_case_that_ends_its_process_fails_alone(tmp_path, silent):
    out = tmp_path / "out.csv"
    run = StandIn(rule=lambda program: died() if program.key.m == 512 else None)
    deaf = run if not silent else lambda task, heard: run(task)
    found = start(deaf, out=str(out)).measuring.go()
    # One that is named is tried alone, and the others together; else halves of halves are.
    tried = [len(task.programs) for task in run.tasks]
    assert tried == ([0, 5, 2, 3, 1, 2] if silent else [0, 5, 4, 1])
    assert [each.status for each in found] == ["ok", "ok", "failed", "ok", "ok"]
    assert "exit code -9" in found[2].message
    again = StandIn()
    assert [each.status for each in start(again, out=str(out)).measuring.go()] == ["ok"] * 5
    assert len(rows_of(out)) == 5


def test_a_machine_that_answers_no_more_stops_the_list(tmp_path):
    out, run = tmp_path / "out.csv", StandIn()
    session = start(run, gemms("16:640:16"), out=str(out))
    run.rule = lambda program: died() if program.key.m > 256 else None
    with pytest.raises(MeasurementError):
        session.measuring.go()
    assert sum(not row["doubt"] for row in rows_of(out)) == 16


def test_nothing_is_written_where_nothing_can_be_measured(tmp_path):
    out = tmp_path / "out.csv"

    def no_torch(task, heard):
        del task, heard
        msg = "torch is not installed"
        raise MeasurementError(msg)

    with pytest.raises(MeasurementError, match="torch"):
        start(no_torch, out=str(out))
    assert not out.exists()


def test_a_row_of_another_machine_is_another_row(tmp_path):
    out = tmp_path / "out.csv"
    start(StandIn(H100), out=str(out)).measuring.go()
    run = StandIn(H100.model_copy(update={"torch": "2.14.0"}))
    assert len(start(run, out=str(out)).measuring.go()) == 5
    assert len(run.programs) == 5
    assert len(rows_of(out)) == 10
    assert len(start(StandIn(CPU), out=str(out)).measuring.go()) == 5
    assert len(rows_of(out)) == 15


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "hello", "gpu,op\n"])
def test_another_file_is_not_touched(tmp_path, text):
    out = tmp_path / "out.csv"
    out.write_text(text)
    with pytest.raises(ConfigError, match="overwrite"):
        start(StandIn(), out=str(out))
    assert out.read_text() == text
    start(StandIn(), out=str(out), overwrite=True).measuring.go()
    assert len(rows_of(out)) == 5


def test_rows_name_the_device_that_was_measured(tmp_path):
    assert start(StandIn(H100)).measuring.machine.gpu == "h100"
    assert start(StandIn(H100)).device == "h100"
    assert start(StandIn(CPU)).measuring.machine.gpu == "A Processor"
    assert start(StandIn(CPU)).device == ""
    own = tmp_path / "own.yaml"
    own.write_text("extends: h100\nhbm_peak_tb_per_s: 3.0\n")
    changed = start(StandIn(H100), device=str(own))
    assert (changed.measuring.machine.gpu, changed.device) == ("h100", str(own))
    own.write_text("extends: h100\nname: A Processor\n")
    assert start(StandIn(CPU), device=str(own)).measuring.machine.gpu == str(own)
    other = start(StandIn(H100), device="a100")
    assert (other.measuring.machine.gpu, other.device) == ("h100", "a100")
    assert "is not known to be" in other.warnings[0]


@pytest.mark.parametrize(
    "options",
    [{"backend": "tpu"}, {"repeats": 0}, {"threads": 0}, {"ranks": 0}, {"timeout_s": 0.0}],
)
def test_settings_are_checked(options):
    with pytest.raises(ConfigError):
        settings_of(**options)


def test_a_clock_is_held_only_while_it_is_measured():
    held = Held()
    session = start(
        StandIn(), kind="collective", cases=lists()["collective"], ranks=2, lock_mhz=1400.0
    )
    session.lock = held
    seen = []
    session.measuring.run.rule = lambda program: seen.append(set(held.now))
    session.go()
    assert seen == [{(0, 1400.0), (1, 1400.0)}] * 4
    assert held.now == set()
    assert session.warnings == []
    assert session.measuring.finished()[0].row["notes"].startswith("locked 1400 MHz; quartiles")


def test_a_clock_is_let_go_after_an_interruption():
    held = Held()
    session = start(StandIn(), lock_mhz=1300.0)
    session.lock = held

    def stop(program):
        raise KeyboardInterrupt

    session.measuring.run.rule = stop
    with pytest.raises(KeyboardInterrupt):
        session.go()
    assert held.log
    assert not held.now


def test_a_locked_clock_that_is_not_kept_is_said():
    session = start(StandIn(), lock_mhz=1700.0)
    session.lock = Held()
    session.go()
    assert "5 of 5 cases ran at 1,400 to 1,400 MHz" in session.warnings[0]


def test_clocks_are_not_locked_unasked_nor_on_a_processor():
    session = start(StandIn())
    session.lock = held = Held()
    session.go()
    assert held.log == []
    with pytest.raises(ConfigError, match="on the CPU"):
        start(StandIn(CPU), lock_mhz=1300.0)
    with pytest.raises(ConfigError, match="from 1 to"):
        start(StandIn(), lock_mhz=0.0)


def test_what_a_worker_does_is_said_after_a_while(monkeypatch):
    said = []
    monkeypatch.setattr(session, "SAID_EVERY_S", 0.0)
    start(StandIn(), say=said.append).measuring.go()
    assert said[:2] == ["in this process 1 of 5: a program", "in this process 2 of 5: a program"]


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("text", ["abc", "", "nan", "inf", "-1"])
def test_a_row_that_nobody_can_read_is_measured_again(tmp_path, kind, text):
    out, cases = tmp_path / "out.csv", lists()[kind]
    start(StandIn(), cases, kind, str(out)).measuring.go()
    rows = rows_of(out)
    column = {"attention": "time_ms", "collective": "value", "clock": "tflops"}
    rows[0][column.get(kind, "runtime_us")] = text
    with out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS[kind], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    run = StandIn()
    found = start(run, cases, kind, str(out)).measuring.go()
    # A clock may be watched where nothing tells the rate.
    assert len(run.programs) == (0 if (kind, text) == ("clock", "") else 1)
    assert len(found) == len(cases)
    assert len(rows_of(out)) == len(cases) + len(run.programs)


def test_rows_that_were_put_together_by_hand_stay(tmp_path):
    out = tmp_path / "out.csv"
    start(StandIn(), out=str(out)).measuring.go()
    text = out.read_text()
    out.write_text(text + text.partition("\n")[2])
    start(StandIn(), out=str(out)).measuring.go()
    assert len(rows_of(out)) == 10
