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
    from projector.config.device_file import FIRST_ORDER, is_first_order, load_device
    from projector.config.first_order_device import first_order_device

    if name is not None and is_first_order(name, "device"):
        _show_first_order(name, as_json=as_json)
        return
    names = resources.shipped("hardware") if name is None else [name]
    devices = {device_name: load_device(device_name, key="device") for device_name in names}
    others = resources.shipped(FIRST_ORDER) if name is None else []
    simple = {other: first_order_device(other) for other in others}
    if as_json:
        shown = _object(devices, one=name is not None)
        if name is None:
            shown["first_order_devices"] = {
                other: device.model_dump(mode="json") for other, device in simple.items()
            }
        print_json({**plain_envelope(), **shown})
        return
    from projector.report.terminal.inventory import (
        device_list,
        device_report,
        first_order_list,
    )

    if name is None:
        print_report([*device_list(devices), *first_order_list(simple)])
    else:
        print_report(device_report(devices[name]))


def _show_first_order(name: str, *, as_json: bool) -> None:
    from projector.config.first_order_device import first_order_device

    device = first_order_device(name, key="device")
    if as_json:
        print_json({**plain_envelope(), "device": device.model_dump(mode="json")})
        return
    from projector.report.terminal.inventory import first_order_report

    print_report(first_order_report(device))


def _object(devices: dict[str, Any], *, one: bool) -> dict[str, Any]:
    from projector.config.origins import origins_of

    dumped = {name: device.model_dump(mode="json") for name, device in devices.items()}
    if not one:
        return {"devices": dumped}
    name, device = next(iter(devices.items()))
    return {"device": dumped[name], "origins": dict(origins_of(device).fields)}
