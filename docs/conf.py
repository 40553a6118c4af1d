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

FIELDS = {"Parameters": "param", "Attributes": "ivar"}


def as_fields(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Make fields of the lines ``name: text`` below "Parameters" and "Attributes" in a docstring."""
    kind = ""
    for number, line in enumerate(list(lines)):
        if number + 1 < len(lines) and set(lines[number + 1]) == {"-"}:
            kind, lines[number] = FIELDS[line], ""
        elif kind and set(line) == {"-"}:
            lines[number] = ""
        elif kind and (found := re.match(r"(\w+): ", line)):
            lines[number] = f":{kind} {found[1]}: {line[found.end() :]}"
        elif not line and number and lines[number - 1]:
            kind = ""


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", as_fields)
