"""The page that says which tests hold what the guide says: they are there, and no section of the guide is missing."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[3]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
TEST = re.compile(r"`(tests/[^`\s]+)`")
WITHOUT_TABLE, NOT_HELD = "Sections of the guide without a table", "Not held by a test"


@pytest.fixture(scope="module")
def page() -> str:
    return (HERE / "docs" / "explanation" / "tested.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sections(page: str) -> dict[str, str]:
    """What stands below each heading of the page."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert len(found) == len(parts[1::2]), "a heading comes twice"
    return found


@cache
def defined_in(file: str) -> frozenset[str]:
    """The tests that a file defines, those of its classes too."""
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def rows(text: str) -> list[tuple[str, str]]:
    """The rows of a section's table without its head: statements, and what stands beside them."""
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert all(line.count(" | ") == 1 and line.endswith(" |") for line in lines)
    return [(line[2:-2].partition(" | ")[0], line[2:-2].partition(" | ")[2]) for line in lines]


def test_every_test_that_is_named_is_there(page: str) -> None:
    named = TEST.findall(page)
    assert len(set(named)) > 300
    for name in named:
        file, _, test = name.partition("::")
        assert (HERE / file).exists(), name
        assert not test or test in defined_in(file), name


def test_every_statement_has_a_test(sections: dict[str, str]) -> None:
    held = [title for title in sections if title not in (WITHOUT_TABLE, NOT_HELD)]
    assert sum(len(rows(sections[title])) for title in held) > 200
    for title in held:
        assert rows(sections[title]), title
        for statement, tests in rows(sections[title]):
            names = tests.split(", ")
            assert all(TEST.fullmatch(name) for name in names), statement
            assert len(set(names)) == len(names), statement


def test_what_no_test_holds_comes_last_and_says_why(sections: dict[str, str]) -> None:
    assert list(sections)[-1] == NOT_HELD
    assert all(statement and why and not TEST.search(statement + why) for statement, why in rows(sections[NOT_HELD]))


def test_every_section_of_the_guide_has_a_table_or_is_named_as_one_without(sections: dict[str, str]) -> None:
    guide = FENCED.sub("", (HERE / "GUIDE.md").read_text(encoding="utf-8"))
    titles = re.findall(r"^##+ (.+)$", guide, re.MULTILINE)
    parts = re.findall(r"^### (.+)$", guide, re.MULTILINE)  # the table of a section has what its parts say
    without = re.findall(r"^- (.+)$", sections[WITHOUT_TABLE], re.MULTILINE)
    assert len(titles) > 20
    assert [title for title in titles if title not in (*sections, *without, *parts)] == []
    assert [title for title in sections if title not in (*titles, WITHOUT_TABLE, NOT_HELD)] == ["Promises of README"]
    assert [title for title in without if title not in titles or title in sections] == []
