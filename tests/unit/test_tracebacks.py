"""Folding what libraries did out of a traceback."""

from __future__ import annotations

import pytest

from tfos_magic.errors import WorkerError
from tfos_magic.tracebacks import essence, folded, lines_in_message

LIB = "/opt/site-packages/env/lib/python3.11/site-packages"
RAISED_IN_A_LIBRARY = f'''Traceback (most recent call last):
  File "<run 1>", line 4, in <module>
    model.fit(x, y)
  File "{LIB}/keras/src/utils/traceback_utils.py", line 122, in error_handler
    raise e.with_traceback(filtered_tb) from None
  File "{LIB}/tensorflow/python/eager/execute.py", line 53, in quick_execute
    tensors = call()
              ^^^^^^
  File "{LIB}/keras/src/layers/dense.py", line 9, in call
    raise ValueError("shapes")
ValueError: shapes'''


def test_frames_of_libraries_become_one_line_and_the_one_that_raised_stays() -> None:
    assert folded(RAISED_IN_A_LIBRARY).splitlines() == [
        "Traceback (most recent call last):",
        '  File "<run 1>", line 4, in <module>',
        "    model.fit(x, y)",
        "  [... 2 frames of keras, tensorflow]",
        f'  File "{LIB}/keras/src/layers/dense.py", line 9, in call',
        '    raise ValueError("shapes")',
        "ValueError: shapes",
    ]


def test_own_code_that_a_library_calls_back_is_shown_whole() -> None:
    text = RAISED_IN_A_LIBRARY.replace(f"{LIB}/keras/src/layers/dense.py", "/home/me/layers.py")
    lines = folded(text).splitlines()
    assert "  [... 2 frames of keras, tensorflow]" in lines
    assert '  File "/home/me/layers.py", line 9, in call' in lines


def test_frames_of_this_package_are_folded_wherever_it_is_installed_from_and_even_where_they_raised() -> None:
    ours = 'Traceback (most recent call last):\n  File "<run 1>", line 4, in <module>\n    fit()\n'
    ours += '  File "/src/tfos_magic/training/keras_seam/hooks.py", line 9, in loop\n    return original()\n'
    assert folded(ours + "ValueError: shapes").splitlines()[-2:] == [
        "  [... 1 frame of tfos_magic]",
        "ValueError: shapes",
    ]


def test_text_without_frames_and_tracebacks_without_libraries_stay_as_they_are() -> None:
    plain = 'Traceback (most recent call last):\n  File "<run 1>", line 1, in <module>\n    1 / 0\nZeroDivisionError: x'
    for text in ("", "what\never", plain):
        assert folded(text) == text


def test_a_workers_error_shows_the_folded_traceback_and_keeps_the_whole_one() -> None:
    error = WorkerError("shapes", rank=1, kind="ValueError", remote_traceback=RAISED_IN_A_LIBRARY)
    assert "[... 2 frames of keras, tensorflow]" in str(error)
    assert "quick_execute" not in str(error)
    assert "quick_execute" in error.remote_traceback


GRAPH = f"""Graph execution error:

Detected at node net/embedding/GatherV2 defined at (most recent call last):
  File "<run 1>", line 10, in <module>

  File "{LIB}/keras/src/utils/traceback_utils.py", line 117, in error_handler

  File "<run 1>", line 7, in call

  File "{LIB}/keras/src/backend/tensorflow/numpy.py", line 3095, in take

indices[0,0] = 9 is not in [0, 5)
\t [[{{{{node net/embedding/GatherV2}}}}]] [Op:__inference_multi_step_on_iterator_574]"""

CONVERTED = """in user code:

    File "<run 1>", line 6, in step  *
        return helper(y)
    File "<run 1>", line 9, in helper  *
        y = y * tf.undefined(3)

    AttributeError: module 'tensorflow' has no attribute 'undefined'
"""

MAPPED = """{{function_node __wrapped__IteratorGetNext_device_/job:localhost}} Error in user-defined function \
passed to MapDataset:37: could not correctly convert string: abc
\t [[{{node StringToNumber}}]] [Op:IteratorGetNext] name: """

REFUSED = """{{function_node __wrapped__IteratorGetNext_device_/job:localhost}} <stack traces unavailable>
{{function_node __wrapped__IteratorGetNext_device_/job:localhost}} Error in user-defined function passed to \
MapDataset:45 transformation with iterator: Iterator::Root::ParallelMapV2: \
assertion failed: [rows] [8 5]
\t [[{{node Assert/AssertGuard/Assert}}]]
\t [[IteratorGetNext]]"""


@pytest.mark.parametrize(
    ("message", "said", "lines"),
    [
        (REFUSED, "assertion failed: [rows] [8 5]", []),
        (GRAPH, "indices[0,0] = 9 is not in [0, 5)", [10, 7]),
        (CONVERTED, "AttributeError: module 'tensorflow' has no attribute 'undefined'", [6, 9]),
        (MAPPED, "Error in user-defined function passed to MapDataset:37: could not correctly convert string: abc", []),
        ('\x1b[1mof a user\'s own\x1b[0m\n\n  File "x", line 2', 'of a user\'s own\n\n  File "x", line 2', []),
    ],
)
def test_a_message_is_what_it_says_without_what_tensorflow_puts_around_it(
    message: str, said: str, lines: list[int]
) -> None:
    assert essence(message) == said
    assert lines_in_message(message, "<run 1>") == lines


def test_call_stacks_within_a_message_are_folded_as_well() -> None:
    shown = folded(f"InvalidArgumentError: {GRAPH}").splitlines()
    assert shown[2:7] == [
        "Detected at node net/embedding/GatherV2 defined at (most recent call last):",
        '  File "<run 1>", line 10, in <module>',
        "  [... 1 frame of keras]",
        '  File "<run 1>", line 7, in call',
        f'  File "{LIB}/keras/src/backend/tensorflow/numpy.py", line 3095, in take',
    ]
