"""``projector hardware``."""

from typing import Any

import click

from projector.cli.job_options import output_options
from projector.cli.output import plain_envelope, print_json, print_report


@click.command("hardware")
@click.argument("name", required=False, metavar="[NAME]")
@output_options
def command(name: str | None, as_json: bool, quiet: bool) -> None:
    """List the shipped devices, or show one with the source of each number."""
    del quiet
    from projector.config import resources
    from projector.config.device import load_device

    names = resources.shipped("hardware") if name is None else [name]
    devices = {device_name: load_device(device_name, key="device") for device_name in names}
    if as_json:
        print_json({**plain_envelope(), **_object(devices, one=name is not None)})
        return
    from projector.report.terminal.inventory import device_list, device_report

    print_report(device_list(devices) if name is None else device_report(devices[name]))


def _object(devices: dict[str, Any], *, one: bool) -> dict[str, Any]:
    from projector.config.origins import origins_of

    dumped = {name: device.model_dump(mode="json") for name, device in devices.items()}
    if not one:
        return {"devices": dumped}
    name, device = next(iter(devices.items()))
    return {"device": dumped[name], "origins": dict(origins_of(device).fields)}
