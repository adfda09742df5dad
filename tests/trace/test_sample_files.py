import json

import numpy as np
import pytest

import projector
from projector.errors import ConfigError
from projector.trace.alignment import align
from projector.trace.counter_join import join_counters
from projector.trace.read import load_trace
from projector.trace.samples import read_cores, read_samples, time_of

S_NS = 1_000_000_000
ZERO_NS = 1_767_189_312 * S_NS
"""2025-12-31 13:55:12 UTC."""

LSCPU = """\
# The following is the parsable format, which can be fed to other
# programs. Each different item in every column has an unique ID
# starting usually from zero.
# CPU,Core,Socket,Node,,L1d,L1i,L2,L3
0,0,0,0,,0,0,0,0
1,1,0,0,,1,1,1,0
2,0,0,0,,0,0,0,0
3,0,1,1,,2,2,2,1
"""


def written(folder, text, name="samples.jsonl"):
    path = folder / name
    path.write_text(text)
    return path


def own(head=None, lines=()):
    first = {"format": "projector samples", "version": 1, "rank": 3, "host": "node-1",
             "columns": {"cpu_percent": ["cpu0", "cpu1"], "power_w": ["cuda:3"]},
             "physical_core": [0, 0]} | (head or {})  # fmt: skip
    return "\n".join(json.dumps(line) for line in (first, *lines)) + "\n"


def test_samples_of_our_own(tmp_path):
    path = written(
        tmp_path,
        own(
            lines=[
                {"time_ns": ZERO_NS + 500, "cpu_percent": [100.0, 0.5], "power_w": [700]},
                {"time_ns": ZERO_NS + 1_500, "cpu_percent": [None, 3]},
            ]
        ),
    )
    cores, power = read_samples([path], zero_ns=ZERO_NS)
    assert [cores.what, power.what] == ["cpu_percent", "power_w"]
    assert cores.time_ps.tolist() == [500_000, 1_500_000]
    np.testing.assert_array_equal(cores.values, [[100.0, 0.5], [np.nan, 3.0]])
    assert cores.columns == ("cpu0", "cpu1")
    assert cores.physical_core.tolist() == [0, 0]
    assert power.values.tolist() == [[700.0]]
    assert power.rank == 3
    assert power.physical_core is None
    assert not cores.problems


def test_a_killed_run_leaves_what_it_sampled(tmp_path):
    text = own(
        lines=[{"time_ns": ZERO_NS, "power_w": [1]}, {"time_ns": ZERO_NS, "power_w": [1, 2]}]
    )
    path = written(tmp_path, text + '{"time_ns": 17671893')
    (power,) = read_samples([path], zero_ns=ZERO_NS)
    assert power.values.tolist() == [[1.0]]
    assert [problem.where for problem in power.problems] == ["line 3", "line 4"]


def mpstat(stamps, date="2025-12-31", load=None):
    load = load or [
        {"cpu": "all", "usr": 30.0, "iowait": 0.0, "idle": 70.0},
        {"cpu": "0", "usr": 50.0, "iowait": 10.0, "idle": 40.0},
        {"cpu": "1", "usr": 0.0, "iowait": 0.0, "idle": 100.0},
    ]
    host = {"nodename": "n", "number-of-cpus": 2, "date": date,
            "statistics": [{"timestamp": stamp, "cpu-load": load} for stamp in stamps]}  # fmt: skip
    return json.dumps({"sysstat": {"hosts": [host]}}, indent=1)


def test_json_of_mpstat(tmp_path):
    path = written(tmp_path, mpstat(["13:55:13", "13:55:14"]), "mpstat.json")
    (cores,) = read_samples([path], zero_ns=ZERO_NS, span_ns=10 * S_NS)
    assert cores.columns == ("cpu0", "cpu1")
    assert cores.values.tolist() == [[50.0, 0.0], [50.0, 0.0]]
    assert cores.time_ps.tolist() == [1_000 * S_NS, 2_000 * S_NS]
    assert not cores.problems


@pytest.mark.parametrize(
    ("stamps", "date", "hours"),
    [
        (["15:55:13", "15:55:14"], "12/31/25", "+2"),
        (["07:25:13 PM", "07:25:14 PM"], "12/31/25", "+5.5"),
        (["08:55:13 AM", "08:55:14 AM"], "12/31/2025", "-5"),
    ],
)
def test_local_times_find_the_zone_of_the_trace(tmp_path, stamps, date, hours):
    path = written(tmp_path, mpstat(stamps, date), "mpstat.json")
    (cores,) = read_samples([path], zero_ns=ZERO_NS, span_ns=10 * S_NS)
    assert cores.time_ps.tolist() == [1_000 * S_NS, 2_000 * S_NS]
    (problem,) = cores.problems
    assert f"{hours} hours" in problem.text


def test_the_time_of_the_day_goes_on_past_midnight(tmp_path):
    path = written(tmp_path, mpstat(["23:59:59", "00:00:00", "00:00:01"]), "mpstat.json")
    (cores,) = read_samples([path])
    assert cores.time_ps.tolist() == [0, 1_000 * S_NS, 2_000 * S_NS]
    assert "first sample at zero" in cores.problems[0].text


def test_topology_of_mpstat_is_the_map_of_cores(tmp_path):
    load = [
        {"cpu": "0", "core": "0", "socket": "0", "node": "0", "idle": 0.0},
        {"cpu": "1", "core": "1", "socket": "0", "node": "0", "idle": 50.0},
        {"cpu": "2", "core": "0", "socket": "0", "node": "0", "idle": 100.0},
    ]
    path = written(tmp_path, mpstat(["13:55:13"], load=load), "mpstat.json")
    (cores,) = read_samples([path], zero_ns=ZERO_NS, span_ns=S_NS)
    assert cores.physical_core.tolist() == [0, 1, 0]
    assert cores.values.tolist() == [[100.0, 50.0, 0.0]]


def test_json_of_sadf(tmp_path):
    stamp = {"date": "2025-12-31", "time": "13:55:13", "utc": 1, "interval": 1}
    load = [{"cpu": "all", "idle": 0.0}, {"cpu": "0", "user": 2.0, "iowait": 1.0, "idle": 97.0}]
    path = written(tmp_path, mpstat([stamp], load=load), "sadf.json")
    (cores,) = read_samples([path], zero_ns=ZERO_NS)
    assert cores.values.tolist() == [[2.0]]
    assert cores.time_ps.tolist() == [1_000 * S_NS]


def test_csv_of_sadf(tmp_path):
    text = "# hostname;interval;timestamp;CPU;%user;%nice;%system;%iowait;%steal;%idle\n"
    for cpu, idle in ((-1, 50), (0, 25.5), (1, 75)):
        text += f"n;1;2025-12-31 13:55:13 UTC;{cpu};1;0;0;0.5;0;{idle}\n"
    path = written(tmp_path, text, "sadf.csv")
    (cores,) = read_samples([path], zero_ns=ZERO_NS)
    assert cores.columns == ("cpu0", "cpu1")
    assert cores.values.tolist() == [[74.0, 24.5]]


def test_csv_of_nvidia_smi(tmp_path):
    text = (
        "timestamp, index, clocks.current.sm [MHz], clocks.current.memory [MHz], power.draw [W]\n"
    )
    for second, gpu, clock in ((13, 0, 1980), (13, 1, 1755), (14, 0, 1200), (14, 1, 1305)):
        text += f"2025/12/31 13:55:{second}.250, {gpu}, {clock} MHz, 2619 MHz, 350.25 W\n"
    path = written(tmp_path, text, "smi.csv")
    clock, memory, power = read_samples([path], zero_ns=ZERO_NS, span_ns=10 * S_NS)
    assert [each.what for each in (clock, memory, power)] == [
        "clock_mhz", "memory_clock_mhz", "power_w",
    ]  # fmt: skip
    assert clock.values.tolist() == [[1980.0, 1755.0], [1200.0, 1305.0]]
    assert clock.time_ps.tolist() == [1_250 * S_NS, 2_250 * S_NS]
    assert power.values[0].tolist() == [350.25, 350.25]
    assert clock.columns == ("device 0", "device 1")


def test_csv_with_a_column_for_each_core(tmp_path):
    text = f"time_ns,cpu0,cpu1,cpu2,cpu3\n{ZERO_NS + 7},1,2,3,4\nbroken\n{ZERO_NS + 9},5,6,7,8\n"
    cores_file = written(tmp_path, LSCPU, "lscpu.txt")
    (cores,) = read_samples([written(tmp_path, text, "cpu.csv"), cores_file], zero_ns=ZERO_NS)
    assert cores.values.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert cores.time_ps.tolist() == [7_000, 9_000]
    assert cores.physical_core.tolist() == [0, 1, 0, 2]
    assert [problem.where for problem in cores.problems] == ["line 3"]


def test_seconds_with_fractions_keep_their_microseconds(tmp_path):
    path = written(tmp_path, "timestamp,power_w\n1767189312.000125,300\n", "power.csv")
    (power,) = read_samples([path], zero_ns=ZERO_NS)
    assert abs(int(power.time_ps[0]) - 125_000_000) < 500_000


def test_lscpu(tmp_path):
    assert read_cores(written(tmp_path, LSCPU, "lscpu.txt")).tolist() == [0, 1, 0, 2]
    assert read_cores(written(tmp_path, "a,b\n", "other.txt")) is None
    damaged = LSCPU + "99999999999,3,0,0\n"
    assert read_cores(written(tmp_path, damaged, "damaged.txt")).tolist() == [0, 1, 0, 2]


def test_what_is_no_file_of_samples_is_refused(tmp_path):
    for text in ("", "[]", '{"a": 1}', "x,y\n1,2\n", '{"format": "projector samples"}\n'):
        path = written(tmp_path, text, "samples.txt")
        with pytest.raises(ConfigError, match="no samples that are known") as caught:
            read_samples([path])
        assert (caught.value.key, caught.value.value) == ("samples", str(path))
        for tool in ("nvidia-smi", "rocm-smi", "amd-smi", "mpstat", "projector trace record"):
            assert tool in caught.value.message
    with pytest.raises(ConfigError, match="does not exist") as caught:
        read_samples([tmp_path / "none.csv"])
    assert caught.value.key == "samples"


def test_a_recorder_that_was_killed_at_once_says_so(tmp_path):
    for text in ("", '{"format": "projector samples"}\n'):
        (nothing,) = read_samples([written(tmp_path, text, "rank0.samples.jsonl")])
        assert len(nothing.time_ps) == 0
        assert "nothing read" in nothing.problems[-1].text


SECOND = ZERO_NS // S_NS


def by_quantity(path):
    return {each.what: each for each in read_samples([path], zero_ns=ZERO_NS, span_ns=10 * S_NS)}


def check_amd(found, seconds=(1, 2), power=((350.5, 340), (700, 690)), clock=((2100, 2000),) * 2):
    assert found["power_w"].time_ps.tolist() == [1_000 * S_NS * second for second in seconds]
    assert found["power_w"].columns == ("device 0", "device 1")
    assert found["power_w"].values.tolist() == [list(row) for row in power]
    assert found["clock_mhz"].values.tolist() == [list(row) for row in clock]
    assert set(found["memory_clock_mhz"].values.ravel().tolist()) == {900.0}


def test_csv_of_amd_smi_monitor(tmp_path):
    text = (
        "'CTRL' + 'C' to stop watching output:\n"
        "timestamp,gpu,xcp,power_usage,max_power,hotspot_temperature,gfx_clk,gfx,mem,mem_clock,"
        "vram_used\n"
    )
    for second, powers in ((1, (350.5, 340)), (2, (700, 690))):
        for gpu, (power, clock) in enumerate(zip(powers, (2100, 2000), strict=True)):
            text += f"{SECOND + second},{gpu},0,{power},750,61,{clock},99,40,900,1024\n"
    path = written(tmp_path, text + f"{SECOND + 3},0,0,70", "amd.csv")
    found = by_quantity(path)
    check_amd(found)
    assert found["memory_bytes"].values[0].tolist() == [2.0**30, 2.0**30]
    (problem,) = found["power_w"].problems
    assert problem.where == "line 7"


def test_csv_of_amd_smi_metric_has_a_clock_for_each_die(tmp_path):
    text = "timestamp,gpu,gfx_activity,vcn_activity,socket_power,gfx_0_clk,"
    text += "gfx_0_min_clk,gfx_0_max_clk,gfx_1_clk,gfx_2_clk,mem_0_clk,mem_0_max_clk\n"
    for second, powers in ((1, ("350.5", "340")), (2, ("700", "690"))):
        for gpu, (power, clock) in enumerate(zip(powers, (2100, 2000), strict=True)):
            dies = f"{clock - 100},500,2500,{clock + 100},N/A"
            engines = "[0, 'N/A', 3]" if gpu else "\"[0, 'N/A', 3]\""
            text += f"{SECOND + second},{gpu},98,{engines},{power},{dies},900,1300\n"
    check_amd(by_quantity(written(tmp_path, text, "metric.csv")))


def metric(gpu, power, clock, **more):
    """What `amd-smi metric --json` tells of a device."""
    die = {"clk": {"value": clock, "unit": "MHz"}, "max_clk": {"value": 2500, "unit": "MHz"}}
    return {
        **more, "gpu": gpu,
        "power": {"socket_power": {"value": power, "unit": "W"}, "throttle_status": "N/A"},
        "clock": {"gfx_0": die, "gfx_1": {"clk": "N/A", "min_clk": "N/A"},
                  "mem_0": {"clk": {"value": 900, "unit": "MHz"}}},
    }  # fmt: skip


def test_json_of_amd_smi(tmp_path):
    powers = ((350.5, 340), (700, 690))
    watched = "'CTRL' + 'C' to stop watching output:\n"
    asked = ""
    for second, (first, other) in enumerate(powers, 1):
        stamp = {"timestamp": SECOND + second}
        entries = [metric(0, first, 2100), metric(1, other, 2000)]
        watched += json.dumps([stamp | entry for entry in entries], indent=2) + "\n"
        asked += f"{SECOND + second}.000000000\n" + json.dumps({"gpu_data": entries}) + "\n"
    check_amd(by_quantity(written(tmp_path, watched, "watched.json")))
    check_amd(by_quantity(written(tmp_path, asked, "asked.json")))
    broken = by_quantity(written(tmp_path, asked + '{"gpu_data": [{"gpu"', "broken.json"))
    check_amd(broken)
    assert "no JSON from here on" in broken["power_w"].problems[0].text


def test_json_of_amd_smi_monitor(tmp_path):
    def told(value, unit):
        return {"value": value, "unit": unit}

    text = json.dumps([
        {"timestamp": SECOND + second, "gpu": gpu, "power_usage": told(power, "W"),
         "gfx_clk": told(2100 - 100 * gpu, "MHz"), "gfx": told(3, "%"),
         "mem_clock": told(900, "MHz")}
        for second, powers in ((1, (350.5, 340)), (2, (700, 690)))
        for gpu, power in enumerate(powers)
    ])  # fmt: skip
    check_amd(by_quantity(written(tmp_path, text, "monitor.json")))


@pytest.mark.parametrize("power", ["Average", "Current Socket"])
def test_rocm_smi_with_a_time_before_each_output(tmp_path, power):
    heading = f"{power} Graphics Package Power (W)"
    table, document = "", ""
    for second, powers in ((1, (350.5, 340)), (2, (700, 690))):
        stamp = f"{ZERO_NS + second * S_NS}\n" if second == 1 else f"{SECOND + second}.0\n"
        table += (
            f"{stamp}device,Max Graphics Package Power (W),{heading},sclk clock speed:,"
            "sclk clock level:,mclk clock speed:,socclk clock speed:\n"
        )
        cards = {}
        for gpu, watts in enumerate(powers):
            table += f"card{gpu},750.0,{watts},({2100 - 100 * gpu}Mhz),1,(900Mhz),(33Mhz)\n"
            cards[f"card{gpu}"] = {
                "sclk clock speed:": f"({2100 - 100 * gpu}Mhz)", heading: str(watts),
                "mclk clock speed:": "(900Mhz)", "Max Graphics Package Power (W)": "750.0",
            }  # fmt: skip
        table += "\n"
        document += stamp + json.dumps(cards | {"system": {"Driver version": "6.8.5"}}) + "\n"
    check_amd(by_quantity(written(tmp_path, table, "rocm.csv")))
    check_amd(by_quantity(written(tmp_path, document, "rocm.json")))


def test_tables_of_rocm_smi_one_behind_the_other(tmp_path):
    text = f"{SECOND + 1}\ndevice,GPU use (%)\ncard0,9\ncard1,9\n"
    text += "device,Average Graphics Package Power (W)\ncard0,350.5\ncard1,340\n"
    found = by_quantity(written(tmp_path, text, "rocm.csv"))
    assert found["power_w"].values.tolist() == [[350.5, 340.0]]


def test_rocm_smi_without_times_is_refused(tmp_path):
    for text in (
        "device,Average Graphics Package Power (W)\ncard0,350\ncard1,340\n",
        json.dumps({"card0": {"Average Graphics Package Power (W)": "350"}}),
        json.dumps({"gpu_data": [metric(0, 300, 2100)]}),
        "9" * 19 + "\n" + json.dumps({"gpu_data": [metric(0, "9" * 400, 2100)]}),
    ):
        with pytest.raises(ConfigError, match=r"rows without a time.*date \+%s"):
            read_samples([written(tmp_path, text, "rocm.txt")])


def test_dates():
    assert time_of("1970-01-02 00:00:01") == (24 * 3600 + 1) * S_NS
    assert time_of("1970/01/01 00:00:00.000001") == 1_000
    assert time_of("noon") is None


def test_samples_in_the_folder_of_the_traces_come_with_them(tmp_path):
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 0.0, "dur": 2e6}
    trace = {"baseTimeNanoseconds": ZERO_NS, "traceEvents": [event]}
    written(tmp_path, json.dumps(trace), "rank0.json")
    written(
        tmp_path,
        own({"rank": 0}, [{"time_ns": ZERO_NS + 9, "power_w": [500], "cpu_percent": [1, 2]}]),
        "rank0.samples.jsonl",
    )
    cores, power = load_trace(tmp_path).samples
    # Cores are those of the machine, whichever rank wrote them.
    assert (cores.rank, power.rank) == (-1, 0)
    assert power.time_ps.tolist() == [9_000]
    stat = written(tmp_path, mpstat(["13:55:13"]), "mpstat.txt")
    (cores,) = load_trace(tmp_path, samples=[stat]).samples
    assert cores.time_ps.tolist() == [1_000 * S_NS]


def test_counters_come_with_the_trace(tmp_path):
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 0.0, "dur": 2e6}
    path = written(tmp_path, json.dumps({"traceEvents": [event]}), "rank0.json")
    table = written(tmp_path, "Dispatch_ID,GPU_ID,Kernel_Name,SQ_WAVES\n0,0,k,5\n", "pmc_perf.csv")
    trace = load_trace(path, counters=[table])
    assert trace.counters[0].values["SQ_WAVES"].tolist() == [5.0]
    assert join_counters(align(trace), trace.counters).share == 1.0


def ranges(**counters):
    """Kernels of CUPTI's range profiler: one after the other, with counters and no times."""
    names = ("gemm", "add", "gemm")
    return [
        {"ph": "X", "cat": "cuda_profiler_range", "name": name, "pid": 0, "tid": 0, "ts": 10.0 * n,
         "dur": 10.0, "args": {key: values[n] for key, values in counters.items()} | {"stream": 7}}
        for n, name in enumerate(names)
    ]  # fmt: skip


def test_ranges_of_cupti_are_counters_of_kernels(tmp_path):
    cycles = "sm__cycles_elapsed.max"
    events = ranges(**{cycles: [100, 200, 300.5], "smsp__inst_executed.sum": [1, 2, 3]})
    del events[1]["args"][cycles]
    counted = written(tmp_path, json.dumps({"traceEvents": events}), "rank0.json")
    trace = load_trace(counted)
    (own,) = trace.counters
    assert own.kernel == ["gemm", "add", "gemm"]
    np.testing.assert_array_equal(own.values[cycles], [100.0, np.nan, 300.5])
    assert own.values["smsp__inst_executed.sum"].tolist() == [1.0, 2.0, 3.0]
    (problem,) = trace.problems
    assert "times of 3 kernels of CUPTI's range profiler are none" in problem.text
    # One row a kernel, with a column for each counter.
    table = projector.load_trace(counted).to_pandas()
    assert table[cycles].tolist()[::2] == [100.0, 300.5]
    assert table[cycles].isna().tolist() == [False, True, False]


@pytest.mark.parametrize("as_folder", [False, True])
def test_ranges_of_cupti_are_joined_to_a_timed_run(tmp_path, as_folder):
    folder = tmp_path / "counted"
    folder.mkdir()
    events = ranges(**{"sm__cycles_elapsed.max": [100, 200, 300]})
    counted = written(folder, json.dumps({"traceEvents": events}), "cupti.json")
    timed = [event | {"cat": "kernel", "args": {"stream": 7}} for event in events]
    path = written(tmp_path, json.dumps({"traceEvents": timed}), "rank0.json")
    trace = load_trace(path, counters=[folder if as_folder else counted])
    joined = join_counters(align(trace), trace.counters)
    assert joined.share == 1.0
    assert joined.values["sm__cycles_elapsed.max"].tolist() == [100.0, 200.0, 300.0]
    assert not trace.problems


def test_a_trace_without_counters_is_said_to_have_none(tmp_path):
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 0.0, "dur": 2e6}
    path = written(tmp_path, json.dumps({"traceEvents": [event]}), "rank0.json")
    trace = load_trace(path, counters=[path])
    assert "nothing read" in trace.counters[0].problems[-1].text


def test_folder_without_samples_is_named_as_it_was_given(tmp_path):
    with pytest.raises(ConfigError, match="name the files") as raised:
        read_samples([f"{tmp_path}/"], zero_ns=ZERO_NS)
    assert raised.value.value == f"{tmp_path}/"
