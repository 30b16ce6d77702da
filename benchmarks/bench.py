"""The rows of the table: what is timed, beside whom, and what the target is.

Every row runs firekeep and its peers by turns in fresh processes. A ratio is firekeep's time over the fastest peer's in the same
turn; below 1 is faster. Memory is what the operation took at its peak, measured in a run of its own. Files lie in a temporary folder
that is removed; unless a row says otherwise they are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Job, Memory, compare

MiB = 1 << 20
MANY, FEW = 7, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison. With `targets` of several peers, each is met or missed by itself."""

    name: str
    jobs: dict[str, Job]
    targets: Sequence[tuple[tuple[str, ...], float]] = ()
    """Peers (the fastest of them counts) and the ratio that must not be exceeded."""
    repeats: int = 5
    anonymous_limit: int | None = None
    """Bytes of anonymous memory that firekeep's operation may take at its peak."""
    memory_targets: Sequence[tuple[str, float]] = ()
    """A peer, and the part of its memory that firekeep's operation may take, what it is for (`result_bytes`) not counted."""
    result_bytes: int = 0
    """Bytes that are to be in memory afterwards, whoever does the operation."""
    seconds_limit: float | None = None
    """Seconds that firekeep's operation may take, where there is nobody to stand beside it."""


Made = Iterator[tuple[str, Callable[[], Row]]]
"""A row's name, and what makes the row when its turn comes."""


@dataclass(slots=True, kw_only=True)
class Result:
    """A line of the table."""

    row: str
    against: str
    ours_ms: float
    peer_ms: float | None = None
    ratios: list[float] = field(default_factory=list)
    target: float | None = None
    met: bool | None = None
    anonymous: int | None = None
    peer_anonymous: int | None = None
    resident: int | None = None
    peer_resident: int | None = None
    note: str = ""


def run_row(row: Row, *, quick: bool) -> list[Result]:
    """Measure a row and judge it."""
    timing = compare(row.jobs, repeats=row.repeats, quick=quick)
    ours = timing.memory["firekeep"]
    named = {peer for peers, _ in row.targets for peer in peers}
    extra = [((peer,), None) for peer in row.jobs if peer != "firekeep" and peer not in named]
    results = []
    for peers, target in [*row.targets, *extra]:
        best = min(peers, key=lambda peer: median(timing.seconds[peer]))
        ratios = timing.ratios("firekeep", peers)
        theirs: Memory = timing.memory[best]
        results.append(
            Result(
                row=row.name,
                against=best,
                ours_ms=1e3 * median(timing.seconds["firekeep"]),
                peer_ms=1e3 * median(timing.seconds[best]),
                ratios=ratios,
                target=target,
                met=None if target is None else median(ratios) <= target,
                anonymous=ours.anonymous,
                peer_anonymous=theirs.anonymous,
                resident=ours.resident,
                peer_resident=theirs.resident,
            )
        )
    if row.anonymous_limit is not None:
        results.append(
            Result(
                row=row.name,
                against="",
                ours_ms=1e3 * median(timing.seconds["firekeep"]),
                anonymous=ours.anonymous,
                met=ours.anonymous <= row.anonymous_limit,
                note=f"anonymous memory at most {row.anonymous_limit // MiB} MiB",
            )
        )
    for peer, limit in row.memory_targets:
        mine, theirs_too = (one.anonymous - row.result_bytes for one in (ours, timing.memory[peer]))
        results.append(
            Result(
                row=row.name,
                against="",
                ours_ms=1e3 * median(timing.seconds["firekeep"]),
                anonymous=mine,
                peer_anonymous=theirs_too,
                met=mine <= limit * theirs_too,
                note=f"memory beside the result at most {limit:g} of {peer}'s",
            )
        )
    if row.seconds_limit is not None:
        seconds = timing.seconds["firekeep"]
        results.append(
            Result(
                row=row.name,
                against="",
                ours_ms=1e3 * median(seconds),
                anonymous=ours.anonymous,
                resident=ours.resident,
                met=median(seconds) <= row.seconds_limit,
                note=f"under {row.seconds_limit:g} s ({1e3 * min(seconds):.0f} to {1e3 * max(seconds):.0f} ms)",
            )
        )
    return results


HEADINGS = (
    "row", "beside", "ms", "peer ms", "ratio", "min", "max", "target", "met", "anon MiB", "peer", "peak MiB", "peer",
)  # fmt: skip


def render(results: Sequence[Result]) -> str:
    """Lay out the table."""
    rows = [HEADINGS, *(_cells(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = [
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _cells(result: Result) -> tuple[str, ...]:
    def number(value: float | None, form: str = ".2f") -> str:
        return "" if value is None else format(value, form)

    def mebibytes(value: int | None) -> str:
        return "" if value is None else format(value / MiB, ".1f")

    ratios = result.ratios
    return (
        result.row,
        result.against or result.note,
        number(result.ours_ms, ".2f"),
        number(result.peer_ms, ".2f"),
        number(median(ratios) if ratios else None, ".3f"),
        number(min(ratios, default=None), ".3f"),
        number(max(ratios, default=None), ".3f"),
        number(result.target),
        {True: "yes", False: "NO", None: ""}[result.met],
        mebibytes(result.anonymous),
        mebibytes(result.peer_anonymous),
        mebibytes(result.resident),
        mebibytes(result.peer_resident),
    )


def main() -> int:
    """Run all rows, or those whose name contains a word."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="words: run the rows whose names contain one of them")
    parser.add_argument(
        "--quick", action="store_true", help="small files: shows that the script runs, and nothing about speed"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE as well")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made (default: the system's)")
    options = parser.parse_args()
    from benchmarks.data import FULL, QUICK
    from benchmarks.jobs import Files
    from benchmarks.rows import make_rows, make_whole_process_rows

    chosen: Callable[[str], bool] = lambda name: not options.only or any(word in name for word in options.only)  # noqa: E731
    start = time.monotonic()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="firekeep-bench-", dir=options.folder) as folder:
        files = Files(Path(folder), QUICK if options.quick else FULL)
        for name, make in make_rows(files):
            if chosen(name):
                results += _tell(run_row(make(), quick=options.quick))
        for name, measure in make_whole_process_rows(files, quick=options.quick):
            if chosen(name):
                results += _tell([measure()])
    if options.quick:
        for result in results:
            result.met = None  # small files say nothing about speed
    print(f"\n{render(results)}\n")
    missed = [result for result in results if result.met is False]
    print(
        f"{sum(result.met is True for result in results)} targets met, {len(missed)} missed, {time.monotonic() - start:.0f} s"
    )
    if options.json:
        document = {"machine": _machine(), "quick": options.quick, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


def _tell(results: list[Result]) -> list[Result]:
    for result in results:
        print(
            f"{result.row}: {result.ours_ms:.2f} ms {'' if result.met is not False else '(target missed)'}",
            file=sys.stderr,
        )
    return results


def _machine() -> dict[str, Any]:
    import numpy as np
    import safetensors
    import torch

    return {
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "safetensors": safetensors.__version__,
    }
