"""Steps as Burn lays them out: `model-5.bpk`, `optim-5.bpk` and `scheduler-5.bpk` side by side in one folder.

A step is there when all three are. They are published in the order scheduler, optim, model, so that the model makes it complete; what
Burn has no file for is published before them. What the manifest says of a step stands in the metadata of the model, where Burn does not
look. Three renames are not one commit: a reader that comes between them finds the step incomplete, never mixed. All files of a save say
which save they are of, so that one of another step that was put among them is found, whatever its size. Of files that Burn wrote only the
ids of parameters tell: an optimizer that knows none of the model's is another run's.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firekeep.checkpoint import _manifest as manifest
from firekeep.checkpoint._folders import check_size
from firekeep.checkpoint._marks import SAVE, marked, save_of
from firekeep.checkpoint._seen import Mark, Seen, mark_of
from firekeep.checkpoint._shelf import Found, Pen, Shelf, listed, spare_path, sync
from firekeep.checkpoint._step import IncompleteStep, StepFile, StepInfo
from firekeep.errors import FirekeepError, RuleError
from firekeep.formats import Contents, OpenOptions
from firekeep.opened import open_file
from firekeep.sections import Section
from firekeep.wording import some

KEY = "firekeep.checkpoint"
"""Where a model's metadata tells of its step."""

PARTS = ("scheduler", "optim", "model")
"""The files of a step, in the order in which they are published."""

_SECTIONS = {"scheduler": "scheduler", "optim": "optimizer", "model": "model"}
"""What the files of a step that Burn wrote are called as sections."""

_PREFIXES = {"optimizer": "optim"}
_PART = re.compile(r"(scheduler|optim|model)-(0|[1-9][0-9]{0,18})\.bpk")


class Flat(Shelf):
    """Burn's three files a step."""

    layout = "burn"

    def scan(self, directory: Path, names: Sequence[str], seen: Seen) -> Found:
        looked = [self.look(directory, step, seen) for step in sorted(self.numbers(names))]
        return (
            [step for step in looked if isinstance(step, StepInfo)],
            [step for step in looked if isinstance(step, IncompleteStep)],
        )

    def numbers(self, names: Iterable[str]) -> set[int]:
        return {part[1] for name in names if (part := part_of(name)) is not None}

    def look(self, directory: Path, step: int, seen: Seen | None = None) -> StepInfo | IncompleteStep | None:
        if seen is None:
            return self._look(directory, step)
        known = seen.last(step)
        if known is not None and seen.recall(step, _marks(directory, _names(step, known.files))) is known:
            return known
        began, before = time.time_ns(), _marks(directory, _names(step, ()))
        found = self._look(directory, step)
        if isinstance(found, StepInfo):
            marks = _marks(directory, _names(step, found.files))
            # Whoever replaces a step moves one of the three first: they tell whether what was read is what is there now.
            if set(before) <= set(marks):
                seen.keep(marks, found, began=began)
        return found

    def _look(self, directory: Path, step: int) -> StepInfo | IncompleteStep | None:
        there = [part for part in PARTS if (directory / part_name(part, step)).is_file()]
        if not there:
            return None
        try:
            if len(there) < len(PARTS):
                missing = [part_name(part, step) for part in PARTS if part not in there]
                raise FirekeepError(f"{some(missing)} {'is' if len(missing) == 1 else 'are'} not there")
            return _read(directory, step)
        except FirekeepError as error:
            reason = str(error) if error.path else error.message
        except OSError as error:
            reason = f"it cannot be looked at: {error.strerror}"
        return IncompleteStep(step=step, name=part_name(there[-1], step), reason=reason)

    def write(self, pen: Pen, sections: Sequence[Section], info: StepInfo) -> StepInfo:
        by_part = {_PREFIXES.get(section.name, section.name): marked(section, info) for section in sections}
        if "model" not in by_part or len(by_part) < len(sections):
            raise RuleError(
                f'layout="burn" needs one section "model", and this state has {some([section.name for section in sections])}',
                remedy='Save in the layout "firekeep", which takes any sections.',
            )
        others = [part for part in by_part if part not in PARTS]
        files: list[StepFile] = []
        for part in (*others, *PARTS[:-1]):
            name = part_name(part, info.step)
            if part in by_part:
                files.append(pen.write(by_part[part].name, by_part[part].contents, name))
            else:
                empty = marked(Section(part, Contents(entries=())), info)
                pen.write(part, empty.contents, name)  # Burn opens all three
        name = part_name("model", info.step)
        contents = by_part["model"].contents
        itself = StepFile(section="model", name=name, nbytes=0)  # its size is not known to the file itself
        told = manifest.render(replace(info, files=(*files, itself))).decode()
        files.append(pen.write("model", replace(contents, metadata={**contents.metadata, KEY: told}), name))
        return replace(info, files=tuple(files))

    def publish(self, directory: Path, scratch: Path, info: StepInfo, *, aside: Path, durable: bool) -> None:
        found = self.look(directory, info.step)
        if isinstance(found, StepInfo):
            self.take(directory, found, into=aside)
        else:
            self._spare_model(directory, info.step)
        names = _in_order(listed(scratch), info.step)
        try:
            for name in names:
                (scratch / name).rename(directory / name)
                if durable:
                    sync(directory)
        except BaseException:
            if not (directory / part_name("model", info.step)).exists():
                _move(directory, scratch, [name for name in names if not (scratch / name).exists()])
                self.put_back(directory, aside, info.step)
            raise

    def _spare_model(self, directory: Path, step: int) -> None:
        """Keep a model that lies there without the rest: it may be all that is left of a run."""
        model = directory / part_name("model", step)
        if os.path.lexists(model):
            model.rename(spare_path(model, "incomplete"))

    def take(self, directory: Path, info: StepInfo, *, into: Path) -> None:
        into.mkdir()
        _move(directory, into, _names(info.step, info.files))

    def put_back(self, directory: Path, aside: Path, step: int) -> bool:
        model = part_name("model", step)
        if not (aside / model).exists() or (directory / model).exists():
            return False
        _move(aside, directory, _in_order(listed(aside), step))
        with contextlib.suppress(OSError):
            aside.rmdir()
        return True

    def finish_taking(self, directory: Path, doomed: Path, step: int) -> None:
        if not (directory / part_name("model", step)).exists():
            _move(directory, doomed, _names(step, ()))


def part_of(name: str) -> tuple[str, int] | None:
    """Tell part and step from a file's name; None for another name."""
    match = _PART.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def part_name(part: str, step: int) -> str:
    """Name a file of a step."""
    return f"{part}-{step}.bpk"


def _names(step: int, files: Iterable[StepFile]) -> list[str]:
    """List the files of a step in the order in which they are taken away: the model first."""
    every = {file.name for file in files} | {part_name(part, step) for part in PARTS}
    return _in_order(every, step)[::-1]


def _in_order(names: Collection[str], step: int) -> list[str]:
    """Put names in the order in which they are published."""
    rank = {part_name(part, step): number for number, part in enumerate(PARTS)}
    return sorted(names, key=lambda name: (rank.get(name, -1), name))


def _move(source: Path, target: Path, names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            (source / name).rename(target / name)


def _marks(directory: Path, names: Iterable[str]) -> tuple[Mark, ...]:
    """Tell files as they are now; one that is not there tells nothing."""
    base, marks = os.fspath(directory), list[Mark]()
    for name in names:
        with contextlib.suppress(OSError):
            marks.append(mark_of(os.stat(f"{base}/{name}")))  # noqa: PTH116 - a Path takes longer
    return tuple(marks)


def _read(directory: Path, step: int) -> StepInfo:
    """Open the three files, of which a damaged one is found, and read what the model tells."""
    looked = {name: _look_into(directory, name) for name in (part_name(part, step) for part in PARTS)}
    model, optimizer = looked[part_name("model", step)], looked[part_name("optim", step)]
    told = model.told
    sizes = {part: (directory / part_name(part, step)).stat() for part in PARTS}
    if told is None:
        if model.ids and optimizer.owners and not model.ids & optimizer.owners:
            raise FirekeepError(
                f"{part_name('optim', step)} is of another model: it has the id of none of the parameters in {part_name('model', step)}"
            )
        return StepInfo(
            step=step,
            folder=directory,
            files=tuple(
                StepFile(section=_SECTIONS[part], name=part_name(part, step), nbytes=status.st_size)
                for part, status in sizes.items()
            ),
            time=sizes["model"].st_mtime,  # Burn writes down no other
        )
    info = manifest.parse(told.encode(), folder=directory, step=step)
    files = []
    for file in info.files:
        if not file.name.endswith(f"-{step}.bpk"):
            raise FirekeepError(f"{file.name} is no file of step {step}")
        if file.name == part_name("model", step):
            file = replace(file, nbytes=sizes["model"].st_size)
        check_size(str(directory), file.name, file.nbytes)
        files.append(file)
    if model.save is not None:  # older versions of firekeep wrote none
        names = {file.name for file in files} | looked.keys()
        mixed = [
            name for name in sorted(names) if (looked.get(name) or _look_into(directory, name)).save != save_of(info)
        ]
        if mixed:
            raise FirekeepError(f"{some(mixed)} {'is' if len(mixed) == 1 else 'are'} of another save")
    return replace(info, files=tuple(files))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inside:
    """What a file of a step says: its manifest, of which save it is, the ids of its tensors, and those of which it keeps a state."""

    told: str | None
    save: str | None
    ids: frozenset[int]
    owners: frozenset[int]


def _look_into(directory: Path, name: str) -> _Inside:
    with open_file(directory / name, OpenOptions()) as opened:
        if opened.format != "burnpack":
            raise FirekeepError(f"{name} is a {opened.format} file")
        heads = (entry.partition(".")[0] for entry in opened.keys())  # noqa: SIM118 - not a dict
        return _Inside(
            told=opened.metadata.get(KEY),
            save=opened.metadata.get(SAVE),
            ids=frozenset(
                int(entry.param_id) for entry in opened.container.entries.values() if entry.param_id is not None
            ),
            owners=frozenset(int(head) for head in heads if head.isascii() and head.isdecimal() and len(head) <= 20),
        )
