import json
import pickle
import random
import struct
import subprocess

import pytest

from firekeep.formats import OpenOptions
from firekeep.formats._diagnose import Diagnosis, diagnose
from firekeep.formats._protocol import Finding
from firekeep.limits import Limits
from firekeep.sources import FileSource, MemorySource
from zip_builder import DEFLATED, Part, build

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
LEGACY = b"".join(
    pickle.dumps(part, 2)
    for part in (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True}, {"epoch": 3}, [])
)


def safetensors(header: dict[str, object], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one_tensor() -> bytes:
    return safetensors(
        {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "__metadata__": {"format": "pt"}}, bytes(16)
    )


def torch_zip(**members: bytes) -> bytes:
    tensor = (
        b"\x80\x02}(X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
        b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQK\x00K\x02K\x02\x86K\x02K\x01\x86\x89ccollections\nOrderedDict\n)RtRu."
    )
    parts = {"m/data.pkl": tensor, "m/byteorder": b"little", "m/data/0": bytes(16), "m/version": b"3\n"} | members
    return build(Part(name=name, data=data) for name, data in parts.items())


def test_a_safetensors_file_opens_and_is_described():
    diagnosis = diagnose(MemorySource(one_tensor(), path="model.safetensors"))
    assert (diagnosis.kind, diagnosis.opens) == ("safetensors", True)
    assert diagnosis.next_step == (
        "Its table was read, and no tensor: `firekeep verify model.safetensors` checks the bytes."
    )
    facts = dict(diagnosis.facts)
    assert facts["tensors"] == "1"
    assert facts["bytes of tensors"] == "16 B"
    assert facts["dtypes"] == "F32 (1)"
    assert facts["metadata keys"] == "format"
    assert not [found for found in diagnosis.findings if found.severity != "note"]


def test_a_pytorch_file_opens_and_is_described():
    diagnosis = diagnose(MemorySource(torch_zip()))
    assert (diagnosis.kind, diagnosis.opens) == ("pytorch", True)
    assert dict(diagnosis.facts)["format"] == "pytorch zip"
    assert dict(diagnosis.facts)["tensors"] == "1"


def test_a_pickle_without_tensors_opens():
    for data in (LEGACY, pickle.dumps({"epoch": 3}, 4), pickle.dumps({"epoch": 3}, 0)):
        diagnosis = diagnose(MemorySource(data))
        assert diagnosis.opens
        assert dict(diagnosis.facts)["tensors"] == "0"


def test_a_misleading_suffix_is_noted():
    diagnosis = diagnose(MemorySource(one_tensor(), path="dir/model.bpk"))
    assert diagnosis.opens
    assert any(
        "ends in .bpk, as burnpack files do, and the content is safetensors" in found.message
        for found in diagnosis.findings
    )
    for path in ("model.safetensors", "model", "model.weights", None):
        assert not [
            found for found in diagnose(MemorySource(one_tensor(), path=path)).findings if "ends in" in found.message
        ]


def test_a_wrong_file_is_told_with_its_facts_and_next_step():
    diagnosis = diagnose(MemorySource(POINTER, path="model.safetensors"))
    assert (diagnosis.kind, diagnosis.opens) == ("lfs-pointer", False)
    assert diagnosis.facts == (("size", "74 bytes"), ("real size", "12,345 bytes"), ("object", "sha256:4d7a2146"))
    assert diagnosis.next_step == "Fetch the file in its repository: `git lfs pull`."


def test_the_text_has_every_part_and_the_data_are_json():
    diagnosis = diagnose(MemorySource(POINTER, path="dir/model.pt"))
    assert str(diagnosis).splitlines() == [
        "dir/model.pt: a git-LFS pointer for a file of 12,345 bytes, not the file itself",
        "  size       74 bytes",
        "  real size  12,345 bytes",
        "  object     sha256:4d7a2146",
        "  firekeep does not open it.",
        "  Next: Fetch the file in its repository: `git lfs pull`.",
    ]
    data = json.loads(json.dumps(diagnosis.to_dict()))
    assert data["kind"] == "lfs-pointer"
    assert data["path"] == "dir/model.pt"
    assert data["opens"] is False
    assert data["facts"]["real size"] == "12,345 bytes"
    assert data["findings"] == []


def test_findings_stand_in_the_text_with_their_place():
    shown = Diagnosis(
        kind="x",
        title="a thing",
        opens=True,
        findings=(Finding("warning", "w", "no bytes"), Finding("note", "", "odd")),
    )
    assert str(shown).splitlines() == [
        "this is a thing",
        "  warning: w: no bytes",
        "  note: odd",
        "  firekeep opens it.",
    ]


@pytest.mark.parametrize("cut", [1, 7, 15])
def test_a_cut_safetensors_file_says_how_many_bytes_are_missing(cut):
    diagnosis = diagnose(MemorySource(one_tensor()[:-cut]))
    assert not diagnosis.opens
    assert diagnosis.title == "a safetensors file that is cut short"
    assert dict(diagnosis.facts)["missing"] == f"{cut} byte{'s' if cut > 1 else ''}"
    assert diagnosis.findings[0].severity == "error"
    assert diagnosis.next_step


def test_a_cut_zip_says_where_and_at_least_how_much():
    whole = torch_zip()
    diagnosis = diagnose(MemorySource(whole[: whole.index(b"m/data/0" + bytes(16)) + 8 + 10]))
    assert not diagnosis.opens
    assert dict(diagnosis.facts)["missing"] == "at least 6 bytes"
    assert "m/data/0" in diagnosis.findings[0].message
    stored = build([Part(name="first", data=b"x" * 100), Part(name="second", data=b"y" * 100)])
    diagnosis = diagnose(MemorySource(stored[: stored.index(b"y" * 100) + 60]))
    assert diagnosis.kind == "zip-truncated"
    assert dict(diagnosis.facts)["missing"] == "at least 40 bytes"


def test_a_damaged_zip_says_what_contradicts_what():
    diagnosis = diagnose(MemorySource(build([Part(name="readme", local={"name": "remade"})])))
    assert (diagnosis.kind, diagnosis.opens) == ("zip-damaged", False)
    assert "'readme'" in diagnosis.findings[0].message
    assert "'remade'" in diagnosis.findings[0].message


def test_what_was_noticed_about_a_wrong_zip_is_noted():
    diagnosis = diagnose(MemorySource(build([Part(name="../x")], suffix=b"junk")))
    assert not diagnosis.opens
    notes = [found.message for found in diagnosis.findings]
    assert "4 bytes follow the end of the zip archive" in notes
    assert any("unusual" in note for note in notes)


def test_two_archives_in_one_file_are_told_with_the_way_to_part_them(tmp_path):
    first, second = torch_zip(), torch_zip(**{"m/extra": b"x"})
    path = tmp_path / "two saves.pt"
    path.write_bytes(first + second)
    diagnosis = diagnose(FileSource(path))
    assert (diagnosis.kind, diagnosis.opens) == ("zip-row", False)
    assert dict(diagnosis.facts)["at bytes"] == f"0 to {len(first)}, {len(first)} to {len(first + second)}"
    for number, (command, part) in enumerate(
        zip((diagnosis.next_step or "").split("`")[1::2], (first, second), strict=True)
    ):
        subprocess.run(["/bin/sh", "-c", command], check=True)
        taken = tmp_path / f"two saves.pt.unpacked.{number + 1}"
        assert taken.read_bytes() == part
        assert diagnose(FileSource(taken)).opens


def test_the_parts_of_a_distributed_checkpoint_are_told():
    part = diagnose(MemorySource(torch_zip() * 7, path="dir/__0_0.distcp"))
    assert (part.kind, part.opens, dict(part.facts)["archives"]) == ("torch-distributed", False, "7")
    table = diagnose(
        MemorySource(b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81.", path="dir/.metadata")
    )
    assert (table.kind, dict(table.facts)["tensors"]) == ("torch-distributed", "0")
    assert part.next_step == table.next_step
    assert "dcp_to_torch" in (table.next_step or "")


def test_limits_are_honoured():
    many = build(Part(name=f"x/{i}") for i in range(30))
    diagnosis = diagnose(MemorySource(many), OpenOptions(limits=Limits(archive_members=20)))
    assert not diagnosis.opens
    assert "at most 20" in diagnosis.findings[0].message


def test_a_pickle_that_would_run_code_is_warned_of_with_the_way_to_see_more():
    diagnosis = diagnose(MemorySource(b"cos\nsystem\n(S'true'\ntR.", path="x.pkl"))
    assert dict(diagnosis.facts)["tensors"] == "0"
    assert [found.severity for found in diagnosis.findings] == ["warning"]
    assert "os.system" in diagnosis.findings[0].message
    assert "`firekeep scan x.pkl`" in (diagnosis.next_step or "")


def test_the_pickle_of_an_unpacked_file_does_not_open_alone():
    whole = torch_zip()
    start = whole.index(b"\x80\x02}(")
    diagnosis = diagnose(MemorySource(whole[start : whole.index(b"PK\3\4", start)], path="archive/data.pkl"))
    assert (diagnosis.kind, diagnosis.opens) == ("bare-data.pkl", False)
    assert diagnosis.title == "the data.pkl of an unpacked PyTorch file, without the data it refers to"
    assert (diagnosis.next_step or "").startswith("Take the whole file")


def test_a_cut_pickle_is_told_as_cut():
    diagnosis = diagnose(MemorySource(pickle.dumps({"a": list(range(100))}, 2)[:-30]))
    assert not diagnosis.opens
    assert diagnosis.title == "a pickle that is cut short"


def _seeds() -> dict[str, bytes]:
    return {
        "safetensors": one_tensor(),
        "zip": torch_zip(),
        "deflated": build([Part(name="m/data.pkl", data=b"\x80\x02}q\x00.", method=DEFLATED)]),
        "legacy": LEGACY,
        "pickle": pickle.dumps({"a": [1, 2.5, "x"], "b": (None, True)}, 2),
        "text pickle": pickle.dumps({"a": [1, 2.5, "x"], "b": (None, True)}, 0),
        "burnpack": b"NRUB\x01\x00\x09\x00\x00\x00\xa1gtensors\xa0" + bytes(237),
        "pointer": POINTER,
    }


@pytest.mark.parametrize("name", _seeds())
def test_no_content_makes_the_diagnosis_fail(name):
    data = _seeds()[name]
    chance = random.Random(name)
    samples = [data[:length] for length in range(0, len(data), 1 + len(data) // 100)]
    for _ in range(200):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 5)):
            changed[chance.randrange(len(changed))] = chance.choice((0, 0xFF, chance.randrange(256)))
        samples.append(bytes(changed))
    for sample in samples:
        diagnosis = diagnose(MemorySource(sample))
        assert diagnosis.title
        assert str(diagnosis)
        assert diagnosis.opens or diagnosis.next_step or diagnosis.findings
        json.dumps(diagnosis.to_dict())


def test_a_file_on_disk_is_told_with_its_path(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"")
    diagnosis = diagnose(FileSource(path))
    assert (diagnosis.kind, diagnosis.path) == ("empty", str(path))
