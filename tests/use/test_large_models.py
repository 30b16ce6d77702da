"""What users of models in many files do with them, at a small size."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import firekeep
from descriptors import open_below
from firekeep import FirekeepError, LoadError, MetadataError, TruncatedError

INDEX = "model.safetensors.index.json"
LAYERS = 6


class Decoder(torch.nn.Module):
    """Names as those of decoders on the Hugging Face Hub."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(16, 8)
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict({"q_proj": torch.nn.Linear(8, 8, bias=False), "norm": torch.nn.LayerNorm(8)})
            for _ in range(LAYERS)
        )
        self.lm_head = torch.nn.Linear(8, 16, bias=False)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.parameters():
                if weight.device.type != "meta":
                    weight.copy_(torch.randn(weight.shape, generator=generator))


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set as the Hub has it, under a prefix that the model has not."""
    firekeep.save(Decoder(), tmp_path / "hub", max_shard_size=400, rename=r"^(?!lm_head)=>model.")
    return tmp_path / "hub"


def shard_of(folder: Path, name: str) -> str:
    held: str = json.loads((folder / INDEX).read_text())["weight_map"][name]
    return held


def test_a_set_becomes_one_file_of_burn_and_a_set_again(folder: Path, tmp_path: Path):
    one = tmp_path / "model.bpk"
    with pytest.raises(FirekeepError, match="like="):
        firekeep.convert(folder, one, layout="burn")
    report = firekeep.convert(folder, one, layout="burn", like=Decoder(), rename=r"^model\.=>")
    assert (report.layout, report.tensors) == ("burn", 2 + 3 * LAYERS)
    model = Decoder(seed=1)
    firekeep.load_into(model, one)
    assert same(model, Decoder())
    back = tmp_path / "back"
    firekeep.convert(one, back, layout="torch", like=Decoder(), rename=r"^(?!lm_head)=>model.", max_shard_size=400)
    assert firekeep.diff(folder, back).equal
    assert {path.name for path in back.iterdir()} == {path.name for path in folder.iterdir()}


def test_a_model_on_the_meta_device_is_filled_from_a_set(folder: Path):
    with torch.device("meta"):
        hollow = Decoder()
    report = firekeep.load_into(hollow, folder, rename=r"^model\.=>")
    assert report.ok
    assert same(hollow, Decoder())
    assert open_below(folder) == []


def test_of_a_set_only_the_files_with_chosen_tensors_are_read(folder: Path, monkeypatch):
    """All files are opened, since their tables are compared with the index; the bytes of tensors are read where some are wanted."""
    chosen = [
        f"model.layers.{number}.{name}" for number in (1, 4) for name in ("q_proj.weight", "norm.weight", "norm.bias")
    ]
    wanted = {shard_of(folder, name) for name in chosen}
    assert 0 < len(wanted) < len(list(folder.glob("*.safetensors")))
    read: set[str] = set()
    real = os.preadv

    def preadv(descriptor, *rest):
        read.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        return real(descriptor, *rest)

    monkeypatch.setattr(os, "preadv", preadv)
    model = Decoder(seed=1)
    report = firekeep.load_into(model, folder, rename=r"^model\.=>", include=r"^layers\.[14]\.")
    assert report.ok
    assert read == wanted
    held, saved = model.state_dict(), Decoder().state_dict()
    assert all(torch.equal(held[name], saved[name]) for name in held if name.startswith(("layers.1.", "layers.4.")))
    assert torch.equal(model.lm_head.weight, Decoder(seed=1).lm_head.weight)
    for path in folder.glob("*.safetensors"):  # nor are the bytes of others looked at in any other way
        if path.name not in wanted:
            data = path.read_bytes()
            header = 8 + int.from_bytes(data[:8], "little")
            path.write_bytes(data[:header] + b"\xff" * (len(data) - header))
    again = Decoder(seed=1)
    firekeep.load_into(again, folder, rename=r"^model\.=>", include=r"^layers\.[14]\.")
    assert same(again, model)


def damage(folder: Path, how: str) -> str:
    """Damage a set; gives the name of the file that an error is to name."""
    index = json.loads((folder / INDEX).read_text())
    first, second = sorted(set(index["weight_map"].values()))[1:3]
    if how == "a file is missing":
        (folder / first).unlink()
        return INDEX
    if how == "a file is cut":
        (folder / first).write_bytes((folder / first).read_bytes()[:-5])
        return first
    if how == "a tensor is not in its file":
        index["weight_map"]["model.layers.9.norm.bias"] = first
    if how == "a tensor is in two files":
        double = {name: firekeep.load_file(folder / second)[name] for name in firekeep.load_file(folder / second)}
        name = next(name for name, file in index["weight_map"].items() if file == first)
        firekeep.save_file({**double, name: np.zeros(2, np.float32)}, folder / second)
    if how == "a file is elsewhere":
        index["weight_map"]["x"] = "../x"
    (folder / INDEX).write_text(json.dumps(index))
    return INDEX


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("a file is missing", MetadataError, r"1 of the \d+ files that the index names are missing \(model-00002.*Fetch the missing"),
        ("a file is cut", TruncatedError, "5 are missing.*Fetch the file again"),
        ("a tensor is not in its file", MetadataError, r"'model\.layers\.9\.norm\.bias' is not in model-00002.*Fetch the index and its files"),
        ("a tensor is in two files", MetadataError, "it is in two shards, model-00002.* and model-00003.*Fetch the index and its files"),
        ("a file is elsewhere", MetadataError, r"'\.\./x', which is a path.*fetch it again"),
    ],
)  # fmt: skip
def test_damage_is_named_with_its_place_and_changes_nothing(
    folder: Path, how: str, error: type[FirekeepError], words: str
):
    named = damage(folder, how)
    model = Decoder(seed=1)
    for call in (
        lambda: firekeep.open(folder),
        lambda: firekeep.load_into(model, folder, rename=r"^model\.=>"),
        lambda: firekeep.convert(folder, folder / "out.bpk"),
    ):
        with pytest.raises(error, match=words) as caught:
            call()
        assert caught.value.path == str(folder / named)
        del caught  # its traceback holds what was looked at
    assert same(model, Decoder(seed=1))
    assert not firekeep.verify(folder).ok
    assert not (folder / "out.bpk").exists()
    assert open_below(folder) == []
    whole = next(path for path in sorted(folder.glob("*.safetensors")) if path.name.startswith("model-00001"))
    firekeep.open(whole).close()  # as the remedies have it


def test_the_same_set_saved_anew_heals_any_damage(folder: Path):
    for how in ("a file is missing", "a tensor is not in its file", "a tensor is in two files", "a file is elsewhere"):
        damage(folder, how)
        firekeep.save(Decoder(), folder, max_shard_size=400, rename=r"^(?!lm_head)=>model.")
        model = Decoder(seed=1)
        firekeep.load_into(model, folder, rename=r"^model\.=>")
        assert same(model, Decoder())


def test_a_set_that_does_not_fit_names_what_the_index_has_and_what_is_missing(folder: Path):
    model = Decoder(seed=1)
    model.layers.append(torch.nn.ModuleDict({"q_proj": torch.nn.Linear(8, 8, bias=False)}))
    before = {name: held.clone() for name, held in model.state_dict().items()}
    with pytest.raises(LoadError, match=r"layers\.6\.q_proj\.weight") as caught:
        firekeep.load_into(model, folder, rename=r"^model\.=>")
    assert caught.value.path == str(folder / INDEX)
    assert all(torch.equal(held, before[name]) for name, held in model.state_dict().items())
