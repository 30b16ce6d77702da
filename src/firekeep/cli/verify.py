"""`firekeep verify`: is a file whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firekeep.cli import _reports
from firekeep.cli._options import as_json_option, examples, files_argument
from firekeep.cli._progress import progress_bar

if TYPE_CHECKING:
    from firekeep.checkpoint import StepsVerified
    from firekeep.verification import VerificationReport


@click.command(
    "verify",
    short_help="Check that files, or checkpoints, are whole.",
    epilog=examples(
        "firekeep verify model.safetensors", "firekeep verify --values checkpoints/*.bpk", "firekeep verify run"
    ),
)
@files_argument
@click.option("--values", is_flag=True, help="Look for NaN and infinite values, too.")
@as_json_option
def command(*, files: tuple[str, ...], values: bool, as_json: bool) -> int:
    """Check that each FILE is whole: structure, sizes, archive checksums, recorded digests.

    A FILE may be a directory of checkpoints, or a step of one: all files of its steps are checked then, and compared with the digests
    in the manifests, where `CheckpointManager(digest=True)` kept them. So is a file of a step.

    With --values every number is read, too: NaN is an error, infinite values are a warning. Exit code 0 when every
    file is whole, 1 when something is wrong with one (an empty file is damaged, too), 2 when one could not be checked:
    there is no such file, or it is of no format that is known.
    """
    from firekeep import api, checkpoint

    def ask(file: str) -> VerificationReport | StepsVerified:
        with progress_bar(f"verify {file}") as progress:
            steps = checkpoint.verify_steps(file, values=values, progress=progress) if Path(file).is_dir() else None
            return api.verify(file, values=values, progress=progress) if steps is None else steps

    return _reports.ask_each(
        files, ask=ask, is_good=lambda report: report.ok, show=_reports.told, as_json=as_json, with_records=True
    )
