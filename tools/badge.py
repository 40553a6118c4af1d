"""Print the Binder badge of this clone, as a line of Markdown for README.md.

Usage: ``python tools/badge.py [--ref BRANCH]``, or ``make badge``. Its address is that of ``origin``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
BINDER = "https://mybinder.org"
OPENED = "lab/tree/notebooks/00_quickstart.ipynb"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Print the Binder badge of this clone, from where it was cloned.")
    parser.add_argument("--ref", default="main", help="branch, tag or commit that Binder shall build (main)")
    ref = parser.parse_args(arguments).ref
    asked = subprocess.run(["git", "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True)
    if asked.returncode:
        print("This clone has no remote named origin: git remote add origin URL, then again.", file=sys.stderr)
        return 1
    try:
        print(badge(asked.stdout.strip(), ref))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def badge(origin: str, ref: str) -> str:
    """The badge as Markdown; ``origin`` is a URL that git clones from, of a repository that everybody may read."""
    link = f"{BINDER}/v2/{place(origin)}/{quote(ref, safe='')}?urlpath={quote(OPENED, safe='')}"
    return f"[![Binder]({BINDER}/badge_logo.svg)]({link})"


def place(origin: str) -> str:
    """A repository as Binder's addresses name it: by its owner where Binder knows the host, else by its URL."""
    found = re.fullmatch(r"(?:\w+://(?:[^@/]+@)?|[^@/]+@)([^/:]+)(?::\d+)?[:/](.+?)(?:\.git)?/?", origin)
    if found is None:
        raise ValueError(f"{origin} is not a URL that Binder could clone from")
    host, path = found.groups()
    match host:
        case "github.com":
            return f"gh/{path}"
        case "gitlab.com":
            return f"gl/{quote(path, safe='')}"
    return f"git/{quote(f'https://{host}/{path}.git' if '@' in origin else origin, safe='')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
