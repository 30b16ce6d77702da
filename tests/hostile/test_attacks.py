"""Small files that crashed a command, ran for minutes or printed without end, each as it was found by an attack on the whole program."""

from __future__ import annotations

import gc
import itertools
import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import firekeep
from descriptors import open_below
from firekeep.cli import run
from firekeep.conversion._source import other_values
from firekeep.errors import LimitError, MetadataError
from pickles import EMPTY_LIST, MARK, call, floats, mapping, pickled, tensor, text, zip_file

_LONG = b"\x8b" + struct.pack("<i", 3000) + b"\x7f" * 3000
"""An integer of more digits than Python prints."""


@pytest.mark.parametrize("arguments", [["--values"], ["--values", "--all"], ["--values", "--json"]])
@pytest.mark.parametrize(
    "body",
    [mapping({"a": _LONG}), MARK + _LONG + b"t", call("foo", "Bar", _LONG), call("torch", "device", _LONG)],
)
def test_integers_too_long_to_print_are_described(
    body: bytes, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickled(body))
    assert run(["inspect", str(path), *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "an integer of 23,999 bits" in printed.out


def test_a_key_too_long_to_print_has_a_name() -> None:
    opened = firekeep.open(pickled(call("torch", "device", text("cuda"), _LONG)))
    assert opened.values() is not None


def test_a_text_that_stands_in_many_places_is_printed_whole_only_so_often(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickled(EMPTY_LIST + MARK + text("x" * 1_000_000) + b"q\x01" + b"h\x01" * 200 + b"e"))
    assert run(["inspect", str(path), "--values", "--json"]) == 0
    out = capsys.readouterr().out
    assert len(out) < 80_000_000
    assert "... (1,000,000 characters)" in json.loads(out)["values"][-1]


def test_lists_that_hold_themselves_are_looked_through_once() -> None:
    opened = firekeep.open(pickled(EMPTY_LIST + b"2a" * 50_000))
    assert other_values(opened) == ([], None)


@pytest.mark.parametrize("close", [b"\x90", b"\x91"])
def test_integers_of_one_hash_are_not_hashed(close: bytes) -> None:
    numbers = [many * (2**61 - 1) for many in range(1, 40_000)]
    pushed = b"".join(b"\x8a\x0a" + one.to_bytes(10, "little") for one in numbers)
    body = (b"\x8f" if close == b"\x90" else b"") + MARK + pushed + close
    assert firekeep.open(pickled(body, 4)).values() == numbers


def test_memory_that_a_view_asks_for_is_told_as_a_limit() -> None:
    expanded = tensor("FloatStorage", "0", 1, shape=[2**19, 2**18], strides=[0, 0])
    data = zip_file(pickled(mapping({"a": expanded})), {"0": floats(1.0)})
    with firekeep.open(data, limits=firekeep.Limits(expanded_bytes=1 << 40)) as opened:
        with pytest.raises(LimitError, match="549755813888 bytes of memory"):
            opened.array("a")
        with pytest.raises(LimitError, match="549755813888 bytes of memory"):
            opened.entry("a").read()


def test_an_index_of_many_missing_files_names_a_few(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {f"k{i}": f"f{i}.safetensors" for i in range(1000)}}))
    with pytest.raises(MetadataError, match=r"1000 of the 1000 files .* are missing") as caught:
        firekeep.open(index)
    assert len(str(caught.value)) < 600


def test_ties_recorded_for_names_that_no_file_can_hold_are_left_aside() -> None:
    data = safetensors.numpy.save({"a": np.ones(3)}, metadata={"firekeep.ties": '{"a\\ud800":"a"}'})
    with firekeep.open(data) as opened:
        assert opened.ties == {}
        assert "not understood" in opened.notes[0]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not list descriptors")
def test_files_that_nobody_closed_let_go_of_their_descriptors(tmp_path: Path) -> None:
    path = firekeep.save_file({"a": np.ones(3)}, tmp_path / "a.safetensors")
    kept = [firekeep.open(path)["a"] for _ in range(20)]
    gc.collect()
    assert 0 < len(open_below(tmp_path)) <= 20  # each mapping has a descriptor of its own
    assert all(array.sum() == 3 for array in kept)
    del kept
    gc.collect()
    assert open_below(tmp_path) == []


def test_tuple_keys_made_to_have_one_hash_are_refused():
    colliding = [5 + (2**61 - 1) * factor for factor in range(8)]
    keys = list(itertools.islice(itertools.product(colliding, repeat=6), 8000))
    data = pickle.dumps(dict.fromkeys(keys), 2)
    with pytest.raises(firekeep.UnsafePickleError, match="tuple keys of one dictionary have the same hash"):
        firekeep.open(data)


def test_many_dictionaries_with_one_tuple_key_are_read():
    data = pickle.dumps([{(0, 1): number} for number in range(1000)], 2)
    with firekeep.open(data) as file:
        assert file.values()[999] == {(0, 1): 999}
