"""What NumPy writes comes back, and what is no tensor is named."""

import io
import random
import struct

import ml_dtypes
import numpy as np
import pytest

import firekeep
from firekeep.errors import FirekeepError, FormatError, HeaderError, LimitError, TruncatedError, UnsupportedError
from firekeep.formats.numpy._literal import parse_literal
from zip_builder import DEFLATED, Part, build

ARRAYS = {
    "plain": np.arange(6, dtype="f4").reshape(2, 3),
    "scalar": np.float64(3),
    "empty": np.zeros((0, 3), "i2"),
    "fortran": np.asfortranarray(np.arange(24, dtype="i8").reshape(2, 3, 4)),
    "big": np.arange(5, dtype=">f8"),
    "big fortran": np.asfortranarray(np.arange(6, dtype=">c16").reshape(2, 3)),
    "bools": np.array([[True], [False]]),
    "half": np.ones(3, ">f2"),
    "complex": np.array([1 + 2j], "c8"),
    "bytes": np.arange(3, dtype="u1"),
    "strided": np.arange(20)[::3],
}
OTHERS = {
    "text": (np.array(["a", "bc"]), "text"),
    "text in bytes": (np.array([b"a"]), "text in bytes"),
    "records": (np.zeros(2, [("a", "<f4"), ("b", ">i2", (3,))]), "records"),
    "dates": (np.array(["2026-01-01"], "M8[D]"), "dates"),
    "spans": (np.array([1], "m8[ns]"), "spans of time"),
    "bfloat16": (np.ones(3, ml_dtypes.bfloat16), "which it was is lost"),
    "long double": (np.ones(2, np.longdouble), "only some machines have"),
    "objects": (np.array([{}, 1], object), "pickled Python objects"),
    "objects in records": (np.zeros(1, [("a", "f4"), ("o", "O")]), "pickled Python objects"),
}


def npy(array, **options) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back_as_numpy_wrote_them(save):
    out = io.BytesIO()
    save(out, **ARRAYS)
    with firekeep.open(out.getvalue()) as file:
        assert (file.format, file.variant) == ("numpy", "npz")
        assert sorted(file) == sorted(ARRAYS)
        for name, array in ARRAYS.items():
            assert file[name].dtype == np.asarray(array).dtype.newbyteorder("=")
            np.testing.assert_array_equal(file[name], array, strict=False)
            assert file[name].shape == np.shape(array)
    assert firekeep.verify(out.getvalue()).ok


@pytest.mark.parametrize("name", ARRAYS)
def test_a_single_array_is_called_as_numpy_calls_it(name):
    with firekeep.open(npy(ARRAYS[name])) as file:
        assert (file.variant, file.keys()) == ("npy", ["arr_0"])
        np.testing.assert_array_equal(file["arr_0"], ARRAYS[name])


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_tensor_costs_only_itself_and_is_named(name):
    array, words = OTHERS[name]
    out = io.BytesIO()
    np.savez(out, odd=array, fine=np.ones(2))
    with firekeep.open(out.getvalue()) as file:
        assert file["fine"].tolist() == [1, 1]
        assert file.entry("odd").shape == array.shape
        with pytest.raises(UnsupportedError, match=rf"tensor 'odd'.*{words}"):
            file.array("odd")
        assert any("'odd'" in note for note in file.notes)


def test_a_file_of_nothing_but_objects_is_refused_and_nothing_is_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "made"), "w"))

    array = np.array([Evil()], object)
    out = io.BytesIO()
    np.savez(out, a=array, b=array)
    for data in (npy(array, allow_pickle=True), out.getvalue()):
        with pytest.raises(UnsupportedError, match=r"nothing but pickled Python objects.*plain arrays"):
            firekeep.open(data)
    assert not list(tmp_path.iterdir())


def test_stored_arrays_are_windows_of_the_file(tmp_path):
    np.savez(tmp_path / "a.npz", w=ARRAYS["plain"], f=ARRAYS["fortran"])
    with firekeep.open(tmp_path / "a.npz") as file:
        source, place = file.entry("w").blob.window()
        assert bytes(source.view(place, 24)) == ARRAYS["plain"].tobytes()
        assert file.entry("f").blob.window() is None


def test_a_damaged_member_is_told_with_the_name_of_its_array(tmp_path):
    np.savez(tmp_path / "a.npz", w=np.arange(8.0), v=np.arange(3.0))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    place = data.index(np.arange(8.0).tobytes())
    data[place + 9] ^= 1
    report = firekeep.verify(bytes(data))
    assert not report.ok
    assert [found.place for found in report.findings if found.severity == "error"] == ["w"]
    packed = [
        Part(name="w.npy", data=npy(np.arange(8.0)), method=DEFLATED, crc=1),
        Part(name="v.npy", data=npy(np.ones(2))),
    ]
    with firekeep.open(build([*packed, Part(name="u.npy", flags=1)])) as file:
        assert file["v"].tolist() == [1, 1]
        with pytest.raises(FormatError, match=r"'w'.*checksum"):
            file.array("w")
        with pytest.raises(FormatError, match=r"'u'.*encrypted"):
            file.array("u")


def header(text: str, version: bytes = b"\x01\x00", length: int | None = None) -> bytes:
    raw = text.encode("latin-1")
    width = "<H" if version == b"\x01\x00" else "<I"
    return b"\x93NUMPY" + version + struct.pack(width, len(raw) if length is None else length) + raw


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}") + bytes(7), TruncatedError, "needs 8 bytes, there are 7"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}") + bytes(9), FormatError, "1 bytes follow"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 99999999999)}"), LimitError, "the limit is"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}"), HeaderError, "no shape"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}"), HeaderError, "no shape"),
        (header("{'descr': '<f4', 'fortran_order': 1, 'shape': (1,)}") + bytes(4), HeaderError, "fortran_order"),
        (header("{'descr': '<f4', 'fortran_order': False}"), HeaderError, "does not say"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (), 'x': 1}") + bytes(4), HeaderError, "nothing else"),
        (header("{'descr': '<f4', 'descr': '<f8', 'shape': ()}"), HeaderError, "once each"),
        (header("__import__('os').system('true')"), HeaderError, "holds what no header may"),
        (header("{'descr': 'zz', 'fortran_order': False, 'shape': ()}"), HeaderError, "no dtype"),
        (header("[" * 100), HeaderError, "too deep"),
        (header("{'descr': "), HeaderError, "ends early"),
        (header("{}", b"\x09\x00"), UnsupportedError, "version 9.0"),
        (header("{}", b"\x02\x00", 1 << 31), TruncatedError, "needs"),
        (header(" " * 70_000, b"\x02\x00"), LimitError, "at most 65536"),
        (b"\x93NUMPY\x01\x00", TruncatedError, "ends within its header"),
    ],
)  # fmt: skip
def test_a_header_that_cannot_be_is_refused_with_the_reason(data, error, words):
    with pytest.raises(error, match=words):
        firekeep.open(data)


def test_headers_of_every_age_are_read():
    text = "{'descr': '<i4', 'fortran_order': False, 'shape': (2L,), }"
    for version in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        with firekeep.open(header(text, version) + b"\1\0\0\0\2\0\0\0") as file:
            assert file["arr_0"].tolist() == [1, 2]


def test_literals_are_read_and_never_evaluated():
    assert parse_literal("{'a': (1, -2L, ), \"b\": [True, None, u'x\\'y'], 'c': (3)}") == {
        "a": (1, -2),
        "b": [True, None, "x\\'y"],
        "c": 3,
    }
    for text in (
        "",
        "1 2",
        "{1: 2}",
        "(1",
        "[1 2]",
        "{'a'}",
        "1+1",
        "a",
        "f()",
        "1.5",
        "0x10",
        "'",
        "{'a': 1,, }",
        "lambda: 0",
        "b'x'",
    ):
        with pytest.raises(HeaderError):
            parse_literal(text)


def test_members_that_are_no_arrays_are_told():
    data = build([Part(name="w.npy", data=npy(np.ones(2))), Part(name="notes.txt", data=b"hi")])
    from firekeep.formats import FORMATS, OpenOptions
    from firekeep.sources import MemorySource

    container = FORMATS["numpy"].reader()(MemorySource(data), OpenOptions())
    assert list(container.entries) == ["w"]
    assert any("'notes.txt'" in note for note in container.notes)


def test_a_bomb_is_refused_before_memory_is_taken():
    head = header("{'descr': '<f4', 'fortran_order': False, 'shape': (268435456,)}")
    data = build([Part(name="w.npy", data=head, method=DEFLATED, size=len(head) + (1 << 30))])
    with pytest.raises(LimitError, match="claims to inflate"):
        firekeep.open(data)


def test_a_layout_is_not_guessed_and_stays_unsaid_in_a_conversion(tmp_path):
    np.savez(tmp_path / "a.npz", **{"fc.weight": np.ones((2, 3), "f4")})
    firekeep.convert(tmp_path / "a.npz", tmp_path / "b.safetensors")
    with firekeep.open(tmp_path / "b.safetensors") as file:
        assert file.metadata["firekeep.layout"] == "unspecified"
        assert file["fc.weight"].shape == (2, 3)
    assert firekeep.diff(tmp_path / "a.npz", tmp_path / "b.safetensors").equal


def test_headers_with_flipped_bytes_raise_nothing_but_errors_of_ours():
    chance = random.Random(3)
    whole = npy(ARRAYS["fortran"])
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(128)] = chance.randrange(256)
        try:
            with firekeep.open(bytes(data)) as file:
                file.entries["arr_0"].read()
        except FirekeepError:
            continue
