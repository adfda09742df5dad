"""The network that a row states in so many words, or none."""

import re

from projector.validate.kind import Row

_NAMED = (
    (r"\bp4de?\.24xlarge", "p4d_efa"),
    (r"\bp5en\.48xlarge", "p5en_efa"),
    (r"\bp5e?\.48xlarge", "p5_efa"),
    (r"\bP6-B200\b", "p6_b200_efa"),
    (r"\ba3-mega\b", "a3_mega_tcpxo"),
    (r"\ba3-high\b", "a3_high_tcpx"),
    (r"\bBM\.GPU\.B4\.8\b", "oci_b4_8"),
    (r"\bBM\.GPU\.H100\.8\b", "oci_h100_8"),
    (r"\bBM\.GPU\.MI355X\b", "oci_mi355x_8"),
    (r"\bNDm? A100 v4\b", "nd_a100_v4"),
    (r"\bND H[12]00 v5\b", "nd_h100_v5"),
    (r"\bND MI300X v5\b", "nd_mi300x_v5"),
)
"""Kinds of machines whose adapters are documented -> an entry of ``hardware/networks.yaml``."""

_TRANSPORTS = (
    (r"TCPXO|FasTrak", "tcpxo"),
    (r"TCPX\b", "tcpx"),
    (r"Slingshot", "slingshot_11"),
    (r"Pollara|AINIC", "pollara"),
    (r"Spectrum-X", "spectrum_x"),
    (r"\bHDR\b", "infiniband_hdr"),
    (r"\bNDR\b", "infiniband_ndr"),
    (r"\bXDR\b", "infiniband_xdr"),
    # The driver of an adapter that knows RoCE alone.
    (r"RoCE|\bbnxt_re\b", "roce_v2"),
)
"""Words of a row -> an entry of ``hardware/transports.yaml``."""

_INFINIBAND = {200.0: "infiniband_hdr", 400.0: "infiniband_ndr", 800.0: "infiniband_xdr"}
"""Rate of an adapter [Gbit/s] -> its generation, where a row says InfiniBand alone."""


def stated_network(row: Row, gbit_per_s: float) -> tuple[str, str]:
    """Return the field of ``cluster.network`` that a row names the network by, and the name.

    Both are empty where the row says nothing; then the device's usual network is taken.

    Parameters
    ----------
    gbit_per_s : float
        Rate of an adapter.
    """
    system = row.get("system") or ""
    for field, words in (("extends", _NAMED), ("transport", _TRANSPORTS)):
        for word, name in words:
            if re.search(word, system, re.IGNORECASE):
                return field, name
    if re.search(r"InfiniBand|\bIB\b", system) and gbit_per_s in _INFINIBAND:
        return "transport", _INFINIBAND[gbit_per_s]
    return "", ""
