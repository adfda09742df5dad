"""The shipped hardware files: complete, sourced, and physically consistent."""

import csv
import re
from collections.abc import Iterator, Mapping
from typing import get_args

import pytest

import projector
from projector.config import resources
from projector.config.device import Device
from projector.config.device_file import load_device
from projector.config.device_kernels import MatrixType
from projector.config.engine import benchmark_routing, inference_memory, inference_operators
from projector.config.network import load_network, load_transport
from projector.config.yaml_file import read_yaml
from projector.kernels.device import MATRIX_TYPES, MAX_TILES, OPERAND_BYTES
from projector.validate import attention

HARDWARE = resources.data_dir("hardware")
DEVICES = resources.shipped("hardware")
ALIASES = read_yaml(HARDWARE / "aliases.yaml")
NETWORKS = read_yaml(HARDWARE / "networks.yaml")
TRANSPORTS = read_yaml(HARDWARE / "transports.yaml")
PROXIES = read_yaml(HARDWARE / "exchange_proxies.yaml")
ATTENTION = read_yaml(HARDWARE / "attention.yaml")
EXPERTS = read_yaml(HARDWARE / "experts.yaml")
GEMM = read_yaml(HARDWARE / "gemm.yaml")
TRAINING = read_yaml(HARDWARE / "training.yaml")
PROBE = read_yaml(HARDWARE / "probe.yaml")
FAMILIES = {
    name: entry for name, entry in ATTENTION.items() if name not in {"sources", "shared", "bands"}
}

EXPECTED = {
    "a100", "a100_40gb", "a100_pcie", "a800", "b200", "b300", "gb200", "gb300", "gh200", "h100",
    "h100_hbm2e", "h100_pcie", "h200", "h800", "mi210", "mi250x", "mi300x", "mi308x", "mi325x",
    "mi350x", "mi355x",
}  # fmt: skip

# The vector peak is quoted at the maximum boost clock, 1965-2062 MHz, while peak_clock_mhz is
# the lower clock that reproduces the matrix peaks.
VECTOR_PEAK_AT_BOOST = {"hopper", "blackwell"}

NARROWER = [
    ("fp32", "tf32"), ("tf32", "fp16"), ("tf32", "bf16"), ("fp32", "fp16"), ("fp32", "bf16"),
    ("fp16", "fp8"), ("bf16", "fp8"), ("fp8", "nvfp4"), ("mxfp8", "nvfp4"),
]  # fmt: skip


def sustained_tflops(device: Device, kind: str) -> float:
    per_clk = device.compute_units * device.matrix_flop_per_clk_per_cu[kind]
    return per_clk * device.sustained_clock_mhz[kind] * device.gemm_efficiency[kind] * 1e-6


def test_settings_and_kernels_list_the_same_matrix_types():
    # Neither may import the other, so that the list stands twice; a place in it is a code.
    assert get_args(MatrixType) == MATRIX_TYPES
    assert len(OPERAND_BYTES) == len(MATRIX_TYPES)


def operand_bytes(kind: str) -> float:
    return float(OPERAND_BYTES[MATRIX_TYPES.index(kind)])


def numbers(value: object, path: str = "") -> Iterator[str]:
    """Yield the path of every number below ``value`` that is written without its source."""
    if isinstance(value, Mapping):
        if "value" in value:
            assert isinstance(value.get("source"), str), path
            return
        for key, item in value.items():
            yield from numbers(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from numbers(item, f"{path}.{i}")
    elif isinstance(value, int | float):
        yield path


def sourced_keys(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        if "value" in value:
            yield str(value["source"])
        else:
            for item in value.values():
                yield from sourced_keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from sourced_keys(item)


@pytest.fixture(params=DEVICES)
def device(request) -> Device:
    return load_device(request.param)


def test_every_expected_device_ships():
    assert set(DEVICES) == EXPECTED


@pytest.mark.parametrize("alias", ALIASES)
def test_alias_resolves(alias):
    assert ALIASES[alias] in EXPECTED
    assert resources.find("hardware", alias, key="gpu").stem == ALIASES[alias]


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("A100-80GB", "a100"), ("A100-40GB", "a100_40gb"), ("A100-PCIe-80GB", "a100_pcie"),
        ("H100", "h100"), ("H100-80GB", "h100"), ("H100-96GB-HBM2e (500W)", "h100_hbm2e"),
        ("MI300X", "mi300x"), ("mi-355x", "mi355x"), ("GB200", "gb200"), ("gh200 96GB", "gh200"),
    ],
)  # fmt: skip
def test_names_in_use_resolve(name, stem):
    assert resources.find("hardware", name, key="gpu").stem == stem


@pytest.mark.parametrize("stem", DEVICES)
def test_every_number_has_a_source(stem):
    data = read_yaml(HARDWARE / f"{stem}.yaml")
    table = data.pop("sources")
    bare = [path for path in numbers(data) if not any(path.startswith(key) for key in table)]
    assert not bare
    assert set(sourced_keys(data)) <= table.keys()
    assert all(len(text) > 10 for text in table.values())
    menus = {"gemm_tiles", *(f"gemm_libraries.{name}" for name in data.get("gemm_libraries", ()))}
    assert set(table) - set(sourced_keys(data)) <= menus, "a source that nothing cites"


def test_device_keeps_its_sources(device):
    assert device.sources["hbm_gib"]
    assert device.sources["sustained_clock_mhz.bf16"]
    assert device.sources["attention.forward_efficiency"]
    assert not [path for path, text in device.sources.items() if "unsourced" in text]


def test_files_name_no_place_of_a_private_machine():
    for path in HARDWARE.glob("*.yaml"):
        assert not re.search(r"(^|\s)/(work|tmp|home)/", path.read_text()), path.name


def test_network_of_device_exists(device):
    network = load_network(device.network)
    assert network.scale_up_gpus % network.gpus_per_node == 0


def test_every_number_of_an_attention_kernel_has_a_source():
    told = {name: entry for name, entry in ATTENTION.items() if name != "sources"}
    assert not list(numbers(told))
    assert set(sourced_keys(told)) == ATTENTION["sources"].keys()
    assert all(len(text) > 10 for text in ATTENTION["sources"].values())


def test_every_number_that_a_probe_starts_from_has_a_source():
    start = {name: entry for name, entry in PROBE["cpu"]["start"].items() if name != "sources"}
    untold = {path for path in numbers(start) if not path.startswith("gemm_tiles.")}
    assert not untold
    assert set(sourced_keys(start)) == PROBE["cpu"]["start"]["sources"].keys() - {"gemm_tiles"}


def test_every_number_of_a_layer_of_experts_has_a_source():
    families = {name: entry for name, entry in EXPERTS.items() if name != "sources"}
    assert not list(numbers(families))
    assert set(sourced_keys(families)) == EXPERTS["sources"].keys()
    assert all(len(text) > 10 for text in EXPERTS["sources"].values())
    assert {load_device(stem).expert_family for stem in DEVICES} == families.keys()


def test_attention_kernels_were_measured_where_they_say():
    with (HARDWARE.parent / "validation/data/attention_measured.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if not attention.KIND.why_not_eligible(row)]
    found: dict[tuple[str, str, str], dict[str, set[int]]] = {}
    for case in (attention.read_case(row) for row in rows if not row["doubt"]):
        device = load_device(case.device)
        default = FAMILIES[device.attention_family]["default"]
        name = default if case.kernel == "default" else case.kernel
        for way in ("forward", "backward"):
            if getattr(case, way):
                widths = found.setdefault((device.attention_family, name, f"{way}_measured"), {})
                widths.setdefault(device.name, set()).add(case.extents[5])
    for (family, name, field), widths in found.items():
        told = FAMILIES[family]["kernels"][name][field]
        assert {device: set(value) for device, value in told["value"].items()} == widths, name
        assert told["source"] == "rows"


def test_every_device_has_the_attention_kernels_of_its_family(device):
    if device.attention_family is None:
        assert device.architecture == "cdna2", "only devices without a family describe their own"
        return
    family = FAMILIES[device.attention_family]
    assert device.attention_kernels.keys() == family["kernels"].keys()
    assert device.attention == device.attention_kernels[family["default"]]
    assert "unfused" in device.attention_kernels
    assert device.attention_boost_clock_mhz >= device.attention_clock_mhz
    assert device.attention_clock_mhz >= device.sustained_clock_mhz["bf16"]
    for name, kernel in device.attention_kernels.items():
        at = f"attention_kernels.{name}"
        assert device.sources[f"{at}.forward_efficiency"], name
        for scale in (each.forward_scale for each in kernel.head_dims.values()):
            assert scale * kernel.forward_efficiency <= 1.005, name


def test_every_number_of_an_engine_has_a_source():
    data = read_yaml(HARDWARE / "engines.yaml")
    table = data.pop("sources")
    bare = [path for path in numbers(data) if not path.endswith(".bits")]
    assert not bare
    assert set(sourced_keys(data)) == table.keys()


def test_every_number_of_inference_has_a_source():
    data = read_yaml(HARDWARE / "inference.yaml")
    table = data.pop("sources")
    assert not list(numbers(data))
    assert set(sourced_keys(data)) == table.keys()
    for read in (inference_operators, inference_memory, benchmark_routing):
        assert read()


def test_every_number_of_what_records_leave_open_has_a_source():
    data = read_yaml(HARDWARE / "measured.yaml")
    table = data.pop("sources")
    assert not list(numbers(data))
    assert set(sourced_keys(data)) == table.keys()


def test_families_are_used():
    assert {load_device(stem).attention_family for stem in DEVICES} == {*FAMILIES, None}


def test_every_number_of_a_gemm_family_has_a_source():
    families = {name: entry for name, entry in GEMM.items() if name != "sources"}
    menu = re.compile(r"\w+\.gemm_tiles\.|\w+\.gemm_libraries\.\w+\.tiles(_of\.\w+)?\.")
    assert not [path for path in numbers(families) if not menu.match(path)]
    assert set(sourced_keys(families)) == GEMM["sources"].keys() - {"gemm_tiles", "gemm_libraries"}
    assert all(len(text) > 10 for text in GEMM["sources"].values())


def test_every_device_of_amd_has_a_gemm_family(device):
    assert (device.gemm_family is not None) == (device.vendor == "amd")
    if device.gemm_family is not None:
        assert device.gemm_family == device.architecture
        assert device.gemm_libraries.keys() == GEMM[device.gemm_family]["gemm_libraries"].keys()


def test_every_constant_of_training_has_a_source_and_every_architecture_has_both_classes(device):
    assert not list(numbers(TRAINING["families"]))
    assert set(sourced_keys(TRAINING["families"])) == TRAINING["sources"].keys()
    assert device.training_gemm_share.keys() == {"16_bit", "8_bit"}
    assert device.architecture in TRAINING["families"]


def test_constants_of_training_are_equal_where_they_share_a_parameter():
    shared = {k: each for k, each in TRAINING["parameters"].items() if "architectures" in each}
    for name, parameter in shared.items():
        *_, field, kind = parameter["field"].split(".")
        found = [TRAINING["families"][each][field][kind] for each in parameter["architectures"]]
        fitted = {each["value"] for each in found if each["source"] == "training_runs"}
        assert len(fitted) == 1, name


@pytest.mark.parametrize("name", NETWORKS)
def test_network_loads_and_is_used(name):
    network = load_network(name)
    assert network.sources["nic_gbit_per_s"]
    # A network is the usual one of a device, or is chosen by name.
    usual = {load_device(stem).network for stem in DEVICES} | {PROBE["cpu"]["start"]["network"]}
    assert network.transport or name in usual
    data = dict(NETWORKS[name])
    table = data.pop("sources")
    assert not list(numbers(data))
    assert set(sourced_keys(data)) == table.keys()


@pytest.mark.parametrize("name", TRANSPORTS)
def test_transport_loads_and_every_number_has_a_source(name):
    transport = load_transport(name)
    # Only adapters without a proxy leave something out: what exchanges wait for it.
    left_out = set() if transport.exchange_proxy else {"exchange_proxy", "exchange_wait_us"}
    fields = type(transport).model_fields.keys() - {"name", "sources"}
    assert transport.sources.keys() == fields - left_out
    data = dict(TRANSPORTS[name])
    table = data.pop("sources")
    assert not list(numbers(data))
    assert set(sourced_keys(data)) == table.keys()


@pytest.mark.parametrize("name", PROXIES)
def test_proxy_of_exchanges_loads_and_every_number_has_a_source(name):
    network = load_network({"name": "own", "nic_gbit_per_s": 100, "exchange_proxy": name})
    for field in ("exchange_write_us", "exchange_proxy_gb_per_s"):
        assert network.sources[field].startswith(f"proxy {name}: ")
    assert network.exchange_write_us > 0.0 or network.exchange_proxy_gb_per_s > 0.0
    data = dict(PROXIES[name])
    table = data.pop("sources")
    assert not list(numbers(data))
    assert set(sourced_keys(data)) == table.keys()


def test_every_type_has_clock_peak_and_efficiency(device):
    kinds = device.matrix_flop_per_clk_per_cu.keys()
    assert {"fp32", "fp16", "bf16"} <= kinds
    for table in (device.sustained_clock_mhz, device.matrix_peak_tflops, device.gemm_efficiency):
        assert table.keys() == kinds
    assert all(0 < share <= 1 for share in device.gemm_efficiency.values())


def test_peak_is_units_times_rate_times_clock(device):
    for kind, peak in device.matrix_peak_tflops.items():
        if kind == "fp32" and device.architecture in VECTOR_PEAK_AT_BOOST:
            continue
        per_clk = device.compute_units * device.matrix_flop_per_clk_per_cu[kind]
        assert per_clk * device.peak_clock_mhz * 1e-6 == pytest.approx(peak, rel=0.02), kind


def test_sustained_rate_is_below_peak(device):
    for kind, peak in device.matrix_peak_tflops.items():
        assert sustained_tflops(device, kind) < peak, kind


def test_narrower_types_are_no_slower(device):
    rate = {kind: sustained_tflops(device, kind) for kind in device.matrix_flop_per_clk_per_cu}
    for wide, narrow in NARROWER:
        if wide in rate and narrow in rate:
            assert rate[wide] <= rate[narrow] * 1.001, (wide, narrow)
    if "mxfp8" in rate:
        assert rate["mxfp8"] == pytest.approx(rate["fp8"], rel=0.05)


@pytest.mark.parametrize(
    ("stem", "kind", "tflops"),
    [
        ("mi300x", "bf16", 708), ("mi300x", "fp16", 654), ("mi300x", "fp8", 1273),
        ("mi325x", "bf16", 831), ("mi325x", "fp8", 1409), ("mi355x", "bf16", 1565),
        ("mi355x", "fp8", 3293), ("h100", "fp8", 1350),
        ("h200", "fp8", 1350), ("b200", "bf16", 1272), ("gb200", "bf16", 1450),
        ("gb200", "fp8", 2800), ("gb300", "fp8", 3279), ("gb300", "nvfp4", 8156),
    ],
)  # fmt: skip
def test_sustained_rate_is_the_published_one(stem, kind, tflops):
    assert sustained_tflops(load_device(stem), kind) == pytest.approx(tflops, rel=0.005)


def power_limited_mhz(device: Device, kind: str) -> float:
    """Return the highest clock at which a large GEMM stays within the cap."""
    power = device.power
    units = device.compute_units * device.matrix_flop_per_clk_per_cu[kind]
    joules = power.pj_per_flop[kind] * 1e-12 * units * device.gemm_efficiency[kind]

    def watts(clock_mhz: float) -> float:
        volts = power.voltage_floor + (1 - power.voltage_floor) * clock_mhz / power.max_clock_mhz
        return power.idle_w + joules * clock_mhz * 1e6 * volts**2

    low, high = 0.0, power.max_clock_mhz
    for _ in range(40):
        middle = (low + high) / 2
        within = watts(middle) <= device.tdp_w * power.loaded_share
        low, high = (middle, high) if within else (low, middle)
    return low


@pytest.mark.parametrize("stem", [stem for stem in DEVICES if stem.startswith("mi")])
def test_clocks_of_amd_follow_from_units_and_watts(stem):
    device = load_device(stem)
    for kind in device.power.pj_per_flop.keys() - {"tf32"}:
        expected = pytest.approx(power_limited_mhz(device, kind), rel=0.045)
        assert device.sustained_clock_mhz[kind] == expected, kind


@pytest.mark.parametrize(("stem", "tflops"), [("a100", 255), ("a100_pcie", 233)])
def test_a_large_gemm_reaches_the_published_rate(stem, tflops):
    seconds = projector.gemm_time(8192, 8192, 8192, device=stem, dtype="fp16")
    assert 2 * 8192**3 / seconds / 1e12 == pytest.approx(tflops, rel=0.005)


def test_largest_tile_is_not_held_up_by_l2_fill(device):
    tile = max(device.gemm_tiles, key=lambda tile: tile.m * tile.n)
    for kind, flop in device.matrix_flop_per_clk_per_cu.items():
        rows = tile.m * (0.5 if tile.pair == "n" else 1) + tile.n * (0.5 if tile.pair == "m" else 1)
        fill = rows * operand_bytes(kind) / device.l2_fill_bytes_per_clk_per_cu
        matrix = 2 * tile.m * tile.n / (flop * device.gemm_efficiency[kind])
        assert fill < matrix, kind


def test_l2_feeds_the_sustained_rate(device):
    """What L2 puts out suffices, where two units that share an operand read it once."""
    tile = max(device.gemm_tiles, key=lambda tile: tile.m * tile.n)
    short, long = sorted((tile.m, tile.n))
    rows, columns = (2 * short, long) if device.vendor == "nvidia" else (short, long)
    for kind in device.matrix_flop_per_clk_per_cu:
        flop_per_byte = 2 * rows * columns / ((rows + columns) * operand_bytes(kind))
        assert flop_per_byte * device.l2_tb_per_s > sustained_tflops(device, kind), kind


def test_l2_fill_of_all_units_is_near_the_l2_bandwidth(device):
    # L2 bandwidth is measured without a matrix load, at the full clock.
    clock = device.peak_clock_mhz * 1e6
    fill = device.compute_units * device.l2_fill_bytes_per_clk_per_cu * clock * 1e-12
    assert fill > 0.8 * device.l2_tb_per_s


def test_caches_are_faster_than_memory(device):
    assert device.l2_tb_per_s > device.hbm_peak_tb_per_s
    if device.mall_mib:
        assert device.hbm_peak_tb_per_s * device.hbm_efficiency < device.mall_tb_per_s
        assert device.mall_tb_per_s < device.l2_tb_per_s


def test_tile_menu_is_distinct_and_fits_shared_memory(device):
    for menu in (device.gemm_tiles, *(library.tiles for library in device.gemm_libraries.values())):
        assert len(set(menu)) == len(menu) <= MAX_TILES
        for tile in menu:
            assert (tile.m + tile.n) * tile.k_bytes <= device.lds_kib_per_cu * 1024


def test_collectives_stay_within_the_links(device):
    assert device.in_network_all_reduce_gb_per_s < device.scale_up_gb_per_s
    assert (device.in_network_all_reduce_gb_per_s > 0) == (
        device.in_network_all_reduce_min_gpus > 0
    )
    if device.vendor == "amd":
        assert device.in_network_all_reduce_gb_per_s == 0
        assert device.scale_up_peer_gb_per_s < device.scale_up_gb_per_s


def test_graphs_shorten_the_gap_between_kernels(device):
    assert device.kernel_start_graph_us < device.kernel_start_us


@pytest.mark.parametrize(
    ("stem", "gib"), [("mi300x", 191.98), ("h100", 79.19), ("h200", 139.8), ("b200", 178.35)]
)
def test_memory_is_what_the_driver_reports(stem, gib):
    assert load_device(stem).hbm_gib == pytest.approx(gib, abs=0.01)


@pytest.mark.parametrize("stem", DEVICES)
def test_only_native_types(stem):
    kinds = load_device(stem).matrix_flop_per_clk_per_cu.keys()
    architecture = load_device(stem).architecture
    assert ("fp8" in kinds) == (architecture not in {"ampere", "cdna2"})
    assert ("mxfp8" in kinds) == (architecture in {"blackwell", "cdna4"})
    assert ("nvfp4" in kinds) == (architecture == "blackwell")
    assert ("mxfp4" in kinds) == ("mxfp6" in kinds) == (architecture == "cdna4")
    assert ("fp8_block" in kinds) == (architecture in {"cdna3", "cdna4"})
    assert ("tf32" in kinds) == (architecture not in {"cdna2", "cdna4"})
