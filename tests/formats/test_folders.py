"""Folders of weights: which file or set of them is opened, as the libraries of Hugging Face choose, and why none is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import firekeep
import pickles
from firekeep import FirekeepError, MetadataError, WrongFormatError
from reports.files import described, raw_safetensors, state_dict_file


def safetensors(value: float = 1, name: str = "a") -> bytes:
    return raw_safetensors({name: described("F32", [1], 0, 4)}, pickles.floats(value))


def pytorch(value: float = 1, name: str = "a") -> bytes:
    return state_dict_file(**{name: pickles.floats(value)})


def lay(folder: Path, *names: str) -> None:
    """Lay files, each with a number of its own by which it is known, in one tensor; an index names a file that is laid with it."""
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(names, 1):
        suffix = ".safetensors" if ".safetensors" in name else ".bin"
        file = name
        if name.endswith(".json"):
            file = f"piece-{number:05d}-of-00009{suffix}"
            (folder / name).write_text(json.dumps({"weight_map": {"a": file}}))
        (folder / file).write_bytes(safetensors(number) if suffix == ".safetensors" else pytorch(number))


PLAIN, INDEX = "model.safetensors", "model.safetensors.index.json"
BIN, BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
DIFFUSION = "diffusion_pytorch_model.safetensors"


@pytest.mark.parametrize(
    ("names", "chosen", "told"),
    [
        ([BIN], BIN, ()),
        (["diffusion_pytorch_model.bin"], "diffusion_pytorch_model.bin", ()),
        (["adapter_model.bin", "training_args.bin", "optimizer.bin"], "adapter_model.bin", ()),
        ([BIN, "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"], BIN, ()),
        ([PLAIN], PLAIN, ()),
        (["weights.safetensors"], "weights.safetensors", ()),
        ([DIFFUSION], DIFFUSION, ()),
        ([PLAIN, BIN], PLAIN, (BIN,)),
        ([DIFFUSION, "diffusion_pytorch_model.fp16.safetensors"], DIFFUSION, ("diffusion_pytorch_model.fp16.safetensors",)),
        ([PLAIN, "model.fp16.safetensors", "model.mine.safetensors"], PLAIN, ("model.fp16.safetensors", "model.mine.safetensors")),
        ([PLAIN, "model.safetensors.index.fp16.json"], PLAIN, ("model.safetensors.index.fp16.json",)),
        ([BIN, "pytorch_model.fp16.bin"], BIN, ("pytorch_model.fp16.bin",)),
        ([BIN, "model.fp16.safetensors"], BIN, ("model.fp16.safetensors",)),
        ([BIN, "pytorch_model.bin.index.fp16.json"], BIN, ("pytorch_model.bin.index.fp16.json",)),
        ([INDEX], INDEX, ()),
        ([INDEX, "consolidated.safetensors"], INDEX, ("consolidated.safetensors",)),
        ([INDEX, BIN_INDEX, BIN], INDEX, (BIN_INDEX, BIN)),
        ([INDEX, "model.safetensors.index.fp16.json", "model.fp16.safetensors"], INDEX, ("model.fp16.safetensors", "model.safetensors.index.fp16.json")),
        ([BIN_INDEX, "pytorch_model.bin.index.fp16.json"], BIN_INDEX, ("pytorch_model.bin.index.fp16.json",)),
        ([INDEX, PLAIN], PLAIN, (INDEX,)),
        ([BIN_INDEX, BIN], BIN, (BIN_INDEX,)),
        (["model.fp16.safetensors"], "model.fp16.safetensors", ()),
        (["model.safetensors.index.fp16.json"], "model.safetensors.index.fp16.json", ()),
        (["diffusion_pytorch_model.fp16.safetensors.index.json"], "diffusion_pytorch_model.fp16.safetensors.index.json", ()),
        (["pytorch_model.bin.index.fp16.json"], "pytorch_model.bin.index.fp16.json", ()),
        (["model.fp16.safetensors", "pytorch_model.fp16.bin"], "model.fp16.safetensors", ()),
        (["model.safetensors", "model-00001-of-00003.safetensors"], PLAIN, ("model-00001-of-00003.safetensors",)),
        (["model-00001-of-00001.safetensors"], "model-00001-of-00001.safetensors", ()),
    ],
)  # fmt: skip
def test_the_weights_that_are_meant_are_opened(tmp_path: Path, names: list[str], chosen: str, told: tuple[str, ...]):
    folder = tmp_path / "model"
    lay(folder, *names)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    with firekeep.open(folder) as file:
        assert file.path == str(folder / chosen)
        assert file["a"].tolist() == [1 + names.index(chosen)]
        notes = " ".join(file.notes)
        assert "passed over" in notes or "opened by their paths" in notes or not told
        assert set(told) <= set(re.findall(r"[\w.-]+\.(?:json|bin|safetensors)", notes))
        assert file.format == ("pytorch" if ".bin" in chosen else "safetensors")
    assert firekeep.load_file(folder)["a"].tolist() == [1 + names.index(chosen)]


@pytest.mark.parametrize("name", ["model.safetensors.index.fp16.json", "pytorch_model.bin.index.fp16.json"])
def test_the_index_of_a_variant_opens_by_its_path(tmp_path: Path, name: str):
    plain = name.replace(".fp16", "")
    lay(tmp_path / "model", plain, name)
    for path, value in ((tmp_path / "model" / name, 2), (tmp_path / "model" / plain, 1), (tmp_path / "model", 1)):
        assert firekeep.load_file(path)["a"].tolist() == [value]
    (tmp_path / "model" / name).write_text("{}")
    with pytest.raises(MetadataError, match="the index has no weight_map"):
        firekeep.open(tmp_path / "model" / name)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a.safetensors", "b.safetensors"], r"2 safetensors files and no index: a\.safetensors, b\.safetensors\. Open one"),
        ([PLAIN, "adapter_model.safetensors"], r"2 safetensors files and no index: adapter_model.*, model\.safetensors\. Open"),
        (["adapter_model.bin", BIN], r"2 PyTorch files and no index: adapter_model\.bin, pytorch_model\.bin\. Open one"),
        (["model.bf16.safetensors", "model.fp16.safetensors"], r"2 variants of weights and no plain ones: model\.bf16"),
        (["model.fp16.safetensors", "model.safetensors.index.ema.json"], "2 variants of weights and no plain ones"),
        ([INDEX, "other.safetensors.index.json"], f"2 indexes: {INDEX}, other.*Open one of them by its path"),
        (["training_args.bin", "optimizer.pt"], r"no safetensors file, but optimizer\.pt, training_args\.bin\. Open one"),
        (["model-00002-of-00003.safetensors"], r"one of the 3 files of a set, model-00002-of-00003.safetensors, and no index.*\(model\.safetensors\.index\.json\)"),
        (["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"], r"2 PyTorch files and no index: .*\(pytorch_model\.bin\.index\.json\)"),
        (["model.safetensors-00001-of-00002.safetensors", "x.pt"], r"one of the 2 files of a set.*\(model\.safetensors\.index\.json\)"),
    ],
)  # fmt: skip
def test_what_may_be_several_or_is_a_part_is_refused_and_named(tmp_path: Path, names: list[str], words: str):
    lay(tmp_path / "model", *names)
    with pytest.raises(WrongFormatError, match=words) as caught:
        firekeep.open(tmp_path / "model")
    assert (caught.value.kind, caught.value.path) == ("directory", str(tmp_path / "model"))
    assert caught.value.remedy
    for name in names:  # the remedy works
        firekeep.open(tmp_path / "model" / name).close()


def test_what_is_called_as_weights_of_pytorch_and_is_none_is_named(tmp_path: Path):
    (tmp_path / BIN).write_bytes(safetensors())
    with pytest.raises(
        WrongFormatError, match=r"this is a safetensors file, and its name.*Open it by its own path"
    ) as caught:
        firekeep.open(tmp_path)
    assert caught.value.path == str(tmp_path / BIN)
    firekeep.open(tmp_path / BIN).close()
    (tmp_path / BIN).write_bytes(b"")
    with pytest.raises(WrongFormatError, match="an empty file"):
        firekeep.open(tmp_path)


def test_a_checkpoint_in_place_of_weights_is_opened_by_its_path_alone(tmp_path: Path):
    torch = pytest.importorskip("torch")
    torch.save({"model": {"a": torch.ones(2)}, "epoch": 3}, tmp_path / BIN)
    with pytest.raises(WrongFormatError, match=r"parts of a checkpoint in this file: model\. Open it by its own path"):
        firekeep.open(tmp_path)
    assert firekeep.load_file(tmp_path / BIN).keys() == {"model.a"}


def test_no_name_of_a_folder_leads_out_of_it(tmp_path: Path):
    (tmp_path / "outside.safetensors").write_bytes(safetensors())
    folder = tmp_path / "model"
    folder.mkdir()
    for index in (INDEX, "model.safetensors.index.fp16.json"):
        for name in ("../outside.safetensors", str(tmp_path / "outside.safetensors"), "..\\outside.safetensors"):
            (folder / index).write_text(json.dumps({"weight_map": {"a": name}}))
            for place in (folder, folder / index, folder / PLAIN):
                if place.suffix == ".safetensors" and index != INDEX:
                    continue
                with pytest.raises(MetadataError, match="is a path") as caught:
                    firekeep.open(place)
                assert caught.value.remedy
        (folder / index).unlink()


def test_missing_files_are_told_and_not_the_variants_that_hold_the_same_again(tmp_path: Path):
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    (tmp_path / first).write_bytes(safetensors(1, "a"))
    (tmp_path / "model.fp16-00001-of-00002.safetensors").write_bytes(safetensors(2, "a"))
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": first, "b": second}}))
    with pytest.raises(
        MetadataError, match=rf"1 of the 2 files that the index names are missing \({second}\).*1 of its 2 tensors"
    ) as caught:
        firekeep.open(tmp_path)
    assert "What the others hold opens by their own paths" in (caught.value.remedy or "")
    assert firekeep.load_file(tmp_path / first).keys() == {"a"}


def test_a_path_at_which_nothing_is_stands_for_the_set_of_its_name(tmp_path: Path):
    lay(tmp_path / "model", INDEX, BIN_INDEX)
    assert firekeep.load_file(tmp_path / "model" / PLAIN)["a"].tolist() == [1]
    assert firekeep.load_file(tmp_path / "model" / BIN)["a"].tolist() == [2]
    with pytest.raises(FileNotFoundError):
        firekeep.open(tmp_path / "model" / "other.safetensors")
    with pytest.raises((FileNotFoundError, FirekeepError)):
        firekeep.open(tmp_path / "model" / "model")


@pytest.mark.parametrize("key", [None, "ema"])
def test_a_checkpoint_in_a_folder_is_opened_by_its_own_path(tmp_path, key):
    torch = pytest.importorskip("torch")
    torch.save({"model": {"a": torch.ones(2)}, "ema": {"a": torch.zeros(2)}, "epoch": 3}, tmp_path / BIN)
    with pytest.raises(FirekeepError, match="by its own path"):
        firekeep.open(tmp_path, top_level_key=key)
    assert firekeep.load_file(tmp_path / BIN, top_level_key="ema")["a"].tolist() == [0, 0]
