"""What is pasted into an issue: the doctor's findings and versions, and nobody's name."""

from __future__ import annotations

import getpass
import os
import platform
import socket

import keras

import tfos_magic
from tfos_magic.cluster.preflight import Finding
from tfos_magic.notebook.describe import report_of


def test_a_report_has_versions_and_findings_without_names_of_users_and_addresses() -> None:
    home = os.path.expanduser("~")
    made = report_of(
        [
            Finding("session", f"local[4] on {socket.gethostname()}, at 10.1.2.3 and 127.0.0.1"),
            Finding("disk", f"{home}/spool is full", f"free some of {getpass.getuser()}"),
        ]
    )
    assert made.startswith("```text\n")
    assert made.endswith("\n```")
    assert f"tfos_magic {tfos_magic.__version__}" in made
    assert f"keras {keras.__version__}" in made
    assert platform.python_version() in made
    assert "local[4] on HOST, at ADDRESS and 127.0.0.1" in made
    assert "~/spool is full" in made
    assert "→ free some of USER" in made
    assert home not in made
