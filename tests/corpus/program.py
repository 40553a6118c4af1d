"""The programs of this folder and what each says that it must give."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "programs"
EQUAL, EXPECTATION, REFUSED = "equal", "expectation", "refused: "


@dataclass(frozen=True)
class Program:
    """An ordinary Keras program. The constants that it begins with, and which it never reads, say what to expect.

    ``EXPECT`` is ``equal``, ``expectation`` (equal when its noise is made constant) or ``refused: `` and words of the
    refusal. ``NOTICE`` has words of the one notice that must be given; none may be where it is empty.
    """

    path: Path
    title: str
    expect: str
    notice: str

    @property
    def name(self) -> str:
        return str(self.path.relative_to(FOLDER).with_suffix(""))

    @property
    def refusal(self) -> str:
        """The words of its refusal; empty where it is to train."""
        return self.expect.removeprefix(REFUSED) if self.expect.startswith(REFUSED) else ""


def programs() -> list[Program]:
    """All programs, in the order of their names."""
    return [_read(path) for path in sorted(FOLDER.rglob("*.py"))]


def _read(path: Path) -> Program:
    tree = ast.parse(path.read_text())
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    expect = constants.get("EXPECT", "")
    if expect not in (EQUAL, EXPECTATION) and not expect.startswith(REFUSED):
        raise ValueError(f"{path} does not say what it must give: EXPECT is {expect!r}")
    return Program(path, ast.get_docstring(tree) or "", expect, constants.get("NOTICE", ""))
