import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.config.network import load_network, load_transport
from projector.validate import clusters
from projector.validate.clusters import (
    Adapters,
    cluster_of,
    network_of,
    stated_adapters,
    stated_network,
)
from projector.validate.names import load_table_names

USUAL = Adapters(8, 400.0)


@pytest.mark.parametrize(
    ("system", "gbit_per_s", "found"),
    [
        ("2x AWS p4de.24xlarge (EFA 4x100Gb/s a node)", 100.0, ("extends", "p4d_efa")),
        ("16x AWS p5en.48xlarge", 200.0, ("extends", "p5en_efa")),
        ("2x GCP a3-mega (8xH100)", 200.0, ("extends", "a3_mega_tcpxo")),
        ("2x OCI BM.GPU.H100.8 (RoCE)", 200.0, ("extends", "oci_h100_8")),
        ("a node, GPUDirect-TCPXO", 200.0, ("transport", "tcpxo")),
        ("2x8 MI355X (8 Pollara 400 NICs)", 400.0, ("transport", "pollara")),
        ("NDR InfiniBand", 200.0, ("transport", "infiniband_ndr")),
        ("8x400Gb/s InfiniBand a node", 400.0, ("transport", "infiniband_ndr")),
        ("8x200Gb IB", 200.0, ("transport", "infiniband_hdr")),
        ("InfiniBand of an odd rate", 100.0, ("", "")),
        ("2x4 MI300X, mlx5 RoCEv2", 400.0, ("transport", "roce_v2")),
        ("rack-to-rack RDMA", 400.0, ("", "")),
        ("H100 node of some cloud", 400.0, ("", "")),
        ("", 400.0, ("", "")),
    ],
)
def test_a_network_is_what_the_row_says(system, gbit_per_s, found):
    assert stated_network(system, gbit_per_s) == found


def test_every_name_exists():
    assert all(load_network(name).transport for name in load_table_names().machines.values())
    names = [*load_table_names().transports.values(), *clusters._INFINIBAND.values()]
    assert all(load_transport(name).name for name in names)


@pytest.mark.parametrize(
    ("text", "adapters"),
    [
        # The rate of a node, as llm-foundry and fms-fsdp print it.
        ("A100 80GB with 1600 Gbps node-node interconnect (RoCE)", (8, 200.0)),
        ("torch.compile, SDPA flash2; 400Gbps; 4k context", (8, 50.0)),
        ("EFA 3200 Gbps per node", (8, 400.0)),
        ("3.2 Tb/s", (8, 400.0)),
        ("400 GB/s a node", (8, 400.0)),
        # The rate of an adapter, or of a GPU.
        ("400 Gbps per GPU", (8, 400.0)),
        ("50 GB/s per GPU", (8, 400.0)),
        ("InfiniBand 200 Gb/s", (8, 200.0)),
        ("800 Gbps XDR", (8, 800.0)),
        ("HDR InfiniBand (200 Gb/s)", (8, 200.0)),
        # Count times rate.
        ("8x400G", (8, 400.0)),
        ("4 x 200 Gb/s", (4, 200.0)),
        ("4 NICs x 400Gb/s", (4, 400.0)),
        ("4x100GbE", (4, 100.0)),
        ("8 * 50 GB/s", (8, 400.0)),
        ("RoCE 8x400", (8, 400.0)),
        ("8x2x200Gb/s RoCE a node", (16, 200.0)),
        ("32x100 Gbps EFA", (32, 100.0)),
        # Generations.
        ("NDR", (8, 400.0)),
        ("NDR200 fabric", (8, 200.0)),
        ("2x HDR", (2, 200.0)),
        ("4x Mellanox CX-7", (4, 400.0)),
        ("2x8 MI300X + ConnectX-7", (8, 400.0)),
        ("8 Pollara 400 NICs a node", (8, 400.0)),
        # Something else.
        ("NVLink 900 GB/s", None),
        ("8x H100 80GB", None),
        ("DGX 8x80GB", None),
        ("micro batch 8 x 2G", None),
        ("", None),
    ],
)
def test_adapters_in_words(text, adapters):
    assert stated_adapters(text, USUAL, 8) == adapters


@given(
    count=st.integers(1, 32),
    gbit=st.sampled_from([25, 50, 100, 200, 400, 800, 1600]),
    times=st.sampled_from(["x", " x ", "*", "\u00d7", " adapters x "]),
    unit=st.sampled_from(["Gb/s", " Gbps", "Gbit/s", " Gbit", "G", "Gb", "GbE", "gbps"]),
    words=st.sampled_from(["{}", "RoCE {} a node; 4k context", "MI300X, ({})", "80GB, {}"]),
)
def test_every_spelling_of_a_count_and_a_rate(count, gbit, times, unit, words):
    text = words.format(f"{count}{times}{gbit}{unit}")
    assert stated_adapters(text, USUAL, 8) == (count, gbit)


@given(
    gbit=st.sampled_from([100, 200, 400, 800]),
    unit=st.sampled_from(["Gb/s", " Gbps", "Gbit/s", " gbps"]),
    of=st.sampled_from([" per GPU", "/NIC", " a port", " per rail"]),
    usual=st.builds(Adapters, st.sampled_from([4, 8]), st.just(400.0)),
)
def test_a_rate_for_each_adapter_and_for_their_sum(gbit, unit, of, usual):
    each = stated_adapters(f"{gbit}{unit}{of}", usual, usual.number)
    assert each == (usual.number, gbit)
    total = stated_adapters(f"{gbit * usual.number}{unit} per node", usual, usual.number)
    assert total == each
    byte = stated_adapters(f"{gbit / 8:g} GB/s{of}", usual, usual.number)
    assert byte == each


@pytest.mark.parametrize("text", ["0x400G", "8x0Gb", "8 x 0 Gb/s"])
def test_no_adapters(text):
    with pytest.raises(ValueError, match="states no adapters"):
        stated_adapters(text, USUAL, 8)


@given(st.text(max_size=60))
def test_any_text_is_read(text):
    try:
        found = stated_adapters(text, USUAL, 8)
    except ValueError:
        assert "0" in text
        return
    assert found is None or (found.number >= 1 and found.gbit_per_s > 0.0)


def test_a_cluster_has_the_adapters_and_transport_of_its_row():
    stated = network_of("a100", "1600 Gbps node-node interconnect (RoCE)")
    network = cluster_of("a100", 64, stated)[0].network
    assert (network.nics_per_node, network.nic_gbit_per_s) == (8, 200.0)
    assert network.transport == "roce_v2"
    named = cluster_of("h100", 16, network_of("h100", "2x p5.48xlarge"))[0]
    assert (named.nodes, named.network.nics_per_node) == (2, 32)
    assert cluster_of("h100", 16)[0].network.transport == "infiniband_ndr"
