"""`firekeep match`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firekeep
import firekeep.module as fm

Run = Callable[..., Any]


class Net(fm.Module):
    """Two linear layers around a norm."""

    fc: fm.Linear
    norm: fm.LayerNorm
    head: fm.Linear


class Square(fm.Module):
    """A layer of which nothing tells which way round it lies, and one that does."""

    fc: fm.Linear
    out: fm.Linear


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """What a model wrote for Burn."""
    net = Net(fc=fm.Linear(4, 3), norm=fm.LayerNorm(3), head=fm.Linear(3, 2, bias=False))
    path = tmp_path / "mine.bpk"
    firekeep.save(net, path)
    return path


def state(prefix: str = "", **others: tuple[int, ...]) -> dict[str, Any]:
    shapes = {
        "fc.weight": (3, 4),
        "fc.bias": (3,),
        "norm.weight": (3,),
        "norm.bias": (3,),
        "head.weight": (2, 3),
        **others,
    }
    return {f"{prefix}{name}": np.zeros(shape, np.float32) for name, shape in shapes.items()}


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The same model as PyTorch has it."""
    return firekeep.save_file(state(), tmp_path / "theirs.safetensors")


@pytest.fixture
def wrapped(tmp_path: Path) -> Path:
    """The same, in a wrapper."""
    return firekeep.save_file(state("module."), tmp_path / "wrapped.safetensors")


@pytest.fixture
def square(tmp_path: Path) -> tuple[Path, Path]:
    """A state dict with a square weight, and the file of the model for Burn."""
    burn = tmp_path / "square.bpk"
    firekeep.save(Square(fc=fm.Linear(4, 4), out=fm.Linear(4, 2)), burn)
    tensors = {"fc.weight": (4, 4), "fc.bias": (4,), "out.weight": (2, 4), "out.bias": (2,)}
    file = firekeep.save_file(
        {name: np.zeros(shape, np.float32) for name, shape in tensors.items()}, tmp_path / "s.safetensors"
    )
    return file, burn


def test_a_file_that_fits_is_told_with_what_would_be_done(fk: Run, theirs: Path, mine: Path):
    done = fk("match", theirs, "--like", mine)
    assert (done.code, done.err) == (0, "")
    assert "5 tensors would be loaded into" in done.text
    assert "from the layout 'torch' to 'burn': 2 transposed" in done.text
    assert fk("match", mine, "--like", theirs).code == 0


def test_a_file_matches_itself(fk: Run, mine: Path):
    assert fk("match", mine, "--like", mine).code == 0


def test_what_is_missing_and_unused_is_listed_one_a_line_with_the_rename_that_mends_it(
    fk: Run, tmp_path: Path, mine: Path
):
    file = firekeep.save_file(state("net."), tmp_path / "net.safetensors")
    done = fk("match", file, "--like", mine)
    assert (done.code, done.err) == (1, "")
    assert "  missing in the file: 5" in done.lines
    assert any(line.startswith("    'head.weight' [3, 2]") for line in done.lines)
    assert "    'net.head.weight' [2, 3]" in done.lines
    assert r"      --rename '^net\.=>'" in done.lines
    assert "rename=[" not in done.out
    assert fk("match", file, "--like", mine, "--rename", r"^net\.=>").code == 0


def test_a_wrong_rename_is_told_with_what_it_made_of_the_names(fk: Run, theirs: Path, mine: Path):
    done = fk("match", theirs, "--like", mine, "--rename", "^fc=>nc")
    assert done.code == 1
    assert "'fc.bias' [3]; renamed: 'nc.bias'" in done.text
    assert "'fc.weight' [3, 4]; renamed: 'nc.weight'" in done.text
    assert "renamed:" not in fk("match", theirs, "--like", mine).text


def test_wrappers_are_looked_through_unless_names_are_to_be_exact(fk: Run, wrapped: Path, mine: Path):
    assert "prefix 'module.' was taken off" in fk("match", wrapped, "--like", mine).text
    done = fk("match", wrapped, "--like", mine, "--exact")
    assert done.code == 1
    assert "would be loaded without --exact" in done.text
    assert "match" not in done.text.replace("no name matched", "")
    assert fk("match", wrapped, "--like", mine, "--exact", "--preset", "module.").code == 0


def test_a_mapping_file_renames(fk: Run, wrapped: Path, mine: Path, tmp_path: Path):
    mapping = tmp_path / "m.toml"
    mapping.write_text("rename = [['^module', 'm']]\n[names]\n\"module.fc.bias\" = \"fc.bias\"\n")
    done = fk("match", wrapped, "--like", mine, "--exact", "--mapping", mapping, "--rename", r"^m\.=>")
    assert (done.code, done.err) == (0, "")


def test_a_layout_that_is_not_the_files_is_told_with_the_one_that_fits(fk: Run, theirs: Path, mine: Path):
    done = fk("match", theirs, "--like", mine, "--layout", "burn")
    assert done.code == 1
    assert "    'fc.weight': its shape is [4, 3] in the model, [3, 4] in the file" in done.lines
    assert "      --layout torch" in done.lines
    assert "layout=" not in done.out


def test_other_shapes_are_told_and_not_refused(fk: Run, square: tuple[Path, Path], theirs: Path):
    done = fk("match", theirs, "--like", square[1])
    assert (done.code, done.err) == (1, "")
    assert "    'fc.weight': its shape is [4, 4] in the model, [3, 4] in the file" in done.lines


def test_a_square_tensor_is_refused_until_something_tells_how_it_lies(fk: Run, square: tuple[Path, Path]):
    file, burn = square
    done = fk("match", file, "--like", burn)
    assert (done.code, done.out) == (2, "")
    assert "'fc.weight': its shape [4, 4] is square" in done.err
    assert "--exclude" in done.err
    assert done.err.count("\n") == 1
    without = fk("match", file, "--like", burn, "--exclude", r"^fc\.weight$")
    assert without.code == 0
    assert "left out by the filter: 1 tensor ('fc.weight')" in without.text


def test_a_pickle_of_a_whole_model_tells_how_a_square_tensor_lies(fk: Run, square: tuple[Path, Path], tmp_path: Path):
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential()
    net.add_module("fc", torch.nn.Linear(4, 4))
    net.add_module("out", torch.nn.Linear(4, 2))
    torch.save(net, tmp_path / "whole.pt")
    burn = square[1]
    done = fk("match", tmp_path / "whole.pt", "--like", burn)
    assert (done.code, done.err) == (0, "")
    assert "2 transposed" in done.text
    assert fk("match", burn, "--like", tmp_path / "whole.pt").code == 0
    wrapped = torch.nn.Sequential()
    wrapped.add_module("inner", net)
    torch.save(wrapped, tmp_path / "wrapped.pt")
    assert fk("match", tmp_path / "wrapped.pt", "--like", burn, "--rename", r"^inner\.=>").code == 0


def test_filters_speak_of_the_model(fk: Run, theirs: Path, mine: Path):
    done = fk("match", theirs, "--like", mine, "--include", "^fc", "--include", "^norm", "--exclude", "gamma")
    assert done.code == 0
    assert "left out by the filter: 2 tensors" in done.text
    assert "3 tensors would be loaded" in done.text


def test_the_part_of_a_checkpoint_is_taken(fk: Run, cases: Path, tmp_path: Path):
    file = cases / "burn" / "burn_checkpoint.pt"
    part = tmp_path / "part.safetensors"
    assert fk("convert", file, part).code == 0
    assert fk("match", file, "--like", part).code == 0
    everything = fk("match", file, "--like", part, "--top-level-key", "", "--exact")
    assert everything.code == 1
    assert "model_state_dict.fc1.bias" in everything.text


def test_json_is_the_whole_report(fk: Run, theirs: Path, mine: Path):
    found = fk("match", theirs, "--like", mine, "--json", "--rename", "^head=>tail")
    assert found.code == 1
    assert found.json["exact"] is False
    assert [one["name"] for one in found.json["missing"]] == ["head.weight"]
    assert [one["renamed"] for one in found.json["unused"] if one["name"] == "head.weight"] == ["tail.weight"]
    assert fk("match", theirs, "--like", mine, "--json").json["exact"] is True


def test_names_are_escaped(fk: Run, mine: Path, tmp_path: Path):
    file = firekeep.save_file(state("\x1b[31m\n"), tmp_path / "in\x1b.safetensors")
    done = fk("match", file, "--like", mine)
    assert done.code == 1
    assert done.out.replace("\n", "").isprintable()


def test_a_name_that_looks_like_an_argument_is_left_as_it_is(fk: Run, mine: Path, tmp_path: Path):
    file = firekeep.save_file({**state(), "layout='burn'": np.ones(2)}, tmp_path / "in.safetensors")
    assert "\"layout='burn'\" [2]" in fk("match", file, "--like", mine).text


def test_other_parameters_that_are_no_layers_weights_are_told_and_not_refused(fk: Run, mine: Path, tmp_path: Path):
    more = state(**{"table": (3, 4), "conv.weight": (2, 3, 4)})
    theirs = firekeep.save_file(more, tmp_path / "more.safetensors")
    burn = {
        name: np.zeros(shape, np.float32)
        for name, shape in (("table", (4, 3)), ("conv.weight", (4, 3, 2)), ("fc.weight", (4, 3)))
    }
    done = fk("match", theirs, "--like", firekeep.save_file(burn, tmp_path / "more.bpk"))
    assert (done.code, done.err) == (1, "")
    assert "    'table': its shape is [4, 3] in the model, [3, 4] in the file" in done.lines
    assert "    'conv.weight': its shape is [4, 3, 2] in the model, [2, 3, 4] in the file" in done.lines
    assert "'fc.weight': its shape" not in done.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Missing option '--like'"),
        (["--like", "nothing.bpk"], "nothing.bpk: No such file or directory"),
        (["--like", "FILE", "--layout", "flax"], "'flax'"),
        (["--like", "FILE", "--include", "["], "not a regular expression"),
        (["--like", "FILE", "--rename", "weight|bias=>x"], "'fc.bias' and 'fc.weight' become 'fc.x'"),
        (["--like", "FILE", "--preset", "nothing"], "'hf-llama-to-burn'"),
    ],
)
def test_what_is_wrong_with_an_option_is_one_line(options: list[str], message: str, fk: Run, theirs: Path):
    done = fk("match", theirs, *(theirs if one == "FILE" else one for one in options))
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "with --exclude" not in done.err
    assert done.err.count("\n") == 1


def test_no_framework_is_imported(theirs: Path, mine: Path):
    code = f"import sys\nfrom firekeep.cli import run\nassert run(['match', {str(theirs)!r}, '--like', {str(mine)!r}]) == 0\n"
    tell = "print(sorted({'torch', 'jax', 'numpy', 'rich', 'safetensors'} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code + tell], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_a_file_may_hold_more_where_that_is_allowed(fk: Run, mine: Path, tmp_path: Path):
    more = tmp_path / "more.safetensors"
    with firekeep.open(mine) as file:
        held = {name: np.array(file[name]) for name in file}
    firekeep.save_file(held, tmp_path / "like.safetensors")
    firekeep.save_file({**held, "more": np.zeros(3)}, more)
    assert fk("match", more, "--like", tmp_path / "like.safetensors").code == 1
    done = fk("match", more, "--like", tmp_path / "like.safetensors", "--allow-unused")
    assert done.code == 0
    assert "'more' [3]" in done.out
    firekeep.save_file({"more": np.zeros(3)}, more)
    assert fk("match", more, "--like", tmp_path / "like.safetensors", "--allow-unused").code == 1
