"""``projector app``."""

import click

from projector.cli.job import config_option
from projector.cli.options import command, flag, option
from projector.cli.output import compiling_steps
from projector.distribution import install_command
from projector.errors import ConfigError

PORTS = click.IntRange(0, 65535)


@command()
def app(
    *,
    config: str | None = config_option("; a default one when left out", required=False),
    port: int = option("N", "Port; 0 takes a free one.", shown=8050, type=PORTS),
    open_page: bool = flag("Open the page in a browser.", names="--open/--no-browser"),
) -> None:
    """Hold a job and a deployment in a page that answers while you drag.

    Memory, step, timeline and verdict follow sliders and menus of the layout, the batch and the
    chip. Only this machine reaches the page, and it asks nothing of others (docs/app.md).
    """
    try:
        from projector.app.page import HOST, Page
    except ImportError:
        msg = f"the page needs Dash: {install_command('app')}"
        raise ConfigError(msg, key="app") from None
    page = Page(config)
    with compiling_steps(quiet=False):
        page.answer("train", {})
    try:
        server = page.serve(port)
    except OSError:
        msg = f"port: {port} cannot be taken; give another --port, or 0"
        raise ConfigError(msg, key="port", value=port, allowed="a free port, or 0") from None
    address = f"http://{HOST}:{server.socket.getsockname()[1]}/"
    click.echo(address)
    if open_page:
        click.launch(address)
    server.serve_forever()
