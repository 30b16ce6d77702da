"""The commands on folders of weights: sets, single files, variants, and those that are not whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import firekeep

ARRAYS = {f"layers.{index}.weight": np.full((10, 10), index, np.float32) for index in range(6)}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    firekeep.save(ARRAYS, tmp_path / "hub", max_shard_size=800)
    return tmp_path / "hub"


def narrow(text: str, *, but: Path) -> bool:
    """Say whether a report keeps to 80 columns, but for lines with a path that is longer."""
    return all(len(line) <= 80 or str(but) in line for line in text.splitlines())


def test_every_command_takes_a_folder_its_index_and_the_name_of_the_set(fk, folder: Path, tmp_path: Path):
    single = firekeep.save_file(ARRAYS, tmp_path / "one.safetensors")
    for place in (folder, folder / INDEX, folder / "model.safetensors"):
        shown = fk("inspect", place)
        assert shown.code == 0
        assert f"{folder / INDEX}: safetensors sharded, 6 tensors" in shown.text
        assert narrow(shown.out, but=folder.parent)
        assert fk("inspect", place, "--json").json["details"]["shards"][0] == "model-00001-of-00003.safetensors"
        keys = fk("keys", place)
        assert keys.lines[-6:] == [f"  {name}" for name in sorted(ARRAYS)]
        assert (str(folder / INDEX) in keys.text) is (place.suffix != ".safetensors")
        assert sorted(fk("keys", place, "--json").json["names"]) == sorted(ARRAYS)
        verified = fk("verify", place)
        assert (verified.code, "ok (safetensors sharded)" in verified.text) == (0, True)
        assert fk("verify", place, "--json").json[0]["tensors"] == 6
        compared = fk("diff", place, single)
        assert (compared.code, compared.out.startswith("equal:")) == (0, True)
        assert fk("diff", place, single, "--json").json["equal"] is True
        out = tmp_path / f"{place.name}.bpk"
        converted = fk("convert", place, out)
        assert converted.code == 0
        assert narrow(converted.out, but=folder.parent)
        assert firekeep.diff(out, single).equal


def test_what_a_folder_holds_besides_is_told(fk, folder: Path):
    firekeep.save_file(ARRAYS, folder / "model.fp16.safetensors")
    firekeep.save_file(ARRAYS, folder / "consolidated.safetensors")
    shown = fk("inspect", folder)
    assert (
        "Note: the directory holds other weights, too, which were passed over: consolidated.safetensors" in shown.text
    )
    assert (
        "Note: the directory holds variants, too, which are opened by their paths: model.fp16.safetensors" in shown.text
    )
    assert narrow(shown.out, but=folder.parent)
    assert len(fk("inspect", folder, "--json").json["notes"]) == 2
    verified = fk("verify", folder)
    assert (verified.code, "model.fp16.safetensors" in verified.text) == (0, True)


def test_a_set_that_is_not_whole_is_named_with_a_remedy(fk, folder: Path):
    second = "model-00002-of-00003.safetensors"
    (folder / second).unlink()
    for command in (["inspect"], ["keys"], ["convert", "out.bpk"]):
        done = fk(command[0], folder, *command[1:])
        assert done.code == 2
        assert done.err.startswith(
            f"firekeep: {folder / INDEX}: 1 of the 3 files that the index names are missing ({second})"
        )
        assert "Fetch the missing files." in done.err
        assert done.err.count("\n") == 1
    verified = fk("verify", folder)
    assert (verified.code, "NOT OK" in verified.out, second in verified.out) == (1, True, True)
    assert fk("verify", folder, "--json").json[0]["ok"] is False
    (folder / INDEX).unlink()
    done = fk("inspect", folder)
    assert (done.code, "2 safetensors files and no index" in done.err, f"({INDEX})" in done.err) == (2, True, True)


def test_a_set_is_made_anew_in_the_place_of_an_older_one_only_when_told(fk, folder: Path, tmp_path: Path):
    one = firekeep.save_file({**ARRAYS, "more": np.ones(3)}, tmp_path / "one.safetensors")
    before = {path.name for path in folder.iterdir()}
    for size in ("400", "1200", "1MB"):
        done = fk("convert", one, folder, "--max-shard-size", size)
        assert (done.code, "Use --overwrite to replace it" in done.err) == (2, True)
        assert {path.name for path in folder.iterdir()} == before
    done = fk("convert", one, folder, "--max-shard-size", "400", "--overwrite")
    assert (done.code, "removed files of the older set" in done.text) == (0, True)
    document = fk("convert", one, folder, "--max-shard-size", "1MB", "--overwrite", "--json").json
    assert document["destinations"] == [str(folder / "model.safetensors")]
    assert len(document["removed"]) == 8
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    document = fk("convert", one, folder, "--max-shard-size", "400", "--overwrite", "--json").json
    assert document["removed"] == [str(folder / "model.safetensors")]
    assert firekeep.diff(folder, one).equal


def test_a_set_beside_its_source_keeps_it_and_says_so(fk, tmp_path: Path):
    firekeep.save_file(ARRAYS, tmp_path / "model.safetensors")
    done = fk("convert", tmp_path / "model.safetensors", tmp_path, "--max-shard-size", "800")
    assert (done.code, "remove it once it is not needed" in done.text) == (0, True)
    assert (tmp_path / "model.safetensors").exists()
    assert firekeep.diff(tmp_path / INDEX, tmp_path / "model.safetensors").equal


def test_an_index_that_leads_out_of_its_folder_is_refused(fk, folder: Path, tmp_path: Path):
    shutil.copy(folder / "model-00001-of-00003.safetensors", tmp_path / "x.safetensors")
    held = json.loads((folder / INDEX).read_text())
    held["weight_map"]["layers.0.weight"] = "../x.safetensors"
    (folder / INDEX).write_text(json.dumps(held))
    done = fk("inspect", folder)
    assert (done.code, done.out, "'../x.safetensors', which is a path" in done.err) == (2, "", True)
    assert fk("verify", folder).code == 1
