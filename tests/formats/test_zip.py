import io
import random
import struct
import zipfile
import zlib

import pytest

from firekeep.blobs import WindowBlob
from firekeep.errors import (
    DigestError,
    FirekeepError,
    FormatError,
    HeaderError,
    LimitError,
    MetadataError,
    TruncatedError,
    UnsupportedError,
)
from firekeep.formats._zip import InflatedBlob, ZipDirectory, read_directory
from firekeep.limits import DEFAULT_LIMITS, Limits
from firekeep.sources import FileSource, MemorySource
from zip_builder import DEFLATED, Part, build, deflate, widen


def read(data: bytes, limits: Limits = DEFAULT_LIMITS) -> ZipDirectory:
    return read_directory(MemorySource(data), limits)


def test_members_keep_the_order_of_the_directory_and_their_declared_fields():
    directory = read(build([Part(name="b", data=b"xyz"), Part(name="a", data=b"q" * 100, method=DEFLATED)]))
    assert list(directory.members) == ["b", "a"]
    member = directory.members["a"]
    assert (member.size, member.method, member.crc) == (100, 8, zlib.crc32(b"q" * 100))
    assert member.compressed < 100
    assert member.header_offset == 30 + 1 + 3
    assert directory.notes == ()
    assert directory.archives == 1


def test_a_stored_member_is_a_window_at_its_true_offset_past_padding_in_the_extra_field():
    padding = struct.pack("<2H", 0x4246, 17) + b"Z" * 17
    data = build([Part(name="x/data/0", data=b"payload", local_extra=padding)])
    directory = read(data)
    member = directory.members["x/data/0"]
    blob = directory.blob(member)
    assert isinstance(blob, WindowBlob)
    assert blob.offset == directory.data_offset(member) == data.index(b"payload")
    assert bytes(blob.view()) == b"payload"


def test_an_archive_of_the_standard_library_reads_alike(tmp_path):
    path = tmp_path / "a.zip"
    content = {"one": b"1" * 5000, "two/three": random.Random(1).randbytes(3000), "empty": b"", "ünï/é": b"u"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    directory = read_directory(FileSource(path), DEFAULT_LIMITS)
    assert {name: directory.read(member, limit=10_000) for name, member in directory.members.items()} == content
    assert [directory.check(member) for member in directory.members.values()] == [None] * 4


def test_an_archive_streamed_to_a_pipe_has_data_descriptors_and_reads():
    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data) -> int:
            self.data += data
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("m/data.pkl", b"abc")
        archive.writestr("m/data/0", b"0" * 64)
    directory = read(bytes(pipe.data))
    assert directory.members["m/data/0"].flags & 8
    assert directory.read(directory.members["m/data/0"], limit=64) == b"0" * 64
    assert directory.notes == ()
    assert directory.check(directory.members["m/data.pkl"]) is None


def test_a_deflated_member_inflates_when_drawn_and_in_pieces():
    data = random.Random(2).randbytes(1000) * 50
    directory = read(build([Part(data=data, method=DEFLATED)]))
    blob = directory.blob(directory.members["a"])
    assert isinstance(blob, InflatedBlob)
    assert blob.nbytes == len(data)
    assert bytes(blob.view()) == data
    pieces = [bytes(piece) for piece in blob.chunks(777)]
    assert max(map(len, pieces)) <= 777
    assert b"".join(pieces) == data
    assert blob.identity() == directory.blob(directory.members["a"]).identity()
    assert blob.window() is None


def test_zip64_records_and_fields_are_read():
    part = Part(
        name="big",
        data=b"small after all",
        size=0xFFFFFFFF,
        compressed=0xFFFFFFFF,
        offset=0xFFFFFFFF,
        extra=struct.pack("<2H4s", 0x7075, 4, b"skip") + widen(15, 15, 0),
        local_extra=widen(15, 15),
    )
    data = build([part], zip64=True, count=0xFFFF, size=0xFFFFFFFF, offset=0xFFFFFFFF)
    directory = read(data)
    assert directory.read(directory.members["big"], limit=100) == b"small after all"
    assert directory.notes == ()


def test_a_member_beyond_four_gigabytes_is_found(tmp_path):
    path = tmp_path / "sparse.zip"
    gap = 5 << 30
    with path.open("wb") as file:
        head = build([Part(name="m/data/0", data=b"", crc=0)])
        file.write(head[:38])
        file.seek(38 + gap)
        at = file.tell()
        file.write(build([Part(name="m/data/1", data=b"last")])[: 38 + 4])
        records = bytearray()
        for name, size, crc, offset in ((b"m/data/0", gap, 0, 0), (b"m/data/1", 4, zlib.crc32(b"last"), at)):
            extra = widen(size, size, offset)
            records += struct.pack(
                "<4s6H3L5H2L",
                b"PK\1\2",
                45,
                45,
                0,
                0,
                0,
                33,
                crc,
                *(0xFFFFFFFF,) * 2,
                8,
                len(extra),
                0,
                0,
                0,
                0,
                0xFFFFFFFF,
            )
            records += name + extra
        start = file.tell()
        file.write(records)
        file.write(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, len(records), start))
        file.write(struct.pack("<4sLQL", b"PK\6\7", 0, start + len(records), 1))
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))
    directory = read_directory(FileSource(path), DEFAULT_LIMITS)
    assert directory.members["m/data/0"].size == gap
    assert directory.data_offset(directory.members["m/data/1"]) == at + 38
    assert directory.read(directory.members["m/data/1"], limit=4) == b"last"


def test_a_comment_is_read_past_and_noted():
    directory = read(build([Part()], comment=b"made by hand"))
    assert directory.notes == ("the zip archive has a comment of 12 bytes",)


@pytest.mark.parametrize("adjusted", [False, True])
def test_bytes_before_the_archive_are_read_past_and_noted(adjusted):
    data = build([Part(), Part(name="b", data=b"second")], prefix=b"#!shell script\n", adjusted=adjusted)
    directory = read(data)
    assert directory.read(directory.members["b"], limit=10) == b"second"
    assert any("15" in note for note in directory.notes)


def test_bytes_before_a_zip64_archive_shift_its_offsets():
    directory = read(build([Part(data=b"here")], prefix=b"header", zip64=True))
    assert directory.read(directory.members["a"], limit=4) == b"here"
    assert directory.start == 6


def test_bytes_after_the_archive_are_noted():
    directory = read(build([Part()], suffix=b"\r\n\r\n"))
    assert directory.notes == ("4 bytes follow the end of the zip archive",)


def test_two_archives_in_one_file_are_both_told():
    first, second = build([Part(data=b"first")], zip64=True), build([Part(data=b"other")], zip64=True)
    directory = read(first + second)
    assert directory.archives == 2
    assert directory.spans == ((0, len(first)), (len(first), len(first) + len(second)))
    assert "2 zip archives" in directory.notes[0]
    assert directory.read(directory.members["a"], limit=5) == b"other"


def test_names_are_only_names_and_unusual_ones_are_noted():
    names = ["/etc/passwd", "../../x", "a\\b", "C:/x", "", "tab\there", "plain/name", "dots..in..name"]
    directory = read(build([Part(name=name) for name in names]))
    assert list(directory.members) == names
    assert directory.notes[0].startswith("6 member names are unusual")
    assert directory.read(directory.members["../../x"], limit=10) == b"0123456789"


def test_names_that_are_not_utf8_are_read_as_code_page_437():
    directory = read(build([Part(name=b"caf\x82")]))
    assert list(directory.members) == ["café"]
    assert directory.read(directory.members["café"], limit=10) == b"0123456789"


def test_an_archive_without_members_is_empty():
    directory = read(build([]))
    assert dict(directory.members) == {}


# Contradictions between the member's own header and the directory.


def test_a_member_with_another_name_in_its_own_header_is_refused_with_both():
    directory = read(build([Part(name="data.pkl", local={"name": "evil.pkl"})]))
    with pytest.raises(MetadataError, match=r"'data\.pkl'.*'evil\.pkl'"):
        directory.blob(directory.members["data.pkl"])
    finding = directory.check(directory.members["data.pkl"])
    assert finding is not None
    assert finding.severity == "error"


def test_a_member_with_another_method_in_its_own_header_is_refused():
    directory = read(build([Part(local={"method": 8})]))
    with pytest.raises(MetadataError, match=r"stored by the directory and deflated by its own header"):
        directory.blob(directory.members["a"])


@pytest.mark.parametrize(
    ("local", "told"),
    [
        ({"size": 9}, "size 9 there"),
        ({"crc": 5}, "checksum 5 there"),
        ({"compressed": 8}, "compressed size 8"),
        ({"flags": 8}, "flags 0x8"),
    ],
)
def test_other_differences_are_noted_and_the_directory_is_taken(local, told):
    directory = read(build([Part(name="m", local=local)]))
    assert directory.read(directory.members["m"], limit=10) == b"0123456789"
    assert told in directory.notes[0]
    finding = directory.check(directory.members["m"])
    assert finding is not None
    assert (finding.severity, finding.place) == ("warning", "m")


def test_notes_about_differences_are_counted_when_there_are_many():
    directory = read(build([Part(name=f"m{i}", local={"size": 1}) for i in range(30)]))
    for member in directory.members.values():
        directory.blob(member)
    assert len(directory.notes) == 21
    assert directory.notes[-1] == "10 more notes of this kind"


def test_a_member_without_a_header_where_the_directory_says_is_refused():
    data = bytearray(build([Part()]))
    data[0:4] = b"JUNK"
    directory = read(bytes(data))
    with pytest.raises(MetadataError, match="no local header at 0"):
        directory.blob(directory.members["a"])


def test_a_header_whose_padding_pushes_the_data_into_the_next_member_is_refused():
    data = bytearray(build([Part(name="a"), Part(name="b")]))
    data[28:30] = (20).to_bytes(2, "little")
    directory = read(bytes(data))
    with pytest.raises(MetadataError, match=r"lies at 51 to 61, but the next record starts at 41"):
        directory.blob(directory.members["a"])
    assert directory.read(directory.members["b"], limit=10) == b"0123456789"


# Checksums and sizes.


def test_a_wrong_checksum_is_an_error_when_the_member_is_read():
    for method in (0, 8):
        directory = read(build([Part(name="m", method=method, crc=0x12345678)]))
        member = directory.members["m"]
        with pytest.raises(DigestError, match=r"'m' is damaged.*says 12345678"):
            directory.read(member, limit=10)
        assert directory.read(member, limit=10, verify=False) == b"0123456789"
        finding = directory.check(member)
        assert finding is not None
        assert finding.severity == "error"


def test_a_checksum_of_zero_is_one_that_the_writer_left_out():
    directory = read(build([Part(name="m", crc=0)]))
    assert directory.read(directory.members["m"], limit=10) == b"0123456789"
    finding = directory.check(directory.members["m"])
    assert finding is not None
    assert finding.severity == "note"


def test_a_member_above_the_callers_limit_is_refused_before_it_is_read():
    directory = read(build([Part()]))
    with pytest.raises(LimitError, match="has 10 bytes; at most 9") as caught:
        directory.read(directory.members["a"], limit=9)
    assert (caught.value.limit, caught.value.actual) == (9, 10)


@pytest.mark.parametrize(
    ("size", "error", "match"),
    [
        (9, FormatError, "more than its declared 9 bytes"),
        (11, TruncatedError, "inflates to 10 bytes, 11 were declared"),
    ],
)
def test_a_deflated_member_must_have_its_declared_size(size, error, match):
    directory = read(build([Part(method=DEFLATED, size=size)]))
    with pytest.raises(error, match=match):
        directory.blob(directory.members["a"]).view()


def test_damaged_compressed_data_is_told_with_the_member():
    directory = read(build([Part(name="m", method=DEFLATED, packed=b"\xff" * 20, size=100)]))
    with pytest.raises(FormatError, match="'m' has damaged compressed data"):
        directory.blob(directory.members["m"]).view()


def test_compressed_data_that_stops_early_is_told():
    packed = deflate(random.Random(3).randbytes(4000))
    directory = read(build([Part(method=DEFLATED, packed=packed[:2000], size=4000)]))
    with pytest.raises(TruncatedError, match="4000 were declared"):
        list(directory.blob(directory.members["a"]).chunks(100))


def test_a_member_that_claims_to_inflate_beyond_the_ratio_is_refused_before_memory_is_taken():
    part = Part(method=DEFLATED, data=b"\0" * 5000, size=0xFFFFFFFF, extra=widen(1 << 40), local={"size": 0xFFFFFFFF})
    directory = read(build([part]))
    with pytest.raises(LimitError, match=r"to 1099511627776 bytes, more than 1100 to 1"):
        directory.blob(directory.members["a"])


def test_a_stored_member_of_two_sizes_is_refused():
    with pytest.raises(MetadataError, match="10 bytes stand for 11"):
        read(build([Part(size=11)]))


@pytest.mark.parametrize(("method", "name"), [(12, "bzip2"), (14, "lzma"), (93, "zstandard"), (77, "method 77")])
def test_other_methods_are_refused_by_name(method, name):
    directory = read(build([Part(method=method)]))
    with pytest.raises(UnsupportedError, match=name):
        directory.blob(directory.members["a"])


@pytest.mark.parametrize(
    ("flags", "match"), [(1, "encrypted"), (0x40, "encrypted"), (0x2000, "encrypted"), (0x20, "patch")]
)
def test_encrypted_members_and_patches_are_refused(flags, match):
    directory = read(build([Part(flags=flags)]))
    with pytest.raises(UnsupportedError, match=match):
        directory.blob(directory.members["a"])


# Contradictions in the directory and the end record.


def test_two_members_of_one_name_are_refused():
    with pytest.raises(MetadataError, match="two members named 'twice'"):
        read(build([Part(name="twice"), Part(name="twice")]))


def test_a_directory_whose_offsets_are_swapped_is_refused_when_a_member_is_touched():
    directory = read(build([Part(name="b", offset=41), Part(name="a", offset=0)]))
    with pytest.raises(MetadataError, match="tampered"):
        directory.blob(directory.members["a"])


def test_members_that_share_bytes_are_refused():
    parts = [Part(name="a"), Part(name="b", packed=b"SHARED", data=b"0123456789", offset=0, compressed=10)]
    with pytest.raises(MetadataError, match=r"'a' of 10 bytes at 0 runs into member 'b' at 0"):
        read(build(parts))


def test_a_member_that_runs_into_the_directory_is_refused():
    with pytest.raises(MetadataError, match=r"runs into the archive's directory at 41"):
        read(build([Part(size=11, compressed=11)]))


def test_a_directory_in_another_order_than_the_members_reads():
    ordered = build([Part(name="a"), Part(name="b")])
    records = ordered[82:-22]
    half = len(records) // 2
    directory = read(ordered[:82] + records[half:] + records[:half] + ordered[-22:])
    assert list(directory.members) == ["b", "a"]
    assert directory.check(directory.members["b"]) is None


@pytest.mark.parametrize("count", [1, 3])
def test_another_count_of_members_than_listed_is_refused(count):
    with pytest.raises(MetadataError, match=f"declares {count} members, its directory lists 2"):
        read(build([Part(name="a"), Part(name="b")], count=count))


def test_more_members_than_the_limit_are_refused_before_they_are_read():
    with pytest.raises(LimitError, match="declares 3 members; at most 2"):
        read(build([Part(name=str(i)) for i in range(3)]), Limits(archive_members=2))


@pytest.mark.parametrize("end", [{"size": 46}, {"size": 48}, {"size": 0}, {"offset": 42}, {"offset": 4_000_000_000}])
def test_an_end_record_that_contradicts_the_directory_is_refused_with_numbers(end):
    with pytest.raises(MetadataError, match=r"\d+"):
        read(build([Part()], **end))


def test_bytes_between_the_directory_and_the_end_record_are_refused():
    data = build([Part()])
    with pytest.raises(MetadataError, match=r"its declared place is 41"):
        read(data[:-22] + b"gap." + data[-22:])


def test_an_archive_in_several_parts_is_refused_with_the_way_to_join_it():
    with pytest.raises(UnsupportedError, match=r"one part of several: disk 1.*zip -s 0"):
        read(build([Part()], disk=1))
    with pytest.raises(UnsupportedError, match="lies on disk 2"):
        read(build([Part(disk=2)]))


def test_two_end_records_that_both_fit_are_refused():
    inner = build([Part(name="hidden")])
    outer = build([Part()], comment=inner)
    with pytest.raises(MetadataError, match="two end records that both fit"):
        read(outer)


def test_an_end_record_inside_a_stored_member_is_not_taken():
    inner = build([Part(name="inner")])
    directory = read(build([Part(name="outer", data=inner)]))
    assert list(directory.members) == ["outer"]


def test_an_archive_that_hides_a_second_directory_is_refused():
    data = build([Part(name="a")])
    record = data[41:-22]
    with pytest.raises(MetadataError, match="two directories"):
        read(b"x" + data[1:41] + record + record + data[-22:])


def test_a_cut_archive_with_another_one_behind_it_is_refused():
    first, second = build([Part(data=b"f" * 100)]), build([Part(data=b"s")])
    with pytest.raises(MetadataError, match="starts with one zip archive whose end is missing"):
        read(first[:90] + second)


def test_the_two_end_records_of_zip64_must_agree():
    with pytest.raises(MetadataError, match=r"two end records disagree: 7 at \d+, 1 at \d+"):
        read(build([Part()], zip64=True, count=7))


def test_a_locator_without_its_record_is_refused():
    data = build([Part()], zip64=True)
    with pytest.raises(HeaderError, match="zip64 end record is missing"):
        read(data.replace(b"PK\6\6", b"PK\0\0"))


@pytest.mark.parametrize(("values", "what"), [((), "size"), ((1,), "compressed size"), ((10, 10), "header offset")])
def test_a_zip64_field_that_lacks_a_value_is_refused(values, what):
    full = 0xFFFFFFFF
    with pytest.raises(MetadataError, match=f"leaves its {what}"):
        read(build([Part(size=full, compressed=full, offset=full, extra=widen(*values))]))


# Cut and foreign files.


def test_an_archive_without_its_end_says_in_which_member_it_stops_and_how_much_it_lacks():
    data = build([Part(name="first"), Part(name="second", data=b"x" * 1000)])
    with pytest.raises(
        TruncatedError, match=r"in or after member 'second', which lacks 900 of its 1000 bytes"
    ) as caught:
        read(data[: data.index(b"x" * 1000) + 100])
    assert caught.value.limit is not None
    assert caught.value.limit - (caught.value.actual or 0) == 900


def test_an_archive_cut_in_its_directory_says_so():
    data = build([Part(name="a"), Part(name="b")])
    with pytest.raises(TruncatedError, match=r"stops inside the archive's directory"):
        read(data[:-23])


def _torch_like(keys: list[str], *, count: int = 25) -> bytes:
    """Write an archive as torch.save does: sizes only behind the data, storages in the order of their keys as text."""
    refer = b"".join(
        b"(X\x07\0\0\0storagectorch\nFloatStorage\nX%bX\x03\0\0\0cpuK%ctQ0"
        % (len(key).to_bytes(4, "little") + key.encode(), count)
        for key in keys
    )
    later = {"flags": 8, "local": {"size": 0, "compressed": 0, "crc": 0}}
    parts = [Part(name="m/data.pkl", data=b"\x80\x02" + refer + b"N.", **later)]
    parts += [Part(name=f"m/data/{key}", data=b"d" * 4 * count, **later) for key in sorted(keys)]
    return build([*parts, Part(name="m/version", data=b"3\n", **later)])


@pytest.mark.parametrize("last", ["0", "1", "10", "11", "2", "9"])
def test_a_cut_pytorch_file_says_how_much_its_storages_lack(last):
    keys = [str(i) for i in range(12)]
    data = _torch_like(keys)
    cut = data.index(f"m/data/{last}".encode() + b"dddd") + len(f"m/data/{last}") + 40
    later = sorted(keys)[sorted(keys).index(last) + 1 :]
    with pytest.raises(
        TruncatedError, match=rf"after member 'm/data/{last}', and lacks {60 + 100 * len(later)} bytes or more"
    ) as caught:
        read(data[:cut])
    assert (caught.value.limit or 0) - (caught.value.actual or 0) == 60 + 100 * len(later)
    assert len(data) - cut >= 60 + 100 * len(later)


def test_the_count_of_missing_bytes_reads_the_memo_of_a_real_pickle(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "m.pt"
    torch.save(
        {"a": torch.zeros(1000), "b": torch.zeros(10, dtype=torch.half), "c": torch.zeros(100, dtype=torch.int64)}, path
    )
    data = path.read_bytes()
    with pytest.raises(TruncatedError, match="of the data of 3 storages") as caught:
        read(data[:2000])
    missing = (caught.value.limit or 0) - 2000
    assert 4000 + 20 + 800 - 2000 < missing < len(data) - 2000


def test_an_archive_cut_in_its_comment_says_by_how_much():
    with pytest.raises(TruncatedError, match="declares 5 more bytes") as caught:
        read(build([Part()], comment=b"a long comment")[:-5])
    assert (caught.value.limit or 0) - (caught.value.actual or 0) == 5


@pytest.mark.parametrize("data", [b"", b"PK", b"not a zip archive at all" * 20])
def test_what_is_no_archive_is_refused(data):
    with pytest.raises(HeaderError, match="no zip archive"):
        read(data)


def _use(data: bytes) -> None:
    try:
        directory = read(data)
        for member in directory.members.values():
            directory.check(member)
            directory.read(member, limit=1 << 20)
    except FirekeepError:
        pass


def _varied() -> bytes:
    return build(
        [
            Part(name="m/data.pkl", data=b"\x80\x02}q\x00."),
            Part(
                name="m/data/0", data=b"z" * 300, method=DEFLATED, flags=8, local={"size": 0, "compressed": 0, "crc": 0}
            ),
            Part(name="m/data/1", data=b"y" * 20, local_extra=struct.pack("<2H", 0x4246, 8) + b"Z" * 8),
        ],
        zip64=True,
        comment=b"c",
    )


def test_every_cut_of_an_archive_is_refused_in_words():
    data = _varied()
    for length in range(len(data)):
        with pytest.raises(FormatError):
            read(data[:length])


@pytest.mark.parametrize("seed", range(8))
def test_changed_bytes_never_raise_anything_but_firekeep_errors(seed):
    chance = random.Random(seed)
    original = _varied()
    for _ in range(400):
        data = bytearray(original)
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0xFF, 0x7F, chance.randrange(256)))
        if chance.random() < 0.2:
            start = chance.randrange(len(data))
            del data[start : start + chance.randint(1, 30)]
        _use(bytes(data))
