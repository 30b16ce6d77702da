from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firekeep
from firekeep import ExistsError, RuleError, UnsupportedError
from firekeep.sets import parse_size

ARRAYS = {f"t{index}": np.full(1000, index, np.float32) for index in range(5)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return firekeep.save_file(ARRAYS, tmp_path / "in.bpk", metadata={"k": "v"})


def listed(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def equal(source: Path, wanted: dict[str, np.ndarray]) -> bool:
    loaded = firekeep.load_file(source)
    return loaded.keys() == wanted.keys() and all(np.array_equal(loaded[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [
        (1, 1),
        ("5GB", 5_000_000_000),
        ("5gb", 5_000_000_000),
        ("500MB", 500_000_000),
        ("1.5 kB", 1500),
        ("2GiB", 2 << 30),
        ("10", 10),
        ("10B", 10),
        ("3T", 3 * 10**12),
    ],
)
def test_sizes_are_read_as_they_are_written_elsewhere(size: int | str, nbytes: int):
    assert parse_size(size) == nbytes


@pytest.mark.parametrize("size", ["", "GB", "5XB", "-1", 0, -5, True, None, 1.5, "5GBs", "0.0001", "1e9", "٣"])
def test_what_is_no_size_is_refused(size: Any, source: Path, tmp_path: Path):
    with pytest.raises(RuleError, match="max_shard_size"):
        parse_size(size)


def test_a_set_is_written_into_a_folder(source: Path, tmp_path: Path):
    report = firekeep.convert(source, tmp_path / "set", max_shard_size="8kB")
    names = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    assert listed(tmp_path / "set") == [*names, "model.safetensors.index.json"]
    assert report.destinations == tuple(
        str(tmp_path / "set" / name) for name in (*names, "model.safetensors.index.json")
    )
    assert report.nbytes == sum(path.stat().st_size for path in (tmp_path / "set").iterdir())
    assert "4 files" in str(report)
    assert equal(tmp_path / "set", ARRAYS)
    assert equal(tmp_path / "set" / "model.safetensors.index.json", ARRAYS)
    with firekeep.open(tmp_path / "set") as file:
        assert file.metadata == {"k": "v", "firekeep.layout": "burn"}
    index = json.loads((tmp_path / "set" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 20_000
    assert sorted(index["weight_map"]) == sorted(ARRAYS)


def test_a_set_is_written_beside_a_name(source: Path, tmp_path: Path):
    firekeep.convert(source, tmp_path / "net.safetensors", max_shard_size=8000)
    assert "net-00001-of-00003.safetensors" in listed(tmp_path)
    assert equal(tmp_path / "net.safetensors.index.json", ARRAYS)


def test_one_file_is_written_where_one_is_enough(source: Path, tmp_path: Path):
    report = firekeep.convert(source, tmp_path / "set", max_shard_size="5GB")
    assert listed(tmp_path / "set") == ["model.safetensors"]
    assert report.destinations == (str(tmp_path / "set" / "model.safetensors"),)
    assert equal(tmp_path / "set", ARRAYS)


def test_every_file_of_a_set_has_digests_of_its_own(source: Path, tmp_path: Path):
    firekeep.convert(source, tmp_path / "set", max_shard_size="8kB", digest=True)
    report = firekeep.verify(tmp_path / "set")
    assert report.ok
    assert report.digests == 5
    assert report.findings == ()
    for shard in (tmp_path / "set").glob("*.safetensors"):
        assert firekeep.verify(shard).digests == len(firekeep.load_file(shard))
    shard = tmp_path / "set" / "model-00002-of-00003.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert [finding.place for finding in firekeep.verify(tmp_path / "set").findings] == ["t3"]


@pytest.mark.parametrize("digest", [False, True])
def test_tied_tensors_stay_in_one_file_of_a_set(digest: bool, tmp_path: Path):
    shared = np.ones(1000, np.float32)
    src = firekeep.save_file({"head.w": shared, "x": shared + 1, "embed.w": shared}, tmp_path / "in.bpk")
    firekeep.convert(src, tmp_path / "set", max_shard_size=4000, digest=digest)
    assert len(listed(tmp_path / "set")) == 3
    loaded = firekeep.load_file(tmp_path / "set")
    assert sorted(loaded) == ["embed.w", "head.w", "x"]
    assert np.shares_memory(loaded["head.w"], loaded["embed.w"])
    assert firekeep.verify(tmp_path / "set").ok


def test_formats_of_one_file_are_refused(source: Path, tmp_path: Path):
    with pytest.raises(UnsupportedError, match=r"burnpack files are not written in shards. Write \.safetensors"):
        firekeep.convert(source, tmp_path / "out.bpk", max_shard_size="1MB")


def test_nothing_is_replaced_without_overwrite(source: Path, tmp_path: Path):
    for name in ("model-00002-of-00003.safetensors", "model.safetensors.index.json"):
        folder = tmp_path / f"for-{name}"
        folder.mkdir()
        (folder / name).write_bytes(b"precious")
        for dry_run in (False, True):
            with pytest.raises(ExistsError, match=name):
                firekeep.convert(source, folder, max_shard_size="8kB", overwrite=False, dry_run=dry_run)
        assert listed(folder) == [name]
        assert (folder / name).read_bytes() == b"precious"


def test_a_dry_run_of_a_set_writes_nothing(source: Path, tmp_path: Path):
    report = firekeep.convert(source, tmp_path / "set", max_shard_size="8kB", dry_run=True)
    assert len(report.destinations) == 4
    assert not (tmp_path / "set").exists()


def test_a_smaller_set_leaves_nothing_of_a_larger_one(source: Path, tmp_path: Path):
    folder = tmp_path / "set"
    firekeep.convert(source, folder, max_shard_size="4kB")
    (folder / "other-00001-of-00005.safetensors").write_bytes(b"not of this set")
    (folder / "model-00009-of-00009.safetensors").write_bytes(b"named by no index")
    report = firekeep.convert(source, folder, max_shard_size="8kB", exclude="t4")
    assert sorted(report.removed) == [
        str(folder / f"model-{number:05d}-of-00005.safetensors") for number in range(1, 6)
    ]
    assert listed(folder) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model-00009-of-00009.safetensors",
        "model.safetensors.index.json",
        "other-00001-of-00005.safetensors",
    ]
    assert sorted(firekeep.load_file(folder / "model.safetensors.index.json")) == ["t0", "t1", "t2", "t3"]


def test_a_single_file_takes_the_place_of_a_set(source: Path, tmp_path: Path):
    folder = tmp_path / "set"
    firekeep.convert(source, folder, max_shard_size="4kB")
    firekeep.convert(source, folder, max_shard_size="1MB")
    assert listed(folder) == ["model.safetensors"]
    assert equal(folder, ARRAYS)


def test_a_set_takes_the_place_of_a_single_file(source: Path, tmp_path: Path):
    folder = tmp_path / "set"
    firekeep.convert(source, folder, max_shard_size="1MB")
    with pytest.raises(ExistsError, match=r"model\.safetensors"):
        firekeep.convert(source, folder, max_shard_size="8kB", overwrite=False)
    report = firekeep.convert(source, folder, max_shard_size="8kB")
    assert report.removed == (str(folder / "model.safetensors"),)
    assert "model.safetensors" not in listed(folder)
    assert equal(folder, ARRAYS)
    assert equal(folder / "model.safetensors", ARRAYS)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_single_file_that_is_the_source_of_a_set_beside_it_is_kept_and_told(overwrite: bool, tmp_path: Path):
    file = firekeep.save_file(ARRAYS, tmp_path / "model.safetensors")
    report = firekeep.convert(file, tmp_path, max_shard_size="8kB", exclude="t4", overwrite=overwrite)
    assert report.removed == ()
    assert any("the source" in note and "stands beside the set" in note for note in report.notes)
    assert equal(file, ARRAYS)
    assert sorted(firekeep.load_file(tmp_path / "model.safetensors.index.json")) == ["t0", "t1", "t2", "t3"]


def test_what_a_report_counts_is_on_the_disk(source: Path, tmp_path: Path):
    report = firekeep.convert(source, tmp_path / "set", max_shard_size="8kB", digest=True)
    assert report.nbytes == sum(path.stat().st_size for path in (tmp_path / "set").iterdir())


def test_an_index_that_names_paths_removes_nothing(source: Path, tmp_path: Path):
    folder = tmp_path / "set"
    folder.mkdir()
    outside = tmp_path / "model-00001-of-00001.safetensors"
    outside.write_bytes(b"precious")
    names = {"a": "../model-00001-of-00001.safetensors", "b": str(outside), "c": "notes.txt", "d": 3}
    (folder / "notes.txt").write_text("precious")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    report = firekeep.convert(source, folder, max_shard_size="8kB")
    assert report.removed == ()
    assert outside.exists()
    assert (folder / "notes.txt").exists()


@pytest.mark.parametrize("junk", [b"", b"{", b"[]", b'{"weight_map": 3}', b"\xff", b"[" * 100_000])
def test_a_damaged_old_index_is_replaced(junk: bytes, source: Path, tmp_path: Path):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_bytes(junk)
    firekeep.convert(source, folder, max_shard_size="8kB")
    assert equal(folder, ARRAYS)


def test_a_failure_while_shards_are_written_keeps_the_old_set(source: Path, tmp_path: Path):
    folder = tmp_path / "set"
    firekeep.convert(source, folder, max_shard_size="8kB")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        firekeep.convert(source, folder, max_shard_size="8kB", dtype="f16", progress=stop)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_set_is_converted_onto_itself(source: Path, tmp_path: Path):
    folder = tmp_path / "set"
    firekeep.convert(source, folder, max_shard_size="8kB")
    firekeep.convert(folder, folder, max_shard_size="4kB", rename="^t=>u")
    assert equal(folder, {f"u{index}": array for index, array in enumerate(ARRAYS.values())})
    assert len(listed(folder)) == 6


def test_modes_of_replaced_shards_are_kept(source: Path, tmp_path: Path):
    folder = tmp_path / "set"
    firekeep.convert(source, folder, max_shard_size="8kB")
    shard = folder / "model-00001-of-00003.safetensors"
    shard.chmod(0o640)
    firekeep.convert(source, folder, max_shard_size="8kB")
    assert shard.stat().st_mode & 0o777 == 0o640


def test_progress_of_a_set_goes_up_to_the_total(source: Path, tmp_path: Path):
    told: list[tuple[int, int]] = []
    firekeep.convert(
        source, tmp_path / "set", max_shard_size="8kB", progress=lambda done, total: told.append((done, total))
    )
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1] >= 20_000


def test_an_empty_metadata_of_the_source_stands_in_every_file_of_a_set(tmp_path: Path):
    rows = {n: {"dtype": "U8", "shape": [4], "data_offsets": [4 * i, 4 * i + 4]} for i, n in enumerate("ab")}
    header = json.dumps({"__metadata__": {}, **rows}).encode()
    (tmp_path / "in.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    report = firekeep.convert(tmp_path / "in.safetensors", tmp_path / "set", max_shard_size=4)
    shards = sorted((tmp_path / "set").glob("*.safetensors"))
    assert len(shards) == 2
    assert all(shard.read_bytes()[8:].startswith(b'{"__metadata__":{},') for shard in shards)
    assert report.nbytes == sum(path.stat().st_size for path in (tmp_path / "set").iterdir())
    firekeep.convert(tmp_path / "set", tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes()[8:].startswith(b'{"__metadata__":{},')


def test_without_metadata_in_the_source_there_is_none_in_a_set(tmp_path: Path):
    (tmp_path / "in.safetensors").write_bytes(firekeep.save_bytes(ARRAYS, format="safetensors"))
    firekeep.convert(tmp_path / "in.safetensors", tmp_path / "set", max_shard_size=4000)
    shards = list((tmp_path / "set").glob("*.safetensors"))
    assert len(shards) > 1
    assert not any(b"__metadata__" in shard.read_bytes() for shard in shards)
