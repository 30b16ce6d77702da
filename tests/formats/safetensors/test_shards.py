"""Sharded sets: the index and the files are compared both ways."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from descriptors import open_below
from firekeep.errors import FirekeepError, LimitError, MetadataError, TruncatedError, WrongFormatError
from firekeep.formats import Container, OpenOptions, open_path
from firekeep.limits import Limits
from formats.safetensors.made import raw, row

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def shard(names: str, metadata: dict[str, str] | None = None, *, fill: int = 0) -> bytes:
    table: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    table.update((name, row("U8", [2], place * 2, place * 2 + 2)) for place, name in enumerate(names))
    return raw(table, bytes([fill]) * 2 * len(names))


def lay(folder: Path, files: dict[str, bytes], weight_map: object = None, **index: object) -> Path:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    if weight_map is not None:
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map, **index}))
    return folder


def whole(folder: Path, **index: object) -> Path:
    return lay(
        folder, {FIRST: shard("ab", fill=1), SECOND: shard("c", fill=2)}, {"a": FIRST, "c": SECOND, "b": FIRST}, **index
    )


def opened(path: Path, limits: Limits | None = None) -> Container:
    found = open_path(os.fspath(path), OpenOptions(limits=limits or Limits()))
    assert found is not None
    container, source = found
    for each in (source, *container.sources):
        assert each.fileno() is not None
        each.close()
    return container


def test_an_index_opens_all_its_shards_as_one(tmp_path: Path) -> None:
    found = open_path(os.fspath(whole(tmp_path, metadata={"total_size": 6}) / INDEX), OpenOptions())
    assert found is not None
    container, source = found
    assert source.path == os.fspath(tmp_path / INDEX)
    assert (container.format, container.variant) == ("safetensors", "sharded")
    assert list(container.entries) == ["a", "b", "c"]
    assert len(container.entries) == 3
    assert "c" in container.entries
    assert "d" not in container.entries
    with pytest.raises(KeyError):
        container.entries["d"]
    assert bytes(container.entries["c"].read()) == b"\2\2"
    assert [entry.name for entry in container.entries.values()] == ["a", "b", "c"]
    assert container.details["shards"] == [FIRST, SECOND]
    assert container.details["index_metadata"] == {"total_size": 6}
    assert [each.path for each in container.sources] == [os.fspath(tmp_path / name) for name in (FIRST, SECOND)]
    assert not container.notes
    for each in (source, *container.sources):
        each.close()


def test_a_directory_with_one_index_opens(tmp_path: Path) -> None:
    assert list(opened(whole(tmp_path)).entries) == ["a", "b", "c"]
    (tmp_path / "consolidated.safetensors").write_bytes(shard("xyz"))
    assert list(opened(tmp_path).entries) == ["a", "b", "c"]


def test_an_index_of_any_name_opens(tmp_path: Path) -> None:
    whole(tmp_path)
    (tmp_path / INDEX).rename(tmp_path / "diffusion_pytorch_model.fp16.safetensors.index.json")
    assert len(opened(tmp_path).entries) == 3
    (tmp_path / "diffusion_pytorch_model.fp16.safetensors.index.json").rename(tmp_path / "any.json")
    assert len(opened(tmp_path / "any.json").entries) == 3


def test_several_indexes_are_named(tmp_path: Path) -> None:
    whole(tmp_path)
    (tmp_path / "other.safetensors.index.json").write_text("{}")
    with pytest.raises(WrongFormatError, match=f"holds 2 indexes: {INDEX}, other.*Open one of them by its path"):
        opened(tmp_path)


def test_a_directory_with_one_file_opens_it(tmp_path: Path) -> None:
    found = open_path(os.fspath(lay(tmp_path, {"model.safetensors": shard("ab")})), OpenOptions())
    assert found is not None
    assert list(found[0].entries) == ["a", "b"]
    assert found[1].path == os.fspath(tmp_path / "model.safetensors")
    found[1].close()


def test_several_files_without_an_index_are_named(tmp_path: Path) -> None:
    lay(tmp_path, {FIRST: shard("a"), SECOND: shard("b")})
    with pytest.raises(WrongFormatError, match=f"2 safetensors files and no index: {FIRST}, {SECOND}.*Open one"):
        opened(tmp_path)


def test_a_long_list_of_files_is_cut(tmp_path: Path) -> None:
    lay(tmp_path, {f"{number:02}.safetensors": shard("a") for number in range(30)})
    with pytest.raises(WrongFormatError, match=r"09\.safetensors, \.\.\. \(30 in all\)\. Open one"):
        opened(tmp_path)


def test_a_directory_without_any_names_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(WrongFormatError, match=r"holds no safetensors file and no safetensors\.index\.json") as caught:
        opened(tmp_path)
    assert (caught.value.kind, caught.value.path) == ("directory", os.fspath(tmp_path))
    lay(tmp_path, {"weights.pt": b"", "config.json": b""})
    with pytest.raises(WrongFormatError, match=r"no safetensors file, but weights\.pt\. Open one of them"):
        opened(tmp_path)


def test_a_directory_of_orbax_is_told_with_the_way_out_of_it(tmp_path):
    (tmp_path / "0" / "default").mkdir(parents=True)
    (tmp_path / "0" / "_CHECKPOINT_METADATA").write_text("{}")
    (tmp_path / "0" / "default" / "manifest.ocdbt").touch()
    for place in (tmp_path, tmp_path / "0", tmp_path / "0" / "default"):
        with pytest.raises(WrongFormatError, match=r"checkpoints of Orbax.*Restore one with orbax\.checkpoint"):
            open_path(place, OpenOptions())


@pytest.mark.parametrize("name", ["absent", "absent.safetensors.index.json", "model.safetensors", "config.json"])
def test_other_paths_are_left_to_others(tmp_path: Path, name: str) -> None:
    lay(tmp_path, {"model.safetensors": shard("a"), "config.json": b'{"layers": 3}'})
    assert open_path(os.fspath(tmp_path / name), OpenOptions()) is None


def test_missing_shards_are_all_named(tmp_path: Path) -> None:
    files = {f"m-{number}.safetensors": shard(chr(97 + number)) for number in range(6)}
    lay(tmp_path, files, {chr(97 + number): f"m-{number}.safetensors" for number in range(6)})
    for number in (1, 3, 4):
        (tmp_path / f"m-{number}.safetensors").unlink()
    with pytest.raises(MetadataError) as caught:
        opened(tmp_path)
    text = str(caught.value)
    assert (
        "3 of the 6 files that the index names are missing (m-1.safetensors, m-3.safetensors, m-4.safetensors)" in text
    )
    assert "hold 3 of its 6 tensors" in text
    assert text.startswith(os.fspath(tmp_path / INDEX))


def test_a_stale_index_beside_complete_files_opens_with_a_note(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {FIRST: shard("ab"), SECOND: shard("c")},
        {"a": "x-1.safetensors", "b": "x-2.safetensors", "c": "x-3.safetensors"},
    )
    container = opened(tmp_path)
    assert list(container.entries) == ["a", "b", "c"]
    assert any(
        "index stale, headers complete: 3 of the 3 files it names are not there" in note for note in container.notes
    )
    assert any("index stale" in finding.message and finding.severity == "warning" for finding in container.check())


def test_a_stale_index_beside_files_that_hold_more_or_less_or_twice_is_refused(tmp_path: Path) -> None:
    weight_map = {"a": "x-1.safetensors", "b": "x-2.safetensors"}
    for files in ({FIRST: shard("a")}, {FIRST: shard("ab"), SECOND: shard("c")}, {}):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        with pytest.raises(
            MetadataError, match=r"2 of the 2 files that the index names are missing \(x-1.safetensors, x-2"
        ):
            opened(lay(folder, files, weight_map))
    folder = tmp_path / "twice"
    folder.mkdir()
    with pytest.raises(MetadataError, match=f"tensor 'a': it is in two shards, {FIRST} and {SECOND}"):
        opened(lay(folder, {FIRST: shard("ab"), SECOND: shard("a")}, weight_map))


def test_a_broken_file_beside_a_stale_index_does_not_hide_what_is_missing(tmp_path: Path) -> None:
    lay(tmp_path, {FIRST: b"not one"}, {"a": "x-1.safetensors"})
    with pytest.raises(MetadataError, match="1 of the 1 files that the index names are missing"):
        opened(tmp_path)


def test_tensors_that_are_not_where_the_index_says_are_named(tmp_path: Path) -> None:
    lay(tmp_path, {FIRST: shard("ab"), SECOND: shard("c")}, {"a": FIRST, "b": SECOND, "c": SECOND, "d": SECOND})
    with pytest.raises(MetadataError) as caught:
        opened(tmp_path)
    assert (
        f"2 of the 4 tensors are not where the index says: 'b' is in {FIRST}, not in {SECOND}, 'd' is not in {SECOND}"
        in str(caught.value)
    )


def test_tensors_the_index_leaves_out_are_shown_and_noted(tmp_path: Path) -> None:
    container = opened(lay(tmp_path, {FIRST: shard("abx"), SECOND: shard("c")}, {"a": FIRST, "b": FIRST, "c": SECOND}))
    assert list(container.entries) == ["a", "b", "x", "c"]
    assert any("1 tensors of the shards are not in the index: 'x'" in note for note in container.notes)


def test_a_name_in_two_shards_is_refused_naming_both(tmp_path: Path) -> None:
    lay(tmp_path, {FIRST: shard("ab"), SECOND: shard("bc")}, {"a": FIRST, "b": FIRST, "c": SECOND})
    with pytest.raises(MetadataError, match=f"tensor 'b': it is in two shards, {FIRST} and {SECOND}"):
        opened(tmp_path)


def test_unusual_shard_names_are_trusted(tmp_path: Path) -> None:
    names = ["model.safetensors-00001-of-00002.safetensors", "層 2", "weights.part"]
    files = {name: shard(letter) for name, letter in zip(names, "abc", strict=True)}
    container = opened(lay(tmp_path, files, dict(zip("abc", names, strict=True))))
    assert sorted(container.entries) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "a\\b", "..", ".", "", "C:\\x", "C:x", "\0", "x\0y", "./x"],
)
def test_a_shard_name_that_is_a_path_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(shard("a"))
    folder = tmp_path / "set"
    folder.mkdir()
    with pytest.raises(MetadataError, match="which is a path: shards are files beside their index"):
        opened(lay(folder, {}, {"a": name}))


def test_a_shard_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match="tensor 'a': the index gives no file name"):
        opened(lay(tmp_path, {}, {"a": 1}))
    (tmp_path / INDEX).write_text('{"weight_map": {"a": "\\ud800"}}')
    with pytest.raises(MetadataError, match="half of a surrogate pair"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the index is empty"),
        ("[]", "the index starts with '\\['"),
        ("{", "the index is not valid JSON"),
        ("{}", "the index has no weight_map"),
        ('{"weight_map": []}', "the index has no weight_map"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "the index has the key 'a' twice"),
        ('{"weight_map": ' + '{"a":' * 5000 + "1" + "}" * 5001, "the index is nested too deep"),
        ("\ud800", "the index is not UTF-8"),
    ],
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / INDEX).write_text(text, errors="surrogatepass")
    with pytest.raises(FirekeepError, match=message) as caught:
        opened(tmp_path)
    assert caught.value.path == os.fspath(tmp_path / INDEX)


def test_limits_hold_for_an_index(tmp_path: Path) -> None:
    whole(tmp_path)
    with pytest.raises(LimitError, match=r"the index has \d+ bytes, more than the limit of 50"):
        opened(tmp_path, Limits(safetensors_header_bytes=50))
    with pytest.raises(LimitError, match="the index names 3 tensors, more than the limit of 2"):
        opened(tmp_path, Limits(safetensors_tensors=2))


def test_a_broken_shard_is_named_by_its_path(tmp_path: Path) -> None:
    whole(tmp_path)
    (tmp_path / SECOND).write_bytes(shard("c")[:-1])
    with pytest.raises(TruncatedError, match="1 are missing") as caught:
        opened(tmp_path)
    assert caught.value.path == os.fspath(tmp_path / SECOND)
    (tmp_path / SECOND).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(WrongFormatError, match="git-LFS pointer") as pointer:
        opened(tmp_path)
    assert pointer.value.path == os.fspath(tmp_path / SECOND)


def test_nothing_stays_open_after_a_refusal(tmp_path: Path) -> None:
    whole(tmp_path)
    (tmp_path / SECOND).write_bytes(b"")
    for _ in range(3):
        with pytest.raises(FirekeepError):
            opened(tmp_path)
    assert open_below(tmp_path) == []


def test_a_total_size_that_is_wrong_is_only_noted(tmp_path: Path) -> None:
    container = opened(whole(tmp_path, metadata={"total_size": 7}))
    assert any("total_size of 7 bytes, the shards hold 6" in note for note in container.notes)
    assert not opened(whole(tmp_path, metadata={"total_size": 6.0})).notes
    assert not opened(whole(tmp_path, metadata=["?"])).notes


def test_metadata_and_ties_of_the_shards_are_joined(tmp_path: Path) -> None:
    files = {
        FIRST: shard("ab", {"format": "pt", "v": "1", "tied.a": "a"}),
        SECOND: shard("c", {"format": "pt", "v": "2", "tied.c": "c", "tied.x": "a"}),
    }
    container = opened(lay(tmp_path, files, {"a": FIRST, "b": FIRST, "c": SECOND}))
    assert (container.metadata["format"], container.metadata["v"]) == ("pt", "1")
    assert container.ties == {"tied.a": "a", "tied.c": "c"}
    assert any("disagree on the metadata key 'v'" in note for note in container.notes)


def test_an_empty_set_opens(tmp_path: Path) -> None:
    assert len(opened(lay(tmp_path, {}, {})).entries) == 0
