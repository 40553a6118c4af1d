"""``%%tfos_map`` in a real kernel, on Spark."""

from __future__ import annotations

import pytest

from tests.kernel.kernel_driver import Kernel


@pytest.mark.timeout(300)
def test_an_expression_is_mapped_shown_and_bound(kernel: Kernel) -> None:
    result = kernel.run("%%tfos_map train -o scored\n{'z': y + 3}", timeout=240)
    assert not result.error, result.traceback
    assert " |-- z: int64[?]" in result.text
    table = next(data["text/plain"] for data in result.displays)
    assert len(table.splitlines()) == 11
    assert " s " in result.text
    assert kernel.run("print(sorted(r.z for r in scored.select('z').distinct().collect()))").text.strip() == "[3, 4]"


@pytest.mark.timeout(300)
def test_an_error_in_a_worker_is_told_in_its_own_words(kernel: Kernel) -> None:
    kernel.run("holes = train.withColumn('z', F.when(F.col('y') == 0, F.lit(1.0)))")
    result = kernel.run("%%tfos_map holes\n{'w': z + 3}", timeout=240)
    assert result.error == "DataError", result.traceback
    assert "column 'z' has nulls" in result.traceback
    assert "Py4J" not in result.traceback
    help_text = kernel.run("%%tfos_map --help\npass").text
    assert "--trim" in help_text
