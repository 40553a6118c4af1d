"""The site is built without a warning, asks no network, and can be searched."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

REMOTE = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(https?:[^"]*)"')


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_it_is_built_in_full_and_asks_no_network(project: Path) -> None:
    command = [sys.executable, str(project / "tools" / "docs.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    html = project / "build" / "docs" / "html"
    pages = sorted(html.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        assert not REMOTE.findall(page.read_text(encoding="utf-8")), page
    index = (html / "searchindex.js").read_text(encoding="utf-8")
    assert "how-to/clusters" in index
    assert "TFOS.heartbeat_timeout" in (html / "reference" / "settings.html").read_text(encoding="utf-8")
    inventory = zlib.decompress((html / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    assert "tfos_magic.TFCluster.submit py:method" in inventory
