"""What a conversion refuses or says, so that nothing is lost or damaged on the way without a word."""

from __future__ import annotations

import ast
import errno
import io
import pickle
import struct
import zipfile
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest
import torch

import firekeep
from firekeep import RuleError, UnsupportedError, digests
from firekeep.errors import DigestError
from use.checkpoints import state_dict

ARRAYS = {"fc.weight": np.arange(60_000, dtype=np.float32).reshape(200, 300), "fc.bias": np.ones(3, np.float32)}


def damage(path: Path, array: np.ndarray) -> None:
    """Change one bit of a tensor where it lies in a file."""
    data = bytearray(path.read_bytes())
    data[data.index(array.tobytes()) + array.nbytes - 1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["fc.weight", "fc.bias"])
@pytest.mark.parametrize("dtype", [None, "bf16"])
@pytest.mark.parametrize("suffix", [".bpk", ".safetensors"])
def test_a_damaged_tensor_is_refused_by_its_digest(suffix: str, dtype: str | None, name: str, tmp_path: Path):
    src = firekeep.save_file(ARRAYS, tmp_path / f"in{suffix}", digest=True)
    damage(src, ARRAYS[name])
    with pytest.raises(DigestError, match="not those it was saved with") as caught:
        firekeep.convert(src, tmp_path / "out.bpk", dtype=dtype, rename="fc=>head")
    assert (caught.value.tensor, caught.value.path) == (name, str(src))
    assert [file.name for file in tmp_path.iterdir()] == [src.name]
    pattern = ast.literal_eval(str(caught.value).split("exclude=")[1].rstrip("."))
    report = firekeep.convert(src, tmp_path / "out.bpk", exclude=pattern)  # as the remedy says
    assert (report.tensors, report.checked) == (1, 1)


def test_a_damaged_tensor_is_refused_under_its_tied_name(tmp_path: Path):
    array = ARRAYS["fc.weight"]
    src = firekeep.save_file({"a": array, "b": array}, tmp_path / "in.safetensors", digest=True)
    assert firekeep.convert(src, tmp_path / "whole.safetensors").ties
    damage(src, array)
    for name in "ab":
        with pytest.raises(DigestError):
            firekeep.convert(src, tmp_path / "out.safetensors", include=f"^{name}$")


def test_each_shard_of_a_set_is_compared_with_its_own_digests(tmp_path: Path):
    src = firekeep.save_file(ARRAYS, tmp_path / "in.bpk")
    firekeep.convert(src, tmp_path / "set.safetensors", max_shard_size=1000, digest=True)
    report = firekeep.convert(tmp_path / "set.safetensors.index.json", tmp_path / "out.bpk")
    assert (report.checked, report.digests) == (2, True)
    for shard in tmp_path.glob("set-*.safetensors"):
        if ARRAYS["fc.bias"].tobytes() in shard.read_bytes():
            damage(shard, ARRAYS["fc.bias"])
    with pytest.raises(DigestError, match=r"fc\.bias"):
        firekeep.convert(tmp_path / "set.safetensors.index.json", tmp_path / "out.bpk")


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("{}", "could not be used, and are not carried over"),
        ('{"algorithm":"crc9","tensors":{}}', "'crc9'"),
        ('{"algorithm":"xxh3-128","tensors":{}}', "names no tensor"),
    ],
)
def test_digests_that_say_nothing_are_dropped_with_a_note(table: str, told: str, tmp_path: Path):
    with firekeep.open(firekeep.save_file(ARRAYS, tmp_path / "a.bpk", metadata={"x": "y" * 200})) as file:
        assert file.metadata
    src = tmp_path / "in.safetensors"
    raw = firekeep.save_bytes(ARRAYS, format="safetensors", metadata={"firekeep.digestz": table})
    src.write_bytes(raw.replace(b"firekeep.digestz", b"firekeep.digests"))
    report = firekeep.convert(src, tmp_path / "out.bpk")
    assert any(told in note for note in report.notes)
    assert not report.digests
    with firekeep.open(tmp_path / "out.bpk") as file:
        assert digests.KEY not in file.metadata
    empty = "names no tensor" in told
    assert any(told in found.message for found in firekeep.verify(src).findings) or not empty
    assert firekeep.verify(src).ok is empty


def test_tensors_without_a_digest_are_told(tmp_path: Path):
    src = firekeep.save_file(ARRAYS, tmp_path / "in.safetensors", digest=True)
    data = src.read_bytes()
    place = data.index(b"fc.weight", data.index(b"firekeep.digests"))
    src.write_bytes(data[:place] + b"fc.heavy_" + data[place + 9 :])
    report = firekeep.convert(src, tmp_path / "out.bpk")
    assert report.checked == 1
    assert any("no digest of 1 tensor" in note for note in report.notes)


def test_a_dry_run_compares_nothing_and_says_nothing_of_it(tmp_path: Path):
    src = firekeep.save_file(ARRAYS, tmp_path / "in.bpk", digest=True)
    damage(src, ARRAYS["fc.bias"])
    report = firekeep.convert(src, tmp_path / "out.bpk", dry_run=True)
    assert (report.checked, report.digests) == (0, True)
    assert "compared" not in str(report)


def test_a_source_without_tensors_is_refused_with_what_to_do(tmp_path: Path):
    src = tmp_path / "run state.ckpt"
    src.write_bytes(pickle.dumps({"epoch": 3}, protocol=2))
    with pytest.raises(UnsupportedError, match="there is no tensor in it") as caught:
        firekeep.convert(src, tmp_path / "out.bpk")
    assert f"`firekeep inspect --values '{src}'`" in str(caught.value)
    assert not (tmp_path / "out.bpk").exists()


def test_scalars_alone_are_kept_or_refused(tmp_path: Path):
    src = firekeep.save_file({}, tmp_path / "in.bpk", scalars={"step": 3})
    with pytest.raises(UnsupportedError, match=r"no tensor in it.*Write \.bpk"):
        firekeep.convert(src, tmp_path / "out.safetensors")
    firekeep.convert(src, tmp_path / "out.bpk")
    with firekeep.open(tmp_path / "out.bpk") as file:
        assert file.scalars["step"].value == 3


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ("=>x", "between every two letters"),
        (("", "x"), "between every two letters"),
        (r"^fc\.bias$=>", "leave nothing"),
    ],
)
def test_renames_that_cannot_have_been_meant_are_refused(rename: object, message: str, tmp_path: Path):
    src = firekeep.save_file(ARRAYS, tmp_path / "in.bpk")
    with pytest.raises(RuleError, match=message):
        firekeep.convert(src, tmp_path / "out.bpk", rename=[rename])
    firekeep.convert(src, tmp_path / "out.bpk", rename=["^=>model."])
    assert set(firekeep.load_file(tmp_path / "out.bpk")) == {f"model.{name}" for name in ARRAYS}


def test_renames_that_leave_a_hole_in_a_name_are_told(tmp_path: Path):
    src = firekeep.save_file(ARRAYS, tmp_path / "in.bpk")
    report = firekeep.convert(src, tmp_path / "out.bpk", rename="^fc=>")
    assert any("leave 2 names" in note and "'.weight'" in note for note in report.notes)


def test_a_tensor_larger_than_a_shard_may_be_is_told(tmp_path: Path):
    src = firekeep.save_file(ARRAYS, tmp_path / "in.bpk")
    report = firekeep.convert(src, tmp_path / "s.safetensors", max_shard_size="100kB")
    assert any("1 shard is larger than 100 kB" in note and "'fc.weight'" in note for note in report.notes)
    assert not firekeep.convert(src, tmp_path / "t.safetensors", max_shard_size="1MB").notes


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        (np.float16, "F16"),
        (np.dtype("float16"), "F16"),
        (np.dtype("<f8"), "F64"),
        (float, "F64"),
        (ml_dtypes.bfloat16, "BF16"),
        (np.dtype(ml_dtypes.float8_e4m3fn), "F8_E4M3"),
        ("half", "F16"),
    ],
)
def test_dtypes_are_taken_as_the_packages_have_them(dtype: object, wanted: str, tmp_path: Path):
    src = firekeep.save_file(ARRAYS, tmp_path / "in.bpk")
    firekeep.convert(src, tmp_path / "out.safetensors", dtype=dtype)
    with firekeep.open(tmp_path / "out.safetensors") as file:
        assert {str(entry.dtype) for entry in file.entries.values()} == {wanted}


def test_torch_dtypes_are_taken(tmp_path: Path):
    torch = pytest.importorskip("torch")
    src = firekeep.save_file(ARRAYS, tmp_path / "in.bpk")
    assert firekeep.convert(src, tmp_path / "out.bpk", dtype=torch.bfloat16).casts == {"F32 -> BF16": 2}
    with pytest.raises(RuleError, match="cast to"):
        firekeep.convert(src, tmp_path / "out.bpk", dtype=torch.int32)


@pytest.mark.parametrize("options", [{}, {"dry_run": True}, {"max_shard_size": "1MB"}])
def test_a_folder_that_is_not_there_is_named_with_what_to_do(options: dict[str, object], tmp_path: Path):
    src = firekeep.save_file(ARRAYS, tmp_path / "in.bpk")
    with pytest.raises(FileNotFoundError, match="mkdir -p") as caught:
        firekeep.convert(src, tmp_path / "no" / "where" / "out.safetensors", **options)
    assert caught.value.errno == errno.ENOENT
    assert str(caught.value.filename).startswith(str(tmp_path / "no"))


def test_trailing_bytes_are_taken_by_load_file_as_its_error_says(tmp_path: Path):
    path = firekeep.save_file(ARRAYS, tmp_path / "in.safetensors")
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(firekeep.FirekeepError, match="allow_trailing=True"):
        firekeep.load_file(path)
    assert firekeep.load_file(path, allow_trailing=True).keys() == ARRAYS.keys()


def test_empty_metadata_is_kept(tmp_path: Path):
    src = tmp_path / "in.safetensors"
    header = b'{"__metadata__":{},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    src.write_bytes(struct.pack("<Q", len(header) + 1) + header + b" " + b"x")
    firekeep.convert(src, tmp_path / "out.safetensors")
    firekeep.convert(src, tmp_path / "out.bpk")
    with firekeep.open(tmp_path / "out.safetensors") as file:
        assert file.details["metadata"] == "empty"


def test_a_pytorch_source_has_nothing_to_compare_with(tmp_path: Path):
    (tmp_path / "in.pt").write_bytes(state_dict(ARRAYS))
    report = firekeep.convert(tmp_path / "in.pt", tmp_path / "out.bpk")
    assert (report.checked, report.digests) == (0, False)
    assert [note for note in report.notes if "digest" in note] == []


# Digests certify: what they are of is compared with whatever the source can be checked by.

SHARED = torch.arange(50.0) + 7
SAVED = {
    "whole": torch.arange(300.0) + 0.25,
    "first": SHARED[:20],
    "rest": SHARED[20:],
    "turned": (torch.arange(12.0) + 0.5).reshape(3, 4).t(),
    "flags": torch.tensor([True, False, True]),
    "empty": torch.zeros(0),
}


@pytest.mark.parametrize("suffix", [".safetensors", ".bpk"])
@pytest.mark.parametrize(
    ("of", "named", "damaged"),
    [
        (SAVED["whole"], "whole", ["whole"]),
        (SHARED, "first", ["first", "rest"]),  # the damage lies in the other part
        (torch.arange(12.0) + 0.5, "turned", ["turned"]),
        (SAVED["flags"], "flags", ["flags"]),
    ],
)
def test_no_digest_is_written_of_a_damaged_member(
    of: torch.Tensor, named: str, damaged: list[str], suffix: str, tmp_path: Path
):
    src, out = tmp_path / "in.pt", tmp_path / f"out{suffix}"
    torch.save(SAVED, src)
    report = firekeep.convert(src, out, digest=True)
    assert (report.attested, report.checked, report.digests) == (5, 0, True)  # an empty tensor has no bytes
    assert "compared with the checksums of the source's archive: 5 of 6 tensors" in str(report)
    out.unlink()
    damage(src, of.numpy())
    for options in ({}, {"dtype": "bf16"}, {"include": f"^{named}$"}, {"rename": "^=>new."}):
        with pytest.raises(DigestError, match=r"zip member 'in/data/\d' is damaged") as caught:
            firekeep.convert(src, out, digest=True, **options)
        assert (caught.value.tensor, caught.value.path) == (named, str(src))
    assert [file.name for file in tmp_path.iterdir()] == [src.name]
    with pytest.raises(DigestError) as caught:
        firekeep.convert(src, out, digest=True)
    report = firekeep.convert(
        src, out, digest=True, exclude=ast.literal_eval(str(caught.value).split("exclude=")[1].rstrip("."))
    )
    assert sorted(report.excluded) == damaged
    assert report.attested == 5 - len(damaged)


def test_checksums_are_compared_only_for_digests_and_never_in_a_dry_run(tmp_path: Path):
    src = tmp_path / "in.pt"
    torch.save(SAVED, src)
    damage(src, SAVED["whole"].numpy())
    assert firekeep.convert(src, tmp_path / "out.bpk").attested == 0
    assert firekeep.convert(src, tmp_path / "out.bpk", digest=True, dry_run=True).attested == 0


@pytest.mark.parametrize("packed", [False, True])
def test_the_checksums_of_other_archives_are_compared_too(packed: bool, tmp_path: Path):
    src = tmp_path / "in.npz"
    (np.savez_compressed if packed else np.savez)(src, a=np.arange(100, dtype=np.float32), b=np.ones(3, np.float32))
    assert firekeep.convert(src, tmp_path / "out.bpk", digest=True).attested == 2
    if not packed:
        damage(src, np.arange(100, dtype=np.float32))
        with pytest.raises(DigestError, match=r"tensor 'a': zip member 'a\.npy' is damaged"):
            firekeep.convert(src, tmp_path / "out.bpk", digest=True)


def test_the_checksum_of_a_keras_archive_is_compared_too(tmp_path: Path):
    src, array, inside = tmp_path / "in.keras", np.arange(64, dtype=np.float32), io.BytesIO()
    with h5py.File(inside, "w") as file:
        file["layers/dense/vars/0"] = array
    with zipfile.ZipFile(src, "w") as archive:
        for name, data in (("metadata.json", b"{}"), ("config.json", b"{}"), ("model.weights.h5", inside.getvalue())):
            archive.writestr(name, data)
    assert firekeep.convert(src, tmp_path / "out.bpk", digest=True).attested == 1
    damage(src, array)
    with pytest.raises(DigestError, match=r"zip member 'model\.weights\.h5' is damaged"):
        firekeep.convert(src, tmp_path / "out.bpk", digest=True)


def test_what_has_no_checksum_is_copied_as_it_is_read(tmp_path: Path):
    torch.save(SAVED, tmp_path / "in.pt", _use_new_zipfile_serialization=False)
    assert firekeep.convert(tmp_path / "in.pt", tmp_path / "out.bpk", digest=True).attested == 0


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)


@pytest.mark.parametrize("layout", [None, "torch", "burn"])
@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"a.weight": (2, 3)}, "has nothing like 'a.weight'"),
        ({"fc1.kernel": (8, 8)}, "has nothing like 'fc1.kernel'"),
        ({"fc2.weight": (8, 4)}, r"its shape is \[8, 4\], and the Two has it as \[4, 8\] in the layout 'torch'"),
    ],
)
def test_what_is_not_like_the_model_that_tells_the_layers_is_refused(tmp_path, tensors, said, layout):
    source, target = tmp_path / "in.safetensors", tmp_path / "out.bpk"
    firekeep.save_file(
        {name: np.ones(shape, np.float32) for name, shape in tensors.items()}, source, metadata={"format": "pt"}
    )
    with pytest.raises(firekeep.RuleError, match=said):
        firekeep.convert(source, target, layout=layout, like=Two())
    assert not target.exists()
