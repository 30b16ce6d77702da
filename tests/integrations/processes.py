"""Scripts of training runs, started in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ALONE = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
"""These nets are too small for several threads."""


def start(script, *words):
    """Run a script to its end or to its death; give its exit status and the last line that it printed, as JSON."""
    command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **ALONE})
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])
