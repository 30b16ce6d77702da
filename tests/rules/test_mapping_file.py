from __future__ import annotations

import json
import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.errors import ExistsError, RuleError
from firekeep.rules import KeyRemapper, MappingFile, RenameRule
from firekeep.rules.surgery import Split, Surgery

TOML = r"""
rename = [
    ['^model\.', ''],
    ['layers\.(\d+)', "blocks.$1"],
]
[names]
"lm_head.weight" = "output.weight"
[[surgery]]
split = '\.qkv\.'
into = ['.q.', '.k.', '.v.']
sizes = [4, 2, 2]
axis = -1
"""

JSON = json.dumps(
    {
        "rename": [[r"^model\.", ""], [r"layers\.(\d+)", "blocks.$1"]],
        "names": {"lm_head.weight": "output.weight"},
        "surgery": [{"split": r"\.qkv\.", "into": [".q.", ".k.", ".v."], "sizes": [4, 2, 2], "axis": -1}],
    }
)


@pytest.mark.parametrize(("name", "text"), [("map.toml", TOML), ("map.JSON", JSON), ("map", TOML)])
def test_both_spellings_say_the_same(tmp_path, name: str, text: str):
    path = tmp_path / name
    path.write_text(text)
    file = MappingFile.load(path)
    assert file.path == str(path)
    assert KeyRemapper.of_file(file) == KeyRemapper.of(
        [r"^model\.=>", r"layers\.(\d+)=>blocks.$1"], names={"lm_head.weight": "output.weight"}
    )
    assert Surgery.of_file(file) == Surgery.of(Split.of(r"\.qkv\.", [".q.", ".k.", ".v."], sizes=[4, 2, 2], axis=-1))


def test_an_empty_file_and_a_mark_at_its_start_are_taken(tmp_path):
    path = tmp_path / "map.toml"
    path.write_bytes(b"\xef\xbb\xbf")
    assert not KeyRemapper.load(path)


def test_renames_alone_refuse_a_file_that_also_cuts_tensors(tmp_path):
    path = tmp_path / "map.toml"
    path.write_text(TOML)
    with pytest.raises(RuleError, match="splits or merges") as caught:
        KeyRemapper.load(path)
    assert caught.value.path == str(path)
    assert "MappingFile.load" in str(caught.value)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.mark.parametrize("name", ["map.toml", "map.json"])
@given(
    rules=st.lists(st.tuples(texts, texts), max_size=4),
    names=st.dictionaries(texts, texts, max_size=4),
    key=texts,
    value=st.recursive(st.one_of(texts, st.integers(-(2**60), 2**60), st.booleans()), st.lists, max_leaves=4),
)
def test_what_was_written_is_read_again(tmp_path_factory, name: str, rules, names, key, value):
    path = tmp_path_factory.mktemp("mapping") / name
    MappingFile(rules=tuple(rules), names=names, surgery=({key: value, "into": ["x"]},)).save(path)
    read = MappingFile.load(path)
    assert (read.rules, read.names) == (tuple(rules), names)
    assert [dict(table) for table in read.surgery] == [{key: value, "into": ["x"]}]


@pytest.mark.parametrize("name", ["map.toml", "map.json"])
def test_renames_are_the_same_after_a_file(tmp_path, name: str):
    path = tmp_path / name
    remapper = KeyRemapper.of(
        [r"^model\.(?<i>\d+)=>'$i'", ("a=>b", 'say "x"\n'), (re.compile("A", re.IGNORECASE), "b"), ("(?i)B", "c")],
        names={"a.b": "c d", "é\t": "\\"},
    )
    remapper.save(path)
    again = KeyRemapper.load(path)
    assert again.names == remapper.names
    assert [rule.replacement for rule in again.rules] == [rule.replacement for rule in remapper.rules]
    assert again.rules[2].apply("xAa") == ("xbb", True)
    assert [rule.pattern.flags for rule in again.rules] == [rule.pattern.flags for rule in remapper.rules]


def test_patterns_stand_in_the_file_as_one_writes_them(tmp_path):
    path = tmp_path / "map.toml"
    KeyRemapper.of([r"^model\.(\d+)=>$1"], names={"a.b": "c"}).save(path)
    assert path.read_text() == "rename = [\n    ['^model\\.(\\d+)', '$1'],\n]\n\n[names]\n\"a.b\" = \"c\"\n"


def test_a_surgery_is_the_same_after_a_file(tmp_path):
    path = tmp_path / "map.toml"
    surgery = Surgery.of(Split.of(r"\.qkv\.", [".q.", ".k.", ".v."], heads=4))
    MappingFile(surgery=surgery.tables()).save(path)
    assert Surgery.of_file(MappingFile.load(path)) == surgery
    assert tomllib.loads(path.read_text())["surgery"][0]["heads"] == 4


def test_a_file_that_is_there_is_replaced_unless_told_otherwise(tmp_path):
    path = tmp_path / "map.toml"
    KeyRemapper.of("a=>b").save(path)
    with pytest.raises(ExistsError):
        KeyRemapper.of("c=>d").save(path, overwrite=False)
    assert KeyRemapper.load(path).rules == (RenameRule.of("a=>b"),)
    KeyRemapper.of("c=>d").save(path)
    assert KeyRemapper.load(path).rules == (RenameRule.of("c=>d"),)


@pytest.mark.parametrize("name", ["map.toml", "map.json"])
def test_half_a_letter_cannot_be_written(tmp_path, name: str):
    with pytest.raises(RuleError, match="cannot be written in a text file"):
        KeyRemapper.of([("a", "\ud800")]).save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def read_all(path):
    file = MappingFile.load(path)
    return KeyRemapper.of_file(file), Surgery.of_file(file)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.toml", "rename = [", "not TOML"),
        ("m.json", "{", "not JSON"),
        ("m.json", "[" * 100_000, "not JSON"),
        ("m.toml", "x = " + "[" * 100_000, "not TOML"),
        ("m.json", "[]", "holds a table, and this one a list"),
        ("m.json", '{"names": {"a": "b", "a": "c"}}', "the entry 'a' is there twice"),
        (
            "m.toml",
            "renames = []",
            "the entry 'renames' is not one of a mapping file. There are names, rename, surgery",
        ),
        ("m.toml", "rename = 'a=>b'", "rename: a list of .* is due, and this is text"),
        ("m.toml", "rename = [['a', 'b'], ['c']]", r"rename 2: \['c'\] is no pair"),
        ("m.toml", "rename = [['a', 'b'], ['(', 'c']]", r"rename 2: rename '\(' is not a regular expression"),
        ("m.toml", "rename = [['a', '$1']]", "rename 1: the replacement '\\$1' speaks of group '1'"),
        ("m.toml", "names = ['a']", "names: a table of names is due, and this is a list"),
        (
            "m.toml",
            "[names]\na.b = 'c'",
            "names: the new name of 'a' is a table.*Names with dots are written in quotes",
        ),
        ("m.toml", "[names]\na = 3", "names: the new name of 'a' is a number"),
        ("m.toml", "surgery = ['a']", "surgery: a list of tables is due"),
        ("m.toml", "[[surgery]]\nsplit = 'a'\ninto = ['b', 'c']\n[[surgery]]\ncut = 'a'", "surgery 2: one of split"),
    ],
)
def test_errors_name_the_file_and_the_entry(tmp_path, name: str, text: str, message: str):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(RuleError, match=message) as caught:
        read_all(path)
    assert caught.value.path == str(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_what_is_no_text_is_refused(tmp_path):
    path = tmp_path / "m.toml"
    path.write_bytes(b"a = 'x'\xff")
    with pytest.raises(RuleError, match="byte 7 is not UTF-8"):
        KeyRemapper.load(path)


def test_a_file_larger_than_any_mapping_is_not_read(tmp_path):
    path = tmp_path / "m.toml"
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(RuleError, match="at most 64 MiB"):
        KeyRemapper.load(path)


def test_a_file_that_is_not_there_is_the_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        KeyRemapper.load(tmp_path / "none.toml")
