"""How Sphinx builds the site from what ``tools/docs.py`` has put together. Nothing is fetched from a network."""

import re
from typing import Any

from tfos_magic import __version__

project, version = "tfos_magic", __version__
copyright = ""
html_title = f"tfos_magic {__version__}"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
html_theme = "furo"
html_show_copyright = html_show_sourcelink = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
add_module_names = False
smartquotes = False  # of options, which begin with two dashes
python_maximum_signature_line_length = 88
# A cell with a magic or an ellipsis is not quite Python.
suppress_warnings = ["misc.highlighting_failure"]


def as_lists(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Make a list of the lines ``name: text`` below "Parameters" and "Attributes" in a docstring."""
    listed = False
    for number, line in enumerate(list(lines)):
        if number + 1 < len(lines) and set(lines[number + 1]) == {"-"}:
            listed, lines[number] = True, f"{line}:"
        elif listed and set(line) == {"-"}:
            lines[number] = ""
        elif listed and (found := re.match(r"(\w+): ", line)):
            lines[number] = f"*   ``{found[1]}``: {line[found.end() :]}"
        elif not line and number and lines[number - 1]:
            listed = False


def is_skipped(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool:
    """Leave out the accessors of parameters of Spark ML, which a table lists."""
    return skip or re.match(r"[gs]et[A-Z]", name) is not None


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", as_lists)
    app.connect("autodoc-skip-member", is_skipped)
