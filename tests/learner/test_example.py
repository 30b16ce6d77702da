"""The example that the demo runs: killed and started again, without PyTorch, it makes the very same losses."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import firekeep

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_resume.py"
WITHOUT_TORCH = """
import runpy, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Missing())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def example(*words):
    command = [sys.executable, "-c", WITHOUT_TORCH, str(EXAMPLE), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_example_goes_on_to_the_last_bit(tmp_path):
    straight = example(tmp_path / "straight")
    assert straight.returncode == 0, straight.stderr
    assert example(tmp_path / "killed", "--kill-at", 47).returncode == -signal.SIGKILL
    after = example(tmp_path / "killed")
    assert after.returncode == 0, after.stderr
    assert "the state of step 40, epoch 3, restored, exactly" in after.stdout
    assert after.stdout.splitlines()[-1] == straight.stdout.splitlines()[-1]
    one, two = (tmp_path / name for name in ("straight", "killed"))
    losses = (two / "losses.txt").read_text()
    assert losses == (one / "losses.txt").read_text()
    assert len(losses.splitlines()) == 78
    model = "step-00000078/model.bpk"
    assert firekeep.diff(one / model, two / model).equal
