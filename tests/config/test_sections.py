"""Tables that are read section by section say what they say as a whole."""

import pytest

from projector.config import resources
from projector.config.resources import Sections
from projector.config.yaml_file import read_yaml
from projector.errors import ConfigError

TABLES = (
    "attention", "experts", "gemm", "memory", "networks", "software", "training", "transports",
)  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_shipped_tables(name):
    path = resources.data_dir("hardware") / f"{name}.yaml"
    sections, whole = Sections(path), read_yaml(path)
    assert [*sections] == [*whole]
    assert len(sections) == len(whole)
    for key in reversed(whole):
        assert sections[key] == whole[key]
        assert sections[key] is sections[key]
    assert "nothing" not in sections


def test_a_section_that_cannot_be_read(tmp_path):
    path = tmp_path / "table.yaml"
    path.write_text("# a table\ngood:\n- &one 1\nother: [*one, {a: 2}]\nbad: [1\n")
    table = Sections(path)
    assert table["good"] == [1]
    assert table["other"] == [1, {"a": 2}]
    with pytest.raises(ConfigError, match=r"table\.yaml is not valid YAML"):
        table["bad"]
    with pytest.raises(KeyError):
        table["none"]
