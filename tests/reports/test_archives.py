"""Zip archives that other programs wrote, re-packed, damaged or prepared."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable

import pytest

import firekeep
import pickles
from firekeep import MetadataError, TruncatedError, UnsupportedError
from reports.files import FOUR, members_of, state_dict_file, zip_of
from zip_builder import Part, build, widen

FILE = state_dict_file(w=FOUR)


class Unseekable(io.RawIOBase):
    """A pipe: zipfile then writes sizes behind the data."""

    def __init__(self) -> None:
        self.held = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.held += bytes(data)  # type: ignore[call-overload]
        return len(bytes(data))  # type: ignore[call-overload]


def with_data_descriptors() -> bytes:
    pipe = Unseekable()
    with zipfile.ZipFile(pipe, "w") as archive:
        for name, data in members_of(FILE).items():
            archive.writestr(name, data)
    return bytes(pipe.held)


def with_padding() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members_of(FILE).items():
            member = zipfile.ZipInfo(name)
            member.extra = struct.pack("<HH", 0x4246, 60) + b"Z" * 60
            archive.writestr(member, data)
    return out.getvalue()


def with_zip64_sizes() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members_of(FILE).items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(data)
    return out.getvalue()


def with_zip64_directory() -> bytes:
    """Every size and offset left to the zip64 field, as archives above 4 GB have them; the end records too."""
    parts, at = [], 0
    for name, data in members_of(FILE).items():
        parts.append(
            Part(
                name=name,
                data=data,
                size=0xFFFFFFFF,
                compressed=0xFFFFFFFF,
                offset=0xFFFFFFFF,
                local_extra=widen(len(data), len(data)),
                extra=widen(len(data), len(data), at),
            )
        )
        at += 30 + len(name) + 20 + len(data)
    return build(parts, zip64=True)


def in_another_folder(root: str) -> bytes:
    return zip_of({name.replace("archive/", root): data for name, data in members_of(FILE).items()})


# A valid .pt that one release of a zip library refused (Burn 0.22.1 with zip 9.1.3), and the other shapes that are legal.
LEGAL: dict[str, Callable[[], bytes]] = {
    "data descriptors": with_data_descriptors,
    "padding in extra fields": with_padding,
    "zip64 sizes": with_zip64_sizes,
    "a zip64 directory": with_zip64_directory,
    "a comment": lambda: zip_of(members_of(FILE), comment=b"packed again by hand"),
    "deflated members": lambda: zip_of(members_of(FILE), zipfile.ZIP_DEFLATED),
    "the folder's name of an old save": lambda: in_another_folder("my_model_epoch_3/"),
    "no folder": lambda: in_another_folder(""),
    "members in another order": lambda: zip_of(dict(reversed(members_of(FILE).items()))),
    "another program's members": lambda: zip_of(members_of(FILE) | {"archive/.format_version": b"1"}),
}


@pytest.mark.parametrize("made", LEGAL.values(), ids=LEGAL)
def test_a_legal_archive_is_read_however_it_was_packed(made: Callable[[], bytes]):
    with firekeep.open(made()) as file:
        assert file["w"].tolist() == [1, 2, 3, 4]


# icefall#1760, djl#1509, mlcommons/inference#2056: a state dict given to a TorchScript loader and the other way round.
def test_a_torchscript_archive_gives_its_tensors_and_says_what_it_is():
    body = pickles.pickled(pickles.ordered({"w": pickles.tensor("FloatStorage", "0", 4)}))
    extra = {"archive/constants.pkl": pickles.pickled(b")"), "archive/code/__torch__.py": b"raise SystemExit\n"}
    with firekeep.open(pickles.zip_file(body, {"0": FOUR}, extra=extra)) as file:
        assert file.variant == "torchscript"
        assert file["w"].tolist() == [1, 2, 3, 4]
    with firekeep.open(FILE) as file:
        assert file.variant == "zip"


# pytorch#57805: one member is missing, and nothing could be read.
@pytest.mark.parametrize("lost", ["0", "1", "2"])
def test_a_missing_storage_loses_its_own_tensors_only(lost: str):
    file = state_dict_file(a=FOUR, b=FOUR, c=FOUR)
    cut = zip_of({name: data for name, data in members_of(file).items() if name != f"archive/data/{lost}"})
    gone = "abc"[int(lost)]
    with firekeep.open(cut) as opened:
        assert opened.keys() == ["a", "b", "c"]
        with pytest.raises(UnsupportedError, match=f"tensor '{gone}'.*archive/data/{lost}"):
            opened.array(gone)
        for name in set("abc") - {gone}:
            assert opened[name].tolist() == [1, 2, 3, 4]
        assert any(f"'{gone}'" in note for note in opened.notes)
    assert not firekeep.verify(cut).ok


@pytest.mark.parametrize("length", [0, 12, 20])
def test_a_storage_of_another_length_is_damage(length: int):
    members = members_of(FILE) | {"archive/data/0": bytes(length)}
    with pytest.raises(MetadataError, match=f"'archive/data/0' has {length} bytes, the pickle says 16"):
        firekeep.open(zip_of(members))


def test_an_archive_cut_short_is_truncated():
    for length in range(40, len(FILE) - 1, 37):
        with pytest.raises(TruncatedError):
            firekeep.open(FILE[:length])


# aisbom#82 (CVE-2025-1944): the member's own header has another name than the directory.
@pytest.mark.parametrize("member", ["data.pkl", "data/0"])
def test_two_names_of_one_member_are_tampering_and_both_are_shown(member: str):
    other = member[:-1] + "9"
    tampered = FILE.replace(f"archive/{member}".encode(), f"archive/{other}".encode(), 1)
    with (
        pytest.raises(MetadataError, match=f"(?s)tampered.*'archive/{member}'.*'archive/{other}'"),
        firekeep.open(tampered) as file,
    ):
        file.array("w")
    report = firekeep.verify(tampered)
    assert not report.ok


@pytest.mark.parametrize("field", ["size", "compressed", "crc", "method"])
def test_sizes_that_differ_between_header_and_directory_never_give_wrong_values(field: str):
    parts = []
    for name, data in members_of(FILE).items():
        local = {field: 8 if field == "method" else 77} if name.endswith("data/0") else {}
        parts.append(Part(name=name, data=data, local=local))
    try:
        with firekeep.open(build(parts)) as file:
            assert file["w"].tolist() == [1, 2, 3, 4]
    except MetadataError as error:
        assert "archive/data/0" in str(error)  # noqa: PT017 - either outcome is right, a wrong value is not


# modelaudit#1043: a pickle hidden among the storages.
@pytest.mark.parametrize("place", ["archive/data/99", "archive/hidden.pkl", "elsewhere/payload.bin"])
def test_a_hidden_pickle_is_reported_and_never_run(place: str, tmp_path):
    marker = tmp_path / "ran"
    payload = pickles.pickled(pickles.call("os", "system", pickles.text(f"touch {marker}")))
    file = zip_of(members_of(FILE) | {place: payload})
    with firekeep.open(file) as opened:
        assert opened["w"].tolist() == [1, 2, 3, 4]
    findings = [finding for finding in firekeep.verify(file).findings if finding.place == place]
    assert findings
    assert "pickle" in findings[0].message
    assert not marker.exists()


# stable-baselines3#812, etna#1318, pytorch#40722, pytorch#47201: sizes beyond 2 and 4 GB.
def test_a_storage_beyond_four_gigabytes_is_read_where_it_lies(tmp_path):
    path = tmp_path / "large.pt"
    count, length = 5 << 28, 5 << 30
    body = pickles.pickled(
        pickles.ordered(
            {
                "first": pickles.tensor("FloatStorage", "0", count, shape=(4,)),
                "last": pickles.tensor("FloatStorage", "0", count, shape=(4,), offset=count - 4),
            }
        )
    )
    with path.open("wb") as out, zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", body)
        with archive.open("archive/version", "w") as member:
            member.write(b"3\n")
        header = zipfile.ZipInfo("archive/data/0")
        start = out.tell()
        extra = widen(length, length)
        out.write(
            struct.pack(
                "<4s5H3L2H", b"PK\3\4", 45, 0, 0, 0, 33, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(header.filename), len(extra)
            )
            + header.filename.encode()
            + extra
        )
        out.write(FOUR)
        out.seek(length - 2 * len(FOUR), io.SEEK_CUR)  # a hole: the file takes no room on the disk
        out.write(pickles.floats(5, 6, 7, 8))
        header.header_offset, header.file_size, header.compress_size, header.CRC = start, length, length, 0
        archive.filelist.append(header)
        archive.NameToInfo[header.filename] = header
        archive.start_dir = out.tell()
        archive._didModify = True
    assert path.stat().st_size > length
    with firekeep.open(path) as file:
        assert file["first"].tolist() == [1, 2, 3, 4]
        assert file["last"].tolist() == [5, 6, 7, 8]
