"""The page as the command starts it."""

import signal
import socket
import subprocess
import sys
from urllib.request import urlopen

import pytest

from projector.cli.main import run

pytest.importorskip("dash", reason="the page needs the extra 'app'")


@pytest.mark.thorough
def test_the_command_prints_where_the_page_is_and_ends_at_an_interrupt():
    code = "from projector.cli.main import main; main()"
    command = [sys.executable, "-c", code, "app", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urlopen(address, timeout=30) as response:
            assert response.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_port_that_is_taken_is_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert run(["app", "--port", str(port)]) == 2
    assert capsys.readouterr().err == (
        f"error: port: {port} cannot be taken; give another --port, or 0\n"
    )
