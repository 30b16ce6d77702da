"""What h5py writes comes back, whatever way it lies; links are not followed; files that lie are refused."""

import io
import random
import struct

import h5py
import ml_dtypes
import numpy as np
import pytest

import firekeep
from firekeep.errors import FirekeepError, FormatError, LimitError, MetadataError, TruncatedError, UnsupportedError
from firekeep.formats import FORMATS, OpenOptions
from firekeep.sources import MemorySource
from formats.hdf5.made import NOWHERE, Data, Group, datatype, hdf5

FOUR = np.arange(4, dtype="<f4").tobytes()
ARRAY = np.arange(70, dtype="f4").reshape(10, 7)


def opened(data: bytes, **options):
    return FORMATS["hdf5"].reader()(MemorySource(data), OpenOptions(**options))


def written(fill, **options) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w", **options) as file:
        fill(file)
    return out.getvalue()


@pytest.mark.parametrize("libver", ["earliest", "v108", "v110", "latest"])
@pytest.mark.parametrize("dtype", ["f4", ">f8", "f2", "i2", ">u4", "u1", "?"])
def test_arrays_of_h5py_come_back(libver, dtype):
    array = (ARRAY % 2 if dtype == "?" else ARRAY).astype(dtype)

    def fill(file):
        file["g/deep/x"] = array
        file["scalar"] = array[0, 1]
        file["empty"] = array[:0]
        file["same"] = file["g/deep/x"]

    container = opened(written(fill, libver=libver))
    for name, value in {"g.deep.x": array, "same": array, "scalar": array[0, 1], "empty": array[:0]}.items():
        entry = container.entries[name]
        little = np.ascontiguousarray(value, np.dtype(dtype).newbyteorder("<"))
        assert (entry.shape, bytes(entry.read())) == (np.shape(value), little.tobytes())


CHUNKED = {
    "plain": {},
    "deflated": {"compression": "gzip"},
    "shuffled": {"compression": "gzip", "shuffle": True},
    "checked": {"fletcher32": True},
    "all of it": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "filled": {"fillvalue": 7, "compression": "gzip"},
}


@pytest.mark.parametrize("dtype", ["f8", ">i2", "u1"])
@pytest.mark.parametrize("how", CHUNKED)
def test_chunks_are_put_together(how, dtype):
    array = ARRAY.astype(dtype)

    def fill(file):
        file.create_dataset("whole", data=array, chunks=(3, 4), **CHUNKED[how])
        part = file.create_dataset("part", shape=(10, 7), dtype=dtype, chunks=(3, 4), **CHUNKED[how])
        part[4:5, 2:7] = array[0, :5]
        smaller = file.create_dataset("smaller", data=array, chunks=(3, 4), maxshape=(None, None), **CHUNKED[how])
        smaller.resize((2, 5))
        file.create_dataset("none", shape=(3, 2), dtype=dtype, chunks=(2, 2), **CHUNKED[how])

    data = written(fill)
    with h5py.File(io.BytesIO(data)) as peer:
        for name, entry in opened(data).entries.items():
            assert (
                bytes(entry.read()) == np.ascontiguousarray(peer[name][()], np.dtype(dtype).newbyteorder("<")).tobytes()
            )
    assert firekeep.verify(data, values=True).ok


def test_a_damaged_chunk_is_told_by_its_tensor():
    for options in ({"fletcher32": True}, {"compression": "gzip"}):
        noise = np.random.default_rng(1).integers(0, 255, (64, 64), "u1")
        data = bytearray(
            written(
                lambda file, options=options, noise=noise: file.create_dataset(
                    "w", data=noise, chunks=(64, 64), **options
                )
            )
        )
        place = len(data) - 2000
        data[place] ^= 0xFF
        report = firekeep.verify(bytes(data))
        assert [found.place for found in report.findings if found.severity == "error"] == ["w"]


def test_a_dataset_that_was_never_written_has_the_value_it_is_filled_with():
    def fill(file):
        file.create_dataset("zeros", shape=(2, 2), dtype="f4")
        file.create_dataset("nines", shape=(3,), dtype="i2", fillvalue=9)

    with firekeep.open(written(fill)) as file:
        assert file["zeros"].tolist() == [[0, 0], [0, 0]]
        assert file["nines"].tolist() == [9, 9, 9]


@pytest.mark.parametrize("number", [8, 9, 60, 3000])
def test_groups_of_newer_files_with_many_names_are_read(number):
    def fill(file):
        group = file.create_group("g", track_order=bool(number % 2))
        for index in range(number):
            group[f"t{index}"] = np.float32(index)

    for libver in ("earliest", "latest"):
        container = opened(written(fill, libver=libver))
        assert {name: float(np.frombuffer(entry.read(), "<f4")[0]) for name, entry in container.entries.items()} == {
            f"g.t{index}": index for index in range(number)
        }


def test_what_is_no_array_of_numbers_costs_only_itself():
    def fill(file):
        file["text"] = "hello"
        file["texts"] = np.array([b"a", b"b"])
        file["complex"] = np.ones(2, "c8")
        file["records"] = np.zeros(2, [("a", "f4")])
        file["raw"] = np.ones(2, ml_dtypes.bfloat16)
        file["nothing"] = h5py.Empty("f4")
        file["reference"] = file.ref
        file.create_dataset("packed", data=ARRAY, compression="lzf")
        file["type"] = np.dtype("f4")
        file["typed"] = h5py.Dataset(h5py.h5d.create(file.id, b"inner", file["type"].id, h5py.h5s.create_simple((2,))))
        file["w"] = ARRAY

    with firekeep.open(written(fill)) as file:
        np.testing.assert_array_equal(file["w"], ARRAY)
        words = {"text": "text", "texts": "text", "complex": "records.*two datasets, .real and .imag", "records": "records",
                 "raw": "bytes without a type", "nothing": "no elements", "reference": "references",
                 "packed": "LZF.*compression='gzip'", "typed": r"committed.*create_dataset"}  # fmt: skip
        for name, word in words.items():
            with pytest.raises(UnsupportedError, match=f"'{name}'.*{word}"):
                file.array(name)
        assert "type" not in file


def test_the_remedies_for_what_is_not_read_make_it_readable():
    chunked = {"chunks": (2, ARRAY.shape[1])}
    newer = written(lambda file: file.create_dataset("w", data=ARRAY, **chunked), libver="latest")
    with pytest.raises(UnsupportedError, match=r"libver='earliest'"), firekeep.open(newer) as file:
        file.array("w")
    again = {
        "earliest": written(lambda file: file.create_dataset("w", data=ARRAY, **chunked), libver="earliest"),
        "unchunked": written(lambda file: file.create_dataset("w", data=ARRAY), libver="latest"),
        "gzip": written(lambda file: file.create_dataset("w", data=ARRAY, compression="gzip")),
    }
    for how, data in again.items():
        with firekeep.open(data) as file:
            np.testing.assert_array_equal(file["w"], ARRAY, err_msg=how)

    def parts(file):
        file["z.real"], file["z.imag"] = np.float32([1, 2]), np.float32([3, 4])

    with firekeep.open(written(parts)) as file:
        assert [file[name].tolist() for name in ("z.real", "z.imag")] == [[1, 2], [3, 4]]


def test_links_to_other_places_and_files_are_left_aside(tmp_path):
    (tmp_path / "secret.h5").write_bytes(written(lambda file: file.create_dataset("x", data=ARRAY)))

    def fill(file):
        file["w"] = ARRAY
        file["soft"] = h5py.SoftLink("/w")
        file["outside"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/x")
        file.create_dataset("raw", (70,), "f4", external=[(str(tmp_path / "secret.h5"), 0, 280)])
        source = h5py.VirtualSource(str(tmp_path / "secret.h5"), "x", shape=(10, 7))
        layout = h5py.VirtualLayout(shape=(10, 7), dtype="f4")
        layout[:] = source
        file.create_virtual_dataset("virtual", layout)

    with firekeep.open(written(fill)) as file:
        assert sorted(file) == ["raw", "virtual", "w"]
        assert any("2 links lead to other places or files" in note for note in file.notes)
        for name in ("raw", "virtual"):
            with pytest.raises(UnsupportedError, match=f"'{name}'.*other files"):
                file.array(name)


def test_a_user_block_before_the_file_is_passed_over():
    data = written(lambda file: file.create_dataset("w", data=ARRAY), userblock_size=1024)
    np.testing.assert_array_equal(np.frombuffer(opened(data).entries["w"].read(), "f4").reshape(10, 7), ARRAY)


def test_a_group_under_two_names_and_one_in_itself_are_listed_once():
    def fill(file):
        file["a/w"] = ARRAY
        file["b"] = file["a"]
        file["a/self"] = file["a"]

    container = opened(written(fill))
    assert sorted(container.entries) in (["a.w"], ["b.w"])
    assert any("2 groups are there under a second name" in note for note in container.notes)


def test_arrays_are_windows_and_come_in_the_order_they_lie(tmp_path):
    path = tmp_path / "a.h5"
    path.write_bytes(hdf5(Group({"b": Data("F32", (4,), FOUR), "a": Data("F32", (4,), FOUR)})))
    with firekeep.open(path) as file:
        assert file.keys() == ["b", "a"]
        source, place = file.entry("b").blob.window()
        assert bytes(source.view(place, 16)) == FOUR


ROUND = bytes(hdf5(Group({"w": Data("F32", (4,), FOUR)})))
LIES = {
    "cut": (ROUND[:-1], TruncatedError, "cut short"),
    "length": (
        hdf5(Group({"w": Data("F32", (4,), FOUR, layout=struct.pack("<BBQQ", 3, 1, 96, 99))})), MetadataError, "'w'.*needs 16 bytes.*99",
    ),
    "outside": (
        hdf5(Group({"w": Data("F32", (4,), FOUR, layout=struct.pack("<BBQQ", 3, 1, 1 << 40, 16))})), TruncatedError, "'w'.*behind its end",
    ),
    "huge": (hdf5(Group({"w": Data("F32", (1 << 62, 1 << 62), FOUR)})), LimitError, "'w'.*the limit is"),
    "never written and huge": (
        hdf5(Group({"w": Data("F32", (1 << 36,), b"", layout=struct.pack("<BBQQ", 3, 1, NOWHERE, 0))})), LimitError, "claim to be",
    ),
    "no chunks and huge": (
        hdf5(Group({"w": Data("F32", (1 << 36,), b"", layout=struct.pack("<BBBQII", 3, 2, 2, NOWHERE, 1024, 4))})), LimitError, "claim to be",
    ),
    "chunks of no size": (
        hdf5(Group({"w": Data("F32", (4,), b"", layout=struct.pack("<BBBQII", 3, 2, 2, NOWHERE, 0, 4))})), MetadataError, "do not fit",
    ),
    "axes": (hdf5(Group({"w": Data("F32", (1,) * 40, FOUR)})), MetadataError, "40 axes"),
    "class": (hdf5(Group({"w": Data("F32", (4,), FOUR, type=b"\x1d" + bytes(7))})), MetadataError, "class 13"),
    "no object": (hdf5(Group({"w": 8})), MetadataError, "'w'.*no object"),
    "name twice": (hdf5(Group({"w": Data("F32", (4,), FOUR), b"w": Data("F32", (4,), FOUR)})), MetadataError, "one name twice"),
    "one name of two": (
        hdf5(Group({"a": Group({"b": Data("F32", (4,), FOUR)}), "a.b": Data("F32", (4,), FOUR)})), MetadataError, "have one name",
    ),
    "name not utf-8": (hdf5(Group({b"\xff": Data("F32", (4,), FOUR)})), MetadataError, "not UTF-8"),
    "superblock": (ROUND[:8] + b"\x09" + ROUND[9:], UnsupportedError, "superblock is of version 9"),
    "widths": (ROUND[:13] + b"\x03" + ROUND[14:], FormatError, "addresses of 3 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_file_that_lies_is_refused_with_the_reason_before_memory_is_taken(name):
    data, error, words = LIES[name]
    with pytest.raises(error, match=words):
        opened(data)


def test_circles_of_headers_and_trees_end():
    tree = ROUND.index(b"TREE")
    circle = bytearray(ROUND)
    circle[tree + 5] = 1
    circle[tree + 32 : tree + 40] = struct.pack("<Q", tree)
    with pytest.raises(MetadataError, match="circle"):
        opened(bytes(circle))
    heading = hdf5(Group({"w": Data("F32", (4,), FOUR, more=[(0x10, struct.pack("<QQ", 0, 0))])}))
    place = heading.index(struct.pack("<HHB3xQQ", 0x10, 16, 0, 0, 0))
    around = bytearray(heading)
    around[place + 8 : place + 24] = struct.pack("<QQ", place, 24)
    with pytest.raises(MetadataError, match="circle"):
        opened(bytes(around))


def test_floats_of_a_make_of_their_own_are_not_misread():
    odd = bytearray(datatype("F16"))
    odd[12:16] = bytes([11, 4, 0, 11])
    data = hdf5(Group({"w": Data("F16", (2,), b"abcd", type=bytes(odd))}))
    with firekeep.open(data) as file, pytest.raises(UnsupportedError, match="a make of their own"):
        file.array("w")


def big_file(file):
    file.create_dataset("c", data=ARRAY, chunks=(3, 4), compression="gzip", shuffle=True, fletcher32=True)
    file["g/x"] = ARRAY
    file["g"].attrs["name"] = "text"
    file["g/b"] = np.array([True])
    for index in range(12):
        file[f"many/{index}"] = np.float32(index)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_changed_bytes_raise_nothing_but_errors_of_ours(libver):
    chance = random.Random(libver)
    whole = written(big_file, libver=libver)
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 255, chance.randrange(256)])
        try:
            container = opened(bytes(data))
            for entry in container.entries.values():
                if entry.problem is None:
                    entry.read()
            list(container.check())
        except FirekeepError:
            continue
