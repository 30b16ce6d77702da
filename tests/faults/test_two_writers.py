"""Several processes save to one name at once: every reader sees one whole file, and only one may be first."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from firekeep.disk import is_scratch

SAVER = """
import sys
from firekeep.blobs import DeferredBlob, MemoryBlob
from firekeep.disk import Part, WritePlan, write_file
from firekeep.errors import ExistsError

path, letter, times, overwrite = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3]), sys.argv[4] == "overwrite"
print("ready", flush=True)
sys.stdin.readline()
for turn in range(times):
    size = 1000 + 700 * (turn % 150)
    parts = [Part(0, MemoryBlob(letter * 10)), Part(10, DeferredBlob(size, lambda: letter * size), "t")]
    try:
        write_file(path, WritePlan(nbytes=size + 10, parts=parts), overwrite=overwrite, durable=False)
    except ExistsError:
        sys.exit(3)
"""


def start(path: Path, letter: str, times: int, *, overwrite: bool) -> subprocess.Popen[str]:
    words = [str(path), letter, str(times), "overwrite" if overwrite else "new"]
    saver = subprocess.Popen(
        [sys.executable, "-c", SAVER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert saver.stdout is not None
    assert saver.stdout.readline() == "ready\n"
    return saver


def go(savers: list[subprocess.Popen[str]]) -> None:
    for saver in savers:
        assert saver.stdin is not None
        saver.stdin.write("go\n")
        saver.stdin.flush()


def finish(savers: list[subprocess.Popen[str]]) -> list[int]:
    for saver in savers:
        saver.communicate()
    return [saver.returncode for saver in savers]


def test_readers_of_a_name_that_two_processes_save_to_see_whole_files_only(tmp_path):
    # apex#886, nanochat#336: several ranks write one name
    path = tmp_path / "weights"
    path.write_bytes(b"o" * 1000)
    savers = [start(path, letter, 100, overwrite=True) for letter in "ab"]
    go(savers)
    seen: Counter[str] = Counter()
    while any(saver.poll() is None for saver in savers):
        data = path.read_bytes()
        assert data == data[:1] * len(data)
        assert len(data) == 1000 or (len(data) - 1010) % 700 == 0
        seen[chr(data[0])] += 1
    assert finish(savers) == [0, 0]
    assert set(seen) <= {"o", "a", "b"}
    assert path.read_bytes()[:1] in (b"a", b"b")
    assert len(path.read_bytes()) == 1010 + 700 * 99
    assert [name.name for name in tmp_path.iterdir()] == ["weights"]


def test_of_many_processes_that_must_not_replace_exactly_one_wins(tmp_path):
    for attempt in range(5):
        path = tmp_path / f"weights{attempt}"
        savers = [start(path, letter, 1, overwrite=False) for letter in "abcdef"]
        go(savers)
        codes = finish(savers)
        assert sorted(codes) == [0, 3, 3, 3, 3, 3]
        winner = "abcdef"[codes.index(0)]
        assert path.read_bytes() == winner.encode() * 1010
        assert path.stat().st_nlink == 1
    assert not any(is_scratch(name.name) for name in tmp_path.iterdir())
