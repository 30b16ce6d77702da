import base64
import bz2
import contextlib
import gzip
import io
import json
import lzma
import pickle
import random
import shlex
import struct
import subprocess
import tarfile
import zipfile
import zlib

import numpy as np
import pytest

from firekeep.errors import FirekeepError, MetadataError, TruncatedError, WrongFormatError
from firekeep.formats._detect import detect, identify
from firekeep.sources import FileSource, MemorySource
from zip_builder import Part, build

LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)


def zipped(**files: bytes) -> bytes:
    return build(Part(name=name, data=data) for name, data in files.items())


def tarred(mode: str = "w", **files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def safetensors(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


# What firekeep reads.


@pytest.mark.parametrize(
    "data",
    [
        safetensors(b"{}"),
        safetensors(b' \n{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
        struct.pack("<Q", 5000) + b'{"a":',
        struct.pack("<Q", 1 << 60) + b'{"a":{"dtype":"F32"',
        safetensors(b'X"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   ', b"x"),
        safetensors(b"\xff"),
    ],
    ids=["empty", "white space", "cut", "absurd length", "first byte damaged", "only a damaged byte"],
)
def test_safetensors_is_told_whole_or_damaged(data):
    assert detect(MemorySource(data)) == "safetensors"


def test_burnpack_is_told_by_its_magic():
    assert detect(MemorySource(b"NRUB\x01\x00")) == "burnpack"


@pytest.mark.parametrize("root", ["", "archive/", "any/where/"])
def test_a_zip_with_a_pickle_is_pytorch_wherever_the_pickle_is(root):
    assert detect(MemorySource(zipped(**{f"{root}data.pkl": b"\x80\x02}."}))) == "pytorch"
    assert detect(MemorySource(zipped(**{f"{root}data/0": b"1234", f"{root}data.pkl": b"\x80\x02}."}))) == "pytorch"


def test_a_zip_behind_other_bytes_is_found():
    assert detect(MemorySource(b"header" + zipped(**{"archive/data.pkl": b"\x80\x02}."}))) == "pytorch"


@pytest.mark.parametrize("protocol", range(6))
def test_the_legacy_stream_is_told_in_every_protocol(protocol):
    data = pickle.dumps(0x1950A86A20F9469CFC6C, protocol) + pickle.dumps(1001, protocol)
    assert identify(MemorySource(data)).title == "a PyTorch file (legacy stream)"
    python2 = b"L119547037146038801333356L\n."
    assert identify(MemorySource(python2)).title == "a PyTorch file (legacy stream)"


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "value", [{"a": 1, "b": [1.5, "text"]}, [1, (2, 3)], 7, "text", 1.5, None, True, {}, [], ()], ids=repr
)
def test_any_pickle_is_given_to_the_pytorch_reader(value, protocol):
    assert detect(MemorySource(pickle.dumps(value, protocol))) == "pytorch"


def test_a_cut_text_pickle_is_still_a_pickle():
    data = pickle.dumps({"one": [1, 2, 3], "two": {"three": 4}}, 0)
    assert detect(MemorySource(data[: len(data) // 2])) == "pytorch"


def test_the_tar_files_of_the_first_pytorch_are_told_by_their_members():
    data = tarred(sys_info=b"\x80\x02}.", pickle=b"\x80\x02}.", storages=b"\x80\x02K\x00.", tensors=b"\x80\x02K\x00.")
    assert identify(MemorySource(data)).title == "a PyTorch file (tar)"


def test_a_suffix_decides_nothing(tmp_path):
    path = tmp_path / "model.pth.tar"
    path.write_bytes(zipped(**{"m/data.pkl": b"\x80\x02}."}))
    assert detect(FileSource(path)) == "pytorch"
    path = tmp_path / "model.bpk"
    path.write_bytes(safetensors(b"{}"))
    assert detect(FileSource(path)) == "safetensors"


def test_the_pickle_of_an_unpacked_file_is_told_with_the_way_back(tmp_path):
    folder = tmp_path / "un packed" / "archive"
    (folder / "data").mkdir(parents=True)
    path = folder / "data.pkl"
    content = (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x00((X\x07\x00\x00\x00storageq\x01ctorch\nByteStorage\nq\x02"
        b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQK\x00K\x02\x85K\x01\x85\x89}tR."
    )
    path.write_bytes(content)
    (folder / "data" / "0").write_bytes(b"ab")
    (folder / "version").write_bytes(b"3\n")
    identity = identify(FileSource(path))
    assert (identity.kind, identity.format) == ("bare-data.pkl", "pytorch")
    command = (identity.next_step or "").split("`")[1]
    subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True)
    assert detect(FileSource(tmp_path / "un packed" / "model.pt")) == "pytorch"
    with zipfile.ZipFile(tmp_path / "un packed" / "model.pt") as archive:
        assert {"archive/data.pkl", "archive/data/0"} <= set(archive.namelist())
    alone = identify(MemorySource(content))
    assert (alone.kind, alone.next_step) == (
        "bare-data.pkl",
        "Take the whole file: the folder that it was unpacked from, with data/, or the .pt file itself.",
    )


ARRIVING = {
    "npy": (npy(np.zeros((2, 3), "f4")), "npy", "numpy"),
    "npy of objects": (npy(np.array([{"a": 1}], dtype=object)), "npy", "numpy"),
    "npz": (npz(a=np.zeros(3)), "npz", "numpy"),
    "keras": (zipped(**{"metadata.json": b"{}", "config.json": b"{}", "model.weights.h5": b"1"}), "keras", "hdf5"),
    "hdf5": (b"\x89HDF\r\n\x1a\n\0", "hdf5", "hdf5"),
    "hdf5 behind a user block": (bytes(512) + b"\x89HDF\r\n\x1a\n\0", "hdf5", "hdf5"),
    "gguf": (b"GGUF" + struct.pack("<IQQ", 3, 5, 6), "gguf", "gguf"),
    "flax": (b"\x81\xa6params\x80", "msgpack", "flax"),
    "long msgpack": (b"\xde\x00\x20\xd9\x24" + b"k" * 36, "msgpack", "flax"),
}


@pytest.mark.parametrize("name", ARRIVING)
def test_what_people_arrive_with_is_told_by_its_first_bytes_and_members(name):
    data, kind, format = ARRIVING[name]
    identity = identify(MemorySource(data))
    assert (identity.kind, identity.format) == (kind, format)
    for length in range(len(data)):
        with contextlib.suppress(FirekeepError):
            detect(MemorySource(data[:length]))


# Everything else, by name, with the next step.

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345678\n"
)
WRONG = {
    "empty": (b"", "empty", "an empty file", "save or fetch the file again"),
    "pointer": (POINTER, "lfs-pointer", "git-LFS pointer for a file of 12,345,678 bytes", "`git lfs pull`"),
    "html": (b"\n<!DOCTYPE html><html><head><title>404 &amp;\nGone</title>", "html", "HTML page ('404 & Gone')", "download failed"),
    "hub page": (b"<html><a href='https://huggingface.co/a/blob/main/f.bin'>", "html", "an HTML page", "/resolve/ where it says /blob/"),
    "json error": (b'{"error":"Repository not found"}', "json-error", "'Repository not found'", "download failed"),
    "xml error": (b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>', "xml-error", "'NoSuchKey'", "download failed"),
    "xml": (b'<?xml version="1.0"?><net name="x"/>', "xml", "an XML file", "holds the weights"),
    "config": (b'{"model_type": "llama", "hidden_size": 8}', "json-config", "configuration", "usually beside it"),
    "tokenizer": (b'{"version": "1.0", "added_tokens": []}', "json-tokenizer", "tokenizer", "usually beside it"),
    "index": (
        json.dumps({"metadata": {"total_size": 8}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}).encode(),
        "safetensors-index", "sharded safetensors checkpoint in 2 files", "Open it by its path, or the folder",
    ),
    "bin index": (
        json.dumps({"weight_map": {"a": "m-1.bin", "b": "m-2.bin", "c": "m-2.bin"}}).encode(),
        "pytorch-index", "sharded PyTorch checkpoint in 2 files", "Open it by its path, or the folder",
    ),
    "index of others": (
        json.dumps({"weight_map": {"a": "m-1.onnx", "b": "m-2.onnx"}}).encode(),
        "sharded-index", "sharded checkpoint in 2 files", "open those, one by one",
    ),
    "broken index": (b'{"metadata": {}, "weight_map": {"a": ', "sharded-index", "the index of a sharded checkpoint", "names"),
    "json": (b'{"a": 1}', "json", "a JSON file", "holds the weights"),
    "json list": (b"[1, 2, 3]", "json", "a JSON file", "holds the weights"),
    "deep json": (b"[" * 100_000, "json", "a JSON file", "holds the weights"),
    "cut json": (b'{"weights": [1, 2,', "json", "cut short", "holds the weights"),
    "refusal": (b"Invalid username or password.", "text", "'Invalid username or password.'", "download failed"),
    "text": ("# naïve notes\n".encode() * 500, "text", "starts with '# naïve notes'", "holds the weights"),
    "prose": (b"I think this is a model.\nNo.\n", "text", "a text file", "holds the weights"),
    "utf-16": ("text".encode("utf-16"), "text", "UTF-16", "holds the weights"),
    "base64": (base64.b64encode(zipped(a=b"1")), "base64", "base64 text of a zip archive", "`base64 -d FILE > OUT`"),
    "npy stream": (npy(np.zeros(2)) + npy(np.ones(3)), "equinox", "several NumPy arrays in a row", "tree_deserialise_leaves"),
    "eqx": (b'{"width": 3}\n' + npy(np.zeros(2)), "equinox", "an Equinox file", "tree_deserialise_leaves"),
    "no members": (build([]), "zip-empty", "an empty zip archive", "save the file again"),
    "storages only": (
        zipped(**{"archive/version": b"3\n", "archive/data/0": b"1234"}),
        "pytorch-without-data.pkl", "without its data.pkl", "save or fetch the file again",
    ),
    "sb3": (
        zipped(**{"data": b"{}", "policy.pth": b"1", "policy.optimizer.pth": b"22"}),
        "stable-baselines3", "PyTorch files inside a zip archive", "`unzip FILE policy.pth`",
    ),
    "mar": (zipped(**{"model.pt": b"123", "MAR-INF/MANIFEST.json": b"{}"}), "torchserve", "TorchServe", "`unzip FILE model.pt`"),
    "empty mar": (zipped(**{"model.pt": b"", "MAR-INF/MANIFEST.json": b"{}"}), "torchserve", "its 'model.pt' is empty", "unzip"),
    "torch.package": (
        zipped(**{"p/.data/0.storage": b"1", "p/.data/ts_code/0/data.pkl": b"."}),
        "torch-package", "a torch.package archive", "state_dict()",
    ),
    "torch.export": (
        zipped(**{"m/data/weights/weight_0": b"1", "m/models/model.json": b"{}", "m/archive_format": b"pt2"}),
        "torch-export", "a torch.export program", "torch.export.load",
    ),
    "TorchScript 1": (
        zipped(**{"foo/model.json": b"{}", "foo/tensors/0": b"1234"}), "torchscript-v1", "model.json instead of data.pkl", "torch.jit.load",
    ),
    "onnx in zip": (zipped(**{"model.onnx": b"12"}), "zip-of-models", "'model.onnx' inside", "`unzip FILE model.onnx`"),
    "docx": (zipped(**{"word/document.xml": b""}), "docx", "a Word document", "holds the weights"),
    "jar": (zipped(**{"META-INF/MANIFEST.MF": b"", "A.class": b""}), "jar", "a Java archive", "holds the weights"),
    "plain zip": (zipped(readme=b"1"), "zip", "without data.pkl", "`unzip FILE`"),
    "odd names": (zipped(**{"../evil.pt": b"1"}), "zip-of-models", "'../evil.pt' inside", "holds the weights"),
    "locked": (build([Part(name="m.pt", flags=1)]), "zip-encrypted", "an encrypted zip archive", "takes no passwords"),
    "tar": (tarred(readme=b"1"), "tar", "a tar archive", "`tar -tf FILE`"),
    "tar with model": (tarred(**{"a/model.pth": b"1"}), "tar", "with 'a/model.pth' inside", "`tar -xf FILE a/model.pth`"),
    "tar.gz": (
        gzip.compress(tarred(**{"config.json": b"{}", "weights.th": b"PK"})),
        "tar.gz", "gzip-compressed tar archive with 'weights.th' inside", "`tar -xzf FILE weights.th`",
    ),
    "tar.bz2": (bz2.compress(tarred(**{"m.pt": b"1"})), "tar.bz2", "bzip2-compressed tar", "`tar -xjf FILE m.pt`"),
    "tar.xz": (lzma.compress(tarred(**{"m.pt": b"1"})), "tar.xz", "xz-compressed tar", "`tar -xJf FILE m.pt`"),
    "gzip of zip": (gzip.compress(zipped(a=b"1")), "gzip", "with a zip archive", "`gzip -dc FILE > OUT`"),
    "gzip": (gzip.compress(b"hello"), "gzip", "a gzip-compressed file", "`gzip -dc FILE > OUT`"),
    "broken gzip": (b"\x1f\x8b\x08\x00garbage", "gzip", "a gzip-compressed file", "gzip -dc"),
    "xz": (lzma.compress(b"\x80\x04."), "xz", "an xz-compressed file with a pickle inside", "`xz -dc FILE > OUT`"),
    "zlib": (zlib.compress(b"\x80\x04" + b"x" * 90), "zlib", "a zlib-compressed file", "holds the weights"),
    "zstd": (b"\x28\xb5\x2f\xfd\0\0\0\0", "zstd", "zstd", "`zstd -dc FILE > OUT`"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\x04", "7z", "a 7z archive", "`7z x FILE`"),
    "rar": (b"Rar!\x1a\x07\x01\x00", "rar", "a RAR archive", "`unrar x FILE`"),
    "png": (b"\x89PNG\r\n\x1a\n", "png", "a PNG image", "holds the weights"),
    "jpeg": (b"\xff\xd8\xff\xe0\0\x10JFIF", "jpeg", "a JPEG image", "holds the weights"),
    "pdf": (b"%PDF-1.7\n", "pdf", "a PDF document", "holds the weights"),
    "sqlite": (b"SQLite format 3\0\x10\0", "sqlite", "an SQLite database", "holds the weights"),
    "elf": (b"\x7fELF\x02\x01", "elf", "program or shared library", "holds the weights"),
    "ggml": (b"tjgg\x03\0\0\0", "ggml", "an old GGML file", "llama.cpp"),
    "burn record": (b"\x83\xa8metadata\x85\xa8recorder\xa1x", "burn-record", "a Burn record", "BurnpackStore"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(20), "tflite", "TensorFlow Lite", "tf.lite.Interpreter"),
    "saved model": (b"\x08\x01\x12\x05hello", "tf-saved-model", "SavedModel", "variables/"),
    "graph": (b"\x0a\x1d\x0a\x05input\x12\x0bPlaceholder" + b"*\0" * 4, "tf-graph", "frozen TensorFlow graph", "GraphDef"),
    "tf checkpoint": (bytes(range(30)) + bytes.fromhex("57fb808b247547db"), "tf-checkpoint", "TensorFlow checkpoint", "load_checkpoint"),
    "onnx": (b"\x08\x08\x12\x07pytorch:\x03abc", "onnx", "an ONNX model", "onnx.load"),
    "cut onnx": (b"\x08\x08\x12\x07pytorch:\xff\x7fabc", "onnx", "16,380 bytes of its graph are missing", "onnx.load"),
    "torch7": (b"\x04\0\0\0\x01\0\0\0\x03\0\0\0V 1\x0d\0\0\0nn.Sequential", "torch7", "Lua Torch7", "torchfile"),
    "torch7 text": (b"4\n1\n3\nV 1\n13\nnn.Sequential\n", "torch7", "Lua Torch7", "torchfile"),
    "ctranslate2": (b"\x06\0\0\0\x10\0TransformerSpec\0", "ctranslate2", "a CTranslate2 model", "converted from"),
    "zeros": (bytes(10_000), "zeros", "10,000 bytes, all zero", "fetch the file again"),
    "noise": (random.Random(5).randbytes(5000), "unknown", "of no format that firekeep knows; it starts with", "which program wrote it"),
    "one byte": (b"\x01", "unknown", "it starts with 01", "which program wrote it"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_named_with_the_next_step(name):
    data, kind, title, step = WRONG[name]
    with pytest.raises(WrongFormatError) as caught:
        detect(MemorySource(data, path=None))
    assert caught.value.kind == kind
    assert title in caught.value.message
    assert step in (caught.value.remedy or "")
    assert str(caught.value).startswith("this is ")


def test_an_error_names_the_path(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(POINTER)
    with pytest.raises(WrongFormatError, match=r"model\.safetensors: this is a git-LFS pointer"):
        detect(FileSource(path))


def test_an_onnx_model_tells_where_its_weights_are():
    data = b"\x08\x0a\x12\x07pytorch:\x18" + b"j\x14\x0a\x08location\x12\x08net.data"
    assert ("weights in", "'net.data'") in identify(MemorySource(data)).facts


def test_members_that_contradict_their_own_headers_are_told_before_what_the_archive_is():
    data = build([Part(name="readme", local={"name": "remade"})])
    with pytest.raises(MetadataError, match="tampered"):
        detect(MemorySource(data))


def test_a_cut_zip_says_so_and_not_that_it_is_no_pytorch_file():
    data = zipped(**{"archive/data/0": b"x" * 500, "archive/data.pkl": b"\x80\x02}."})
    with pytest.raises(TruncatedError, match="lacks 300 of its 500 bytes"):
        detect(MemorySource(data[: data.index(b"x" * 500) + 200]))


def test_the_advised_commands_work(tmp_path):
    models = {"weights.th": b"w" * 10, "policy.pth": b"p" * 20}
    (tmp_path / "my models").mkdir()
    for name, data, taken in (
        ("my models/a.pt", zipped(**models), b"p" * 20),
        ("my models/-b.pt", tarred(**models), b"w" * 10),
        ("c.bin", gzip.compress(tarred(**models)), b"w" * 10),
        ("d.pt.gz", gzip.compress(b"\x80\x02K\x01."), b"\x80\x02K\x01."),
        ("e.pt", lzma.compress(b"\x80\x02K\x01."), b"\x80\x02K\x01."),
        ("f.pt", base64.encodebytes(zipped(a=b"1")), zipped(a=b"1")),
    ):
        folder = tmp_path / f"in {name.replace('/', '_')}"
        folder.mkdir()
        path = tmp_path / name
        path.write_bytes(data)
        command = (identify(FileSource(path)).next_step or "").split("`")[1]
        before = {file for file in tmp_path.rglob("*") if file.is_file()}
        subprocess.run(["/bin/sh", "-c", command], check=True, cwd=folder, capture_output=True)
        made = {file for file in tmp_path.rglob("*") if file.is_file()} - before
        assert [file.read_bytes() for file in made] == [taken], command
        assert shlex.split(command)


@pytest.mark.parametrize("name", ["html", "onnx", "tar.gz", "eqx", "broken index", "torch7", "sb3"])
def test_every_cut_and_changed_wrong_file_raises_only_firekeep_errors(name):
    data = WRONG[name][0]
    chance = random.Random(name)
    samples = [data[:length] for length in range(0, len(data), 1 + len(data) // 200)]
    for _ in range(150):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 8)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        samples.append(bytes(changed))
    for sample in samples:
        try:
            told = detect(MemorySource(sample))
        except FirekeepError as error:
            told = str(error)
        assert told
