"""`firekeep scan`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]


class Evil:
    """Pickles to a call of os.system."""

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, ("true",)


def unknown(path: Path) -> Path:
    """Write a pickle that names something nobody knows."""
    path.write_bytes(b"\x80\x02cmyproject.models\nNet\n)R.")
    return path


def test_a_harmless_file_is_safe(fk: Run, cases: Path):
    done = fk("scan", cases / "burn" / "burn_mnist.pt")
    assert done.code == 0
    assert done.out.endswith(": safe, 4 names, all harmless (1 pickle)\n")


def test_harmless_names_are_shown_on_request(fk: Run, cases: Path):
    done = fk("scan", "--all", cases / "burn" / "burn_mnist.pt")
    assert "torch._utils._rebuild_tensor_v2" in done.out


def test_a_file_that_would_run_code_is_told_with_what_it_calls(fk: Run, tmp_path: Path):
    file = tmp_path / "model.bin"
    file.write_bytes(pickle.dumps(Evil()))
    done = fk("scan", file)
    assert done.code == 1
    assert "DANGEROUS, 1 name that can run code (1 pickle)" in done.out
    assert "posix.system" in done.out
    assert "called 1 x" in done.out


def test_a_damaged_pickle_is_not_passed(fk: Run, tmp_path: Path):
    file = tmp_path / "model.pkl"
    file.write_bytes(pickle.dumps({"a": [1, 2, 3]})[:-3])
    done = fk("scan", file)
    assert done.code == 1
    assert "damaged: " in done.out


def test_unknown_names_pass_unless_strict(fk: Run, tmp_path: Path):
    file = unknown(tmp_path / "model.pkl")
    done = fk("scan", file)
    assert done.code == 0
    assert "not known to be safe, 1 unknown name" in done.out
    assert fk("scan", "--strict", file).code == 1


def test_a_file_without_pickles_is_safe(fk: Run, cases: Path):
    done = fk("scan", cases / "burn" / "burn_mnist.safetensors")
    assert done.code == 0
    assert "nothing to scan, no pickle in it" in done.out


def test_many_files_give_the_worst_code_and_go_on_after_errors(fk: Run, cases: Path, tmp_path: Path):
    safe, odd = cases / "burn" / "burn_mnist.pt", unknown(tmp_path / "odd.pkl")
    done = fk("scan", safe, tmp_path / "missing.pt", odd)
    assert done.code == 2
    assert "burn_mnist.pt: safe" in done.out
    assert "odd.pkl: not known" in done.out
    assert done.err == f"firekeep: {tmp_path / 'missing.pt'}: No such file or directory\n"


def test_json_is_one_list_with_an_answer_for_every_file(fk: Run, cases: Path, tmp_path: Path):
    done = fk("scan", "--json", cases / "burn" / "burn_mnist.pt", tmp_path / "missing.pt")
    first, second = done.json
    assert first["safe"] is True
    assert {found["verdict"] for found in first["globals"]} == {"safe"}
    assert second == {
        "path": str(tmp_path / "missing.pt"),
        "error": f"{tmp_path / 'missing.pt'}: No such file or directory",
    }


def test_names_in_a_pickle_reach_the_terminal_escaped(fk: Run, tmp_path: Path):
    file = tmp_path / "model.pkl"
    name = b"\x1b[2Jos"
    file.write_bytes(b"\x80\x04\x8c" + bytes([len(name)]) + name + b"\x8c\x06system\x93)R.")
    done = fk("scan", file)
    assert done.out.replace("\n", "").isprintable()
    assert r"\x1b[2Jos.system" in done.out


def test_what_was_not_looked_at_is_not_called_unknown_names(fk: Run, tmp_path: Path):
    file = tmp_path / "model.7z"
    file.write_bytes(b"7z\xbc\xaf\x27\x1c" + bytes(40))
    done = fk("scan", file)
    assert done.code == 1
    assert "not known to be safe, not all of it could be looked at" in done.out
    assert "closed: the file is packed with 7z" in done.out
    assert "0 unknown" not in done.out


def test_the_help_says_what_the_exit_code_means(fk: Run):
    text = fk("scan", "--help").text
    assert "Exit code 0 when no name is known to run code" in text
    assert "with --strict, 0 only when every name is known to be harmless" in text
