"""Jupyter servers on this machine, asked over HTTP."""

from __future__ import annotations

import http.client
import json
import subprocess
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from steps import StepFailed

ANSWER_SECONDS = 60.0


def address(home: Path, server: subprocess.Popen[str]) -> str:
    """Where a server listens, from the file that it writes below its user's home once it does."""
    deadline = time.monotonic() + ANSWER_SECONDS
    folder = home / ".local" / "share" / "jupyter" / "runtime"
    while not (found := list(folder.glob("jpserver-*.json"))):
        if server.poll() is not None:
            raise StepFailed(f"JupyterLab ended with exit status {server.returncode} before it listened")
        if time.monotonic() > deadline:
            raise StepFailed(f"JupyterLab did not listen within {ANSWER_SECONDS:.0f} s")
        time.sleep(0.1)
    url: str = json.loads(found[0].read_text())["url"]
    return url


def ask(url: str, token: str) -> str:
    """What the server answers who has the token."""
    request = urllib.request.Request(url, headers={"Authorization": f"token {token}"})
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as reply:
        text: str = reply.read().decode()
    return text


def status(url: str) -> int:
    """How the server answers who has no token; where it sends them is not followed."""
    where = urlsplit(url)
    with closing(http.client.HTTPConnection(where.netloc, timeout=ANSWER_SECONDS)) as connection:
        connection.request("GET", where.path)
        return connection.getresponse().status
