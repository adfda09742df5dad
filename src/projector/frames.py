"""Tables as data frames, where pandas is installed."""

from typing import TYPE_CHECKING

from projector.distribution import install_command
from projector.errors import UnsupportedError

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped,import-not-found,unused-ignore]
    import pyarrow as pa


def to_pandas(table: "pa.Table") -> "pd.DataFrame":
    """Return a table as a data frame."""
    try:
        import pandas  # noqa: ICN001, F401
    except ImportError:
        msg = f"pandas is not installed; install it ({install_command('pandas')}) or use to_arrow()"
        raise UnsupportedError(msg, key="pandas") from None
    return table.to_pandas()
