"""One line on standard error and an exit code for everything that can go wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import click

from firekeep.cli import _output
from firekeep.errors import FirekeepError

YES, NO, COULD_NOT = 0, 1, 2
INTERRUPTED, PIPE_CLOSED = 130, 141
"""What a shell gives for a process ended by SIGINT and SIGPIPE."""

# The library speaks of its keyword arguments, the command line of its options.
_TEXT = r"""r?'(?:[^'\\]|\\.)*'|r?"(?:[^"\\]|\\.)*\""""
_FLAGS = r"\b(overwrite|allow_trailing|dequantize|digest|dry_run)=True\b"
_NAMES = "best|like_top_level_key|top_level_key|max_shard_size|ties|dtype|include|exclude|layout|rename|like"
_VALUES = rf"\b({_NAMES})=({_TEXT}|\[(?:(?:{_TEXT})(?:, )?)+\]|\.\.\.)"
_KEEP_BEST = rf"\bbest=KeepBest\(({_TEXT}), mode=\"(min|max)\"\)"
_PHRASES = (
    (r"\b[Oo]pen it with --allow-trailing \(--allow-trailing\)", "Use --allow-trailing with inspect or convert"),
    (r"\binclude of load_file or convert", "--include of firekeep convert"),
    (r"\bopen it with a larger firekeep\.Limits", "open it from Python with a larger firekeep.Limits"),
    (r"\bPass Limits\(", "From Python, pass firekeep.Limits("),
    (r"\bRead it with MappingFile\.load\b", "From Python, read it with MappingFile.load"),
    (r"\bwith exclude\b", "with --exclude"),
    (r"(?<!-)\bmax_shard_size\b", "--max-shard-size"),
    (r"\blike= a model,? or (?:a|the) file\b", "--like a file"),
    (r"\blike= a model,? or a PyTorch file of a whole model\b", "--like a PyTorch file of a whole model"),
    (r"\blike= a file or a model\b", "--like a file"),
    (r"\blike=(?=[\s,.;)]|$)", "--like"),
    (r"\bkeep the layout they have(?=[.,;]|$)", "keep the layout they have by leaving out --layout"),
    (r"\bGive the model itself, whose layers say it", "From Python, give like= the model itself, whose layers say it"),
    (r"\bor mode=\"min\" where", "or --mode min where"),
    (r"--match auto\b|\bmatch='auto'", "no --exact"),
    (r"\bmatch='exact'", "--exact"),
    (r"\b(allow_(?:missing|unused|mismatched)=True|strict=False|stage=True)", r"\1 of firekeep.load_into, from Python"),
    (r"\bPass (?=--)", "Use "),
    (r"\bpass (?=--)", "use "),
)
_OUT_OF_REACH = ", or leave one of them out with exclude."


def say(error: BaseException) -> str:
    """Put an error into one line: where, what, and what to do about it."""
    if isinstance(error, FirekeepError):
        return for_command_line(str(error))
    if isinstance(error, OSError):
        return _say_os_error(error)
    if isinstance(error, MemoryError):
        return "not enough memory"
    return f"{type(error).__name__}: {error}"


def report(error: BaseException) -> int:
    """Say on standard error what happened and give the exit code; what nobody foresaw comes with its traceback."""
    if isinstance(error, _output.ClosedOutputError):
        _output.abandon()
        if isinstance(error.cause, BrokenPipeError):
            return PIPE_CLOSED
        _output.warn(f"standard output: {error.cause.strerror}")
        return COULD_NOT
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED
    if isinstance(error, click.UsageError):
        _output.warn(_say_usage(error))
        return COULD_NOT
    if isinstance(error, FirekeepError | OSError | MemoryError | click.ClickException):
        _output.warn(error.format_message() if isinstance(error, click.ClickException) else say(error))
        return COULD_NOT
    if not isinstance(error, Exception):
        raise error
    import traceback

    for line in traceback.format_exception(error):
        for part in line.splitlines():
            _output.warn(part)
    _output.warn("this is a defect of firekeep, not of your file: please report the lines above")
    return COULD_NOT


def _say_os_error(error: OSError) -> str:
    place = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else None
    what = error.strerror or str(error) or type(error).__name__
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{place}: {what}{notes}" if place is not None else f"{what}{notes}"


def _say_usage(error: click.UsageError) -> str:
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and error.ctx is not None:
        group = error.ctx.command
        known = ", ".join(group.list_commands(error.ctx)) if isinstance(group, click.Group) else ""
        return f"no command given. Commands: {known}. See {error.ctx.command_path} -h"
    hint = f" See {error.ctx.command_path} -h" if error.ctx is not None else ""
    said = error.format_message().rstrip(".")
    return f"{said}{'' if said.endswith('?') else '.'}{hint}"


@contextmanager
def narrower(path: str) -> Iterator[None]:
    """Let an error about renames name the file, and no option that the command has not or that would not help."""
    try:
        yield
    except FirekeepError as error:
        if error.remedy is not None:
            error.remedy = error.remedy.replace(_OUT_OF_REACH, ".")
        raise error.at(path=path)  # noqa: B904 - the same error, with its place


def for_command_line(text: str) -> str:
    """Turn keyword arguments in a remedy into options, values quoted for a shell."""
    text = re.sub(_KEEP_BEST, r"best=\1 --mode \2", text)
    text = re.sub(_VALUES, _option, re.sub(_FLAGS, lambda found: _dashed(found[1]), text))
    for pattern, phrase in _PHRASES:
        text = re.sub(pattern, phrase, text)
    return text


def _option(found: re.Match[str]) -> str:
    import ast
    import shlex
    import warnings

    name, value = found.groups()
    if value == "...":
        return _dashed(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an escape that is none
            given = ast.literal_eval(value)
        return " ".join(
            f"{_dashed(name)} {shlex.quote(each)}" for each in (given if isinstance(given, list) else [given])
        )
    # A file's own text may only look like an argument, and be more than a parser of Python takes.
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return found[0]


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"
