"""A report of a load in words, for a terminal of 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from firekeep.folding import fold, some_alike
from firekeep.wording import WIDTH, count, lines, listed, quote, some

if TYPE_CHECKING:
    from firekeep.report._report import LoadReport

_SHOWN = 10
"""Lines of a list that are shown."""
_MANY = 4
"""Places that one reason is told of once."""


def tell(report: LoadReport) -> str:
    """Tell the whole report: the verdict, what was done, what is wrong, what would help."""
    place, said = f"{report.source or 'the file'}:", verdict(report)
    head = [f"{place} {said}"] if len(f"{place} {said}") <= WIDTH else [place, *lines([said])]
    return "\n".join((*head, *_body(report)))


def verdict(report: LoadReport) -> str:
    """Say in one sentence what came of the load."""
    model = report.target or "the model"
    done = len(report.applied)
    number = count(done, "tensor") if done == report.wanted else f"{done:,} of {count(report.wanted, 'tensor')}"
    if report.refusals:
        reasons = ", ".join(report.refusals)
        said = (
            f"would not be loaded into {model}" if report.dry_run else f"not loaded into {model}, nothing was changed"
        )
        return f"{said}: {reasons}"
    if report.failed:
        return f"reading broke off; {number} of {model} had been set"
    return f"{number} {'would be loaded' if report.dry_run else 'loaded'} into {model}"


def _body(report: LoadReport) -> Iterator[str]:
    yield from lines(_done(report))
    yield from listed("errors", _problems(report), shown=_SHOWN)
    near = {name: one.name for name, one in report.suggestions.items()}
    yield from listed("missing in the file", _folded(report.missing, report.missing_shapes, near, "near"), shown=_SHOWN)
    renamed = report.unused_renamed
    yield from listed(
        "in the file only", _folded(report.unused, report.unused_shapes, renamed, "renamed"), shown=_SHOWN
    )
    yield from listed("in doubt, so not taken", [(str(one), 1) for one in report.ambiguities], shown=_SHOWN)
    yield from listed(
        "constants that differ, which no tensor holds and no load changes", _constants(report), shown=_SHOWN
    )
    for remedy in report.remedies:
        yield from lines([f"remedy: {remedy.reason}"])
        yield from (f"      {spelled}" for spelled in (remedy.python, remedy.cli) if spelled)
    yield from lines(f"note: {note}" for note in report.notes)


def _done(report: LoadReport) -> Iterator[str]:
    yield from report.steps
    for (old, new), number in Counter(report.casts.values()).items():
        yield f"{'would be cast' if report.dry_run else 'cast'}: {count(number, 'tensor')} {old} -> {new}"
    if report.losses:
        worst = sorted(report.losses, key=lambda name: -report.losses[name])
        shown = ", ".join(f"{quote(name)} {report.losses[name]:,}" for name in worst[:3])
        more = f" and {len(worst) - 3:,} more tensors" if len(worst) > 3 else ""
        total = count(sum(report.losses.values()), "number")
        yield f"WARNING: {total} became infinite or NaN in the cast: {shown}{more}"
    if report.ids_restored:
        yield f"{count(report.ids_restored, 'parameter id')} restored"
    for what, names in (
        ("left out by the filter", report.skipped),
        ("without a counterpart on the other side", report.no_counterpart),
    ):
        if names:
            yield f"{what}: {count(len(names), 'tensor')} ({some_alike(names, 2)})"


def _problems(report: LoadReport) -> list[tuple[str, int]]:
    """Say once what is wrong with many places for one and the same reason."""
    alike: dict[str, list[str]] = {}
    for one in report.errors:
        if one.file_name is None and one.expected is None:
            alike.setdefault(one.message, []).append(one.name)
    told: dict[str, tuple[str, int]] = {}
    for one in report.errors:
        names = alike.get(one.message, [])
        if len(names) < _MANY or one.name not in names:
            told[f"{one.name} {one}"] = (str(one), 1)
        else:
            told[one.message] = (f"{some(names, 2)}: {one.message}", len(names))
    return list(told.values())


def _constants(report: LoadReport) -> list[tuple[str, int]]:
    """Put together parts whose constants differ in the same way."""
    alike: dict[str, list[str]] = {}
    for one in report.constants:
        alike.setdefault(one.told(), []).append(one.path)
    return [
        (f"{quote(part.label) if part.label else 'the model'}: {told}", len(part.names))
        for told, paths in alike.items()
        for part in fold(paths)
    ]


def _folded(
    names: Sequence[str], shapes: Mapping[str, tuple[int, ...]], others: Mapping[str, str], word: str
) -> list[tuple[str, int]]:
    """Put names of one shape together where they, and the other names that stand behind a word for them, are alike but for numbers."""
    kinds: dict[tuple[tuple[int, ...] | None, bool], list[str]] = {}
    for name in names:
        kinds.setdefault((shapes.get(name), name in others), []).append(name)
    places = {name: place for place, name in enumerate(names)}
    told: dict[int, tuple[str, int]] = {}
    for (shape, _), group in kinds.items():
        for one in fold(group):
            hints = fold(others[name] for name in one.names if name in others)
            alike = [(one.label, one.names)] if len(hints) <= 1 else [(name, (name,)) for name in one.names]
            for label, members in alike:
                hint = hints[0].label if len(hints) == 1 else others.get(members[0])
                told[places[members[0]]] = (_line(label, shape, hint, word), len(members))
    return [told[place] for place in sorted(told)]


def _line(label: str, shape: tuple[int, ...] | None, other: str | None, word: str) -> str:
    text = quote(label) if shape is None else f"{quote(label)} {list(shape)}"
    return text if other is None else f"{text}; {word}: {quote(other)}"
