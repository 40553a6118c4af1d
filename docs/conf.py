"""How Sphinx builds the site from what ``tools/docs.py`` has put together. Nothing is fetched from a network."""

import inspect
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


MADE_BY_CALLS = {"Run", "MapRun", "ClusterStatus", "NetBench", "Sweep", "Trial"}


def signature_of(app: Any, what: str, name: str, thing: Any, *told: Any) -> tuple[str, None] | None:
    """What a widget is made with, which traitlets hides; nothing for what users get from calls and never make."""
    if what == "class" and name.rpartition(".")[2] in MADE_BY_CALLS:
        return "", None
    if what == "class" and name.startswith("tfos_magic.widgets."):
        made = inspect.signature(thing.__init__)
        bare = [each.replace(annotation=inspect.Parameter.empty) for each in list(made.parameters.values())[1:]]
        return str(made.replace(parameters=bare, return_annotation=inspect.Signature.empty)), None
    return None


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", as_lists)
    app.connect("autodoc-skip-member", is_skipped)
    app.connect("autodoc-process-signature", signature_of)
