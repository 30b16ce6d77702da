"""Archives made to mislead a reader, or to make it take memory."""

import re
import tracemalloc
from pathlib import Path

import pytest

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
from firekeep.formats._zip import read_directory
from firekeep.limits import DEFAULT_LIMITS
from firekeep.sources import FileSource, MemorySource
from zip_builder import DEFLATED, Part, build, deflate

HOSTILE = Path(__file__).parents[1] / "data" / "cases" / "files" / "hostile"
MB = 1 << 20

# Refused when the directory is read: the error and what it says.
AT_OPEN = {
    "libzip_bogus.zip": (HeaderError, "no zip archive"),
    "libzip_filename_duplicate.zip": (MetadataError, "two members named 'test1'"),
    "libzip_incons-cdoffset.zip": (MetadataError, "71 bytes at 2097212 does not fit before its end record at 131"),
    "libzip_incons-central-size-larger.zip": (MetadataError, "1 bytes stand for 32"),
    "libzip_incons-file-count-overflow.zip": (MetadataError, "two end records disagree: 1 at 176"),
    "libzip_incons-zip64-checkcons-overflow.zip": (MetadataError, "18446744073709551615 bytes at 0 runs into"),
    "libzip_multidisk.zip": (UnsupportedError, "one part of several: disk 1"),
    "yauzl_End_of_central_directory_record_signature_not_found_Either_not_a_zip_file_or_file_is_truncated.zip": (
        TruncatedError,
        "stops inside the archive's directory",
    ),
    "yauzl_End_of_central_directory_record_signature_not_found_Either_not_a_zip_file_or_file_is_truncated_1.zip": (
        HeaderError,
        "no zip archive",
    ),
    "yauzl_invalid_zip64_end_of_central_directory_record_signature.zip": (HeaderError, "the locator at 56 points to 0"),
    "yauzl_multi_disk_zip_files_are_not_supported_found_disk_number_1.zip": (UnsupportedError, "one part of several"),
    "yauzl_unexpected_EOF.zip": (MetadataError, "leaves its size to a zip64 field that does not hold it"),
    "yauzl_wrong_entry_sizes.zip": (MetadataError, "0 bytes stand for 1024"),
    "yauzl_zip64_extended_information_extra_field_does_not_include_compressed_size.zip": (
        MetadataError,
        "its compressed size",
    ),
    "yauzl_zip64_extended_information_extra_field_does_not_include_relative_header_offset.zip": (
        MetadataError,
        "its header offset",
    ),
    "yauzl_zip64_extended_information_extra_field_does_not_include_uncompressed_size.zip": (MetadataError, "its size"),
}

# Refused when a member is read.
AT_READ = {
    "libzip_encrypt-aes256.zip": (UnsupportedError, "'encrypted' is encrypted"),
    "modelscan_password_protected.zip": (UnsupportedError, "'test.txt' is encrypted"),
    "picklescan_malicious1_0x20.zip": (UnsupportedError, "patch of another file"),
    "picklescan_malicious1_0x40.zip": (UnsupportedError, "is encrypted"),
    "picklescan_malicious1_central_directory.zip": (MetadataError, r"'data\.pkl'.*'datap\.kl'"),
    "picklescan_malicious1_crc.zip": (DigestError, "its checksum is dafa6d18, the archive's directory says 03e69f6c"),
    "yauzl_absolute_path_C_xt.zip": (MetadataError, r"'C:/xt'.*'a\.txt'"),
    "yauzl_absolute_path_atxt.zip": (MetadataError, r"'/atxt'.*'a\.txt'"),
    "yauzl_invalid_characters_in_fileName_a_txt.zip": (MetadataError, "tampered"),
    "yauzl_not_enough_bytes_in_the_stream_expected_2048576_got_only_1000000.zip": (
        LimitError,
        "from 985 to 2048576 bytes",
    ),
    "yauzl_strong_encryption_is_not_supported.zip": (UnsupportedError, "is encrypted"),
    "yauzl_too_many_length_or_distance_symbols.zip": (FormatError, "damaged compressed data"),
}

# Read, with a note.
NOTED = {
    "cpython_zipdir_backslash.zip": "2 member names are unusual",
    "djl_zip_traversal.zip": r"'\.\./\.\./",
    "djl_zip_windows_root.zip": "member names are unusual",
    "libzip_filename_empty.zip": "''",
    "libzip_junk-at-start.zip": "starts at byte 4",
    "yauzl_Invalid_comment_length_Expected_1_Found_0_Are_there_extra_bytes_at_the_end_of_the_file_Or_is_the_end_of_central_dir_signature_PK_in_the_com.zip":
        "1 bytes follow the end",
    "libzip_incons-trailing-garbage.zip": "its own header and the directory differ",
}  # fmt: skip

READ = [
    "libzip_bigzero-zip.zip", "libzip_incons-gap-before-local.zip", "libzip_testempty.zip", "picklescan_malicious1.zip",
    "modelscan_unsafe_zip_pytorch.pt", "pickleball_call_system.pkl", "pickleball_call_system_inst.pkl",
    "picklescan_object_arrays_compressed.npz",
]  # fmt: skip


def read_all(name: str) -> tuple[str, ...]:
    directory = read_directory(FileSource(HOSTILE / name), DEFAULT_LIMITS)
    for member in directory.members.values():
        directory.read(member, limit=10 * MB)
    return directory.notes


@pytest.mark.parametrize("name", AT_OPEN)
def test_a_contradicting_archive_is_refused_at_open(name):
    error, match = AT_OPEN[name]
    with pytest.raises(error, match=match):
        read_directory(FileSource(HOSTILE / name), DEFAULT_LIMITS)


@pytest.mark.parametrize("name", AT_READ)
def test_a_damaged_or_locked_member_is_refused_when_read(name):
    error, match = AT_READ[name]
    with pytest.raises(error, match=match):
        read_all(name)


@pytest.mark.parametrize("name", NOTED)
def test_an_odd_archive_is_read_with_a_note(name):
    assert re.search(NOTED[name], " ".join(read_all(name)))


@pytest.mark.parametrize("name", READ)
def test_a_sound_archive_is_read_whatever_it_holds(name):
    assert read_all(name) == ()


def test_every_hostile_archive_is_accounted_for():
    listed = {*AT_OPEN, *AT_READ, *NOTED, *READ, "torch_dos_100MB.pt"}
    present = {path.name for path in HOSTILE.iterdir() if path.suffix == ".zip" or path.read_bytes()[:4] == b"PK\3\4"}
    assert present <= listed


@pytest.fixture
def memory():
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_a_bomb_of_one_hundred_megabytes_costs_nothing_until_it_is_drawn(memory):
    directory = read_directory(FileSource(HOSTILE / "torch_dos_100MB.pt"), DEFAULT_LIMITS)
    member = directory.members["archive/data/0"]
    blob = directory.blob(member)
    assert (blob.nbytes, member.compressed) == (100_000_000, 97_203)
    with pytest.raises(LimitError, match="100000000 bytes; at most 16"):
        directory.read(member, limit=16)
    assert memory() < 1 * MB


def test_a_bomb_is_inflated_in_pieces(memory):
    directory = read_directory(FileSource(HOSTILE / "torch_dos_100MB.pt"), DEFAULT_LIMITS)
    blob = directory.blob(directory.members["archive/data/0"])
    assert sum(len(piece) for piece in blob.chunks(1 * MB)) == 100_000_000
    assert memory() < 8 * MB


def test_an_archive_whose_members_all_share_one_kernel_is_refused():
    kernel = Part(name="0", data=b"\0" * (20 * MB), method=DEFLATED)
    kernel.resolve()
    shared = {"method": DEFLATED, "packed": b"SHARED", "offset": 0, "crc": kernel.crc, "size": kernel.size}
    parts = [kernel, *(Part(name=str(i), compressed=kernel.compressed, **shared) for i in range(1, 200))]
    data = build(parts)
    with pytest.raises(MetadataError, match="runs into member"):
        read_directory(MemorySource(data), DEFAULT_LIMITS)


def test_an_archive_whose_members_quote_the_headers_of_others_is_refused():
    inner = build([Part(name="b", data=b"x" * 100)])[:-22]
    outer = Part(name="a", data=inner)
    behind = Part(name="b", data=b"x" * 100, packed=b"SHARED", compressed=100, size=100, offset=31)
    with pytest.raises(MetadataError, match=r"'a' of \d+ bytes at 0 runs into member 'b' at 31"):
        read_directory(MemorySource(build([outer, behind])), DEFAULT_LIMITS)


def test_declared_sizes_take_no_memory(memory):
    packed = deflate(b"\0" * MB)
    directory = read_directory(
        MemorySource(build([Part(method=DEFLATED, packed=packed, size=1_000_000)])), DEFAULT_LIMITS
    )
    with pytest.raises(FormatError, match="more than its declared 1000000 bytes"):
        for _ in directory.blob(directory.members["a"]).chunks(1000):
            pass
    assert memory() < 2 * MB


def test_an_archive_that_declares_billions_of_members_is_refused_at_once(memory):
    data = build([Part()], zip64=True).replace((1).to_bytes(8, "little") * 2, (1 << 40).to_bytes(8, "little") * 2)
    data = data.replace(b"\x01\0\x01\0", b"\xff\xff\xff\xff")
    with pytest.raises(LimitError, match=r"declares 1099511627776 members; at most 1000000"):
        read_directory(MemorySource(data), DEFAULT_LIMITS)
    assert memory() < 1 * MB


def test_names_as_long_as_can_be_are_cut_in_messages():
    data = build([Part(name="n" * 0xFFFF), Part(name="n" * 0xFFFF)])
    with pytest.raises(FirekeepError) as caught:
        read_directory(MemorySource(data), DEFAULT_LIMITS)
    assert len(str(caught.value)) < 300
