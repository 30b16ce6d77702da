"""One line on standard error and an exit code for everything that can go wrong."""

from __future__ import annotations

import os
import re

import click

from firekeep.cli import _output
from firekeep.errors import FirekeepError

YES, NO, COULD_NOT = 0, 1, 2
INTERRUPTED, PIPE_CLOSED = 130, 141
"""What a shell gives for a process ended by SIGINT and SIGPIPE."""

# The library speaks of its keyword arguments, the command line of its options.
_FLAGS = r"\b(overwrite|allow_trailing|digest|dry_run)=True\b"
_VALUES = (
    r"""\b(top_level_key|max_shard_size|ties|dtype|include|exclude)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\.\.\.)"""
)
_PHRASES = (
    (r"\b[Oo]pen it with --allow-trailing \(--allow-trailing\)", "Use --allow-trailing (inspect, convert)"),
    (r"\bopen it with a larger firekeep\.Limits", "open it from Python with a larger firekeep.Limits"),
    (r"\bPass Limits\(", "From Python, pass firekeep.Limits("),
    (r"\bwith exclude\b", "with --exclude"),
    (r"(?<!-)\bmax_shard_size\b", "--max-shard-size"),
    (r"\bPass (?=--)", "Use "),
    (r"\bpass (?=--)", "use "),
)


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
        return (
            f"no command given. Commands: inspect, verify, scan, doctor, convert, diff. See {error.ctx.command_path} -h"
        )
    hint = f" See {error.ctx.command_path} -h" if error.ctx is not None else ""
    return f"{error.format_message().rstrip('.')}.{hint}"


def for_command_line(text: str) -> str:
    """Turn keyword arguments in a remedy into options, values quoted for a shell."""
    text = re.sub(_VALUES, _option, re.sub(_FLAGS, lambda found: _dashed(found[1]), text))
    for pattern, phrase in _PHRASES:
        text = re.sub(pattern, phrase, text)
    return text


def _option(found: re.Match[str]) -> str:
    import ast
    import shlex

    name, value = found.groups()
    if value == "...":
        return _dashed(name)
    try:
        return f"{_dashed(name)} {shlex.quote(ast.literal_eval(value))}"
    except (SyntaxError, ValueError):  # a file's own text that only looks like an argument
        return found[0]


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"
