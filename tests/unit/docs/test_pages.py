"""The pages of the documentation: the reference has an entry for all there is, and links and code hold."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import posixpath
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager

import tfos_magic
from tfos_magic import errors
from tfos_magic.columns import schema_plan
from tfos_magic.notebook.config import TFOS
from tfos_magic.notebook.magics import TFOSMagics
from tfos_magic.notebook.subcommands import COMMANDS
from tfos_magic.transport.messages import StrategyOptions

pytestmark = pytest.mark.slow

CODE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PARSERS = {f"%tfos {name}": command.parser for name, command in COMMANDS.items()} | {
    f"{sign}{name}": getattr(TFOSMagics, name).parser
    for sign, names in {"%%": ("tfos_train", "tfos_run", "tfos_sweep", "tfos_map"), "%": ("tfos_predict",)}.items()
    for name in names
}
HERE = Path(__file__).resolve().parents[3]
OF_PROCESSES = {"TFOS_SHARED", "TFOS_PARENT_PID", "TFOS_LISTENER_FD", "TFOS_HOME_URL"}
"""What one process tells another that it starts; not for users."""
VARIABLES = re.compile(r'"((?:TFOS_(?!TEST)|spark\.tfos\.)[\w.]*\w)"')


@pytest.fixture(scope="module")
def docs() -> Iterator[ModuleType]:
    """``tools/docs.py``, by a name of its own, and beside it what it imports from its folder."""
    spec = importlib.util.spec_from_file_location("tools_docs", HERE / "tools" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE / "tools"))
        patch.setitem(sys.modules, spec.name, module)  # where its dataclasses look their annotations up
        spec.loader.exec_module(module)
        yield module
    sys.modules.pop("docs_reference", None)


@pytest.fixture(scope="module")
def pages(docs: ModuleType) -> dict[str, str]:
    return docs.gather().pages


def test_every_magic_has_a_section_and_no_other_has_one(pages: dict[str, str]) -> None:
    known = {name for names in TFOSMagics.magics.values() for name in names} - {"tfos"}
    assert {title.strip("%") for title in PARSERS if not title.startswith("%tfos ")} == known
    assert set(re.findall(r"^## `(.+)`$", pages["reference/magics.md"], re.MULTILINE)) == set(PARSERS)


def section_of(page: str, magic: str) -> str:
    return page.partition(f"## `{magic}`\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("magic", PARSERS)
def test_every_option_has_an_entry(pages: dict[str, str], magic: str) -> None:
    page = pages["reference/magics.md"]
    section = section_of(page, magic)
    described = section + "".join(section_of(page, other) for other in re.findall(r"as for \[`(.+?)`\]", section))
    for action in PARSERS[magic]._actions:
        if action.dest == "help":
            continue
        names = action.option_strings or [action.metavar or action.dest.upper()]
        assert all(f"`{name}`" in section for name in names), names
        help_text = re.sub(r"\W", "", action.help or "")
        assert help_text
        assert help_text in re.sub(r"\W", "", described), names


def test_help_and_options_of_several_magics_stand_once(pages: dict[str, str]) -> None:
    page = pages["reference/magics.md"]
    assert page.count("`--help`") == page.partition("\n## ")[0].count("`--help`") == 1
    assert page.count("| `--null-mask` ") == 1
    assert len(re.findall(r"^.*`--null-mask`,.* as for \[`%%tfos_train`\]", page, re.MULTILINE)) == 2


def test_every_function_of_a_cell_that_is_named_is_there(pages: dict[str, str]) -> None:
    sources = [path.read_text(encoding="utf-8") for path in (HERE / "tfos_magic").rglob("*.py")]
    named = {name for text in [*pages.values(), *sources] for name in re.findall(r"\btfos\.([a-z_]+)\(", text)}
    assert len(named) > 10
    assert sorted(name for name in named if not callable(getattr(tfos_magic, name, None))) == []


def test_every_setting_has_an_entry_with_its_default(pages: dict[str, str]) -> None:
    for name, trait in TFOS.class_traits(config=True).items():
        (row,) = re.findall(rf"^\| `TFOS\.{name}` \|.*$", pages["reference/settings.md"], re.MULTILINE)
        assert str(trait.default_value or "") in row
        assert ("when a cluster starts" in row) == bool(trait.metadata.get("at_start"))


def test_the_guide_to_workers_names_all_that_needs_a_new_cluster(pages: dict[str, str]) -> None:
    table = pages["how-to/workers.md"].partition("## What needs a new cluster")[2]
    names = {action.option_strings[0] for action in PARSERS["%tfos start"]._actions} - {"--help"}
    assert not [name for name in names if not re.search(rf"`{name}\b", table)]


def test_every_option_of_a_strategy_has_an_entry(pages: dict[str, str]) -> None:
    for each in fields(StrategyOptions):
        assert f"| `{each.name}` |" in pages["reference/strategies.md"]


def test_every_variable_and_setting_of_spark_is_told_of(pages: dict[str, str]) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (HERE / "tfos_magic").rglob("*.py")]
    names = {name for text in texts for name in VARIABLES.findall(text)} - OF_PROCESSES
    assert {"TFOS_VIEW", "spark.tfos.directScan"} <= names
    assert not [name for name in names if f"`{name}`" not in pages["reference/settings.md"]]


def test_every_type_of_column_has_an_entry(pages: dict[str, str]) -> None:
    for name in (*schema_plan.NUMBERS, *schema_plan.UNITS, *schema_plan.TEXT, "decimal", "vectorudt", "struct"):
        assert f"| `{name}`" in pages["reference/column-types.md"], name


def test_every_public_name_has_an_entry(pages: dict[str, str]) -> None:
    text = "".join(text for path, text in pages.items() if path.startswith("reference/"))
    entries = set(re.findall(r"^\.\. auto\w+:: (\S+)$", text, re.MULTILINE))
    assert not [name for name in public_names() if name not in entries]


def public_names() -> Iterator[str]:
    """All that a user can import, by the name under which it is."""
    for module in ("frames", "ml", "widgets"):
        yield from (f"tfos_magic.{module}.{name}" for name in importlib.import_module(f"tfos_magic.{module}").__all__)
    for name, thing in inspect.getmembers(errors, inspect.isclass):
        if thing.__module__ == errors.__name__:
            yield f"tfos_magic.errors.{name}"
    modules = {"widgets", *(path.stem for path in (HERE / "tfos_magic").iterdir())}
    own = {name for name in dir(tfos_magic) if not name.startswith("_")} - modules - set(dir(errors))
    yield from (f"tfos_magic.{name}" for name in own)


def test_every_section_of_the_guide_and_every_tutorial_is_on_one_page(docs: ModuleType, pages: dict[str, str]) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (HERE / "docs").rglob("*.md")]
    named = [title for text in texts for _, file, title in docs.MARKER.findall(text) if file == "GUIDE.md"]
    assert len(named) == len(set(named))
    places = docs.gather().places
    for title in re.findall(r"^## (.+)$", docs.without_code(docs.read("GUIDE.md")), re.MULTILINE):
        page = pages[places["GUIDE.md", docs.slug(title)]]
        assert re.search(rf"^##? {re.escape(title)}$", page, re.MULTILINE), title
    for path in (HERE / "notebooks").glob("*.ipynb"):
        assert pages[f"tutorials/{path.stem}.md"].startswith("# ")


def test_every_page_has_one_title_and_no_heading_twice_that_is_linked_to(
    docs: ModuleType, pages: dict[str, str]
) -> None:
    for path, text in pages.items():
        assert len(re.findall(r"^# ", docs.without_code(text), re.MULTILINE)) == 1, path
        anchors = docs.anchors_of(text)
        linked = {
            target.partition("#")[2]
            for other in pages.values()
            for _, target, _ in docs.LINK.findall(other)
            if path in target
        }
        assert not [anchor for anchor in linked if anchors.count(anchor) > 1], path


def test_every_link_within_the_site_leads_somewhere(docs: ModuleType, pages: dict[str, str]) -> None:
    broken = []
    for path, text in pages.items():
        for target in (found[1] for found in docs.LINK.findall(docs.without_code(text))):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            page = posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) if name else path
            if page.startswith("pictures/"):
                assert (HERE / "widgets" / page).exists(), target
            elif page not in pages or (anchor and anchor not in docs.anchors_of(pages[page])):
                broken.append(f"{path}: {target}")
    assert not broken


def test_a_section_that_is_gone_and_a_link_that_leads_nowhere_are_refused(docs: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"includes the section 'No such' of GUIDE\.md, which there is not"):
        docs.section("GUIDE.md", "No such")
    with pytest.raises(ValueError, match=r"README\.md links to 'GUIDE\.md#no-such', which no page of docs/ includes"):
        docs.moved("[here](GUIDE.md#no-such)", "README.md", "index.md", docs.Site())


def test_every_block_of_python_is_python(pages: dict[str, str]) -> None:
    transformed = TransformerManager()
    blocks = [(path, code) for path, text in pages.items() for kind, code in CODE.findall(text) if "python" in kind]
    assert len(blocks) > 100
    for path, code in blocks:
        magic, _, body = code.partition("\n")
        source = transformed.transform_cell(body if magic.startswith("%%") else code).replace("…", "...")
        try:
            compile(source, path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            pytest.fail(f"{path}: {error}\n{code}")


def test_every_option_that_a_block_gives_to_a_magic_is_one(pages: dict[str, str]) -> None:
    lines = {
        line.strip()
        for text in pages.values()
        for _, code in CODE.findall(text)
        for line in code.splitlines()
        if re.match(r"%{1,2}tfos", line)
    }
    assert len(lines) > 20
    for line in lines:
        parser: Any = next(parser for title, parser in PARSERS.items() if f"{line} ".startswith(f"{title} "))
        known = {name for action in parser._actions for name in action.option_strings}
        given = re.findall(r" (--?[a-z][\w-]*)", line.partition("#")[0])
        assert set(given) <= known, line


def test_every_message_that_is_troubleshot_is_one_of_the_package(pages: dict[str, str]) -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (HERE / "tfos_magic").rglob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    messages = re.findall(r"^### `(.+)`$", pages["how-to/troubleshooting.md"], re.MULTILINE)
    assert len(messages) > 10
    assert not [message for message in messages if message not in joined]
