"""Numbers past all bounds, NaN and nesting in the JSON and TOML that files carry: an error of firekeep's, or passed over."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from firekeep.checkpoint import _manifest
from firekeep.digests import parse as parse_digests
from firekeep.errors import FirekeepError, FormatError, MetadataError, RuleError
from firekeep.formats._named_texts import identify_text
from firekeep.layouts import COLUMNS, columns_said
from firekeep.rules._mapping_file import MappingFile
from firekeep.rules.layout import BIASES, read_biases, restore_biases
from firekeep.rules.surgery import Surgery
from firekeep.sources import MemorySource
from firekeep.tagged import decode

HUGE = f"0x{'f' * 5000}"
"""A whole number that Python reads and refuses to spell."""
VALUES = [
    "Infinity",
    "-Infinity",
    "NaN",
    "1e999",
    "9" * 400,
    "9" * 5000,
    "null",
    "true",
    "-1",
    "[]",
    "{}",
    '"x"',
    '"\\ud800"',
]
VALUES += ["[1e999]", '{"a":Infinity}', *("[" * depth + "]" * depth for depth in (100, 900, 985, 100_000))]

ROW = {"names": ["a.bias_ih_l0", "a.bias_hh_l0"], "dtype": "F32", "shape": [1], "data": ["AACAPw==", "AAAAAA=="]}


def biases(**parts: str) -> str:
    """Spell kept biases, with parts that are no JSON of Python's."""
    texts = {key: json.dumps(value) for key, value in ROW.items()} | parts
    return "[{" + ",".join(f'"{key}":{text}' for key, text in texts.items()) + "}]"


def test_biases_as_they_are_written_are_read() -> None:
    assert [pair.first.shape for pair in read_biases({BIASES: biases()})] == [(1,)]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:12])
@pytest.mark.parametrize("part", list(ROW))
def test_kept_biases_of_odd_values_are_passed_over(part: str, value: str) -> None:
    for text in (value, f"[{value}]", f"[{value},{value}]"):
        if (part, text) != ("shape", "[]"):  # which is that of the one number there is
            assert read_biases({BIASES: biases(**{part: text})}) == ()
    assert read_biases({BIASES: value}) == ()


@pytest.mark.parametrize(
    "parts",
    [
        {"shape": '["1"]'},
        {"shape": '"1"'},
        {"shape": "[true]"},
        {"shape": "[1.0]"},
        {"shape": f"[{','.join('1' * 9)}]"},
        {"shape": f"[0,{','.join(['9' * 4000] * 900)}]", "data": '["",""]'},
        {"dtype": '"F4"', "shape": "[3]"},
        {"dtype": '"F4"', "shape": "[2]", "data": '["AA==","AA=="]'},
        {"names": '["a","a"]'},
        {"names": '"ab"', "data": '["AACAPw==","!"]'},
        {"data": f'["{"A" * 4_000_000}",""]'},
        {"data": f'["{base64.b64encode(bytes(3_000_000)).decode()}",""]', "shape": "[750000]"},
    ],
    ids=lambda parts: ",".join(f"{key}={text[:20]}" for key, text in parts.items()),
)
def test_kept_biases_that_are_not_as_they_are_written_are_passed_over(parts: dict[str, str]) -> None:
    assert read_biases({BIASES: biases(**parts)}) == ()


def test_a_pair_of_biases_that_is_kept_twice_is_passed_over() -> None:
    """Each would wrap the one before it, thousands deep."""
    one = biases()[1:-1]
    pairs = read_biases({BIASES: biases()})
    assert read_biases({BIASES: f"[{','.join([one] * 2000)}]"}) == ()
    assert restore_biases([pairs[0].first, pairs[0].second], pairs)[1] == 1


def test_more_text_than_is_ever_kept_is_not_read() -> None:
    assert read_biases({BIASES: biases() + " " * (4 << 20)}) == ()


@pytest.mark.parametrize("kind", ["$dict", "$ordered", "$counter"])
def test_a_key_too_large_to_be_spelled_is_refused_when_it_comes_twice(kind: str) -> None:
    key = f'{{"$int":"{HUGE}"}}'
    with pytest.raises(FormatError, match=r"two keys \(int, too large to be shown"):
        decode(f'{{"{kind}":[[{key},1],[{key},2]]}}')
    with pytest.raises(FormatError, match=r"two keys \(tuple, too large to be shown"):
        decode(f'{{"{kind}":[[{{"$tuple":[{key}]}},1],[{{"$tuple":[{key}]}},2]]}}')


def surgery_of(path: Path, text: str) -> Surgery:
    path.write_text(text)
    return Surgery.of(MappingFile.load(path).surgery)


@pytest.mark.parametrize("fact", ["axis", "heads", "sizes", "into", "split"])
def test_a_surgery_of_numbers_too_large_to_be_spelled_is_refused(fact: str, tmp_path: Path) -> None:
    table = {"split": "'a'", "into": "['b', 'c']"}
    assert surgery_of(
        tmp_path / "m.toml", "[[surgery]]\n" + "".join(f"{key}={value}\n" for key, value in table.items())
    )
    for value in (HUGE, f"[{HUGE}]", f"[1, {HUGE}]", "9223372036854775808", "inf", "nan"):
        text = "".join(f"{key}={there}\n" for key, there in (table | {fact: value}).items())
        with pytest.raises(RuleError, match=f"{fact} (is|are) "):
            surgery_of(tmp_path / "m.toml", f"[[surgery]]\n{text}")


@pytest.mark.parametrize(
    "pair", [HUGE, f"[{HUGE}, 'a']", f"['a', {HUGE}]", f"[[{HUGE}]]", "[inf, nan]"], ids=lambda pair: pair[:9]
)
def test_a_rename_of_numbers_too_large_to_be_spelled_is_refused(pair: str, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(f"rename = [{pair}]")
    with pytest.raises(RuleError, match="is no pair of two texts"):
        MappingFile.load(tmp_path / "m.toml")


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:12])
def test_whatever_json_says_the_error_is_one_of_firekeep(value: str, tmp_path: Path) -> None:
    """A part that is fine is fine; anything but an error of firekeep's ends the test."""

    def refused(read: object, *given: object, **named: object) -> bool:
        try:
            read(*given, **named)  # type: ignore[operator]
        except FirekeepError as error:
            return bool(str(error))
        return False

    assert refused(parse_digests, value)
    assert refused(parse_digests, f'{{"tensors":{{}},"algorithm":{value}}}')
    assert refused(parse_digests, f'{{"tensors":{{"a":{value}}}}}')
    assert refused(columns_said, {COLUMNS: f"[{value}]"}) == (value not in ('"x"', '"\\ud800"'))
    assert refused(_manifest.parse, value.encode(), folder=tmp_path, step=1)
    for key in ("kind", "manifest", "step", "time", "metrics", "facts", "files"):
        facts = {
            "kind": f'"{_manifest.KIND}"',
            "manifest": f"{_manifest.VERSION}",
            "step": "1",
            "time": "1",
            "metrics": "{}",
        }
        text = ",".join(f'"{name}":{there}' for name, there in (facts | {key: value}).items())
        assert refused(_manifest.parse, f"{{{text}}}".encode(), folder=tmp_path, step=1)  # it names no files
    documents = [
        "%s",
        '{"error":%s}',
        '{"weight_map":%s}',
        '{"weight_map":{"a":%s}}',
        '{"metadata":{"total_size":%s},"weight_map":{"a":"b"}}',
    ]
    for document in documents:
        text = document % value
        refused(identify_text, MemorySource(text.encode()), text.encode()[:4096])
    (tmp_path / "m.json").write_text(f'{{"rename":[[{value},"a"]]}}')
    assert refused(MappingFile.load, tmp_path / "m.json") == (value not in ('"x"', '"\\ud800"'))


def test_what_these_tests_call_a_fault_is_one() -> None:
    with pytest.raises(MetadataError, match="is of version"):
        _manifest.parse(f'{{"kind":"{_manifest.KIND}","manifest":1e999}}'.encode(), folder=Path(), step=1)
