"""Which activities a question is about."""

import numpy as np
import pytest

from projector.errors import ConfigError
from projector.trace.select import Selection, chosen, numbers, take
