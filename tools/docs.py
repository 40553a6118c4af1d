"""Build the documentation as a site that needs no network, in ``build/docs/html``.

Usage: ``.venv/bin/python tools/docs.py``, or ``make docs``. Pages stand in ``docs/``. What README, GUIDE, SECURITY and
others say already is taken from there, so that it stands once: a page names what it takes in a line of its own,

    <!-- include GUIDE.md: Three strategies -->      a section, with its heading
    <!-- include CHANGELOG.md -->                    a whole file
    <!-- generate settings -->                       a part of the reference, which docs_reference.py writes

A section of GUIDE.md that no page names becomes a page of its own. Tutorials are pages too. Links that lead from one of
these files to another lead to the page where the text stands; one that leads nowhere ends the build.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import docs_reference

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "docs"
MARKER = re.compile(r"^<!-- (include|generate) ([^:\n]+?)(?:: (.*?))? -->$", re.MULTILINE)
LINK = re.compile(r"(?<!\\)(\]\()([^)\s]+)(\))")
CODE = re.compile(r"^(`{3,})[^`\n]*\n.*?^\1$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#{1,6}) +(.+?)\s*$")
GUIDE = "GUIDE.md"
PICTURES = "widgets/pictures"
OUTPUTS = ROOT / "docs" / "tutorials" / "outputs"
# Where links go that name a file and no section of it.
FILES = {
    "README.md": "index.md",
    GUIDE: "how-to/index.md",
    "notebooks": "tutorials/index.md",
    "docs/tutorials/outputs": "tutorials/index.md",
}


@dataclass
class Site:
    """The pages by their paths, and where the text of the repository's own files stands: by file and anchor."""

    pages: dict[str, str] = field(default_factory=dict)
    places: dict[tuple[str, str], str] = field(default_factory=dict)


def main() -> int:
    os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""})
    shutil.rmtree(BUILD, ignore_errors=True)
    assemble(BUILD / "source")
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--builder", "html", "--jobs", "auto"]
    command = [sys.executable, "-m", "sphinx", *options, str(BUILD / "source"), str(BUILD / "html")]
    done = subprocess.run(command, check=False)
    print(f"{'Not built' if done.returncode else 'Built'}: {(BUILD / 'html' / 'index.html').relative_to(ROOT)}")
    return done.returncode


def assemble(target: Path) -> None:
    """Write all sources of the site below ``target``. Raises ValueError for what a page names and there is not."""
    shutil.copytree(ROOT / "docs", target)
    shutil.copytree(ROOT / PICTURES, target / "pictures")
    for path, text in gather().pages.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(text, encoding="utf-8")


def gather() -> Site:
    """All pages of the site, put together."""
    site, folder = Site(), ROOT / "docs"
    site.pages = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in folder.rglob("*.md")}
    site.pages |= {path: f"<!-- include {GUIDE}: {title} -->\n" for title, path in _unnamed(site.pages).items()}
    for path, text in site.pages.items():
        for _, file, title in (found for found in MARKER.findall(text) if found[0] == "include"):
            for anchor in anchors_of(section(file, title)):
                site.places[file, anchor] = path
            if not title:
                site.places[file, ""] = path
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    site.places |= {(f"notebooks/{path.name}", ""): f"tutorials/{path.stem}.md" for path in notebooks}
    site.places |= {(file, ""): page for file, page in FILES.items() if (file, "") not in site.places}
    site.pages = {path: expand(text, path, site) for path, text in site.pages.items()}
    for path in notebooks:
        page = f"tutorials/{path.stem}.md"
        site.pages[page] = moved(notebook(path), f"notebooks/{path.name}", page, site)
    return site


def _unnamed(pages: dict[str, str]) -> dict[str, str]:
    """The sections of the guide that no page takes in, by title, and the page that each becomes."""
    named = {title for text in pages.values() for _, file, title in MARKER.findall(text) if file == GUIDE}
    titles = re.findall(r"^## (.+)$", without_code(read(GUIDE)), re.MULTILINE)
    return {title: f"how-to/guide-{slug(title)}.md" for title in titles if title not in named}


def expand(text: str, page: str, site: Site) -> str:
    """A page's text with what its markers name."""

    def put(marker: re.Match[str]) -> str:
        kind, what, title = marker.groups()
        if kind == "generate":
            return docs_reference.PARTS[what.split()[0]](*what.split()[1:])
        found = moved(section(what, title), what, page, site)
        return found if marker.start() or re.search(r"^# ", without_code(found), re.MULTILINE) else raised(found)

    return MARKER.sub(put, text)


def section(file: str, title: str | None) -> str:
    """A section of a file from its heading on, or all of the file. Raises ValueError where there is none."""
    text = read(file)
    if not title:
        return text
    if title == "lead":
        return _lead(text)
    lines, taken, fenced = text.splitlines(), [], False
    for line in lines:
        fenced ^= line.lstrip().startswith("```")
        found = None if fenced else HEADING.match(line)
        if taken and found and len(found[1]) <= 2:
            break
        if taken or (found and found[2] == title):
            taken.append(line)
    if not taken:
        raise ValueError(f"a page of docs/ includes the section {title!r} of {file}, which there is not")
    return "\n".join(taken).strip() + "\n"


def _lead(text: str) -> str:
    """What stands before the first section, with its pictures as Sphinx has them and without badges."""
    lead = re.sub(r"^\[!\[.*\n", "", text.partition("\n## ")[0], flags=re.MULTILINE)
    pictures = "".join(f"\n![The panel of a run]({PICTURES}/panel-{c}.gif){{.only-{c}}}\n" for c in ("light", "dark"))
    return re.sub(r"<picture>.*?</picture>", pictures, lead, flags=re.DOTALL)


def moved(text: str, file: str, page: str, site: Site) -> str:
    """Text of a ``file`` of the repository with links that hold on a ``page``."""
    up = "../" * page.count("/")

    def relink(link: re.Match[str]) -> str:
        target = link[2]
        if re.match(r"[a-z]+:", target):
            return link[0]
        path, _, anchor = target.partition("#")
        named = os.path.normpath(Path(file).parent / path) if path else file
        if named.startswith(PICTURES):
            return f"{link[1]}{up}pictures{named.removeprefix(PICTURES)}{link[3]}"
        page_named = named.removeprefix("docs/")
        place = page_named if page_named in site.pages else site.places.get((named, anchor))
        if place is None:
            raise ValueError(f"{file} links to {target!r}, which no page of docs/ includes")
        return f"{link[1]}{up}{place}{'#' + anchor if anchor else ''}{link[3]}"

    linked, end = "", 0
    for code in CODE.finditer(text):
        linked += LINK.sub(relink, text[end : code.start()]) + code[0]
        end = code.end()
    return linked + LINK.sub(relink, text[end:])


def notebook(path: Path) -> str:
    """A tutorial as Markdown, with its outputs where they are kept."""
    kept = OUTPUTS / path.name
    cells = json.loads((kept if kept.exists() else path).read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _parts(cell) if part.strip()) + "\n"


def _parts(cell: dict[str, object]) -> list[str]:
    text = "".join(cell["source"])  # type: ignore[arg-type]
    if cell["cell_type"] != "code":
        return [text]
    return [f"```ipython3\n{text}\n```", *map(_output, cell.get("outputs", []))]  # type: ignore[call-overload]


def _output(output: dict[str, object]) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    assert isinstance(data, dict)
    if "image/png" in data:
        return f'<img alt="output" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    if "text/html" in data:
        return "````{raw} html\n" + "".join(data["text/html"]) + "\n````"
    text = "\n".join(output.get("traceback", [])) or "".join(data.get("text/plain", ""))  # type: ignore[call-overload]
    return f"````text\n{text.rstrip()}\n````"


def raised(text: str) -> str:
    """The text with its headings one level higher, so that a section can be a page."""
    return re.sub(r"^#(#+ )", r"\1", text, flags=re.MULTILINE)


def anchors_of(text: str) -> list[str]:
    """The anchors that GitHub, and MyST, give the headings of a text."""
    return [slug(found[2]) for line in without_code(text).splitlines() if (found := HEADING.match(line))]


def slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def without_code(text: str) -> str:
    return CODE.sub("", text)


def read(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
