"""Options that contradict each other."""

from pathlib import Path

import pytest

from projector.errors import ConfigError
from projector.measure.options import check_options


def test_records_are_named_by_their_files():
    with pytest.raises(ConfigError) as error:
        check_options("simulate", ["a.json", Path("b.json"), object()])
    assert error.value.value == "a.json, b.json, a record"
