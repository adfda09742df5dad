import pytest

from projector.validate.names import device_of, precision_of


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("BF16", "bf16"),
        ("fp8 (128-block scales)", "fp8"),
        ("fp8-blockwise", "fp8_block"),
        ("FP8-CS", "fp8"),
        ("nvfp4(e2m1)", "nvfp4"),
        ("mxfp4 (32-block scales)", "mxfp4"),
        ("fp6", "mxfp6"),
        ("int8 (per-token, per-channel scales)", "int8"),
    ],
)
def test_a_precision_by_its_published_name(text, kind):
    assert precision_of(text) == kind


@pytest.mark.parametrize("read", [precision_of, device_of])
def test_what_nobody_knows(read):
    with pytest.raises(ValueError, match="unknown"):
        read("posit7")
