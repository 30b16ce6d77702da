"""Small files that ask for much work: refused by a limit that counts it, while honest files of the same form open."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import firekeep
from firekeep.blobs import MemoryBlob
from firekeep.comparison import _Comparer, _pieces
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from firekeep.errors import FormatError, LimitError, UnsupportedError
from firekeep.formats import _json, _pool
from firekeep.formats.pytorch._machine import Machine
from firekeep.formats.pytorch._rebuild import Rebuilder
from firekeep.formats.pytorch._subtrees import ModelFinder
from firekeep.limits import DEFAULT_LIMITS
from firekeep.saving import Meter
from firekeep.sources import FileSource
from pickles import EMPTY_LIST, MARK, POP, call, floats, mapping, name, pickled, sequence, tensor, text, zip_file

EVIL = pickled(call("os", "system", text("true")))
WASTE = b"\x80\x02" + b"N0" * 3_000_000 + b"N."


def deflated(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, raw in members.items():
            archive.writestr(member, raw)
    return out.getvalue()


# scan: one budget for all members


@pytest.fixture
def opcodes(monkeypatch):
    """Count the opcodes of all pickles that are read."""
    counted = [0]
    run = Machine.run

    def counting(machine: Machine) -> Any:
        try:
            return run(machine)
        finally:
            counted[0] += machine.opcodes

    monkeypatch.setattr(Machine, "run", counting)
    return counted


def test_the_pickles_of_an_archive_share_one_budget(opcodes):
    data = deflated({f"a/{index}.pkl": WASTE for index in range(10)})
    report = firekeep.scan(data)
    assert not report.safe
    assert "not scanned, or not to the end" in str(report.damaged)
    assert "'a/9.pkl'" in str(report.damaged) or "more: " in str(report.damaged)
    assert 100_000 < opcodes[0] < 3_000_000


def test_members_that_would_inflate_to_much_are_named_and_not_inflated():
    data = deflated({f"a/{index}.pkl": b"\x80\x02" + b"N0" * 40_000_000 for index in range(2)} | {"a/b.pkl": EVIL})
    tracemalloc.start()
    try:
        report = firekeep.scan(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000
    assert "'a/0.pkl', 'a/1.pkl'" in str(report.damaged)
    assert [one.member for one in report.dangerous] == ["a/b.pkl"]


def test_the_pickles_of_one_stream_share_the_budget(opcodes):
    report = firekeep.scan(deflated({f"{index}.pkl": b"N." * 9_999 for index in range(300)}))
    assert not report.safe
    assert "not scanned" in str(report.damaged)
    assert opcodes[0] < 200_000


def test_a_hidden_pickle_that_is_too_long_is_not_called_safe():
    hidden = b"\x80\x02" + b"N0" * 2_100_000 + EVIL[2:]
    report = firekeep.scan(zip_file(pickled(text("x")), extra={"archive/data/99": hidden}))
    assert not report.safe
    assert "'archive/data/99'" in str(report.damaged)


def test_many_honest_pickles_in_one_archive_are_all_scanned():
    members = {f"{index}.pkl": pickle.dumps(list(range(3000))) for index in range(100)}
    report = firekeep.scan(deflated(members))
    assert report.damaged is None
    assert (report.safe, report.pickles) == (True, 100)


def test_a_larger_limit_lets_scan_go_on():
    data = zip_file(pickled(text("x")), extra={f"archive/{index}.pkl": WASTE for index in range(2)})
    limits = replace(DEFAULT_LIMITS, pickle_nodes=1 << 40, pickle_opcodes=1 << 40)
    assert not firekeep.scan(data).safe
    assert firekeep.scan(data, limits=limits).safe


# pickles that work for nothing


@pytest.mark.parametrize("again", [b"N0", b"(0", b"(1", b"}(NNu", b"](e0", b"Nb", b"(l0", b"p0\n", b"S''\n0"])
def test_work_for_nothing_counts_more_than_values(again: bytes, opcodes):
    starts = {b"}(NNu": b"}", b"Nb": b"cx\ny\n)\x81", b"p0\n": b"N"}
    with pytest.raises(LimitError, match="values"):
        firekeep.open(b"\x80\x02" + starts.get(again, b"") + again * 2_000_000 + b"N.")
    assert opcodes[0] < 2_800_000


def test_a_name_counts_more_than_a_value(opcodes):
    names = b"".join(name("m", f"c{index}") + POP for index in range(100_000))
    report = firekeep.scan(pickled(names))
    assert len(report.globals) < 60_000
    assert not report.safe


def test_long_python_2_strings_are_unescaped_as_short_ones_are():
    raw = bytes(byte for byte in range(256) if byte not in b"\\'\n")
    printed = raw + b"\\x41\\\\\\n\\'\\\"\\t\\r\\xff"
    long = firekeep.open(b"\x80\x02S'" + printed * 5_000 + b"'\n.").values()
    assert long == (raw + b"A\\\n'\"\t\r\xff") * 5_000
    assert long == firekeep.open(b"\x80\x02S'" + printed + b"'\n.").values() * 5_000
    with pytest.raises(LimitError, match="values"):
        firekeep.open(b"\x80\x02S'" + b"\\101" * 2_100_000 + b"'\n.")


def test_honest_values_of_many_kinds_still_open():
    made = {
        "pairs": {(index, index + 1): index for index in range(20_000)},
        "lists": [[] for _ in range(50_000)],
        "dicts": [{"a": index, "b": 2} for index in range(50_000)],
        "floats": [float(index) for index in range(300_000)],
    }
    for protocol in range(2, 6):
        assert firekeep.open(pickle.dumps(made, protocol)).values() == made


# names that multiply


def levels(count: int, wide: int, seed: bytes) -> bytes:
    made = seed + b"q\x000"
    for level in range(count):
        made += EMPTY_LIST + b"q" + bytes([level + 1]) + MARK + (b"h" + bytes([level])) * wide + b"e0"
    return made + b"h" + bytes([count])


@pytest.mark.parametrize(("count", "wide"), [(60, 10), (4, 200), (20, 2)])
def test_tensors_in_shared_lists_are_refused_early(count: int, wide: int, monkeypatch):
    made = [0]
    recognise = Rebuilder.recognise

    def counting(rebuilder: Rebuilder, value: Any) -> Any:
        made[0] += 1
        return recognise(rebuilder, value)

    monkeypatch.setattr(Rebuilder, "recognise", counting)
    data = zip_file(pickled(levels(count, wide, tensor("FloatStorage", "0", 1))), {"0": floats(1)})
    with pytest.raises(LimitError, match="bytes of names, where those below an object that is met again"):
        firekeep.open(data)
    assert made[0] < 150_000


def test_objects_that_share_objects_are_searched_for_models_a_few_times(monkeypatch):
    made = tensor("FloatStorage", "0", 1) + b"q\x000"
    for level in range(60):
        members = b"".join(text(f"k{index}") + b"h" + bytes([level]) for index in range(10))
        made += name("foo", "Bar") + b")\x81q" + bytes([level + 1]) + b"}(" + members + b"ub0"
    looked = [0]
    is_model = ModelFinder._is_model

    def counting(finder: ModelFinder, node: Any) -> bool:
        looked[0] += 1
        return is_model(finder, node)

    monkeypatch.setattr(ModelFinder, "_is_model", counting)
    with firekeep.open(zip_file(pickled(made + b"h\x3c"), {"0": floats(1)})) as opened:
        assert len(opened) == 1
    assert looked[0] < 10_000


def test_honest_files_that_share_a_lot_open():
    block = b"".join(text(f"layer.{index}.weight") + tensor("FloatStorage", "0", 1) for index in range(50))
    shared = b"}(" + block + b"uq\x000" + b"](" + b"h\0" * 100 + b"e"
    with firekeep.open(zip_file(pickled(shared), {"0": floats(1)})) as opened:
        assert len(opened) == 5_000
    flat = tensor("FloatStorage", "0", 1) + b"q\x000" + b"](" + b"h\0" * 100_000 + b"e"
    with firekeep.open(zip_file(pickled(flat), {"0": floats(1)})) as opened:
        assert len(opened) == 100_000


# views that repeat


def repeated(*shapes: tuple[int, ...], kind: str = "FloatStorage", elements: int = 1) -> bytes:
    tensors = {
        f"t{index}": tensor(kind, "0", elements, shape=shape, strides=[0] * len(shape))
        for index, shape in enumerate(shapes)
    }
    return zip_file(pickled(mapping(tensors)), {"0": floats(*[1.5] * elements)})


def test_an_expansion_is_listed_and_refused_by_name(tmp_path: Path):
    path = tmp_path / "a.pt"
    path.write_bytes(repeated((2**15, 2**15), (3,)))
    with firekeep.open(path) as opened:
        assert opened.keys() == ["t0", "t1"]
        assert opened["t1"].tolist() == [1.5] * 3
        with pytest.raises(UnsupportedError, match=r"'t0'.*repeats 4 bytes .* make 4,294,967,296.*expanded_bytes"):
            opened["t0"]
    with pytest.raises(UnsupportedError, match="'t0'"):
        firekeep.convert(path, tmp_path / "a.bpk")
    assert not (tmp_path / "a.bpk").exists()
    assert "repeats 4 bytes" in str(firekeep.verify(path, values=True)).replace("\n    ", "")
    (change,) = firekeep.diff(path, path).changed
    assert change.name == "t0"
    assert "repeats 4 bytes" in str(change.problem)


def test_expansions_add_up():
    with firekeep.open(repeated(*[(2**12, 2**12)] * 5)) as opened:
        refused = [entry.name for entry in opened.entries.values() if entry.problem]
    assert refused == ["t4"]


def test_moderate_expansions_are_fine(tmp_path: Path):
    path = tmp_path / "a.pt"
    path.write_bytes(repeated((2**11, 2**10)))
    assert firekeep.diff(path, path).equal
    assert firekeep.verify(path, values=True).ok
    firekeep.convert(path, tmp_path / "a.safetensors")
    assert (firekeep.load_file(tmp_path / "a.safetensors")["t0"] == 1.5).all()


def test_a_large_storage_may_be_repeated_a_few_times_whatever_the_limit():
    wide = tensor("FloatStorage", "0", 1000, shape=(5, 1000), strides=(0, 1))
    data = zip_file(pickled(mapping({"a": wide})), {"0": floats(*range(1000))})
    with firekeep.open(data, limits=firekeep.Limits(expanded_bytes=0)) as opened:
        assert opened["a"][4, 999] == 999
    wider = tensor("FloatStorage", "0", 1000, shape=(10, 1000), strides=(0, 1))
    data = zip_file(pickled(mapping({"a": wider})), {"0": floats(*range(1000))})
    with firekeep.open(data, limits=firekeep.Limits(expanded_bytes=0)) as opened:
        assert opened.entry("a").problem is not None
    with firekeep.open(data) as opened:
        assert opened["a"][9, 999] == 999


# comparing


class Chunked(MemoryBlob):
    """Bytes that come in pieces of one size."""

    __slots__ = ("step",)

    def chunks(self, size: int = 0):
        for start in range(0, self.nbytes, self.step):
            yield self.view()[start : start + self.step]


def chunked(array: np.ndarray, step: int, dtype: str) -> TensorEntry:
    blob = Chunked(array.tobytes())
    blob.step = step
    return TensorEntry("x", BY_NAME[dtype], array.shape, blob)


@pytest.mark.parametrize(("step", "other"), [(1, 3), (7, 64), (1000, 999), (8, 8)])
def test_pieces_of_any_sizes_are_compared_in_step(step: int, other: int, monkeypatch):
    monkeypatch.setattr("firekeep.comparison._NUMBERS", 16)
    a = np.arange(205, dtype=np.float32)
    b = a.astype(np.float64)
    comparer = _Comparer(values=True, meter=Meter(0, None), room=1 << 20)
    change = comparer.compare(chunked(a, step, "F32"), chunked(b, other, "F64"))
    assert change is not None
    assert (change.differing, change.max_abs) == (0, 0)
    b[[0, 100, 204]] += 2
    change = comparer.compare(chunked(a, step, "F32"), chunked(b, other, "F64"))
    assert change is not None
    assert (change.differing, change.max_abs) == (3, 2)
    assert comparer.compare(chunked(a, step, "F32"), chunked(a, other, "F32")) is None


def test_packed_halves_are_compared_in_step(monkeypatch):
    monkeypatch.setattr("firekeep.comparison._NUMBERS", 16)
    raw = np.arange(20, dtype=np.uint8)
    changed = raw.copy()
    changed[19] ^= 0x10
    entries = [
        TensorEntry("x", BY_NAME["F4"], (40,), chunked(values, step, "U8").blob)
        for values, step in ((raw, 3), (changed, 5))
    ]
    change = _Comparer(values=True, meter=Meter(0, None), room=1 << 20).compare(*entries)
    assert change is not None
    assert change.differing == 1


def test_a_tensor_that_gives_too_few_bytes_is_no_equal(monkeypatch):
    entry = chunked(np.arange(10, dtype=np.float32), 8, "F32")
    entry.blob.nbytes = 44
    with pytest.raises(firekeep.EntryError, match="44 bytes were declared, 40 came"):
        list(_pieces(entry, 16))


def test_a_comparison_holds_no_whole_tensor(tmp_path: Path):
    path = tmp_path / "a.pt"
    path.write_bytes(repeated((2**13, 2**12)))
    np.zeros(1)
    tracemalloc.start()
    try:
        assert firekeep.diff(path, path).equal
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60_000_000  # the tensor has 134 MB


def test_tied_tensors_are_compared_once_and_overlapping_ones_within_the_budget(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("firekeep.comparison._FREE_BYTES", 0)
    numel = 10_000
    ties = {f"t{index}": tensor("FloatStorage", "0", numel) for index in range(100)}
    views = {
        f"v{index}": tensor("FloatStorage", "0", numel, shape=(numel - 100,), strides=(1,), offset=index)
        for index in range(100)
    }
    path = tmp_path / "a.pt"
    path.write_bytes(zip_file(pickled(mapping(ties)), {"0": bytes(4 * numel)}))
    assert firekeep.diff(path, path).equal
    path.write_bytes(zip_file(pickled(mapping(views)), {"0": bytes(4 * numel)}))
    report = firekeep.diff(path, path)
    assert not report.equal
    assert 5 < report.identical < 30
    assert all("would have to be read" in str(change.problem) for change in report.changed)


def test_a_change_of_a_tied_tensor_is_told_under_each_name(tmp_path: Path):
    ties = {name_: tensor("FloatStorage", "0", 3) for name_ in "ab"}
    for number in (1, 2):
        (tmp_path / f"{number}.pt").write_bytes(zip_file(pickled(mapping(ties)), {"0": floats(1, 2, number)}))
    changed = firekeep.diff(tmp_path / "1.pt", tmp_path / "2.pt").changed
    assert [(change.name, change.differing) for change in changed] == [("a", 1), ("b", 1)]


# headers of safetensors


def header(raw: bytes, data: bytes = b"") -> bytes:
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + data


ROW = b'{"dtype":"F32","shape":[],"data_offsets":[0,4]}'
GIANTS = {
    "a number": b'{"a":' + b"1" * 20_000_000 + b"}",
    "a float": b'{"a":1.' + b"1" * 20_000_000 + b"}",
    "an offset": b'{"a":{"dtype":"F32","shape":[],"data_offsets":[0,' + b"1" * 20_000_000 + b"]}}",
    "numbers of 4,000 digits": b"{" + b",".join(b'"%d":' % index + b"9" * 4000 for index in range(6000)) + b"}",
    "a name": b'{"' + b"a" * 20_000_000 + b'":' + ROW + b"}",
    "long names": b"{" + b",".join(b'"%d' % index + b"a" * 40_000 + b'":' + ROW for index in range(500)) + b"}",
    "a text": b'{"__metadata__":{"a":"' + b"a" * 20_000_000 + b'"}}',
    "escapes": b'{"__metadata__":{"a":"' + b"\\n" * 10_000_000 + b'"}}',
    "spaces in it": b"{" + b" " * 20_000_000 + b"}",
    "brackets": b'{"a":' + b"[" * 20_000_000,
}


@pytest.mark.parametrize("giant", GIANTS)
def test_giants_in_a_header_are_refused_before_it_is_parsed(giant: str, monkeypatch):
    monkeypatch.setattr(_json, "_decode_text", None)
    data = header(GIANTS[giant], bytes(4))
    with pytest.raises(LimitError):
        firekeep.open(data)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"__metadata__":{"a":"' + b'\\"' * 3_000_000 + b'"}}',
        b'{"__metadata__":{' + b",".join(b'"%d":"%d"' % (index, index) for index in range(700_000)) + b"}}",
    ],
)
def test_texts_without_number_are_refused_before_they_are_parsed(raw: bytes, monkeypatch):
    monkeypatch.setattr(_json, "_decode_text", None)
    with pytest.raises(LimitError, match=r"texts, of which 0 tensors cannot make use|holds about .* values"):
        firekeep.open(header(raw))


def test_large_headers_that_are_honest_open():
    picture = {"thumbnail": "A" * 6_000_000, "tags": json.dumps({f"tag {index}": index for index in range(100_000)})}
    with firekeep.open(safetensors.numpy.save({"a": np.ones(3)}, picture)) as opened:
        assert opened.metadata == picture
    padded = b'{"a":' + ROW + b"}" + b" " * 30_000_000
    with firekeep.open(header(padded, bytes(4))) as opened:
        assert opened.keys() == ["a"]


# sets of more files than may be open


@pytest.fixture
def large_set(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(_pool, "MOST_OPEN", 4)
    monkeypatch.setattr("firekeep.formats._sets.MOST_OPEN", 4)
    monkeypatch.setattr(_pool, "_most_mapped", lambda: 6)
    weight_map = {}
    for index in range(20):
        weight_map[f"t{index}"] = file = f"model-{index:05}.safetensors"
        firekeep.save_file({f"t{index}": np.full(4, index, ml_dtypes.bfloat16)}, tmp_path / file, durable=False)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_a_large_set_holds_few_files_open(large_set: Path, monkeypatch):
    living: set[int] = set()
    most = [0]
    start, close = FileSource.__init__, FileSource.close

    def starting(source: FileSource, *args: Any, **options: Any) -> None:
        start(source, *args, **options)
        living.add(id(source))
        most[0] = max(most[0], len(living))

    def closing(source: FileSource) -> None:
        living.discard(id(source))
        close(source)

    monkeypatch.setattr(FileSource, "__init__", starting)
    monkeypatch.setattr(FileSource, "close", closing)
    with firekeep.open(large_set) as opened:
        assert len(opened) == 20
        for index in (*range(20), 3, 19, 0):
            assert opened[f"t{index}"].tolist() == [index] * 4
    assert not living
    assert most[0] == 5  # the index, and four shards


@pytest.mark.parametrize("copy", [False, True])
def test_a_large_set_is_loaded_into_arrays_of_its_own(large_set: Path, copy: bool):
    loaded = firekeep.load_file(large_set, copy=copy)
    loaded["t19"][0] = 7
    loaded["t0"][0] = 7
    assert [float(loaded[f"t{index}"][1]) for index in range(20)] == list(range(20))
    assert float(firekeep.load_file(large_set)["t19"][0]) == 19
    assert firekeep.verify(large_set, values=True).ok
    assert firekeep.diff(large_set, large_set).equal


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not list descriptors")
def test_views_of_a_large_set_hold_few_descriptors(large_set: Path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    loaded = firekeep.load_file(large_set)
    assert len(loaded) == 20
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 7


def test_a_shard_that_is_replaced_meanwhile_is_refused(large_set: Path):
    with firekeep.open(large_set) as opened:
        firekeep.save_file({"t0": np.ones(4, ml_dtypes.bfloat16)}, large_set / "model-00000.safetensors", durable=False)
        with pytest.raises(FormatError, match=r"model-00000.*replaced or changed"):
            opened["t0"]
        assert opened["t1"].tolist() == [1] * 4
    with pytest.raises(ValueError, match="closed"):
        opened["t2"]


# folders


def test_scanning_a_folder_scans_each_file(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "evil.pt").write_bytes(zip_file(EVIL))
    (tmp_path / "good.pkl").write_bytes(pickled(sequence(text("x"))))
    (tmp_path / "README.md").write_text("# weights\n")
    report = firekeep.scan(tmp_path)
    assert (report.pickles, report.damaged, report.path) == (2, None, str(tmp_path))
    assert [(one.path, one.member) for one in report.dangerous] == [("os.system", "sub/evil.pt/archive/data.pkl")]
    (tmp_path / "sub" / "evil.pt").unlink()
    assert firekeep.scan(str(tmp_path)).safe


def test_what_a_folder_holds_and_cannot_be_scanned_is_not_called_safe(tmp_path: Path):
    (tmp_path / "gone.pt").symlink_to(tmp_path / "nothing")
    report = firekeep.scan(tmp_path)
    assert not report.safe
    assert "'gone.pt' was not scanned" in str(report.damaged)
    (tmp_path / "gone.pt").unlink()
    (tmp_path / "cut.pt").write_bytes(EVIL[:-1])
    assert "'cut.pt': " in str(firekeep.scan(tmp_path).damaged)
    (tmp_path / "cut.pt").unlink()
    (tmp_path / "there").symlink_to(tmp_path.parent, target_is_directory=True)
    assert "link to a folder" in str(firekeep.scan(tmp_path).damaged)


@pytest.mark.parametrize("door", [firekeep.open, firekeep.load_file, firekeep.scan, firekeep.verify])
def test_an_empty_path_is_no_path(door: Any, tmp_path: Path, monkeypatch):
    firekeep.save_file({"a": np.ones(3)}, tmp_path / "a.safetensors")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        door("")
