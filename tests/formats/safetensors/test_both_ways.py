"""The quick proof and the parser give one verdict and one table of any header, wherever the blocks of the proof meet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firekeep.errors import FirekeepError
from firekeep.formats.safetensors import _canonical, _read
from firekeep.formats.safetensors._canonical import scan
from firekeep.formats.safetensors._header import parse_header
from firekeep.limits import DEFAULT_LIMITS
from formats.safetensors.made import open_bytes, raw

assert np is not None  # the proof is for processes that have NumPy

WHOLE = 1 << 20
LENGTHS = [*range(26), 31, 32, 33, 39, 40, 41, 63, 64, 65]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row as text: each part can be anything."""

    name: str
    size: int = 0
    code: str = '"U8"'
    shape: str | None = None
    begin: str | None = None
    end: str | None = None
    form: str = '"{name}":{{"dtype":{code},"shape":{shape},"data_offsets":[{begin},{end}]}}'


def render(rows: Sequence[Row], *, opening: str = "{", closing: str = "}", between: str = ",") -> bytes:
    """Spell a header whose data follow one another, but for the parts that are given."""
    place, texts = 0, []
    for row in rows:
        end = place + row.size
        texts.append(
            row.form.format(
                name=row.name,
                code=row.code,
                shape=f"[{row.size}]" if row.shape is None else row.shape,
                begin=place if row.begin is None else row.begin,
                end=end if row.end is None else row.end,
            )
        )
        place = end
    return (opening + between.join(texts) + closing).encode("utf-8", "surrogatepass")


@contextmanager
def blocks_of(size: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_canonical, "_BLOCK", size)
        patch.setattr(_read, "_QUICK_BYTES", 0)
        yield


def outcome(read: Callable[[], Any]) -> tuple[object, ...]:
    try:
        table, metadata = read()
    except FirekeepError as error:
        return type(error), str(error)
    names = table.names()
    found = [table.find(name) for name in [*names, "", "absent", "__metadata__"]]
    return names, table.forms(), len(table), table.data_bytes, found, metadata


def require_one_verdict(header: bytes, *, block: int) -> bool:
    """Read a header both ways; say whether the quick one proved it."""
    slow = outcome(lambda: parse_header(header, DEFAULT_LIMITS))
    with blocks_of(block):
        assert outcome(lambda: _read._read_table(header, DEFAULT_LIMITS)) == slow
        return scan(header) is not None


def of_length(length: int, last: str = "z") -> str:
    return ("abcdefgh" * 10)[: length - 1] + last if length else ""


def names() -> st.SearchStrategy[str]:
    """Few enough that many come twice; prefixes of one another; alike but for their last byte; some are nobody's name."""
    made = st.builds(of_length, st.sampled_from(LENGTHS), st.sampled_from("yz"))
    odd = ["__metadata__", "__metadata_", "__metadata__z", "é", "e\u0301", "\U0001f600", "\x7f"]
    return st.one_of(made, made, made, st.sampled_from(odd))


WRONG_NAMES = [
    "a\\u0062c",
    "abc\\n",
    "__metadat\\u0061__",
    '"',
    "a{",
    "b]",
    "a\tb",
    "\ud800",
    "\\ud800",
    "\\",
    "\0",
    "n" * 513,
]
NUMBERS = [
    "0",
    "1",
    "7",
    "-0",
    "-1",
    "+1",
    "00",
    "01",
    "0.0",
    "1.0",
    "1e0",
    "1E1",
    "0e0",
    "1e999",
    "NaN",
    "Infinity",
    "-Infinity",
]
NUMBERS += ["", " ", " 1", "1 ", "1,", ",1", "1,1", "true", "null", '"1"', "[1]", "{}", "0x1", "1_0", "１"]
NUMBERS += [str((1 << power) + more) for power in (31, 32, 53, 63, 64) for more in (-1, 0, 1)]
NUMBERS += [str(10**16 - 1), str(10**16), "9" * 17, "9" * 18, "9" * 19, "9" * 5000]
SHAPES = [
    "[]",
    "[ ]",
    "[0]",
    "[1]",
    "[01]",
    "[1,]",
    "[,1]",
    "[1,1]",
    "[1, 1]",
    "[-1]",
    "[-0]",
    "[1.0]",
    "[1e0]",
    "[[1]]",
    "1",
    "{}",
    "null",
]
SHAPES += [
    "[0,99999999999999999]",
    "[4294967296,4294967296]",
    "[4294967296,4294967296,0]",
    "[18446744073709551616,0]",
    "[1,1]]",
]
CODES = [
    '"F32"',
    '"F16"',
    '"F4"',
    '"F8_E4M3FNUZ"',
    '"U9"',
    '"u8"',
    '""',
    "null",
    "8",
    '"U8" ',
    ' "U8"',
    '"U\\u0038"',
    '"é"',
    '"U8"]',
]
FORMS = [
    '"{name}":{{"shape":{shape},"dtype":{code},"data_offsets":[{begin},{end}]}}',
    '"{name}":{{"dtype":{code},"shape":{shape},"data_offsets":[{begin},{end}],"dtype":{code}}}',
    '"{name}":{{"dtype":{code},"dtype":{code},"shape":{shape},"data_offsets":[{begin},{end}]}}',
    '"{name}":{{"dtype":{code},"shape":{shape},"data_offsets":[{begin},{end}],"more":1}}',
    '"{name}":{{"dtype":{code},"shape":{shape},"data_offsets":[{begin},{end}],}}',
    '"{name}":{{"dtype":{code},"shape":{shape},"data_offsets":[{begin},{end},]}}',
    '"{name}":{{"dtype":{code},"shape":{shape},"data_offsets":[{begin}]}}',
    '"{name}":{{"dtype":{code},"shape":{shape},"data_offsets":[{begin},{end},{end}]}}',
    '"{name}":{{"dtype":{code},"shape":{shape}}}',
    '"{name}":{{"dtype":{code},"shape":{shape},"data_offsets":[{begin}, {end}]}}',
    '"{name}": {{"dtype":{code},"shape":{shape},"data_offsets":[{begin},{end}]}}',
    '\n"{name}":{{"dtype":{code},"shape":{shape},"data_offsets":[{begin},{end}]}}',
    '"{name}":{{"dtype":{code},"shape":{shape},"data_offsets":[{begin},{end}]}}\t',
    '"{name}":{{"dtype":{code},"shape":{shape},"data_offset\\u0073":[{begin},{end}]}}',
    '"{name}":{{"format":"pt"}}',
    '"{name}":null',
    '"{name}":{{}}',
    "{name}:1",
]
OPENINGS = [
    "{",
    "{ ",
    " {",
    "\ufeff{",
    "[",
    "{,",
    '{"__metadata__":null,',
    '{"__metadata__":{},',
    '{"__metadata__": {},',
]
OPENINGS += [
    '{"__metadata__":{"a":"b"},',
    '{"__metadata__":{"a":"b","a":"c"},',
    '{"__metadata__":{"a":1},',
    '{"__metadata__":{"a":1e999},',
]
OPENINGS += [
    '{"__metadata__":{"\\ud800":""},',
    '{"__metadata__":{"a":"\\":{\\"dtype\\":\\""},',
    '{"__metadata__":{"é":"\\u00e9"},',
    '{"__metadata__":[],',
]
CLOSINGS = [
    "}",
    "}   ",
    "}\n",
    "} \0",
    ",}",
    "",
    "}}",
    ',"__metadata__":{"a":"b"}}',
    ',"__metadata__":{}}',
    ',"__metadata__":null}',
    "},",
    "}é",
]


DAMAGES: list[dict[str, Any]] = [
    *({"name": name} for name in WRONG_NAMES),
    *({"shape": shape} for shape in SHAPES),
    *({"shape": f"[{number}]"} for number in NUMBERS),
    *({"code": code} for code in CODES),
    *({"form": form} for form in FORMS),
    *({"begin": number} for number in NUMBERS),
    *({"end": number} for number in NUMBERS),
    *({"begin": number, "end": number} for number in NUMBERS),
    *({"shape": f"[{number}]", "end": number} for number in NUMBERS),
    *({"shape": "[7]", "begin": begin, "end": end} for begin in ("0", "1", "7") for end in ("7", "8", "14")),
]


def rows() -> st.SearchStrategy[list[Row]]:
    sizes = st.sampled_from([0, 0, 1, 2, 7, 9, 90, 99, 1000, 10**8, 10**15])
    return st.lists(st.builds(lambda name, size: Row(name=name, size=size), names(), sizes), min_size=1, max_size=14)


def blocks() -> st.SearchStrategy[int]:
    return st.sampled_from([70, 100, 140, 141, 200, 263, 400, 700, WHOLE])


@settings(max_examples=200)
@given(rows(), blocks())
def test_names_are_found_twice_wherever_they_are(made: list[Row], block: int) -> None:
    header = render(made)
    proven = require_one_verdict(header, block=block)
    sizes = sum(row.size for row in made)
    differ = len({row.name for row in made} | {"__metadata__"}) == len(made) + 1
    assert proven == (differ and sizes < 10**16) or block < 200  # a block that is too short for one row proves nothing


@pytest.mark.parametrize("block", [141, 320, WHOLE])
@pytest.mark.parametrize("place", [0, 3, 8])
def test_a_damaged_row_has_one_verdict(place: int, block: int) -> None:
    made = [Row(name=of_length(3 * number), size=number % 3 * 7) for number in range(9)]
    assert require_one_verdict(render(made), block=max(block, 142))
    for damage in DAMAGES:
        require_one_verdict(render([*made[:place], replace(made[place], **damage), *made[place + 1 :]]), block=block)


@pytest.mark.parametrize("block", [141, WHOLE])
@pytest.mark.parametrize("between", [",", ", ", " ,", ",,", "", ",\n", ";"])
def test_a_header_with_another_beginning_or_end_has_one_verdict(between: str, block: int) -> None:
    made = [Row(name=of_length(3 * number), size=number) for number in range(5)]
    for opening in ["{", *OPENINGS]:
        for closing in CLOSINGS:
            require_one_verdict(render(made, opening=opening, closing=closing, between=between), block=block)


@settings(max_examples=200)
@given(rows(), blocks(), st.lists(st.tuples(st.integers(0, 13), st.sampled_from(DAMAGES)), min_size=2, max_size=3))
def test_a_header_with_several_faults_has_one_verdict(
    made: list[Row], block: int, damages: list[tuple[int, dict[str, Any]]]
) -> None:
    for place, damage in damages:
        made[place % len(made)] = replace(made[place % len(made)], **damage)
    require_one_verdict(render(made), block=block)


@settings(max_examples=200)
@given(rows(), blocks(), st.data())
def test_rows_in_another_order_have_one_verdict(made: list[Row], block: int, data: st.DataObject) -> None:
    """Offsets that are not in order are valid; rows without data at one place have an order of their own."""
    place, placed = 0, []
    for row in made:
        placed.append(replace(row, begin=str(place), end=str(place + row.size)))
        place += row.size
    require_one_verdict(render(data.draw(st.permutations(placed))), block=block)


@settings(max_examples=150)
@given(rows(), blocks(), st.data())
def test_a_header_cut_anywhere_has_one_verdict(made: list[Row], block: int, data: st.DataObject) -> None:
    header = render(made, opening=data.draw(st.sampled_from(OPENINGS)))
    cut = data.draw(st.integers(0, len(header)))
    require_one_verdict(header[:cut], block=block)
    require_one_verdict(header[:cut] + b"}", block=block)


@pytest.mark.parametrize("longest", [8, 9, 17, 24, 64, 200, 512])
def test_equal_names_are_equal_in_blocks_of_other_lengths(longest: int) -> None:
    for length in range(min(longest, 34)):
        name = of_length(length)
        fillers = [Row(name=of_length(40, str(number)) + "f" * (longest - 40)) for number in range(4)]
        header = render([Row(name=name), *fillers, Row(name=name)])
        for block in (200, 320, 640, WHOLE):
            assert not require_one_verdict(header, block=block)
        assert require_one_verdict(render([Row(name=name), *fillers]), block=640)


@pytest.mark.parametrize("place", [0, 1, 5, 29])
@pytest.mark.parametrize("block", [150, 400, WHOLE])
@pytest.mark.parametrize("opening", ["{", '{"__metadata__":{"format":"pt"},'])
def test_no_tensor_has_the_name_of_the_metadata(place: int, block: int, opening: str) -> None:
    made = [Row(name=f"layer.{number}") for number in range(30)]
    assert require_one_verdict(render(made, opening=opening), block=block)
    made[place] = Row(name="__metadata__")
    assert not require_one_verdict(render(made, opening=opening), block=block)


@pytest.mark.parametrize("block", [150, 1000, WHOLE])
def test_names_that_differ_in_one_byte_or_end_are_all_proven(block: int) -> None:
    base = of_length(33)
    near = {base[:place] + other + base[place + 1 :] for place in range(33) for other in "0A~"}
    near |= {base[:end] for end in range(34)}
    made = [Row(name=name) for name in sorted(near)]
    random.Random(block).shuffle(made)
    assert require_one_verdict(render(made), block=block)
    for one, other in pairwise((0, 1, len(made) // 2, len(made) - 1)):
        twice = [*made]
        twice[one] = twice[other]
        assert not require_one_verdict(render(twice), block=block)


def test_a_name_twice_a_block_apart_is_refused_when_a_file_is_opened() -> None:
    """With the blocks as they are."""
    made = [Row(name="w", size=4), *(Row(name=f"layers.{number:06}.weight", size=1) for number in range(15_000))]
    made += [Row(name="x" * 40, size=1), Row(name="w", size=4)]
    header = render(made)
    assert len(header) > WHOLE
    with pytest.raises(FirekeepError, match="the key 'w' twice"):
        open_bytes(raw(header, bytes(15_009)))
