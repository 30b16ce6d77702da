"""A model saved as a set of files: what the set holds, what opens it, and what it takes the place of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import firekeep
from descriptors import open_below
from firekeep import ExistsError, RuleError, UnsupportedError

INDEX = "model.safetensors.index.json"


class Tied(torch.nn.Module):
    """A small language model whose head is its embedding."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(20, 8)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
        self.norm = torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator))


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("digest", [False, True])
@pytest.mark.parametrize("layout", [None, "torch", "burn"])
def test_a_tied_model_comes_back_from_its_set(tmp_path: Path, layout: str | None, digest: bool):
    report = firekeep.save(Tied(), tmp_path / "set", max_shard_size=700, layout=layout, digest=digest)
    folder = tmp_path / "set"
    assert report.path == folder / INDEX
    assert report.files[-1] == report.path
    assert listed(folder) == sorted(path.name for path in report.files)
    assert len(report.files) >= 4
    assert report.nbytes == sum(path.stat().st_size for path in folder.iterdir())
    assert report.removed == ()
    assert report.to_dict()["files"] == [str(path) for path in report.files]
    first, last = report.files[0].name, report.files[-2].name
    assert f"{len(report.files) - 1} shards, '{first}' to '{last}'" in " ".join(str(report).split())
    assert max(map(len, str(report).splitlines()[1:])) <= 80
    for source in (folder, folder / INDEX, folder / "model.safetensors", report):
        model = Tied(seed=1)
        firekeep.load_into(model, source)
        assert same(model, Tied())
        assert model.head.weight is model.embed.weight
    verified = firekeep.verify(folder)
    assert verified.ok
    assert (verified.digests == verified.tensors) is digest
    assert open_below(folder) == []


def test_the_files_are_those_that_other_readers_expect(tmp_path: Path):
    model = Tied()
    firekeep.save(model, tmp_path / "set", max_shard_size="0.7kB", metadata={"epoch": "3"})
    weight_map = json.loads((tmp_path / "set" / INDEX).read_text())["weight_map"]
    state = model.state_dict()
    assert weight_map.keys() == state.keys() - {"head.weight"}  # as safetensors' own save_model has it
    for name, file in weight_map.items():
        with safe_open(tmp_path / "set" / file, "pt") as held:
            assert torch.equal(held.get_tensor(name), state[name])
            assert (held.metadata()["format"], held.metadata()["epoch"]) == ("pt", "3")


def test_ties_may_be_written_in_full(tmp_path: Path):
    firekeep.save(Tied(), tmp_path / "set", max_shard_size=700, ties="expand")
    weight_map = json.loads((tmp_path / "set" / INDEX).read_text())["weight_map"]
    assert {"head.weight", "embed.weight"} <= weight_map.keys()
    model = Tied(seed=1)
    firekeep.load_into(model, tmp_path / "set")
    assert same(model, Tied())


def test_one_file_is_written_where_one_is_enough(tmp_path: Path):
    report = firekeep.save(Tied(), tmp_path / "set", max_shard_size="5GB")
    assert (report.path, report.files) == (tmp_path / "set" / "model.safetensors", ())
    assert listed(tmp_path / "set") == ["model.safetensors"]


def test_a_set_stands_beside_the_name_given(tmp_path: Path):
    firekeep.save(Tied(), tmp_path / "net.safetensors", max_shard_size=700)
    assert f"net.{INDEX.removeprefix('model.')}" in listed(tmp_path)
    model = Tied(seed=1)
    firekeep.load_into(model, tmp_path / "net.safetensors")
    assert same(model, Tied())
    with firekeep.open(tmp_path / "net.safetensors") as file:
        assert file.path == str(tmp_path / "net.safetensors.index.json")
    assert firekeep.scan(tmp_path / "net.safetensors").dangerous == ()


def test_a_state_dict_and_plain_arrays_are_saved_in_sets_too(tmp_path: Path):
    firekeep.save(Tied().state_dict(), tmp_path / "a", max_shard_size=700)
    firekeep.save({"x": np.ones(200, np.float32), "y": np.zeros(200, np.float32)}, tmp_path / "b", max_shard_size=800)
    model = Tied(seed=1)
    firekeep.load_into(model, tmp_path / "a")
    assert same(model, Tied())
    assert len(listed(tmp_path / "b")) == 3


@pytest.mark.parametrize(
    ("path", "options", "error", "words"),
    [
        ("m.bpk", {}, UnsupportedError, r"burnpack files are not written in shards\. Write \.safetensors"),
        ("set", {"format": "burnpack"}, UnsupportedError, "not written in shards"),
        ("set", {"max_shard_size": "5XB"}, RuleError, "max_shard_size='5XB' is no size"),
        ("set", {"max_shard_size": 0}, RuleError, "a shard holds at least one byte"),
        ("set", {"scalars": {"epoch": 3}}, UnsupportedError, r"hold no scalars.*Write \.bpk"),
        ("absent/set", {}, FileNotFoundError, "no such folder"),
    ],
)
def test_what_cannot_be_a_set_is_refused_before_anything_is_written(
    tmp_path: Path, path: str, options: dict[str, Any], error: type[Exception], words: str
):
    with pytest.raises(error, match=words):
        firekeep.save(Tied(), tmp_path / path, **{"max_shard_size": 700, **options})
    assert listed(tmp_path) == []


def test_a_folder_without_a_size_is_refused_with_both_ways(tmp_path: Path):
    with pytest.raises(RuleError, match=r"this is a folder\. Name the file in it, or give max_shard_size") as caught:
        firekeep.save(Tied(), tmp_path)
    assert caught.value.path == str(tmp_path)


OLDER: dict[str, dict[str, Any]] = {
    "a larger set": {"max_shard_size": 300},
    "a set of as many": {"max_shard_size": 700},
    "one file": {"max_shard_size": "1MB"},
}


@pytest.mark.parametrize("older", OLDER)
@pytest.mark.parametrize("size", [700, "1MB"])
def test_nothing_of_an_older_save_is_left(tmp_path: Path, older: str, size: int | str):
    folder = tmp_path / "set"
    firekeep.save(Tied(seed=5), folder, **OLDER[older])
    before = set(listed(folder))
    with pytest.raises(ExistsError, match=r"it exists already\. Pass overwrite=True to replace it"):
        firekeep.save(Tied(), folder, max_shard_size=size, overwrite=False)
    assert set(listed(folder)) == before
    report = firekeep.save(Tied(), folder, max_shard_size=size)
    names = {path.name for path in report.files or (report.path,)}
    assert set(listed(folder)) == names
    assert {Path(path).name for path in report.removed} == before - names
    if before - names:
        assert "removed, being of what stood there:" in str(report)
    model = Tied(seed=1)
    firekeep.load_into(model, folder)
    assert same(model, Tied())


def test_a_set_into_which_a_model_is_mapped_is_replaced_by_it(tmp_path: Path):
    folder = tmp_path / "set"
    firekeep.save(Tied(), folder, max_shard_size=300)
    arrays = firekeep.load_file(folder, copy=False)
    firekeep.save(arrays, folder, max_shard_size=700)
    model = Tied(seed=1)
    firekeep.load_into(model, folder)
    assert same(model, Tied())


def test_a_plain_save_beside_an_older_set_is_what_is_opened(tmp_path: Path):
    firekeep.save(Tied(seed=5), tmp_path, max_shard_size=700)
    firekeep.save(Tied(), tmp_path / "model.safetensors")
    for source in (tmp_path, tmp_path / "model.safetensors"):
        model = Tied(seed=1)
        firekeep.load_into(model, source)
        assert same(model, Tied())
    with firekeep.open(tmp_path) as file:
        assert any(INDEX in note for note in file.notes)


def test_a_store_saves_a_set_and_reads_it(tmp_path: Path):
    store = firekeep.SafetensorsStore(tmp_path / "m.safetensors", max_shard_size=700)
    assert len(store.save(Tied()).files) >= 4
    model = Tied(seed=1)
    assert store.load_into(model).ok
    assert same(model, Tied())
    assert "layers.0.weight" in store.keys()  # noqa: SIM118 - a store is no mapping
    with pytest.raises(RuleError, match=r"a store in memory is one file.*Give it a path"):
        firekeep.SafetensorsStore(max_shard_size=700).save(Tied())


def test_progress_goes_up_to_the_total(tmp_path: Path):
    told: list[tuple[int, int]] = []
    firekeep.save(Tied(), tmp_path / "set", max_shard_size=700, progress=lambda *each: told.append(each))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1] > 0


def test_a_path_of_a_set_is_not_looked_for_where_something_is(tmp_path: Path):
    firekeep.save(Tied(), tmp_path / "set", max_shard_size=700)
    (tmp_path / "set" / "model.safetensors").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        firekeep.open(tmp_path / "set" / "model.safetensors")
