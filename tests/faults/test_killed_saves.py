"""The process is killed before each call that a save makes of the system: whoever looks afterwards finds one whole file."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from faults import calls
from faults.calls import OLD, plan, save
from firekeep.disk import is_scratch, to_bytes

NEW = b"HEAD" + to_bytes(plan())[4:]


def run(path: Path, overwrite: bool, last: int) -> subprocess.CompletedProcess[str]:
    words = [str(path), "overwrite" if overwrite else "new", str(last)]
    return subprocess.run([sys.executable, calls.__file__, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("there", [True, False], ids=["over a file", "a new file only"])
def test_whenever_a_save_is_killed_one_whole_file_is_found(tmp_path, there):
    (tmp_path / "undisturbed").mkdir()
    undisturbed = run(tmp_path / "undisturbed" / "weights", there, -1)
    assert undisturbed.returncode == 0, undisturbed.stderr
    names = undisturbed.stdout.split()
    outcomes = []
    for last in range(len(names) + 3):
        folder = tmp_path / str(last)
        folder.mkdir()
        path = folder / "weights"
        if there:
            path.write_bytes(OLD)
        killed = run(path, there, last)
        if killed.returncode == 0:  # beyond the last call, of which a save over a file makes one or two more
            break
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        found = path.read_bytes() if path.exists() else None
        assert found in (OLD if there else None, NEW), f"killed before call {last}"
        outcomes.append(found == NEW)
        left = {name.name for name in folder.iterdir()} - {"weights"}
        assert all(is_scratch(name) for name in left), left
        save(path, overwrite=True)
        assert path.read_bytes() == NEW
        assert {name.name for name in folder.iterdir()} == {"weights"} | left
    assert outcomes == sorted(outcomes), "once the new file is there it stays"
    assert True in outcomes
    assert False in outcomes
