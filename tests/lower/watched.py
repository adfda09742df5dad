"""A device that notes which of its fields are read."""

from projector.config.device import Device
from projector.config.device_file import load_device

READ: set[str] = set()
"""Fields that were read since the last device was made."""


class Watched(Device):
    """A device that notes in `READ` which fields are asked for."""

    def __getattribute__(self, name):
        if name in Device.model_fields:
            READ.add(name)
        return super().__getattribute__(name)

    def check(self):
        """Check nothing: a device is legal before it is used."""


def watched(name):
    """Return a shipped device that is watched from here on."""
    device = load_device(name, key="device")
    found = Watched.model_construct(device.model_fields_set, **dict(device))
    READ.clear()
    return found
