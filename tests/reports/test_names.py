"""Names and metadata: odd ones kept as they are, doubled ones refused."""

from __future__ import annotations

import struct
import unicodedata
from pathlib import Path

import numpy as np
import pytest

import firekeep
import pickles
from firekeep import LimitError, Limits, MetadataError
from reports.files import FOUR, described, raw_safetensors

SUFFIXES = (".safetensors", ".bpk")

# torchsnapshot PR#31, pytorch_geometric PR#5494, torchdistx#4: names that broke a restore or collided as paths.
ODD_NAMES = (
    "",
    " ",
    ".",
    "..",
    ".leading",
    "trailing.",
    "a..b",
    "a.b",
    "a/b",
    "/etc/passwd",
    "../../escape",
    "C:\\windows\\win.ini",
    "é/../x",
    "名前.重み",
    "emoji 🔥",
    "new\nline",
    "tab\t",
    'quote"back\\slash',
    "nul\0nul",
    "\u202eright-to-left",
    "key[0]",
    "%s {0} $HOME *?",
    "-rf",
    "x" * 5000,
)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_odd_names_are_stored_verbatim(suffix: str, tmp_path: Path):
    arrays = {name: np.full(2, index, np.int32) for index, name in enumerate(ODD_NAMES)}
    path = tmp_path / f"model{suffix}"
    firekeep.save_file(arrays, path)
    loaded = firekeep.load_file(path)
    assert {name: array.tolist() for name, array in loaded.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", [name for name in ODD_NAMES if name])
def test_odd_names_of_a_pickle_are_shown_verbatim(name: str):
    body = pickles.pickled(pickles.ordered({name: pickles.tensor("FloatStorage", "0", 4)}))
    with firekeep.open(pickles.zip_file(body, {"0": FOUR})) as file:
        assert file.keys() == [name]
        assert file[name].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("layout", ["zip", "legacy"])
def test_a_dotted_key_and_a_nested_one_of_the_same_path_never_hide_each_other(layout: str):
    first, second = (pickles.tensor("FloatStorage", "0", 4, shape=(2,), offset=offset) for offset in (0, 2))
    body = pickles.mapping({"a.b": first, "a": pickles.mapping({"b": second}), "step": pickles.number(1)})
    file = (
        pickles.zip_file(pickles.pickled(body), {"0": FOUR})
        if layout == "zip"
        else pickles.legacy_file(body, {"0": (4, FOUR)})
    )
    try:
        with firekeep.open(file) as opened:
            values = sorted(opened[name].tolist() for name in opened)
            names = opened.keys()
    except MetadataError as error:
        assert "'a.b'" in str(error)  # noqa: PT017 - to refuse is as right as to tell them apart
    else:
        assert values == [[1, 2], [3, 4]]
        assert len(set(names)) == 2


def test_names_that_differ_only_in_their_unicode_spelling_are_kept_and_warned_of():
    composed, decomposed = "caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9")
    header = {composed: described("F32", [2], 0, 8), decomposed: described("F32", [2], 8, 16)}
    with firekeep.open(raw_safetensors(header, FOUR)) as file:
        assert file[composed].tolist() == [1, 2]
        assert file[decomposed].tolist() == [3, 4]
        assert any("Unicode" in note for note in file.notes)


# safetensors#401, raven#226: a key twice, and one tensor gone without a word.
@pytest.mark.parametrize(
    "header",
    [
        '{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}',
        '{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"shape":[2,2]}}',
        '{"__metadata__":{"w":"1","w":"2"},"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
        '{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"\\u0077":{"dtype":"F32","shape":[0],"data_offsets":[16,16]}}',
    ],
    ids=["two tensors", "two shapes", "two metadata values", "one spelled by escapes"],
)
def test_a_key_that_stands_twice_is_refused_and_named(header: str):
    with pytest.raises(MetadataError, match=r"'w'|'shape'"):
        firekeep.open(raw_safetensors(header, FOUR))


# safetensors#668: a million tensors, a header that no reader takes, and a file that was saved all the same.
def test_a_header_past_the_limit_is_refused_when_saving(tmp_path: Path):
    limits = Limits(safetensors_header_bytes=100_000)
    arrays = {f"layer.{index}.w": np.zeros(1, np.uint8) for index in range(2_000)}
    with pytest.raises(LimitError, match=r"2000 tensors.*100000.*max_shard_size") as caught:
        firekeep.save_file(arrays, tmp_path / "model.safetensors", limits=limits)
    assert caught.value.limit == 100_000
    assert list(tmp_path.iterdir()) == []


def test_a_header_past_the_limit_is_refused_when_opening():
    file = firekeep.save_bytes({f"{index}": np.zeros(1, np.uint8) for index in range(2_000)}, format="safetensors")
    with pytest.raises(LimitError, match="limit of 100000"):
        firekeep.open(file, limits=Limits(safetensors_header_bytes=100_000))
    with pytest.raises(LimitError, match="1999"):
        firekeep.open(file, limits=Limits(safetensors_tensors=1_999))


def test_two_hundred_thousand_tensors_are_saved_and_found(tmp_path: Path):
    value = np.frombuffer(bytes(range(256)) * 800, np.uint8)
    firekeep.save_file(
        {f"{index:06d}": value[index : index + 1] for index in range(200_000)}, tmp_path / "many.safetensors"
    )
    with firekeep.open(tmp_path / "many.safetensors") as file:
        assert len(file) == 200_000
        assert [int(file[name][0]) for name in ("000000", "100000", "199999")] == [0, 100_000 % 256, 199_999 % 256]


# safetensors#466, #549, fastsafetensors#88: metadata alone, empty metadata, metadata lost on the way.
@pytest.mark.parametrize("metadata", [{}, {"format": "pt"}, {"": "", "é": "\n", "json": '{"a": [1]}', "nul": "\0"}])
def test_a_file_of_metadata_alone_opens_and_keeps_it(metadata: dict[str, str], tmp_path: Path):
    (tmp_path / "in.safetensors").write_bytes(raw_safetensors({"__metadata__": metadata}))
    with firekeep.open(tmp_path / "in.safetensors") as file:
        assert len(file) == 0
        assert file.metadata == metadata
    firekeep.convert(tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    with firekeep.open(tmp_path / "out.safetensors") as file:
        assert file.metadata == metadata


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_tensors_at_all_can_be_saved(suffix: str, tmp_path: Path):
    firekeep.save_file({}, tmp_path / f"none{suffix}")
    assert firekeep.load_file(tmp_path / f"none{suffix}") == {}
    firekeep.save_file({}, tmp_path / f"none{suffix}", metadata={"a": "b"})
    with firekeep.open(tmp_path / f"none{suffix}") as file:
        assert file.metadata == {"a": "b"}


def test_a_tensor_cannot_be_called_like_the_metadata(tmp_path: Path):
    with pytest.raises(MetadataError, match="__metadata__"):
        firekeep.save_file({"__metadata__": np.zeros(1)}, tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [1, None, ["a"], {"a": "b"}, True])
def test_metadata_that_is_not_text_is_refused_with_its_key(value: object, tmp_path: Path):
    header = {"__metadata__": {"key": value}, "w": described("F32", [4], 0, 16)}
    with pytest.raises(MetadataError, match="'key'"):
        firekeep.open(raw_safetensors(header, FOUR))
    with pytest.raises(firekeep.FirekeepError, match="'key'"):
        firekeep.save_file({"w": np.zeros(1)}, tmp_path / "model.safetensors", metadata={"key": value})  # type: ignore[dict-item]


@pytest.mark.parametrize("length", [0, 1, 7])
def test_a_file_shorter_than_its_own_length_field_is_refused(length: int):
    with pytest.raises(firekeep.FormatError):
        firekeep.open(struct.pack("<Q", 2)[:length])


def test_a_header_of_json_that_is_no_object_is_refused():
    for text in ("[]", "1", '"text"', "null"):
        with pytest.raises(firekeep.FormatError):
            firekeep.open(raw_safetensors(text))
    with firekeep.open(raw_safetensors("{}")) as file:
        assert file.keys() == []
