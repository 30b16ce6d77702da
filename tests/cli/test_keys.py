"""`firekeep keys`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firekeep
from firekeep.rules import PRESETS

Run = Callable[..., Any]


def save(path: Path, *names: str) -> Path:
    return firekeep.save_file({name: np.zeros(2, np.float32) for name in names}, path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file with a wrapper's prefix and a numbered list."""
    return save(tmp_path / "in.safetensors", "module.l.10.w", "module.l.2.w", "module.l.2.b")


def test_names_are_listed_in_natural_order(fk: Run, source: Path):
    done = fk("keys", source)
    assert (done.code, done.err) == (0, "")
    assert done.lines[-3:] == ["  module.l.2.b", "  module.l.2.w", "  module.l.10.w"]
    assert "3 names" in done.text
    assert "changed" not in done.text


def test_renames_are_shown_with_the_hits_of_every_rule(fk: Run, source: Path):
    done = fk("keys", source, "--preset", "module.", "--rename", r"\.w$=>.weight", "--rename", "x=>y")
    assert done.code == 0
    assert "3 changed" in done.text
    assert r"  '^module\.=>': found in 3 names" in done.lines
    assert r"  '\.w$=>.weight': found in 2 names" in done.lines
    assert "  'x=>y': NOT FOUND in any name" in done.lines
    assert "  module.l.2.b   ->  l.2.b" in done.lines
    assert "  module.l.10.w  ->  l.10.weight" in done.lines


def test_a_name_that_stays_has_no_arrow(fk: Run, source: Path):
    lines = fk("keys", source, "--rename", "b$=>bias").lines
    assert "  module.l.2.w" in lines
    assert "  module.l.2.b  ->  module.l.2.bias" in lines


def test_presets_come_before_the_mapping_and_the_mapping_before_rules(fk: Run, source: Path, tmp_path: Path):
    mapping = tmp_path / "m.json"
    mapping.write_text(r'{"rename": [["^l\\.", "m."]], "names": {"module.l.2.b": "bias", "gone": "x"}}')
    done = fk("keys", source, "--rename", r"^m\.=>r.", "--mapping", mapping, "--preset", "module.", "--json")
    assert done.json["names"] == {"module.l.2.b": "bias", "module.l.2.w": "r.2.w", "module.l.10.w": "r.10.w"}
    assert [one["hits"] for one in done.json["rules"]] == [2, 2, 2]
    assert done.json["unmet"] == ["gone"]
    assert "    gone" in fk("keys", source, "--mapping", mapping).lines


def test_json_has_all_that_is_told(fk: Run, source: Path):
    found = fk("keys", source, "--json", "--rename", "b$=>").json
    assert found["path"] == str(source)
    assert found["part"] is None
    assert found["changed"] == 1
    assert found["rules"] == [{"rule": "b$=>", "hits": 1}]
    assert found["holed"] == ["module.l.2.b"]


def test_names_with_nothing_between_dots_are_told(fk: Run, source: Path):
    done = fk("keys", source, "--rename", r"^module=>")
    assert "between or behind dots: 3" in done.text
    assert "    .l.2.b" in done.lines


def test_two_names_that_become_one_are_refused_naming_both(fk: Run, source: Path):
    done = fk("keys", source, "--rename", r"\.\w$=>.x")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"firekeep: {source}: ")
    assert "'module.l.2.b' and 'module.l.2.w' become 'module.l.2.x'" in done.err
    assert "Make the patterns narrower.\n" in done.err
    assert "exclude" not in done.err


def test_the_part_of_a_checkpoint_is_named(fk: Run, cases: Path):
    file = cases / "burn" / "burn_checkpoint.pt"
    done = fk("keys", file)
    assert "what lies under 'model_state_dict'" in done.text
    assert "  fc1.bias" in done.lines
    assert fk("keys", file, "--json").json["part"] == "model_state_dict"
    everything = fk("keys", file, "--top-level-key", "")
    assert "what lies under" not in everything.text
    assert "  model_state_dict.fc1.bias" in everything.lines
    assert "what lies under 'model_state_dict'" in fk("keys", file, "--top-level-key", "model_state_dict").text


def test_lines_fit_a_terminal_where_the_names_do(fk: Run, tmp_path: Path):
    file = save(tmp_path / "in.bpk", "a." * 15 + "weight", "b")
    done = fk("keys", file, "--rename", "^=>encoder.of.some.layer.")
    assert max(map(len, done.lines[1:])) <= 80
    assert "  b  ->  encoder.of.some.layer.b" in done.lines
    assert f"    ->  encoder.of.some.layer.{'a.' * 15}weight" in done.lines


def test_names_are_escaped(fk: Run, tmp_path: Path):
    done = fk("keys", save(tmp_path / "in.safetensors", "a\x1b[31m\n  b"), "--rename", "b=>c\x1b")
    assert done.out.replace("\n", "").isprintable()
    assert r"  a\x1b[31m\n  b  ->  a\x1b[31m\n  c\x1b" in done.lines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "nothing"], "'hf-llama-to-burn'"),
        (["--mapping", "nothing.toml"], "nothing.toml: No such file or directory"),
        (["--rename", "a"], "PATTERN=>REPLACEMENT"),
    ],
)
def test_what_is_wrong_with_an_option_is_one_line(options: list[str], message: str, fk: Run, source: Path):
    done = fk("keys", source, *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_mapping_that_renames_alone_cannot_follow_is_refused(fk: Run, source: Path, tmp_path: Path):
    mapping = tmp_path / "m.toml"
    mapping.write_text("[[surgery]]\nsplit = 'a'\ninto = ['b', 'c']\n")
    done = fk("keys", source, "--mapping", mapping)
    assert done.code == 2
    assert f"{mapping}: " in done.err
    assert "From Python, read it with" in done.err


def test_a_pipe_is_read_once(fk: Run, cases: Path):
    file = cases / "burn" / "burn_checkpoint.pt"
    done = subprocess.run(
        ["bash", "-c", f"cat '{file}' | {sys.executable} -m firekeep keys /dev/stdin"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "  fc1.bias" in done.stdout.splitlines()


def test_the_help_names_every_preset(fk: Run):
    done = fk("keys", "-h")
    assert (done.code, done.err) == (0, "")
    text = re.sub(r"\n *", " ", done.out).replace("hf- ", "hf-")  # broken at a hyphen
    assert [name for name in PRESETS if f"'{name}'" not in text] == []


def test_neither_arrays_nor_frameworks_are_imported(source: Path):
    code = (
        f"import sys\nfrom firekeep.cli import run\nassert run(['keys', {str(source)!r}, '--preset', 'module.']) == 0\n"
    )
    tell = "print(sorted({'torch', 'jax', 'numpy', 'rich', 'safetensors'} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code + tell], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
