"""Every rule of the format is checked when a file is opened, and the message says which was broken and where."""

from __future__ import annotations

import json
import struct
import tracemalloc
from typing import Any

import pytest

from firekeep.dtypes import BY_SAFETENSORS
from firekeep.errors import (
    FirekeepError,
    HeaderError,
    LimitError,
    MetadataError,
    TruncatedError,
    UnsupportedError,
    WrongFormatError,
)
from firekeep.limits import Limits
from formats.safetensors.made import open_bytes, raw, row

ONE = {"a": row("U8", [2], 0, 2)}


def test_an_empty_file_says_so() -> None:
    with pytest.raises(TruncatedError, match="the file is empty"):
        open_bytes(b"")


def test_a_file_shorter_than_its_length_field_says_so() -> None:
    with pytest.raises(TruncatedError, match="the file has 5 bytes"):
        open_bytes(b"12345")


def test_a_header_longer_than_the_file_gives_both_numbers() -> None:
    with pytest.raises(TruncatedError, match="declared to have 100 bytes, and 2 follow") as caught:
        open_bytes(struct.pack("<Q", 100) + b"{}")
    assert (caught.value.limit, caught.value.actual) == (100, 2)


def test_a_header_of_the_largest_length_is_refused() -> None:
    with pytest.raises(TruncatedError, match=str(2**64 - 1)):
        open_bytes(struct.pack("<Q", 2**64 - 1) + b"{}")


def test_a_header_past_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(LimitError, match="more than the limit of 10") as caught:
        open_bytes(raw(ONE, b"xx"), limits=Limits(safetensors_header_bytes=10))
    assert caught.value.limit == 10


def test_too_many_tensors_are_refused() -> None:
    with pytest.raises(LimitError, match="names 3 tensors, more than the limit of 2"):
        open_bytes(raw({name: row("U8", [0], 0, 0) for name in "abc"}), limits=Limits(safetensors_tensors=2))


def test_a_header_of_no_bytes_is_refused() -> None:
    with pytest.raises(HeaderError, match="0 bytes"):
        open_bytes(raw(b""))


def test_a_git_lfs_pointer_is_named() -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\nsize 12345\n"
    with pytest.raises(WrongFormatError, match=r"git-LFS pointer.*git lfs pull"):
        open_bytes(pointer)


def test_a_header_that_is_not_utf8_names_the_byte() -> None:
    with pytest.raises(MetadataError, match="not UTF-8: byte 0xff at byte 0 of 1"):
        open_bytes(raw(b"\xff"))
    with pytest.raises(MetadataError, match="not UTF-8: byte 0xed at byte 2"):
        open_bytes(raw(b'{"\xed\xa0\x80":1}'))


def test_a_header_that_is_not_json_gives_the_place() -> None:
    with pytest.raises(MetadataError, match=r"not valid JSON: Expecting value at character 5 of 6, near '\{\"a\":\}'"):
        open_bytes(raw('{"a":}'))
    with pytest.raises(MetadataError, match="not valid JSON"):
        open_bytes(raw("{"))


@pytest.mark.parametrize("text", ["[]", "null", "1", '"a"', "\ufeff{}"])
def test_a_header_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(MetadataError, match="where a JSON object starts with"):
        open_bytes(raw(text))


@pytest.mark.parametrize("text", ["{}x", "{}{}", "{}\0\0"])
def test_text_after_the_header_s_object_is_refused(text: str) -> None:
    with pytest.raises(MetadataError, match="Extra data at character 2"):
        open_bytes(raw(text))


@pytest.mark.parametrize("text", ["{}", "{}      ", "\t\n{}\r ", "  {}"])
def test_whitespace_around_the_header_s_object_is_taken(text: str) -> None:
    assert len(open_bytes(raw(text)).entries) == 0


def test_deep_nesting_is_refused() -> None:
    deep = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"
    with pytest.raises(MetadataError, match="nested too deep"):
        open_bytes(raw(deep))
    with pytest.raises(MetadataError, match="nested too deep"):
        open_bytes(raw('{"a":' * 100_000 + "1" + "}" * 100_000))


@pytest.mark.parametrize("where", ["shape", "data_offsets"])
def test_nested_lists_where_numbers_are_due_are_refused(where: str) -> None:
    nested = json.loads("[" * 400 + "]" * 400)
    spoiled = {**row("U8", [1], 0, 1), where: [nested, nested]}
    with pytest.raises(MetadataError, match=f"its {where} holds .*, a JSON list, not an integer"):
        open_bytes(raw({"a": spoiled}, b"x"))


@pytest.mark.parametrize(
    "number", ["1" * 5000, "-" + "9" * 5000, "0." + "1" * 5000, "1e999", "-1e999", "NaN", "Infinity"]
)
@pytest.mark.parametrize("place", ['{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,1]}}', '{"x":%s}'])
def test_numbers_no_table_has_are_refused(number: str, place: str) -> None:
    with pytest.raises(MetadataError):
        open_bytes(raw(place % number, b"x"))


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_constants_json_does_not_have_are_named(text: str) -> None:
    with pytest.raises(MetadataError, match=f"the header holds {text}"):
        open_bytes(raw(f'{{"a":{text}}}'))


@pytest.mark.parametrize(
    "header",
    [
        '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\\u0061":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        '{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"a":1,"a":2}}',
        '{"__metadata__":{"a":"1","a":"2"},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":1}',
        '{"a":1,"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        '{"a":[],"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":[{},{"x":"y"}]}}',
    ],
)
def test_a_key_that_stands_twice_is_named(header: str) -> None:
    with pytest.raises(MetadataError, match="the header has the key 'a' twice"):
        open_bytes(raw(header, b"x"))


@pytest.mark.parametrize("key", ["dtype", "shape", "data_offsets"])
def test_a_field_that_stands_twice_is_named(key: str) -> None:
    fields = {"dtype": '"U8"', "shape": "[1]", "data_offsets": "[0,1]"}
    text = ",".join(f'"{name}":{value}' for name, value in [*fields.items(), (key, fields[key])])
    with pytest.raises(MetadataError, match=f"the key '{key}' twice"):
        open_bytes(raw(f'{{"a":{{{text}}}}}', b"x"))


def test_metadata_that_stands_twice_is_refused() -> None:
    with pytest.raises(MetadataError, match="'__metadata__' twice"):
        open_bytes(raw('{"__metadata__":{"a":"1"},"__metadata__":{"a":"1"}}'))


@pytest.mark.parametrize("value", [1, 1.5, True, None, [], {}, ["a"]])
def test_metadata_values_that_are_not_text_are_named(value: object) -> None:
    with pytest.raises(MetadataError, match=r"__metadata__: the value of 'k' is a JSON \w+, where only text"):
        open_bytes(raw({"__metadata__": {"a": "b", "k": value}}))


@pytest.mark.parametrize("value", [1, [], "text", True])
def test_metadata_that_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(MetadataError, match=r"__metadata__ is a JSON .*, where an object of texts is due"):
        open_bytes(raw({"__metadata__": value}))


def test_a_tensor_called_metadata_is_refused() -> None:
    with pytest.raises(MetadataError, match="a tensor is called __metadata__"):
        open_bytes(raw({"__metadata__": row("U8", [1], 0, 1)}, b"x"))


@pytest.mark.parametrize(
    "text", ['{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', '{"__metadata__":{"k":"\\udfff"}}']
)
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    with pytest.raises(MetadataError, match="half of a surrogate pair"):
        open_bytes(raw(text, b"x" if "dtype" in text else b""))


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        ("text", "its row is a JSON text, where an object is due"),
        ([1, 2], "its row is a JSON list"),
        (None, "its row is a JSON null"),
        ({}, "its row has no 'dtype'"),
        ({"dtype": "U8", "data_offsets": [0, 1]}, "its row has no 'shape'"),
        ({"dtype": "U8", "shape": [1]}, "its row has no 'data_offsets'"),
        (row(1, [1], 0, 1), "its dtype is a JSON integer, where text is due"),  # type: ignore[arg-type]
        ({"dtype": "U8", "shape": 1, "data_offsets": [0, 1]}, "its shape is a JSON integer, where a list is due"),
        ({"dtype": "U8", "shape": "1", "data_offsets": [0, 1]}, "its shape is a JSON text, where a list is due"),
        ({"dtype": "U8", "shape": {"1": 1}, "data_offsets": [0, 1]}, "its shape is a JSON object, where a list is due"),
        ({"dtype": "U8", "shape": [1], "data_offsets": "01"}, "its data_offsets is a JSON text, where a list is due"),
        ({"dtype": "U8", "shape": [1], "data_offsets": {"0": 0, "1": 1}}, "its data_offsets is a JSON object"),
        (row("U8", [1], 0), "its data_offsets are 1 numbers, where 2 are due"),
        (row("U8", [1], 0, 1, 2), "its data_offsets are 3 numbers"),
        (row("U8", [1], 0, 1.0), "its data_offsets holds 1.0, a JSON float, not an integer"),
        (row("U8", [1], False, True), "its data_offsets holds False, a JSON boolean, not an integer"),
        (row("U8", [1], None, 1), "its data_offsets holds None, a JSON null, not an integer"),
        (row("U8", [1], -1, 0), "its data_offsets holds -1, which is negative"),
        (row("U8", [1], 0, 2**64), "its data_offsets holds 18446744073709551616, which overflows 64 bits"),
        (row("U8", [1], 1, 0), "its data_offsets end at 0, before they begin at 1"),
        (row("U8", [1.0], 0, 1), "its shape holds 1.0, a JSON float, not an integer"),
        (row("U8", [True], 0, 1), "its shape holds True, a JSON boolean, not an integer"),
        (row("U8", ["1"], 0, 1), "its shape holds '1', a JSON text, not an integer"),
        (row("U8", [-1], 0, 1), "its shape holds -1, which is negative"),
        (row("U8", [-1, -1], 0, 1), "its shape holds -1, which is negative"),
        (row("U8", [0, 2**64], 0, 0), "its shape holds 18446744073709551616, which overflows 64 bits"),
        (row("U8", [2**40, 2**40], 0, 1), r"its shape \[1099511627776, 1099511627776\] overflows"),
        (row("U8", [2**63] * 100_000, 0, 1), "its shape .* overflows"),
        (row("U8", [3], 0, 1), r"shape \[3\] of U8 needs 3 bytes, its data_offsets span 1 \(0 to 1\)"),
        (row("I32", [2, 2**63 - 1], 0, 16), "of I32 needs 73786976294838206456 bytes, its data_offsets span 16"),
        (row("F64", [], 0, 1), r"shape \[\] of F64 needs 8 bytes, its data_offsets span 1"),
        (row("F4", [3], 0, 1), r"shape \[3\] of F4 is 12 bits, not whole bytes"),
        (row("F6_E2M3", [3], 0, 2), r"shape \[3\] of F6_E2M3 is 18 bits, not whole bytes"),
    ],
)
def test_a_wrong_row_is_named_with_what_is_wrong(spoiled: Any, message: str) -> None:
    with pytest.raises(MetadataError, match=message) as caught:
        open_bytes(raw({"fine": row("U8", [0], 0, 0), "wrong": spoiled}, b"x"))
    assert caught.value.tensor == "wrong"


def test_a_hole_is_measured_and_placed_between_its_neighbours() -> None:
    table = {"a": row("U8", [2], 0, 2), "b": row("U8", [1], 5, 6)}
    with pytest.raises(MetadataError, match=r"hole of 3 bytes in the data \(2 to 5\), between tensors 'a' and 'b'"):
        open_bytes(raw(table, bytes(6)))
    with pytest.raises(MetadataError, match=r"hole of 4 bytes in the data \(0 to 4\), before the first tensor, 'a'"):
        open_bytes(raw({"a": row("U8", [2], 4, 6)}, bytes(6)))


def test_an_overlap_names_both_tensors() -> None:
    table = {"a": row("U8", [4], 0, 4), "b": row("U8", [4], 2, 6)}
    with pytest.raises(MetadataError, match="tensors 'a' and 'b' overlap: bytes 0 to 4 and 2 to 6"):
        open_bytes(raw(table, bytes(6)))


def test_a_shared_range_names_both_tensors() -> None:
    table = {"a": row("U8", [4], 0, 4), "b": row("U8", [4], 0, 4)}
    with pytest.raises(MetadataError, match="tensors 'a' and 'b' both claim bytes 0 to 4"):
        open_bytes(raw(table, bytes(4)))


def test_an_empty_tensor_inside_another_is_refused() -> None:
    table = {"a": row("U8", [0], 1, 1), "b": row("U8", [2], 0, 2)}
    with pytest.raises(MetadataError, match="'b' and 'a' overlap"):
        open_bytes(raw(table, bytes(2)))


def test_truncation_says_how_much_and_which_tensors_are_whole() -> None:
    table = {name: row("U8", [4], place * 4, place * 4 + 4) for place, name in enumerate("abcdef")}
    with pytest.raises(TruncatedError) as caught:
        open_bytes(raw(table, bytes(17)))
    text = str(caught.value)
    assert "24 bytes of data are declared, 17 are there, 7 are missing" in text
    assert "4 of 6 tensors are whole ('a', 'b', 'c', ...)" in text
    assert (caught.value.limit, caught.value.actual) == (24, 17)
    with pytest.raises(TruncatedError, match="none of the 6 tensors is whole"):
        open_bytes(raw(table, bytes(3)))


def test_trailing_bytes_are_counted_and_refused_unless_allowed() -> None:
    data = raw(ONE, b"xx" + b"12345")
    with pytest.raises(MetadataError, match=r"5 bytes follow the last tensor, 'a'.*allow_trailing=True") as caught:
        open_bytes(data)
    assert (caught.value.limit, caught.value.actual) == (2, 7)
    container = open_bytes(data, allow_trailing=True)
    assert bytes(container.entries["a"].read()) == b"xx"
    assert any("5 bytes after the last tensor" in note for note in container.notes)
    assert any("5 bytes after the last tensor" in finding.message for finding in container.check())


def test_trailing_bytes_after_no_tensor_are_refused() -> None:
    with pytest.raises(MetadataError, match="3 bytes follow the header, which names no tensor"):
        open_bytes(raw({}, b"xyz"))


def test_every_truncation_of_a_file_is_refused() -> None:
    data = raw({"a": row("F32", [2], 0, 8), "b": row("U8", [3], 8, 11)}, bytes(11))
    open_bytes(data)
    for length in range(len(data)):
        with pytest.raises(FirekeepError):
            open_bytes(data[:length])


def test_rows_may_stand_in_any_order_and_are_given_in_that_of_their_data() -> None:
    table = {
        "a": row("U8", [1], 5, 6),
        "e": row("U8", [0], 4, 4),
        "b": row("F32", [1], 0, 4),
        "c": row("U8", [1], 4, 5),
    }
    container = open_bytes(raw(table, b"\0\0\x80?xy"))
    assert list(container.entries) == ["b", "e", "c", "a"]
    assert bytes(container.entries["a"].read()) == b"y"
    assert bytes(container.entries["b"].read()) == b"\0\0\x80?"


def test_spaces_extra_fields_and_escapes_are_taken() -> None:
    text = (
        '{ "\\u00e9\\n" : {"shape": [1 , 1], "data_offsets" : [0, 1], "dtype": "U8", "comment": {"any": ["thing"]} } }'
    )
    container = open_bytes(raw(text, b"x"))
    assert list(container.entries) == ["é\n"]
    assert container.entries["é\n"].shape == (1, 1)


@pytest.mark.parametrize("code", ["F8_E3M4", "I4", "u8", "", "torch.float32", "é" * 1000])
def test_an_unknown_dtype_spoils_only_its_own_tensor(code: str) -> None:
    container = open_bytes(raw({"odd": row(code, [3], 0, 2), "fine": row("U8", [1], 2, 3)}, b"abc"))
    assert bytes(container.entries["fine"].read()) == b"c"
    odd = container.entries["odd"]
    assert (odd.dtype, odd.shape, odd.nbytes) == (None, (3,), 2)
    with pytest.raises(UnsupportedError, match=r"tensor 'odd': dtype .* is not one firekeep knows"):
        odd.read()
    list(container.check())


@pytest.mark.parametrize("code", sorted(BY_SAFETENSORS))
def test_every_dtype_is_known_and_measured(code: str) -> None:
    size = BY_SAFETENSORS[code].bits
    entry = open_bytes(raw({"t": row(code, [2, 4], 0, size)}, bytes(size))).entries["t"]
    assert entry.dtype is BY_SAFETENSORS[code]
    assert entry.nbytes == size


def test_a_file_without_tensors_opens_with_or_without_metadata() -> None:
    for table, state in (({}, "absent"), ({"__metadata__": None}, "absent"), ({"__metadata__": {}}, "empty")):
        container = open_bytes(raw(table))
        assert (len(container.entries), dict(container.metadata), container.details["metadata"]) == (0, {}, state)
    container = open_bytes(raw({"__metadata__": {"k": "v"}}))
    assert (dict(container.metadata), container.details["metadata"]) == ({"k": "v"}, "present")


def test_details_say_where_the_data_are() -> None:
    data = raw(ONE, b"xx")
    details = open_bytes(data).details
    assert details["data_offset"] == details["header_bytes"] + 8 == len(data) - 2
    assert (details["data_bytes"], details["file_bytes"]) == (2, len(data))


@pytest.mark.parametrize(
    "name", ["", ".", "a.b", "../x", "/etc/passwd", "a\0b", "é/../x", "層", " ", "🔥", '"', "\\", "{", "]"]
)
def test_any_name_is_only_a_name(name: str) -> None:
    container = open_bytes(raw({name: row("U8", [1], 0, 1)}, b"x"))
    assert list(container.entries) == [name]
    assert name in container.entries
    assert container.entries[name].name == name


def test_names_that_differ_only_in_unicode_form_are_noted() -> None:
    container = open_bytes(
        raw({"\u00e9": row("U8", [1], 0, 1), "e\u0301": row("U8", [1], 1, 2), "e": row("U8", [0], 2, 2)}, b"xy")
    )
    assert len(container.entries) == 3
    assert any("differ only in how Unicode spells them" in note for note in container.notes)
    assert any("Unicode" in finding.message for finding in container.check())
    escaped = raw(
        '{"\\u212a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"K":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    )
    assert open_bytes(escaped).notes
    assert not open_bytes(raw({"\u00e9": row("U8", [1], 0, 1), "e": row("U8", [1], 1, 2)}, b"xy")).notes


def test_the_check_finds_booleans_that_are_neither_and_data_that_are_not_aligned() -> None:
    table = {"flags": row("BOOL", [3], 0, 3), "w": row("F32", [1], 3, 7)}
    findings = list(open_bytes(raw(table, b"\0\1\2" + bytes(4))).check())
    by_place = {finding.place: finding for finding in findings}
    assert "1 of 3 booleans are neither 0 nor 1" in by_place["flags"].message
    assert by_place["flags"].severity == "warning"
    assert by_place["w"].severity == "note"
    aligned = '{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    assert not list(open_bytes(raw(aligned + " " * (-len(aligned) % 8), bytes(4))).check())


def peak_of_refusal(data: bytes, error: type[FirekeepError], message: str) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(error, match=message):
            open_bytes(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_header_that_claims_much_takes_no_memory() -> None:
    claims = raw({"a": row("F64", [2**60], 0, 2**63)})
    assert peak_of_refusal(claims, TruncatedError, "are missing") < 1 << 20


@pytest.mark.parametrize("flood", ["[],", "{},", "1,", '"ab",', '"":0,'])
def test_a_large_header_of_countless_values_is_refused_before_they_are_made(flood: str) -> None:
    data = raw('{"a":[' + flood * ((5 << 20) // len(flood)) + "0]}")
    assert peak_of_refusal(
        data, LimitError, r"holds about \d+ values, more than a table of tensors can have"
    ) < 3 * len(data)


def test_a_large_header_of_many_small_tensors_is_taken() -> None:
    rows = ",".join(
        f'"{number}":{{"dtype":"U8","shape":[1,1,1,1],"data_offsets":[{number},{number + 1}]}}'
        for number in range(80_000)
    )
    text = f"{{{rows} }}"
    assert len(text) > 4 << 20
    assert len(open_bytes(raw(text, bytes(80_000))).entries) == 80_000
