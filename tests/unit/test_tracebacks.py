"""Folding what libraries did out of a traceback."""

from __future__ import annotations

from tfos_magic.errors import WorkerError
from tfos_magic.tracebacks import folded

LIB = "/opt/lib/python3.11/site-packages"
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
    ours += '  File "/src/tfos_magic/training/hooks.py", line 9, in loop\n    return original()\n'
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
