"""Files that are not what their name says: what people were told was no help."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from pathlib import Path

import pytest

import firekeep
import pickles
from firekeep import FormatError, MetadataError, TruncatedError, WrongFormatError
from reports.files import FOUR, described, members_of, raw_safetensors, state_dict_file, zip_of

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".bpk")

LFS = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 497764120\n"
)
ONNX = b'\x08\x08\x12\x07pytorch\x1a\x032.1:\x1c\n\x0e\n\x01x\x12\x01y"\x06MatMul\x12\x04main\x1a\x04\x08\x01\x10\x0d'
MATRIX = pickles.pickled(pickles.ordered({"w": pickles.tensor("FloatStorage", "0", 4, shape=(2, 2))}))


def tar_with_a_model() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("model.pth")
        member.size = len(state_dict_file(w=FOUR))
        archive.addfile(member, io.BytesIO(state_dict_file(w=FOUR)))
    return out.getvalue()


# A name of what was found, the remedy, and the bytes.
OTHER_KINDS = {
    # pytorch#16203: an HTML page saved as .pth, "invalid load key '<'".
    "an HTML page": (
        "html",
        "HTML page.*The download failed",
        b"<!DOCTYPE html>\n<html><head><title>x</title></head></html>",
    ),
    "an HTML page without a doctype": ("html", "HTML page", b"\n  <html><body>Sign in</body></html>"),
    "an error in XML": ("xml-error", "AccessDenied", b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>"),
    "an error in JSON": ("json-error", "Repository not found", b'{"error": "Repository not found"}'),
    "an error in plain text": (
        "text",
        "Invalid credentials.*download failed",
        b"Invalid credentials in Authorization header",
    ),
    # OmniParser#34, DeepSeek-V3#557, transformers#27923: a git-LFS pointer, "header too large".
    "a git-LFS pointer": ("lfs-pointer", "git-LFS pointer for a file of 497,764,120 bytes.*git lfs pull", LFS),
    # AI-Writer#5, yolov7#476, yolact#74, sparseml#490: an ONNX model, "invalid load key '\x08'".
    "an ONNX model": ("onnx", "ONNX model", ONNX),
    # aisbom#82 (the nullifAI samples): other containers named .pt.
    "a 7z archive": ("7z", "7z archive", bytes.fromhex("377abcaf271c0004") + bytes(24)),
    "a RAR archive": ("rar", "RAR archive", b"Rar!\x1a\x07\x01\x00" + bytes(24)),
    "a gzip file": ("gzip", "gzip.*zip archive", gzip.compress(state_dict_file(w=FOUR))),
    "a bzip2 file": ("bzip2", "bzip2.*zip archive", bz2.compress(state_dict_file(w=FOUR))),
    "an xz file": ("xz", "xz.*zip archive", lzma.compress(state_dict_file(w=FOUR))),
    "a tar archive with a model inside": ("tar", r"'model\.pth' inside.*tar -xf", tar_with_a_model()),
    # PandaGPT#11: a small .pt without data.pkl.
    "an empty zip archive": ("zip-empty", "empty zip archive.*save the file again", zip_of({})),
    "a zip archive without data.pkl": (
        "pytorch-without-data.pkl",
        r"without its data\.pkl",
        zip_of({name: data for name, data in members_of(state_dict_file(w=FOUR)).items() if "data.pkl" not in name}),
    ),
    "an empty file": ("empty", "empty file", b""),
    # pytorch#61923: two saves to one open file.
    "two PyTorch files in a row": (
        "zip-row",
        "2 zip archives one after the other.*Cut them apart",
        state_dict_file(a=FOUR) + state_dict_file(b=FOUR),
    ),
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("kind", "words", "data"), OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_another_kind_of_file_is_named_whatever_its_suffix(
    kind: str, words: str, data: bytes, suffix: str, tmp_path: Path
):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(data)
    with pytest.raises(WrongFormatError, match=f"(?s){words}") as caught:
        firekeep.open(path)
    assert caught.value.kind == kind
    assert str(path) in str(caught.value)


# keras#18875: .h5, .keras and .weights.h5 mixed up.
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "data",
    [
        b"\x89HDF\r\n\x1a\n" + bytes(40),
        zip_of({"metadata.json": b"{}", "config.json": b"{}", "model.weights.h5": b"\x89HDF\r\n\x1a\n"}),
    ],
    ids=["HDF5", "a Keras 3 archive"],
)
def test_a_file_of_keras_is_told_by_its_content_and_a_damaged_one_is_refused(data: bytes, suffix: str, tmp_path: Path):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(data)
    with pytest.raises(firekeep.FormatError, match="HDF5"):
        firekeep.open(path)
    assert firekeep.doctor(path).kind in ("hdf5", "keras")


@pytest.mark.parametrize(("kind", "words", "data"), OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_the_doctor_says_the_same_and_what_to_do(kind: str, words: str, data: bytes):
    found = firekeep.doctor(data)
    assert found.kind == kind
    assert not found.opens
    assert found.next_step


def test_a_command_to_cut_two_files_apart_does_so(tmp_path: Path):
    first, second = state_dict_file(a=FOUR), state_dict_file(b=FOUR, c=FOUR)
    with pytest.raises(WrongFormatError) as caught:
        firekeep.open(first + second)
    assert f"tail -c +{len(first) + 1} " in str(caught.value)
    assert f"head -c {len(first)} " in str(caught.value)
    with firekeep.open((first + second)[len(first) :]) as file:
        assert file.keys() == ["b", "c"]


READABLE = {
    # burn#3605: a file of the old stream layout, "not a zip".
    "legacy": pickles.legacy_file(
        pickles.ordered({"w": pickles.tensor("FloatStorage", "0", 4, shape=(2, 2))}), {"0": (4, FOUR)}
    ),
    "zip": pickles.zip_file(MATRIX, {"0": FOUR}),
    "safetensors": raw_safetensors({"w": described("F32", [2, 2], 0, 16)}, FOUR),
}


# pytorch#12042 (model_best.pth.tar), isrf_code#3: a suffix that says tar, content that is none.
@pytest.mark.parametrize(
    "name", ["model_best.pth.tar", "model.tar", "model.zip", "model", "model.h5", "model.SafeTensors"]
)
@pytest.mark.parametrize("layout", READABLE)
def test_a_suffix_decides_nothing_on_reading(layout: str, name: str, tmp_path: Path):
    path = tmp_path / name
    path.write_bytes(READABLE[layout])
    with firekeep.open(path) as file:
        assert file["w"].tolist() == [[1, 2], [3, 4]]
        assert layout in (file.variant, file.format)


# pytorch#26383, pytorch#12042: sizes read in the wrong byte order, "expected 2930331299881099915 got 128".
def test_an_element_count_in_the_wrong_byte_order_is_damage_and_says_where():
    good = READABLE["legacy"]
    swapped = bytearray(good)
    place = len(good) - len(FOUR) - 8
    swapped[place : place + 8] = swapped[place : place + 8][::-1]
    with pytest.raises(MetadataError, match=f"storage '0' at byte {place}.*{4 << 56} elements, the pickle says 4"):
        firekeep.open(bytes(swapped))


@pytest.mark.parametrize("cut", [1, 8, 15, 16, 20])
def test_a_short_write_of_an_old_file_is_truncation(cut: int):
    with pytest.raises(TruncatedError, match="cut short"):
        firekeep.open(READABLE["legacy"][:-cut])


# pytorch#88320: a checkpoint written behind other bytes of a file.
def test_a_checkpoint_behind_other_bytes_opens_and_says_so():
    with firekeep.open(b"header" + READABLE["zip"]) as file:
        assert file["w"].tolist() == [[1, 2], [3, 4]]
        assert any("byte 6" in note for note in file.notes)


@pytest.mark.parametrize("layout", READABLE)
def test_a_file_object_is_read_from_where_it_stands(layout: str, tmp_path: Path):
    path = tmp_path / "two-parts.bin"
    path.write_bytes(b"header" + READABLE[layout])
    with path.open("rb") as handle:
        handle.seek(6)
        with firekeep.open(handle) as file:
            assert file["w"].tolist() == [[1, 2], [3, 4]]
    memory = io.BytesIO(b"header" + READABLE[layout])
    memory.seek(6)
    with firekeep.open(memory) as file:
        assert file["w"].tolist() == [[1, 2], [3, 4]]


# InvokeAI#7009, airllm#137: a cut download, "MetadataIncompleteBuffer".
def test_a_cut_safetensors_file_says_how_much_is_missing_and_which_tensors_are_whole():
    header = {"a": described("F32", [2], 0, 8), "b": described("F32", [2], 8, 16), "c": described("F32", [1], 16, 20)}
    with pytest.raises(TruncatedError, match=r"20 bytes .* 12 are there, 8 are missing; 1 of 3 .*'a'") as caught:
        firekeep.open(raw_safetensors(header, bytes(12)))
    assert (caught.value.limit, caught.value.actual) == (20, 12)


def test_a_safetensors_file_cut_in_its_header_is_truncated():
    file = READABLE["safetensors"]
    for length in (9, 20, len(file) - 17):
        with pytest.raises(TruncatedError):
            firekeep.open(file[:length])


# ComfyUI#15602: bytes after the tensors, taken by one program and refused by another.
@pytest.mark.parametrize("extra", [1, 8, 4096])
def test_trailing_bytes_are_refused_unless_allowed_and_then_counted(extra: int):
    file = READABLE["safetensors"] + bytes(extra)
    with pytest.raises(FormatError, match=rf"{extra} bytes? follow.*allow_trailing=True"):
        firekeep.open(file)
    with firekeep.open(file, allow_trailing=True) as opened:
        assert opened["w"].tolist() == [[1, 2], [3, 4]]
        assert any(str(extra) in note for note in opened.notes)


def test_a_conversion_leaves_trailing_bytes_behind_only_when_allowed(tmp_path: Path):
    (tmp_path / "long.safetensors").write_bytes(READABLE["safetensors"] + b"trailing")
    with pytest.raises(FormatError, match="8 bytes follow"):
        firekeep.convert(tmp_path / "long.safetensors", tmp_path / "new.safetensors")
    assert not (tmp_path / "new.safetensors").exists()
    firekeep.convert(tmp_path / "long.safetensors", tmp_path / "new.safetensors", allow_trailing=True)
    assert b"trailing" not in (tmp_path / "new.safetensors").read_bytes()
    assert firekeep.load_file(tmp_path / "new.safetensors")["w"].tolist() == [[1, 2], [3, 4]]
