"""``%%tfos_map`` in a real kernel, on Spark."""

from __future__ import annotations

import pytest

from tests.kernel.kernel_driver import Kernel


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_an_expression_is_mapped_shown_and_bound(kernel: Kernel) -> None:
    result = kernel.run("%%tfos_map train -o scored\n{'z': y + 3}", timeout=240)
    assert not result.error, result.traceback
    assert " |-- z: int64[?]" in result.text
    table = next(data["text/plain"] for data in result.displays)
    assert len(table.splitlines()) == 11
    assert " s " in result.text
    assert kernel.run("print(sorted(r.z for r in scored.select('z').distinct().collect()))").text.strip() == "[3, 4]"


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_rows_are_mapped_trimmed_and_selected(kernel: Kernel) -> None:
    result = kernel.run("%%tfos_map train --rows --select z,y -o rows\n{'z': y * 2, 'w': y}", timeout=240)
    assert not result.error, result.traceback
    assert kernel.run("print(rows.columns, rows.where('z = 2 * y').count() == train.count())").text.strip() == (
        "['z', 'y'] True"
    )
    cell = "%%tfos_map train --trim -o sums\ndef total(y):\n    return {'sum': tf.reduce_sum(y)[None]}"
    assert not kernel.run("import tensorflow as tf").error
    assert not kernel.run(cell, timeout=240).error
    assert kernel.run(
        "print(sums.columns, sums.agg(F.sum('sum')).first()[0] == train.agg(F.sum('y')).first()[0])"
    ).text.strip() == ("['sum'] True")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_model_of_the_notebook_predicts_shown_and_bound(kernel: Kernel) -> None:
    made = "import keras\nmodel = keras.Sequential([keras.Input((1,)), keras.layers.Rescaling([1.0, -1.0])])"
    assert not kernel.run(made, timeout=120).error
    line = "%tfos_predict model train -o scored --features y --output sign --classes plus,minus --batch-size 16"
    result = kernel.run(line, timeout=240)
    assert not result.error, result.traceback
    assert " |-- sign: string[?]" in result.text
    look = "print({(r.y, r.sign) for r in scored.select('y', 'sign').collect()} - {(0, 'plus'), (1, 'plus')})"
    assert kernel.run(look, timeout=240).text.strip() == "set()"


@pytest.mark.timeout(300)
def test_an_error_in_a_worker_is_told_in_its_own_words(kernel: Kernel) -> None:
    kernel.run("holes = train.withColumn('z', F.when(F.col('y') == 0, F.lit(1.0)))")
    result = kernel.run("%%tfos_map holes\n{'w': z + 3}", timeout=240)
    assert result.error == "DataError", result.traceback
    assert "column 'z' has nulls" in result.traceback
    assert "Py4J" not in result.traceback
    result = kernel.run("%%tfos_map train\n\nz = y + 3", timeout=240)
    assert "neither a function nor an expression (line 3)" in result.traceback
    help_text = kernel.run("%%tfos_map --help\npass").text
    assert "--trim" in help_text
