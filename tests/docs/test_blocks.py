"""Blocks of code that are marked with ``<!-- run -->`` run as they stand, in the order of their pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.kernel_driver import SESSION, Kernel
from tests.object_store import object_store
from tests.soak import every

MARKED = re.compile(r"^<!-- run -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALL = "keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])"
BEFORE = {
    "README.md": "",
    "docs/how-to/install.md": "",
    "docs/reference/settings.md": "",
    "docs/how-to/resume.md": f"""
import keras
model = {SMALL}
model.compile("sgd", "mse")
""",
    "GUIDE.md": '''
%tfos stop
import keras
import tfos_magic
cell_text = """
import keras
model = keras.Sequential([keras.layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(train)
"""
train = train.withColumnRenamed("y", "digit")
df = spark.createDataFrame([(1.0, [1.0, 2.0], 1), (2.0, [3.0], 2)], "x double, v array<double>, key int")
''',
}
"""What a page takes for granted, by the pages in their order."""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """With a session, and a bucket ``models`` in an object store."""
    with object_store("models"):
        made = Kernel(tmp_path_factory.mktemp("kernel"))
        try:
            assert not made.run(f"%load_ext tfos_magic\n{SESSION}").error
            yield made
        finally:
            made.end()


@pytest.mark.parametrize("page", every(len(BEFORE), BEFORE))
@pytest.mark.timeout(600)
def test_the_blocks_of_a_page_run(kernel: Kernel, project: Path, page: str) -> None:
    before = kernel.run(f"{SESSION}\n{BEFORE[page]}")
    assert not before.error, before.traceback
    blocks = MARKED.findall((project / page).read_text(encoding="utf-8"))
    assert blocks
    for block in blocks:
        done = kernel.run(block)
        assert not done.error, f"{block}\n{done.traceback}"


def test_no_other_page_has_blocks_to_run(project: Path) -> None:
    paths = [project / "README.md", project / "GUIDE.md", *(project / "docs").rglob("*.md")]
    marked = [path for path in paths if "<!-- run -->" in path.read_text(encoding="utf-8")]
    assert {str(path.relative_to(project)) for path in marked} == set(BEFORE)
