"""The quick proof accepts only what the parser accepts, with the same table."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import count

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from firekeep.dtypes import BY_SAFETENSORS
from firekeep.errors import FirekeepError
from firekeep.formats.safetensors import _canonical, _read
from firekeep.formats.safetensors._canonical import scan
from firekeep.formats.safetensors._header import parse_header
from firekeep.limits import DEFAULT_LIMITS
from formats.safetensors.made import open_bytes, raw, row

assert np is not None  # the proof is for processes that have NumPy

SHORT_CODES = sorted(code for code in BY_SAFETENSORS if len(code) < 8)


def header(
    tensors: Sequence[tuple[str, str, Sequence[int]]], metadata: dict[str, str] | None = None, *, begin: int = 0
) -> bytes:
    """Render a header in canonical form."""
    table: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    for name, code, shape in tensors:
        end = begin + BY_SAFETENSORS[code].nbytes(shape)
        table[name] = row(code, list(shape), begin, end)
        begin = end
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def require_agreement(text: bytes) -> bool:
    """Compare the proof with the parser; say whether there was a proof."""
    proven = scan(text)
    if proven is None:
        return False
    table, metadata = proven
    parsed, same_metadata = parse_header(text, DEFAULT_LIMITS)
    assert metadata == same_metadata
    assert table.names() == parsed.names()
    assert table.forms() == parsed.forms()
    assert (len(table), table.data_bytes) == (len(parsed), parsed.data_bytes)
    for name in [*parsed.names()[:50], "", "absent", 'x"y', "dtype", "__metadata__", "\ud800"]:
        assert table.find(name) == parsed.find(name)
    return True


def plain_names() -> st.SearchStrategy[str]:
    letters = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\{]')
    return st.text(letters, max_size=30).filter(lambda name: name != "__metadata__")


def forms() -> st.SearchStrategy[tuple[str, list[int]]]:
    shapes = st.lists(st.integers(0, 40), max_size=4)
    return st.tuples(st.sampled_from(SHORT_CODES), shapes).filter(
        lambda form: np.prod(form[1], dtype=int) * BY_SAFETENSORS[form[0]].bits % 8 == 0
    )


@given(
    st.dictionaries(plain_names(), forms(), min_size=1, max_size=30),
    st.none() | st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
)
def test_a_header_in_canonical_form_is_proven(
    tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None
) -> None:
    assert require_agreement(header([(name, *form) for name, form in tensors.items()], metadata))


@pytest.mark.parametrize("block", [150, 200, 317, 1000, 1 << 20])
def test_blocks_join_without_a_seam(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_canonical, "_BLOCK", block)
    drawn = random.Random(block)
    tensors = [
        (
            f"layer.{number}.{'x' * drawn.randrange(20)}",
            drawn.choice(["F32", "BF16", "F8_E4M3"]),
            [drawn.randrange(9), 3],
        )
        for number in range(300)
    ]
    assert require_agreement(header(tensors, {"format": "pt"}))


def test_a_name_that_is_not_unicode_is_none_of_the_names() -> None:
    assert require_agreement(header([("?", "U8", [1]), ("\ufffd", "U8", [1])]))


def test_the_seams_of_blocks_are_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_canonical, "_BLOCK", 100)
    text = header([(f"t{number}", "F32", [number]) for number in range(9)])
    assert require_agreement(text)
    for place in range(len(text.rstrip())):
        for byte in b'x0,"]':
            require_agreement(text[:place] + bytes([byte]) + text[place + 1 :])


def test_two_forms_of_one_hash_are_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    mix = _canonical._mix
    calls = count()
    monkeypatch.setattr(_canonical, "_mix", lambda parts: parts[0] * 0 if next(calls) % 2 == 0 else mix(parts))
    assert scan(header([("a", "F32", [2]), ("b", "F32", [2])])) is not None
    assert scan(header([("a", "F32", [2]), ("b", "F32", [3])])) is None
    assert scan(header([("a", "F32", [2]), ("b", "I32", [2])])) is None


@pytest.mark.parametrize(
    "sizes",
    [
        [99_999_999, 1, 0, 5],
        [9, 1, 90, 900, 99_000, 10**7, 10**9],
        [10**15, 7],
        [0, 0, 0],
        [12_345_678, 90_123_456_789],
    ],
)
def test_offsets_of_any_length_are_compared(sizes: list[int]) -> None:
    text = header([(f"t{number}", "U8", [size]) for number, size in enumerate(sizes)])
    assert require_agreement(text)
    last = text.rindex(b"]}}") - 1
    for digit in b"0123456789:/,;. \0":
        if digit != text[last]:
            assert scan(text[:last] + bytes([digit]) + text[last + 1 :]) is None


@pytest.mark.parametrize("shape", [[], [1], [7] * 10, [10**15], [1] * 31])
def test_shapes_of_any_rank_are_read(shape: list[int]) -> None:
    assert require_agreement(header([("t", "U8", shape)])) == (
        len(",".join(map(str, shape))) <= 64 and np.prod(shape, dtype=float) < 1e16
    )


BASE = header(
    [("alpha.weight", "F32", [2, 3]), ("b", "BF16", []), ("alpha.w", "U8", [0, 4]), ("é", "F32", [1])], {"format": "pt"}
)


@settings(max_examples=1000)
@given(st.integers(0, len(BASE) - 1), st.integers(0, 255), st.integers(0, len(BASE) - 1), st.integers(0, 255))
def test_a_damaged_header_is_never_proven_to_be_another(first: int, one: int, second: int, other: int) -> None:
    text = bytearray(BASE)
    text[first] = one
    require_agreement(bytes(text))
    text[second] = other
    require_agreement(bytes(text))


@settings(max_examples=1000)
@given(st.data())
def test_a_header_cut_and_pasted_is_never_proven_to_be_another(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(BASE)), min_size=2, max_size=2)))
    times = data.draw(st.integers(0, 3))
    insert = data.draw(
        st.sampled_from([b"", b"0", b"1", b'"', b",", b"[", b"]", b"{", b"}", b" ", b"\\", b"\n", b"-", b"\xff"])
    )
    require_agreement(BASE[: cuts[0]] + BASE[cuts[0] : cuts[1]] * times + insert + BASE[cuts[1] :])


SWAPS = [
    "0",
    "1",
    "2",
    "00",
    "01",
    "-0",
    "+1",
    "1.0",
    "1e0",
    "",
    " ",
    "true",
    "null",
    "[",
    "]",
    "{}",
    '""',
    ",",
    ",,",
    "99999999999999999999",
]


@given(st.sampled_from(range(BASE.count(b","))), st.sampled_from(SWAPS))
@example(0, "")
def test_a_header_with_another_token_is_never_proven_to_be_another(place: int, token: str) -> None:
    parts = BASE.split(b",")
    parts[place] = parts[place].rstrip(b"0123456789") + token.encode()
    require_agreement(b",".join(parts))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"{}      ",
        b'{"a"}',
        b'{"__metadata__":{"a":"b"}}',
        b"]" * 100,
        b"{" * 100,
        b'{"' + b"{]]" * 100 + b"]}}",
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}} \n',
        b'{"a":{"dtype":"U8", "shape":[1],"data_offsets":[0,1]}}',
        b'{"a":{"shape":[1],"dtype":"U8","data_offsets":[0,1]}}',
        b'{"a\\n":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b'{"a\n":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b'{"a{":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b'{"\xff":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U9","shape":[1],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"F8_E4M3FNUZ","shape":[1],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,2]}}',
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        b'{"a":{"dtype":"U8","shape":[01],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","shape":[1,],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","shape":[100000000000000000],"data_offsets":[0,100000000000000000]}}',
        b'{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        b'{"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"__metadata__":{"x":"y"}}',
        b'{"__metadata__":{"x":1},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b'{"__metadata__":{"x":"1","x":"2"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b'{"__metadata__":{"x":"1"} ,"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b'{"__metadata__":' + b"[" * 5000 + b',"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b'{":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x"y":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        header([("n" * 600, "U8", [1])]),
    ],
)
def test_any_other_form_is_left_to_the_parser(text: bytes) -> None:
    assert scan(text) is None


def test_large_files_go_the_quick_way_and_small_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("parsed")

    tensors = [(f"layer.{number}.weight", "F32", [2, 2]) for number in range(2000)]
    large = raw(header(tensors), bytes(32_000))
    monkeypatch.setattr(_read, "parse_header", refuse)
    container = open_bytes(large)
    assert list(container.entries) == [name for name, _, _ in tensors]
    assert container.entries["layer.7.weight"].blob.window() == (
        container.entries["layer.8.weight"].blob.source,
        len(large) - 32_000 + 7 * 16,
    )  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="parsed"):
        open_bytes(raw(header(tensors[:2]), bytes(32)))


@pytest.mark.parametrize("spoil", [0, 1, 700, 1999])
def test_a_fault_in_a_large_header_is_explained_by_the_parser(spoil: int) -> None:
    tensors = [(f"layer.{number}.weight", "F32", [2, 2]) for number in range(2000)]
    text = header(tensors)
    name = f'"layer.{spoil}.weight":'.encode()
    place = text.index(name) + len(name)
    wrong = text[:place] + text[place:].replace(b'"shape":[2,2]', b'"shape":[2,3]', 1)
    with pytest.raises(FirekeepError, match=rf"tensor 'layer.{spoil}.weight': shape \[2, 3\] of F32 needs 24 bytes"):
        open_bytes(raw(wrong, bytes(32_000)))
    doubled = text.replace(name, f'"layer.{(spoil + 5) % 2000}.weight":'.encode())
    with pytest.raises(FirekeepError, match=f"the key 'layer.{(spoil + 5) % 2000}.weight' twice"):
        open_bytes(raw(doubled, bytes(32_000)))


@pytest.mark.parametrize("missing", [1, 32_000])
def test_a_large_truncated_file_is_refused(missing: int) -> None:
    text = header([(f"layer.{number}.weight", "F32", [2, 2]) for number in range(2000)])
    with pytest.raises(FirekeepError, match=f"{missing} are missing"):
        open_bytes(raw(text, bytes(32_000 - missing)))
    with pytest.raises(FirekeepError, match=f"{missing} bytes follow the last tensor, 'layer.1999.weight'"):
        open_bytes(raw(text, bytes(32_000 + missing)))


@pytest.mark.parametrize("shared", [0, 56])
def test_hashes_are_told_apart_wherever_they_fall_in_the_table(shared: int) -> None:
    drawn = np.random.default_rng(1).choice(1 << 48, 500, replace=False).astype(np.uint64)
    hashes = (drawn << np.uint64(16)) >> np.uint64(shared)  # with leading zeros, all come to one place
    hashes = np.unique(hashes)
    assert len(hashes) > 100
    assert _canonical._all_differ(hashes)
    for one, other in ((0, 1), (3, 99), (98, 99)):
        twice = hashes.copy()
        twice[one] = twice[other]
        assert not _canonical._all_differ(twice)
    assert _canonical._all_differ(hashes[:1])


def test_the_shortest_header_is_proven_without_padding() -> None:
    assert scan(b'{"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}') is not None
    assert scan(b'{"":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}') is not None


def test_a_giant_header_is_worth_the_import_of_numpy() -> None:
    code = """
import sys
from firekeep import open, save_bytes
from firekeep.entry import TensorEntry
from firekeep.blobs import MemoryBlob
from firekeep.dtypes import BY_NAME
from firekeep.formats.safetensors import _read
_read._WORTH_NUMPY = 1000
data = save_bytes({f"t{n}": TensorEntry(f"t{n}", BY_NAME["U8"], (1,), MemoryBlob(b"x")) for n in range(10)}, format="safetensors")
assert len(open(data)) == 10 and "numpy" not in sys.modules
data = save_bytes({f"t{n}": TensorEntry(f"t{n}", BY_NAME["U8"], (1,), MemoryBlob(b"x")) for n in range(99)}, format="safetensors")
assert list(open(data)) == sorted(f"t{n}" for n in range(99)) and "numpy" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
