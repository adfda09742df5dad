import pytest

from projector.config.device import load_network, load_transport
from projector.validate import networks
from projector.validate.networks import stated_network


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
    assert stated_network({"system": system}, gbit_per_s) == found


def test_every_name_exists():
    assert all(load_network(name).transport for _, name in networks._NAMED)
    names = [name for _, name in networks._TRANSPORTS] + [*networks._INFINIBAND.values()]
    assert all(load_transport(name).name for name in names)
