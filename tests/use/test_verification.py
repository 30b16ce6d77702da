from __future__ import annotations

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import firekeep
from firekeep import WrongFormatError
from firekeep.blobs import MemoryBlob
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from use.checkpoints import Checkpoint, state_dict

CASES = Path(__file__).parents[1] / "data" / "cases" / "files"
ARRAYS = {"a": np.arange(1, 7, dtype=np.float32), "b": np.ones(3, np.int64)}
SUFFIXES = pytest.mark.parametrize("suffix", [".safetensors", ".bpk"])


def found(report: firekeep.VerificationReport, severity: str = "error") -> list[tuple[str, str]]:
    return [(finding.place, finding.message) for finding in report.findings if finding.severity == severity]


@pytest.mark.parametrize("case", ["burn/burn_mnist.pt", "burn/burn_mnist.safetensors", "burn/mnist_web_model.bpk"])
def test_whole_files_are_ok(case: str):
    report = firekeep.verify(CASES / case, values=True)
    assert report.ok
    assert bool(report)
    assert report.values
    assert report.tensors > 0
    document = report.to_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["ok"] is True
    assert str(report).startswith(f"{CASES / case}: ok")


@SUFFIXES
def test_one_flipped_bit_is_found_by_its_tensor(suffix: str, tmp_path: Path):
    path = firekeep.save_file(ARRAYS, tmp_path / f"m{suffix}", digest=True)
    data = bytearray(path.read_bytes())
    place = data.find(ARRAYS["a"].tobytes())
    data[place] ^= 1
    path.write_bytes(data)
    report = firekeep.verify(path)
    assert not report.ok
    assert [place for place, _ in found(report)] == ["a"]
    assert "NOT OK" in str(report)
    assert "'a': its bytes are not those it was saved with" in str(report)


@SUFFIXES
def test_digests_that_do_not_fit_the_tensors_are_told(suffix: str, tmp_path: Path):
    path = firekeep.save_file(ARRAYS, tmp_path / f"m{suffix}", digest=True)
    with firekeep.open(path) as file:
        text = file.metadata["firekeep.digests"]
    forged = path.read_bytes().replace(b"firekeep.digests", b"firekeep.digestx")
    path.write_bytes(forged)
    assert firekeep.verify(path).digests == 0
    lost = {"algorithm": "xxh3-128", "tensors": {"gone": "0" * 32, "a": json.loads(text)["tensors"]["a"]}}
    path.write_bytes(_with_metadata(suffix, json.dumps(lost)))
    report = firekeep.verify(path)
    assert found(report) == [("gone", "there is a digest of it, and no tensor of this name")]
    assert found(report, "warning") == [("", "1 tensor without a digest: 'b'")]
    path.write_bytes(_with_metadata(suffix, "nonsense"))
    assert found(firekeep.verify(path)) == [("", "the metadata key 'firekeep.digests' is not JSON")]


def _with_metadata(suffix: str, value: str) -> bytes:
    """A file whose digests are anything: written by the format itself, since no door takes them."""
    from firekeep.arrays import entry_of
    from firekeep.disk import to_bytes
    from firekeep.formats import Contents, format_for_suffix
    from firekeep.limits import DEFAULT_LIMITS

    entries = [entry_of(name, array) for name, array in ARRAYS.items()]
    contents = Contents(entries=entries, metadata={"firekeep.digests": value})
    return to_bytes(format_for_suffix(f"x{suffix}").writer()(contents, DEFAULT_LIMITS))


@SUFFIXES
def test_a_cut_file_is_a_finding_and_no_error(suffix: str, tmp_path: Path):
    path = firekeep.save_file(ARRAYS, tmp_path / f"m{suffix}")
    path.write_bytes(path.read_bytes()[:-4])
    report = firekeep.verify(path)
    assert not report.ok
    assert "truncated" in found(report)[0][1]
    assert report.path == str(path)
    assert json.loads(json.dumps(report.to_dict()))["ok"] is False


def test_a_member_that_does_not_match_its_checksum_is_found(tmp_path: Path):
    data = bytearray(state_dict({"w": np.arange(100, dtype=np.float32)}))
    place = data.find(np.arange(100, dtype=np.float32).tobytes())
    data[place + 9] ^= 4
    report = firekeep.verify(bytes(data))
    assert not report.ok
    assert any("checksum" in message for _, message in found(report))


def test_files_of_no_format_are_refused(tmp_path: Path):
    page = tmp_path / "model.safetensors"
    page.write_text("<!DOCTYPE html><html></html>")
    with pytest.raises(WrongFormatError, match="HTML"):
        firekeep.verify(page)
    with pytest.raises(FileNotFoundError):
        firekeep.verify(tmp_path / "nothing.bpk")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_numbers_are_looked_at_on_request(dtype: str, tmp_path: Path):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    with np.errstate(all="ignore"):
        arrays = {
            "nan": np.array([1, np.nan, np.nan], np.float32).astype(kind),
            "inf": np.array([1, np.inf, -np.inf], np.float32).astype(kind),
            "zero": np.array([0, -0.0, 0], np.float32).astype(kind),
            "fine": np.array([0, 1, 2], np.float32).astype(kind),
        }
    path = firekeep.save_file(arrays, tmp_path / "m.safetensors")
    assert firekeep.verify(path).findings == ()
    report = firekeep.verify(path, values=True)
    assert not report.ok
    no_infinity = dtype == "float8_e4m3fn"
    assert ("nan", "2 of 3 numbers are NaN") in found(report)
    assert (("inf", "2 of 3 numbers are infinite") in found(report, "warning")) != no_infinity
    assert [place for place, _ in found(report, "note")] == ["zero"]


def test_minus_zero_alone_is_zero(tmp_path: Path):
    path = firekeep.save_file({"z": np.array([-0.0, 0.0], np.float32)}, tmp_path / "m.safetensors")
    assert [finding.place for finding in firekeep.verify(path, values=True).findings] == ["z"]


def test_zero_integers_and_empty_tensors_are_nothing_to_tell(tmp_path: Path):
    arrays = {"n": np.zeros(4, np.int64), "e": np.empty((0,), np.float32), "b": np.zeros(3, bool)}
    path = firekeep.save_file(arrays, tmp_path / "m.safetensors")
    assert firekeep.verify(path, values=True).findings == ()


def test_complex_numbers_and_packed_types_are_looked_at_as_far_as_can_be(tmp_path: Path):
    entries = {
        "c": np.array([1 + 1j, complex("nan")], np.complex64),
        "f4": TensorEntry("f4", BY_NAME["F4"], (4,), MemoryBlob(b"\x21\x43")),
        "f6": TensorEntry("f6", BY_NAME["F6_E2M3"], (4,), MemoryBlob(b"abc")),
        "scale": TensorEntry("scale", BY_NAME["F8_E8M0"], (2,), MemoryBlob(b"\xff\x01")),
    }
    path = firekeep.save_file(entries, tmp_path / "m.safetensors")
    report = firekeep.verify(path, values=True)
    assert sorted(place for place, _ in found(report)) == ["c", "scale"]


def test_numbers_across_pieces_add_up(tmp_path: Path):
    array = np.ones((1 << 21) + 7, np.float32)
    array[[0, 1 << 20, -1]] = np.nan
    path = firekeep.save_file({"w": array}, tmp_path / "m.safetensors")
    report = firekeep.verify(path, values=True)
    assert found(report) == [("w", "3 of 2,097,159 numbers are NaN")]


def test_tensors_without_bytes_are_told():
    import pickles

    made = Checkpoint()
    lost = pickles.ordered(
        {"fine": made.tensor(np.ones(2, np.float32)), "lost": pickles.tensor("FloatStorage", "7", 4)}
    )
    report = firekeep.verify(made.file(lost), values=True)
    assert not report.ok
    assert [place for place, _ in found(report, "error")] == ["lost"]
    assert not found(report, "warning")
    assert any("archive/data/7" in message for _, message in found(report))


def test_sets_are_checked_whole(tmp_path: Path):
    folder = tmp_path / "set"
    shutil.copytree(CASES / "safetensors" / "fluxml_shard", folder)
    assert firekeep.verify(folder, values=True).ok
    (folder / "model-00003-of-00006.safetensors").unlink()
    report = firekeep.verify(folder)
    assert not report.ok
    assert "missing" in found(report)[0][1]


def test_progress_counts_the_bytes_looked_at(tmp_path: Path):
    told: list[tuple[int, int]] = []
    path = firekeep.save_file(ARRAYS, tmp_path / "m.bpk")
    firekeep.verify(path, values=True, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (48, 48)
    told.clear()
    firekeep.verify(path, progress=lambda done, total: told.append((done, total)))
    assert told == []


def test_many_findings_are_counted(tmp_path: Path):
    arrays = {f"t{index}": np.array([np.nan], np.float32) for index in range(80)}
    report = firekeep.verify(firekeep.save_file(arrays, tmp_path / "m.bpk"), values=True)
    assert len(report.findings) == 80
    assert "and 30 more findings" in str(report)


def test_names_cannot_speak_to_a_terminal(tmp_path: Path):
    arrays = {"\x1b[31mred": np.array([np.nan], np.float32)}
    report = firekeep.verify(firekeep.save_file(arrays, tmp_path / "m.bpk"), values=True)
    assert "\x1b" not in str(report)
