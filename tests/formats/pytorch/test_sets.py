"""Sets of PyTorch files, as older models on the Hugging Face Hub have them: an index, and parts of a state dict beside it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import firekeep
from descriptors import open_below
from firekeep.errors import (
    FirekeepError,
    LimitError,
    MetadataError,
    RuleError,
    UnsafePickleError,
    UnsupportedError,
    WrongFormatError,
)
from firekeep.limits import Limits
from pickles import call, floats, mapping, number, pickled, tensor, text, zip_file

FIRST, SECOND = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
INDEX = "pytorch_model.bin.index.json"


def model(first: float = 1) -> torch.nn.Module:
    """A model of numbers that are all different, its last weight tied to its first."""
    made = torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3), torch.nn.Linear(3, 5)
    )
    made[3].weight = made[0].weight
    with torch.no_grad():
        for place, held in enumerate(made.state_dict().values()):
            held.copy_(first + 100 * place + torch.arange(held.numel()).reshape(held.shape))
    return made


def lay(folder: Path, files: dict[str, object], weight_map: dict[str, str] | None = None, **metadata: object) -> Path:
    """Save the parts, the second in the stream of older versions, and an index of all they hold, or of what is said."""
    named = {}
    for place, (file, held) in enumerate(files.items()):
        torch.save(held, folder / file, _use_new_zipfile_serialization=place != 1)
        named.update(dict.fromkeys(held if isinstance(held, dict) else (), file))
    index = folder / INDEX
    index.write_text(json.dumps({"metadata": metadata, "weight_map": named if weight_map is None else weight_map}))
    return index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = model().state_dict()
    first = {name: held for name, held in state.items() if name[0] in "03"}
    lay(tmp_path, {FIRST: first, SECOND: {name: held for name, held in state.items() if name not in first}})
    return tmp_path


def test_a_folder_and_its_index_open_as_one_state_dict(folder: Path):
    wanted = model().state_dict()
    for place in (folder, folder / INDEX):
        with firekeep.open(place) as file:
            assert (file.format, file.variant, file.path) == ("pytorch", "sharded", str(folder / INDEX))
            assert sorted(file) == sorted(wanted)
            assert file.ties == {"3.weight": "0.weight"}
            assert file.notes == ()
            assert file.details["shards"] == [FIRST, SECOND]
            assert file.details["shard_variants"] == ["legacy", "zip"]
            assert all(np.array_equal(file[name], held.numpy()) for name, held in wanted.items())
            assert sorted(file.values()) == sorted(wanted)
        loaded = firekeep.load_file(place)
        assert sorted(loaded) == sorted(wanted)
        assert np.shares_memory(loaded["0.weight"], loaded["3.weight"])


def test_a_set_is_loaded_into_a_model(folder: Path):
    made = model(first=5)
    firekeep.load_into(made, folder)
    assert all(
        torch.equal(held, wanted)
        for held, wanted in zip(made.state_dict().values(), model().state_dict().values(), strict=True)
    )
    assert made[3].weight is made[0].weight


@pytest.mark.parametrize("size", [None, 100])
def test_a_set_becomes_safetensors(size: int | None, folder: Path, tmp_path: Path):
    out = tmp_path / "out" / "model.safetensors"
    out.parent.mkdir()
    report = firekeep.convert(folder, out, max_shard_size=size, digest=True)
    assert report.source_format == "pytorch sharded"
    assert dict(report.ties) == {"3.weight": "0.weight"}
    assert report.attested == 4  # of the zip archive; the stream has no checksums
    assert report.dropped.values == ()
    assert firekeep.diff(folder, out.parent).equal
    assert firekeep.verify(out.parent).ok
    assert len(list(out.parent.iterdir())) == (1 if size is None else 4)


def test_a_set_is_verified_scanned_and_told(folder: Path):
    for place in (folder, folder / INDEX):
        assert firekeep.verify(place).ok
        scanned = firekeep.scan(place)
        assert scanned.safe
        assert scanned.pickles == 6
        assert {found.member.split("/")[0] for found in scanned.globals} == {FIRST, SECOND}
        told = firekeep.doctor(place)
        assert (told.kind, told.opens) == ("sharded-set", True)
    assert "a folder of PyTorch files" in str(firekeep.doctor(folder))


def test_a_damaged_member_is_named_with_its_file_and_its_tensors(tmp_path: Path):
    index = lay(tmp_path, {FIRST: {"a": torch.arange(9.0)}})
    assert "checksums of the archive" in str(firekeep.verify(index))
    data = bytearray((tmp_path / FIRST).read_bytes())
    data[data.index(torch.arange(9.0).numpy().tobytes())] ^= 1
    (tmp_path / FIRST).write_bytes(data)
    (found,) = [each for each in firekeep.verify(index).findings if each.severity == "error"]
    assert found.place == "a"
    assert "is damaged" in found.message


def test_state_dicts_say_of_their_modules_what_is_joined(tmp_path: Path):
    parts = {
        file: torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(2, 2)).state_dict(prefix=place)
        for file, place in ((FIRST, "a."), (SECOND, "b."))
    }
    with firekeep.open(lay(tmp_path, parts)) as file:
        assert {"a.0", "a.1", "b.0", "b.1"} <= file.submodules
        assert {"a.0", "b.1"} <= set(file.details["state_dict_metadata"])


def test_a_total_size_counts_tied_tensors_once_or_twice(tmp_path: Path):
    shared = torch.ones(4)
    for total, notes in ((16, 0), (32, 0), (20, 1)):
        with firekeep.open(lay(tmp_path, {FIRST: {"a": shared, "b": shared}}, total_size=total)) as file:
            assert len([note for note in file.notes if "total_size" in note]) == notes


def test_safetensors_in_the_same_folder_go_first_with_a_note(folder: Path):
    firekeep.convert(folder, folder / "model.safetensors")
    for _ in range(2):  # a single file, then a set
        with firekeep.open(folder) as file:
            assert file.format == "safetensors"
            assert file.notes[-1] == f"the directory holds a set of PyTorch files, too, which was passed over: {INDEX}"
        firekeep.convert(folder, folder, max_shard_size=100)
        (folder / "model.safetensors").unlink(missing_ok=True)
    with firekeep.open(folder / INDEX) as file:
        assert file.format == "pytorch"


def test_several_indexes_are_named(folder: Path):
    (folder / "other.bin.index.json").write_text("{}")
    with pytest.raises(WrongFormatError, match=f"holds 2 indexes: other.bin.index.json, {INDEX}"):
        firekeep.open(folder)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (
            {"a": FIRST, "b": SECOND, "c": SECOND},
            f"1 of the 3 tensors are not where the index says: 'c' is not in {SECOND}",
        ),
        ({"a": SECOND, "b": SECOND, "y": FIRST}, f"'a' is in {FIRST}, not in {SECOND}"),
        (
            {"a": FIRST, "b": "pytorch_model-00003.bin"},
            r"1 of the 2 files .* missing \(pytorch_model-00003.bin\); the PyTorch files",
        ),
        ({"a": f"../{FIRST}"}, "which is a path"),
        ({"a": f"/{FIRST}"}, "which is a path"),
        ({"a": FIRST, "b": "model.safetensors"}, "files of two formats"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(weight_map: dict[str, str], message: str, tmp_path: Path):
    index = lay(tmp_path, {FIRST: {"a": torch.ones(1), "y": torch.ones(1)}, SECOND: {"b": torch.ones(2)}}, weight_map)
    with pytest.raises(MetadataError, match=message) as caught:
        firekeep.open(index)
    assert caught.value.path == str(index)


def test_a_tensor_the_index_forgets_is_shown_and_noted(tmp_path: Path):
    index = lay(tmp_path, {FIRST: {"a": torch.ones(1), "x": torch.ones(2)}}, {"a": FIRST})
    with firekeep.open(index) as file:
        assert sorted(file) == ["a", "x"]
        assert file.notes == ("1 tensors of the shards are not in the index: 'x'",)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path):
    index = lay(tmp_path, {FIRST: {"a": torch.ones(1), "c": torch.ones(1)}, SECOND: {"a": torch.ones(1)}})
    with pytest.raises(MetadataError, match=f"tensor 'a': it is in two shards, {FIRST} and {SECOND}"):
        firekeep.open(index)


def test_a_stale_index_beside_complete_files_opens_with_a_note(tmp_path: Path):
    index = lay(tmp_path, {FIRST: {"a": torch.ones(1)}, SECOND: {"b": torch.ones(1)}}, {"a": "x-1.bin", "b": "x-2.bin"})
    with firekeep.open(index) as file:
        assert sorted(file) == ["a", "b"]
        assert "the 2 PyTorch files beside it hold all" in file.notes[0]


def test_whole_models_and_other_formats_are_no_members(tmp_path: Path):
    index = lay(tmp_path, {FIRST: {"a": torch.ones(1)}})
    torch.save(torch.nn.Linear(2, 2), tmp_path / FIRST)
    with pytest.raises(UnsupportedError, match=r"whole model.*Open it by its own path") as caught:
        firekeep.open(index)
    assert caught.value.path == str(tmp_path / FIRST)
    (tmp_path / FIRST).write_bytes(firekeep.save_bytes({"a": np.ones(1)}, format="safetensors"))
    with pytest.raises(WrongFormatError, match="a safetensors file among the PyTorch files of a set"):
        firekeep.open(index)


@pytest.mark.parametrize("place", [".", INDEX])
def test_a_key_of_one_file_is_refused_for_a_set(place: str, folder: Path):
    with pytest.raises(RuleError, match=r"'0' is for single PyTorch files, and this is a set of files.*rename="):
        firekeep.open(folder / place, top_level_key="0")


def test_a_link_beside_the_index_is_followed(folder: Path):
    kept = folder / "kept"
    kept.mkdir()
    (folder / FIRST).rename(kept / "blob")
    (folder / FIRST).symlink_to(kept / "blob")
    with firekeep.open(folder) as file:
        assert len(file) == 11


# What the files may ask for, they may ask for together.


def part(name: str, more: int = 0) -> bytes:
    values = {name: tensor("FloatStorage", "0", 1)} if name else {}
    return zip_file(
        pickled(mapping({**values, **{f"k{place}": number(place) for place in range(more)}})), {"0": floats(1)}
    )


def hostile(folder: Path, *files: bytes) -> Path:
    names = [f"m-{place}.bin" for place in range(len(files))]
    for name, data in zip(names, files, strict=True):
        (folder / name).write_bytes(data)
    (folder / INDEX).write_text(json.dumps({"weight_map": {f"t{place}": name for place, name in enumerate(names)}}))
    return folder / INDEX


@pytest.mark.parametrize("field", ["pickle_opcodes", "pickle_nodes", "pickle_bytes", "text_bytes", "archive_members"])
def test_the_files_of_a_set_share_the_limits_of_one(field: str, tmp_path: Path):
    index = hostile(tmp_path, *(part(f"t{place}", more=30) for place in range(4)))
    with firekeep.open(index) as file:
        assert len(file) == 4
    with firekeep.open(tmp_path / "m-0.bin") as file:
        taken = file.container.taken[field]
    limits = Limits(**{field: 2 * taken})
    firekeep.open(tmp_path / "m-0.bin", limits=limits).close()
    with pytest.raises(LimitError, match="the files of a set share the limits of one") as caught:
        firekeep.open(index, limits=limits)
    assert caught.value.path == str(tmp_path / "m-2.bin")
    firekeep.open(index, limits=Limits(**{field: 8 * taken})).close()


def test_a_scan_of_a_set_has_one_budget(tmp_path: Path):
    index = hostile(tmp_path, *(part(f"t{place}", more=300) for place in range(4)))
    assert firekeep.scan(index).safe
    report = firekeep.scan(index, limits=Limits(pickle_opcodes=3000))
    assert not report.safe
    assert "not scanned, or not to the end: 'm-" in str(report.damaged)


def test_an_attack_in_any_of_the_files_is_found(tmp_path: Path):
    evil = pickled(call("os", "system", text("true")))
    index = hostile(tmp_path, part("t0"), zip_file(evil))
    report = firekeep.scan(index)
    assert [(found.path, found.member) for found in report.dangerous] == [("os.system", "m-1.bin/archive/data.pkl")]
    hidden = zip_file(
        pickled(mapping({"t1": tensor("FloatStorage", "0", 1), "x": call("os", "system", text("true"))})),
        {"0": floats(1)},
    )
    hostile(tmp_path, part("t0"), hidden)
    with firekeep.open(index) as file:
        assert any(note.startswith("m-1.bin: an unpickler would have run code") for note in file.notes)


def test_what_is_missing_was_not_scanned(tmp_path: Path):
    index = hostile(tmp_path, part("t0"), part("t1"))
    (tmp_path / "m-1.bin").unlink()
    assert "'m-1.bin' was not scanned" in str(firekeep.scan(index).damaged)


def test_a_pickle_that_is_called_an_index_is_scanned(tmp_path: Path):
    (tmp_path / INDEX).write_bytes(pickled(call("os", "system", text("true"))))
    report = firekeep.scan(tmp_path / INDEX)
    assert len(report.dangerous) == 1
    assert not report.safe


def test_a_damaged_file_is_named_by_its_path(folder: Path):
    (folder / SECOND).write_bytes((folder / SECOND).read_bytes()[:300])
    with pytest.raises(FirekeepError) as caught:
        firekeep.open(folder)
    assert caught.value.path == str(folder / SECOND)
    (folder / SECOND).write_bytes(pickled(b"\x85"))
    with pytest.raises(UnsafePickleError):
        firekeep.open(folder)


def test_a_set_of_more_files_than_may_be_open_is_read(folder: Path, monkeypatch):
    monkeypatch.setattr("firekeep.formats._sets.MOST_OPEN", 1)
    monkeypatch.setattr("firekeep.formats._pool.MOST_OPEN", 1)
    with firekeep.open(folder) as file:
        assert all(np.array_equal(file[name], held.numpy()) for name, held in model().state_dict().items())
    assert firekeep.verify(folder, values=True).ok
    firekeep.convert(folder, folder / "out.bpk", digest=True)
    assert firekeep.diff(folder, folder / "out.bpk").equal


def test_nothing_stays_open(folder: Path):
    firekeep.open(folder).close()
    assert open_below(folder) == []
    (folder / SECOND).write_bytes(b"")
    for _ in range(3):
        with pytest.raises(FirekeepError):
            firekeep.open(folder)
    assert open_below(folder) == []
