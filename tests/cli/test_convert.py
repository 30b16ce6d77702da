"""`firekeep convert`."""

from __future__ import annotations

import pickle
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firekeep
import firekeep.module as fm

Run = Callable[..., Any]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of two layers, one of them under two names."""
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensors = {"model.fc.weight": weight, "model.fc.bias": np.ones(2, np.float32), "model.tied": weight}
    return firekeep.save_file(tensors, tmp_path / "in.safetensors", metadata={"who": "me"})


def names(file: Path) -> list[str]:
    with firekeep.open(file) as opened:
        return sorted({*opened.keys(), *opened.ties})


def test_a_file_becomes_another_of_equal_tensors(fk: Run, source: Path, tmp_path: Path):
    out = tmp_path / "out.bpk"
    done = fk("convert", source, out)
    assert (done.code, done.err) == (0, "")
    assert "3 tensors" in done.text
    assert firekeep.diff(source, out).equal


def test_all_options_arrive(fk: Run, source: Path, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    done = fk(
        *("convert", source, out, "--include", "fc", "--exclude", "bias$", "--rename", r"^model\.=>", "--digest"),
        *("--rename", "(fc)=>head.$1", "--dtype", "bf16", "--metadata", "run=a=b", "--no-fsync", "--ties", "expand"),
    )
    assert done.code == 0, done.err
    with firekeep.open(out) as opened:
        assert opened.keys() == ["head.fc.weight"]
        assert str(opened.entry("head.fc.weight").dtype) == "BF16"
        assert opened.metadata["run"] == "a=b"
        assert opened.metadata["who"] == "me"
        assert "firekeep.digests" in opened.metadata
    assert "in 1" in done.text


def test_ties_are_kept_or_expanded(fk: Run, source: Path, tmp_path: Path):
    kept, expanded = tmp_path / "kept.safetensors", tmp_path / "expanded.safetensors"
    assert fk("convert", source, kept).code == fk("convert", source, expanded, "--ties", "expand").code == 0
    assert names(kept) == names(expanded)
    assert expanded.stat().st_size > kept.stat().st_size - 100
    with firekeep.open(expanded) as opened:
        assert opened.ties == {}


def test_an_existing_file_is_refused_and_left_alone(fk: Run, source: Path, tmp_path: Path):
    out = tmp_path / "out.bpk"
    out.write_bytes(b"precious")
    done = fk("convert", source, out)
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("Use --overwrite to replace it.\n")
    assert out.read_bytes() == b"precious"
    assert fk("convert", source, out, "--overwrite").code == 0
    assert firekeep.diff(source, out).equal


def test_a_dry_run_tells_and_writes_nothing(fk: Run, source: Path, tmp_path: Path):
    done = fk("convert", source, tmp_path / "out.bpk", "--dry-run")
    assert done.code == 0
    assert "would become" in done.text
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


def test_a_part_of_a_checkpoint_is_chosen_by_its_key(fk: Run, cases: Path, tmp_path: Path):
    file = cases / "burn" / "burn_checkpoint.pt"
    part, everything = tmp_path / "part.bpk", tmp_path / "all.bpk"
    assert fk("convert", file, part, "--top-level-key", "model_state_dict").code == 0
    assert names(part) == ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]
    assert fk("convert", file, everything, "--top-level-key", "").code == 0
    assert "optimizer_state_dict.state.0.momentum_buffer" in names(everything)


def test_what_was_left_out_is_told_with_the_option_that_takes_it(fk: Run, cases: Path, tmp_path: Path):
    out = fk("convert", cases / "burn" / "burn_checkpoint.pt", tmp_path / "part.bpk").text
    assert "--top-level-key ''" in out
    assert "top_level_key" not in out


def test_shards_are_written_with_their_index(fk: Run, cases: Path, tmp_path: Path):
    file = cases / "burn" / "burn_mnist.safetensors"
    done = fk("convert", file, tmp_path / "m.safetensors", "--max-shard-size", "1MB")
    assert done.code == 0, done.err
    assert (tmp_path / "m.safetensors.index.json").exists()
    assert firekeep.diff(file, tmp_path / "m.safetensors.index.json").equal


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-shard-size", "5XB"], "5XB"),
        (["--metadata", "nothing"], "'nothing' is not of the form KEY=VALUE"),
        (["--metadata", "=x"], "'=x' is not of the form KEY=VALUE"),
        (["--rename", "a"], "PATTERN=>REPLACEMENT"),
        (["--rename", "(=>a"], "not a regular expression"),
        (["--include", "["], "not a regular expression"),
        (["--dtype", "int8"], "'int8'"),
        (["--ties", "some"], "'some'"),
        (["--rename", "weight|bias=>x"], "--exclude"),
    ],
)
def test_what_is_wrong_with_an_option_is_one_line(
    options: list[str], message: str, fk: Run, source: Path, tmp_path: Path
):
    done = fk("convert", source, tmp_path / "out.safetensors", *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


def test_a_suffix_that_names_no_format_is_refused(fk: Run, source: Path, tmp_path: Path):
    done = fk("convert", source, tmp_path / "out.pt")
    assert done.code == 2
    assert ".safetensors" in done.err


def test_a_folder_that_is_not_there_is_one_line(fk: Run, source: Path, tmp_path: Path):
    done = fk("convert", source, tmp_path / "nowhere" / "out.bpk")
    assert done.code == 2
    assert done.err.startswith(f"firekeep: {tmp_path / 'nowhere'}")


def test_json_is_the_whole_report(fk: Run, source: Path, tmp_path: Path):
    report = fk("convert", source, tmp_path / "out.bpk", "--json", "--rename", "fc=>f").json
    assert report["tensors"] == 3
    assert report["renames"] == [{"rule": "fc=>f", "hits": 2}]


def test_bytes_behind_the_tensors_can_be_allowed(fk: Run, source: Path, tmp_path: Path):
    source.write_bytes(source.read_bytes() + b"more")
    out = tmp_path / "out.bpk"
    assert fk("convert", source, out).code == 2
    assert fk("convert", source, out, "--allow-trailing").code == 0


def test_a_file_without_tensors_is_refused_with_the_command_that_shows_it(fk: Run, tmp_path: Path):
    file = tmp_path / "run.ckpt"
    file.write_bytes(pickle.dumps({"epoch": 3}, protocol=2))
    done = fk("convert", file, tmp_path / "out.bpk")
    assert (done.code, done.out) == (2, "")
    assert f"`firekeep inspect --values {file}`" in done.err
    assert "epoch: 3" in fk("inspect", "--values", file).out


def test_the_exclusion_in_a_remedy_is_one_that_works(fk: Run, tmp_path: Path):
    source = firekeep.save_file({"a b": np.ones(3, np.float32), "c": np.ones(2)}, tmp_path / "in.bpk", digest=True)
    data = source.read_bytes()
    place = data.index(np.ones(3, np.float32).tobytes())
    source.write_bytes(data[:place] + b"\1" + data[place + 1 :])
    done = fk("convert", source, tmp_path / "out.bpk")
    assert done.code == 2
    assert "tensor 'a b'" in done.err
    option = shlex.split(done.err[done.err.index("--exclude") :].rstrip(".\n"))
    assert fk("convert", source, tmp_path / "out.bpk", *option).code == 0
    assert names(tmp_path / "out.bpk") == ["c"]


class Net(fm.Module):
    """A layer that lies another way round in Burn."""

    fc: fm.Linear
    norm: fm.LayerNorm


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A state dict of that model, which tells nothing of its layers."""
    shapes = {"fc.weight": (2, 3), "fc.bias": (2,), "norm.weight": (2,), "norm.bias": (2,)}
    tensors = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in shapes.items()}
    return firekeep.save_file(tensors, tmp_path / "bare.safetensors")


def test_layers_are_turned_as_a_file_in_that_layout_shows(fk: Run, bare: Path, tmp_path: Path):
    like, out, back = tmp_path / "like.bpk", tmp_path / "out.bpk", tmp_path / "back.safetensors"
    firekeep.save(Net(fc=fm.Linear(3, 2), norm=fm.LayerNorm(2)), like)
    done = fk("convert", bare, out, "--layout", "burn", "--like", like)
    assert (done.code, done.err) == (0, "")
    assert "burn layout" in done.text
    assert names(out) == ["fc.bias", "fc.weight", "norm.beta", "norm.gamma"]
    turned = firekeep.load_file(out)["fc.weight"]
    assert np.array_equal(turned, firekeep.load_file(bare)["fc.weight"].T)
    assert fk("convert", out, back, "--layout", "torch", "--like", bare).code == 0
    assert firekeep.diff(bare, back).equal


def test_a_file_that_lacks_layers_does_not_tell_how_they_lie(fk: Run, tmp_path: Path):
    burn, out = tmp_path / "in.bpk", tmp_path / "out.safetensors"
    firekeep.save(Net(fc=fm.Linear(3, 2), norm=fm.LayerNorm(2)), burn)
    like = firekeep.save_file({"fc.bias": np.zeros(2, np.float32)}, tmp_path / "like.safetensors")
    done = fk("convert", burn, out, "--layout", "torch", "--like", like)
    assert done.code == 2
    assert all(f"'{name}'" in done.err for name in ("fc.weight", "norm.gamma", "norm.beta"))
    assert "Give --like a file that has them, or leave them out with --exclude.\n" in done.err
    excluded = ("--exclude", "weight|norm")
    assert fk("convert", burn, out, "--layout", "torch", "--like", like, *excluded).code == 0
    assert names(out) == ["fc.bias"]


def test_a_file_to_be_like_has_the_names_that_the_renames_give(fk: Run, bare: Path, tmp_path: Path):
    like, out = tmp_path / "like.bpk", tmp_path / "out.bpk"
    firekeep.save(Net(fc=fm.Linear(3, 2), norm=fm.LayerNorm(2)), like)
    inner = {f"module.{name}": array for name, array in firekeep.load_file(bare).items()}
    wrapped = firekeep.save_file(inner, tmp_path / "wrapped.safetensors")
    done = fk("convert", wrapped, out, "--layout", "burn", "--like", like, "--preset", "module.")
    assert (done.code, done.err) == (0, "")
    assert names(out) == ["fc.bias", "fc.weight", "norm.beta", "norm.gamma"]
    assert np.array_equal(firekeep.load_file(out)["fc.weight"], inner["module.fc.weight"].T)


@pytest.mark.parametrize("excluded", [(), ("--exclude", "fc.weight")])
def test_tensors_that_the_file_to_be_like_lacks_are_not_passed_as_they_are(
    fk: Run, bare: Path, tmp_path: Path, excluded: tuple[str, ...]
):
    like, out = tmp_path / "like.bpk", tmp_path / "out.bpk"
    firekeep.save(Net(fc=fm.Linear(3, 2), norm=fm.LayerNorm(2)), like)
    other = firekeep.save_file(
        {f"module.{name}": array for name, array in firekeep.load_file(bare).items()}, tmp_path / "in.safetensors"
    )
    done = fk("convert", other, out, "--layout", "burn", "--like", like, *excluded)
    assert done.code == 2
    assert ("'module.fc.weight'" in done.err) == (not excluded)
    assert "'module.norm.weight'" in done.err
    assert "leave them out with --exclude.\n" in done.err
    assert not out.exists()


def test_a_layout_that_nothing_tells_is_refused_with_the_options_that_tell_it(fk: Run, bare: Path, tmp_path: Path):
    done = fk("convert", bare, tmp_path / "out.bpk", "--layout", "burn")
    assert (done.code, done.out) == (2, "")
    assert "Give --like a file of that layout" in done.err
    assert "leaving out --layout." in done.err
    assert not (tmp_path / "out.bpk").exists()


def test_a_square_weight_is_refused_with_an_exclusion_that_works(fk: Run, tmp_path: Path):
    like = tmp_path / "like.bpk"
    firekeep.save(Net(fc=fm.Linear(2, 2), norm=fm.LayerNorm(2)), like)
    tensors = {name: np.ones(2, np.float32) for name in ("fc.bias", "norm.weight", "norm.bias")}
    bare = firekeep.save_file({"fc.weight": np.eye(2, dtype=np.float32), **tensors}, tmp_path / "bare.safetensors")
    done = fk("convert", bare, tmp_path / "out.bpk", "--layout", "burn", "--like", like)
    assert done.code == 2
    assert "'fc.weight': its shape [2, 2] is square" in done.err
    assert "with --exclude.\n" in done.err
    excluded = ("--exclude", r"^fc\.weight$")
    assert fk("convert", bare, tmp_path / "out.bpk", "--layout", "burn", "--like", like, *excluded).code == 0


def test_presets_and_mappings_rename_before_rules(fk: Run, source: Path, tmp_path: Path):
    mapping = tmp_path / "m.toml"
    mapping.write_text("rename = [['^fc', 'head']]\n")
    out = tmp_path / "out.bpk"
    done = fk("convert", source, out, "--rename", "^head=>last", "--mapping", mapping, "--preset", "model.")
    assert (done.code, done.err) == (0, "")
    assert names(out) == ["last.bias", "last.weight", "tied"]
    assert r"found: '^model\.=>' in 3, '^fc=>head' in 2, '^head=>last' in 2" in done.text


def test_blocks_of_gguf_are_computed_on_request(fk: Run, tmp_path: Path):
    pytest.importorskip("gguf")
    from formats.gguf.made import Tensor, gguf

    source, out = tmp_path / "in.gguf", tmp_path / "out.safetensors"
    source.write_bytes(gguf([Tensor("q", (32,), 8, bytes(34))]))
    refused = fk("convert", source, out)
    assert refused.code == 2
    assert "--dequantize" in refused.err
    assert fk("convert", source, out, "--dequantize", "--dtype", "f16").code == 0
    assert firekeep.load_file(out)["q"].tolist() == [0.0] * 32
