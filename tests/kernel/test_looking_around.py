"""``%%tfos_run``: a cell as it is on every worker, what each prints and shows told apart."""

from __future__ import annotations

import ast
import base64

from tests.kernel.kernel_driver import Kernel


def test_every_worker_speaks_under_its_own_prefix_and_shows_its_last_expression(kernel: Kernel) -> None:
    kernel.run("factor = 10")
    result = kernel.run("""%%tfos_run -n 2
import sys
print("rank", tfos.rank(), "of", tfos.size())
print("a warning", file=sys.stderr)
factor * (tfos.rank() + 1)
""")
    assert not result.error, result.traceback
    lines = result.text.splitlines()
    for rank in (0, 1):
        mine = [line for line in lines if line.startswith(f"[worker:{rank}] ")]
        assert f"[worker:{rank}] rank {rank} of 2" in mine
        assert f"[worker:{rank}] a warning" in mine
        assert mine[-1] == f"[worker:{rank}] {10 * (rank + 1)}"


def test_only_the_chosen_workers_run_it_and_values_come_back_by_rank(kernel: Kernel) -> None:
    result = kernel.run("%%tfos_run -w 1 -o seen\nseen = tfos.rank()\n")
    assert not result.error, result.traceback
    assert kernel.run("print(seen)").text.strip() == "{1: 1}"
    assert not kernel.run("%%tfos_run -o seen\nseen = tfos.rank()\n").error
    assert ast.literal_eval(kernel.run("print(seen)").text) == {0: 0, 1: 1}
    refused = kernel.run("%%tfos_run -w 7\n1\n")
    assert "There is no worker 7: the cluster has workers 0 to 1." in refused.traceback


def test_of_very_many_prints_the_first_are_shown_and_the_others_counted(kernel: Kernel) -> None:
    result = kernel.run("%%tfos_run\nprint(*range(1500), sep='\\n')\n")
    assert not result.error, result.traceback
    assert len(result.text.splitlines()) == 2001
    assert result.text.endswith("… 1,000 lines left out; %tfos logs has the last.\n")


def test_figures_and_dataframes_of_each_worker_are_shown_as_such(kernel: Kernel) -> None:
    result = kernel.run("""%%tfos_run
import matplotlib.pyplot as plt, pandas as pd
plt.plot([0, tfos.rank()])
plt.show()
pd.DataFrame({"rank": [tfos.rank()]})
""")
    assert not result.error, result.traceback
    pictures = [shown["image/png"] for shown in result.displays if "image/png" in shown]
    assert len(pictures) == 2
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)
    assert len([shown for shown in result.displays if "<table" in shown.get("text/html", "")]) == 2


def test_an_error_on_one_worker_leaves_the_others_to_their_end_and_the_cluster_as_it_was(kernel: Kernel) -> None:
    before = kernel.run("%%tfos_run -o pid\nimport os\npid = os.getpid()\n")
    assert not before.error
    result = kernel.run("""%%tfos_run
import time
if tfos.rank() == 0:
    raise ValueError("zero has had enough")
time.sleep(1)
print("one is done")
""")
    assert result.error == "WorkerError"
    assert "ValueError on worker 0" in result.traceback
    assert "[worker:1] one is done" in result.text
    kernel.run("old = pid")
    assert not kernel.run("%%tfos_run -o pid\nimport os\npid = os.getpid()\n").error
    assert kernel.run("print(pid == old)").text.strip() == "True"


def test_an_interrupt_reaches_a_cell_that_sleeps_and_its_workers_live_on(kernel: Kernel) -> None:
    assert not kernel.run("%%tfos_run -o pid\nimport os\npid = os.getpid()\n").error
    running = kernel.submit("%%tfos_run\nimport time\nprint('asleep')\ntime.sleep(600)\n")
    kernel.finish(running, until="asleep")
    kernel.manager.interrupt_kernel()
    result = kernel.finish(running, timeout=10)
    assert result.error == "RunInterrupted"
    kernel.run("old = pid")
    assert not kernel.run("%%tfos_run -o pid\nimport os\npid = os.getpid()\n").error
    assert kernel.run("print(pid == old)").text.strip() == "True"


def test_what_a_training_cell_displays_on_the_first_worker_is_shown(kernel: Kernel) -> None:
    result = kernel.run("%%tfos_train\nimport pandas as pd\ndisplay(pd.DataFrame({'rank': [tfos.rank()]}))\n")
    assert not result.error, result.traceback
    assert result.text.count("rank\n0     0") == 1
    assert "0     1" not in result.text


def test_what_a_trainer_loads_at_its_start_is_never_looked_through_for_garbage(kernel: Kernel) -> None:
    kernel.run("""%%tfos_run -w 0 -o frozen,sought,collects
import gc
frozen, sought, collects = gc.get_freeze_count(), len(gc.get_objects()), gc.isenabled()
""")
    frozen, sought, collects = ast.literal_eval(kernel.run("print((frozen[0], sought[0], collects[0]))").text)
    assert collects
    assert frozen > 100_000 > sought


def test_the_network_is_measured_and_an_interrupt_ends_that_with_the_workers_alive(kernel: Kernel) -> None:
    assert not kernel.run("%%tfos_run -n 2 -o pid\nimport os\npid = os.getpid()\n").error
    result = kernel.run("%tfos netbench 1MB --seconds 0.4 -o bench")
    assert not result.error, result.traceback
    (shown,) = [shown for shown in result.displays if "<svg" in shown.get("text/html", "")]
    assert "shared memory" in shown["text/plain"]
    assert " to exchange 1.0 MB of gradients" in shown["text/plain"]
    assert kernel.run("print(bench.pairs[0].workers)").text.strip() == "(0, 1)"
    running = kernel.submit("%tfos netbench --seconds 50")
    kernel.finish(running, until="round 1 of 1: workers 0-1")
    kernel.manager.interrupt_kernel()
    assert kernel.finish(running, timeout=20).error == "RunInterrupted"
    kernel.run("old = pid")
    assert not kernel.run("%%tfos_run -o pid\nimport os\npid = os.getpid()\n").error
    assert kernel.run("print(pid == old)").text.strip() == "True"
    assert "has no 'nothing'" in kernel.run("%tfos netbench nothing").traceback
