"""Every failure is one line and an exit code."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firekeep.cli import _errors, commands, run
from firekeep.errors import FirekeepError, MetadataError

Run = Callable[..., Any]


def test_a_missing_file_is_one_line_and_exit_code_two(fk: Run):
    done = fk("inspect", "nothing.safetensors")
    assert (done.code, done.out, done.err) == (2, "", "firekeep: nothing.safetensors: No such file or directory\n")


def test_other_errors_of_the_system_are_one_line(fk: Run, tmp_path: Path):
    loop = tmp_path / "loop.pt"
    loop.symlink_to(loop)
    assert fk("inspect", loop).err == f"firekeep: {loop}: Too many levels of symbolic links\n"


def test_a_folder_is_one_line(fk: Run, tmp_path: Path):
    done = fk("inspect", tmp_path)
    assert done.code == 2
    assert done.err.startswith(f"firekeep: {tmp_path}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "no command given. Commands: inspect, verify, scan, doctor, convert, diff, keys, match, checkpoints, resume-check. See firekeep -h",
        ),
        (["inspct"], "No such command 'inspct': perhaps 'inspect' was meant. See firekeep -h"),
        (["inspect"], "Missing argument 'FILE'. See firekeep inspect -h"),
        (["inspect", "a", "--nothing"], "No such option"),
        (["inspect", "a", "b"], "unexpected extra argument"),
        (["\x1b[31m"], r"No such command '\x1b[31m'"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_says_where_help_is(fk: Run, arguments: list[str], message: str):
    done = fk(*arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_goes_to_standard_output(fk: Run, flag: str):
    done = fk(flag)
    assert (done.code, done.err) == (0, "")
    assert "inspect" in done.out


def test_the_version_is_printed(fk: Run):
    assert fk("--version").out.startswith("firekeep 0.")


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def invoke(*_: object) -> None:
        raise error

    monkeypatch.setattr(commands, "invoke", invoke)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MetadataError("bad", path="a\x1b.pt", tensor="w\n"), 2, "firekeep: a\\x1b.pt: tensor 'w\\n': bad\n"),
        (OSError(28, "No space left on device", "/x"), 2, "firekeep: /x: No space left on device\n"),
        (OSError(5, "Input/output error"), 2, "firekeep: Input/output error\n"),
        (MemoryError(), 2, "firekeep: not enough memory\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_have_their_line_and_code(
    error: BaseException, code: int, message: str, fk: Run, monkeypatch: pytest.MonkeyPatch
):
    fail_with(error, monkeypatch)
    done = fk("inspect", "a")
    assert (done.code, done.out, done.err) == (code, "", message)


def test_a_note_on_an_error_of_the_system_is_kept():
    error = OSError(5, "Input/output error", "/x")
    error.add_note("while the bytes of tensor 'w' were read")
    assert _errors.say(error) == "/x: Input/output error (while the bytes of tensor 'w' were read)"


def test_what_nobody_foresaw_shows_its_traceback_and_never_exit_code_one(fk: Run, monkeypatch: pytest.MonkeyPatch):
    fail_with(ZeroDivisionError("bug\x1b"), monkeypatch)
    done = fk("inspect", "a")
    assert done.code == 2
    assert r"ZeroDivisionError: bug\x1b" in done.err
    assert "a defect of firekeep" in done.err


@pytest.mark.parametrize(
    ("library", "typed"),
    [
        ("Pass overwrite=True.", "Use --overwrite."),
        ("To open one, pass its place: top_level_key='model'.", "To open one, pass its place: --top-level-key model."),
        ('pass top_level_key="it\'s $(x)"', "use --top-level-key 'it'\"'\"'s $(x)'"),
        (
            'Rename the metadata key, or pass ties="expand" to write both.',
            "Rename the metadata key, or use --ties expand to write both.",
        ),
        ("Save in shards (max_shard_size=...).", "Save in shards (--max-shard-size)."),
        ("leave it out with exclude.", "leave it out with --exclude."),
        (
            "Open it with allow_trailing=True (--allow-trailing) to read the tensors.",
            "Use --allow-trailing with inspect or convert to read the tensors.",
        ),
        (
            "If the file is honest, open it with a larger firekeep.Limits(pickle_bytes=...).",
            "If the file is honest, open it from Python with a larger firekeep.Limits(pickle_bytes=...).",
        ),
    ],
)
def test_remedies_name_options_instead_of_arguments(library: str, typed: str):
    assert _errors.say(FirekeepError("bad", remedy=library)) == f"bad. {typed}"


@pytest.mark.parametrize(
    ("library", "typed"),
    [
        ("Say which: layout='burn', or layout='torch'.", "Say which: --layout burn, or --layout torch."),
        ('Pass rename=[r"^a\\.[b]=>c\'."].', "Use --rename '^a\\.[b]=>c'\"'\"'.'."),
        ("Pass rename=['^a=>b', r'\\.c=>d'].", "Use --rename '^a=>b' --rename '\\.c=>d'."),
        ("Use match='auto'.", "Use no --exact."),
        ("Or match='exact'.", "Or --exact."),
        ("Give like= a model, or a file whose layout is 'burn'.", "Give --like a file whose layout is 'burn'."),
        ("Leave out like=, or give one.", "Leave out --like, or give one."),
        ("the reader that like= describes", "the reader that --like describes."),
        (
            "Give like= it, or keep the layout they have.",
            "Give --like it, or keep the layout they have by leaving out --layout.",
        ),
        ("keep the layout they have with layout='torch'.", "keep the layout they have with --layout torch."),
        (
            "Give the model itself, whose layers say it, or leave the tensor out with exclude.",
            "From Python, give like= the model itself, whose layers say it, or leave the tensor out with --exclude.",
        ),
        ("Pass allow_unused=True.", "Pass allow_unused=True of firekeep.load_into, from Python."),
    ],
)
def test_remedies_of_loads_and_layouts_name_options(library: str, typed: str):
    assert _errors.say(FirekeepError("bad", remedy=library)).rstrip(".") == f"bad. {typed}".rstrip(".")


def test_text_of_a_file_that_looks_like_an_argument_does_no_harm():
    assert _errors.say(FirekeepError(r"tensor dtype='\N{nothing}' and ties='\xZZ' are bad")).endswith("are bad")


def test_a_pipe_that_is_closed_early_is_no_error(cases: Path):
    command = f"{sys.executable} -m firekeep inspect --all --json '{cases / 'burn' / 'lpips_squeeze.pt'}'"
    done = subprocess.run(
        ["bash", "-c", f"{command} | (exec 0<&-; sleep 1); echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_a_full_disk_under_standard_output_is_one_line(cases: Path):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "firekeep", "inspect", str(cases / "burn" / "burn_mnist.pt")],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, "firekeep: standard output: No space left on device\n")


def test_standard_output_may_be_closed(cases: Path):
    command = f"{sys.executable} -m firekeep inspect '{cases / 'burn' / 'burn_mnist.pt'}' >&-"
    assert subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False).returncode == 0


def test_an_ascii_terminal_gets_ascii(cases: Path):
    done = subprocess.run(
        [sys.executable, "-m", "firekeep", "inspect", str(cases / "burn" / "burn_mnist.pt")],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.isascii()
    assert b"|-- bias" in done.stdout


def test_a_name_of_a_file_that_is_not_utf8_can_be_told(tmp_path: Path):
    folder = os.fsencode(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "firekeep", "inspect", folder + b"/\xff.pt"], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"firekeep: " + folder + b"/\\udcff.pt: No such file")


def test_being_terminated_has_its_exit_code():
    code = """
import sys, time, firekeep.cli
def wait(context):
    print("ready", flush=True)
    time.sleep(60)
firekeep.cli.commands.invoke = wait
sys.argv = ["firekeep", "inspect", "a"]
firekeep.cli.main()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM


def test_run_is_what_main_runs(monkeypatch: pytest.MonkeyPatch):
    from firekeep.cli import main

    monkeypatch.setattr(sys, "argv", ["firekeep", "--version"])
    before = {name: signal.getsignal(getattr(signal, name)) for name in ("SIGTERM", "SIGHUP")}
    try:
        with pytest.raises(SystemExit) as stopped:
            main()
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
    assert stopped.value.code == run(["--version"]) == 0


def test_lists_in_a_remedy_become_one_option_each():
    assert (
        _errors.for_command_line("leave out with exclude=['^a b$', 'c'].")
        == "leave out with --exclude '^a b$' --exclude c."
    )


@pytest.mark.filterwarnings("error")
def test_what_only_looks_like_an_argument_of_python_is_no_cause_for_alarm():
    assert _errors.for_command_line(r"like='\d'") == r"--like '\d'"
    for text in (r"like='\N{nope}'", f"rename={'[' * 5000}", f"like={'(' * 5000}"):
        assert _errors.for_command_line(text) == text


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_error_is_one_line_and_for_a_terminal_broken_at_spaces(monkeypatch: pytest.MonkeyPatch):
    error = MetadataError(
        "the table is not one", path="weights.bpk", remedy="See it with `firekeep inspect weights.bpk --all --json`."
    )
    told = {}
    for stream in (io.StringIO(), _Terminal()):
        monkeypatch.setattr(sys, "stderr", stream)
        assert _errors.report(error) == _errors.COULD_NOT
        told[stream.isatty()] = stream.getvalue()
    assert told[False].count("\n") == 1
    assert max(map(len, told[True].splitlines())) <= 80
    assert "`firekeep inspect weights.bpk --all --json`" in told[True]
    assert " ".join(told[True].split()) == told[False].strip()
