from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import firekeep
from firekeep.arrays import as_array, entry_of
from firekeep.blobs import DeferredBlob, MemoryBlob
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry, find_ties
from firekeep.errors import EntryError, RuleError, UnsupportedError
from firekeep.ids import ParamId
from firekeep.rules.surgery import Merge, Split, Stack, Surgery, Unstack, merge, split, stack, unstack

DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "I64", "I8", "U16", "BOOL", "C64")


def numbered(name: str, *shape: int, dtype: str = "F32") -> TensorEntry:
    """Make a tensor whose elements are all different, as far as its type can tell."""
    row = BY_NAME[dtype]
    count = int(np.prod(shape))
    data = np.arange(count * row.itemsize, dtype=np.uint32).astype(np.uint8)
    if dtype == "BOOL":
        data &= 1
    return TensorEntry(name, row, shape, MemoryBlob(data.tobytes()))


def bytes_of(entry: TensorEntry) -> bytes:
    return bytes(entry.read())


def names(entries) -> list[str]:
    return [entry.name for entry in entries]


@settings(deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    outer=st.integers(0, 3),
    sizes=st.lists(st.integers(0, 3), min_size=2, max_size=4),
    inner=st.integers(0, 3),
    heads=st.integers(1, 3),
    axis=st.sampled_from([0, 1, 2, -1, -2]),
)
def test_what_was_cut_and_merged_is_what_it_was(dtype, outer, sizes, inner, heads, axis):
    sizes = [size * heads for size in sizes]
    shape = [outer + 1, inner + 1, 2]
    shape[axis] = sum(sizes)
    whole = numbered("w", *shape, dtype=dtype)
    parts = split(whole, names=[str(place) for place in range(len(sizes))], sizes=sizes, axis=axis, heads=heads)
    assert [part.shape[axis] for part in parts] == sizes
    again = merge(parts, name="w", axis=axis, heads=heads)
    assert (again.name, again.dtype, again.shape, bytes_of(again)) == ("w", whole.dtype, whole.shape, bytes_of(whole))


@settings(deadline=None)
@given(dtype=st.sampled_from(DTYPES), count=st.integers(1, 4), axis=st.sampled_from([0, 1, 2, -1]))
def test_what_was_stacked_and_unstacked_is_what_it_was(dtype, count, axis):
    parts = [numbered(f"l.{place}.w", 2, 3, dtype=dtype) for place in range(count)]
    whole = stack(parts, name="l.w", axis=axis)
    assert np.array_equal(as_array(whole), np.stack([as_array(part) for part in parts], axis))
    again = unstack(whole, names="l.{}.w", axis=axis)
    assert [(part.name, part.shape, bytes_of(part)) for part in again] == [
        (part.name, part.shape, bytes_of(part)) for part in parts
    ]


def test_parts_are_those_that_numpy_gives():
    whole = numbered("qkv", 6, 4)
    for made, right in zip(split(whole, names=["q", "k", "v"]), np.split(as_array(whole), 3), strict=True):
        assert np.array_equal(as_array(made), right)
    made = split(whole, names=["a", "b"], sizes=[1, 3], axis=-1)
    assert np.array_equal(as_array(made[1]), as_array(whole)[:, 1:])


def test_interleaved_heads_are_cut_as_gpt_neox_lays_them():
    heads, size, hidden = 4, 3, 12
    array = np.arange(heads * 3 * size * hidden, dtype=np.float32).reshape(heads * 3 * size, hidden)
    by_head = array.reshape(heads, 3, size, hidden)
    parts = split(entry_of("qkv", array), names=["q", "k", "v"], heads=heads)
    for place, part in enumerate(parts):
        assert part.shape == (heads * size, hidden)
        assert np.array_equal(as_array(part), by_head[:, place].reshape(heads * size, hidden))
    assert np.array_equal(as_array(merge(parts, name="qkv", heads=heads)), array)


def test_grouped_queries_are_cut_by_the_sizes_given():
    array = np.arange(960 * 2, dtype=np.float32).reshape(960, 2)
    parts = split(entry_of("qkv", array), names=["q", "k", "v"], sizes=[576, 192, 192])
    assert [part.shape for part in parts] == [(576, 2), (192, 2), (192, 2)]
    assert np.array_equal(as_array(parts[2]), array[768:])


def test_nothing_is_drawn_before_the_bytes_are_asked_for():
    drawn = []

    def provide() -> bytes:
        drawn.append(1)
        return np.arange(6, dtype=np.float32).tobytes()

    whole = TensorEntry("w", BY_NAME["F32"], (6,), DeferredBlob(24, provide))
    parts = split(whole, names=["a", "b", "c"])
    again = merge(parts, name="w")
    assert drawn == []
    assert as_array(parts[1]).tolist() == [2, 3]
    assert as_array(again).tolist() == list(range(6))


def test_parts_of_tied_tensors_are_tied_part_by_part():
    array = np.arange(6, dtype=np.float32)
    cut = [*split(entry_of("a", array), names=["a.0", "a.1"]), *split(entry_of("b", array), names=["b.0", "b.1"])]
    assert find_ties(cut) == {"b.0": "a.0", "b.1": "a.1"}


def test_the_id_of_a_parameter_goes_with_neither_its_parts_nor_the_whole():
    entry = numbered("w", 4)
    entry.param_id = ParamId(7)
    assert [part.param_id for part in split(entry, names=["a", "b"], sizes=[4, 0])] == [None, None]
    assert merge([entry], name="x").param_id is None
    assert stack([entry], name="x").param_id is None
    assert unstack(stack([entry], name="x"), names=["y"])[0].param_id is None


def test_a_tensor_with_a_problem_is_cut_and_its_parts_are_refused_when_touched():
    bad = TensorEntry("w", BY_NAME["F32"], (6,), MemoryBlob(b""), problem="a sparse tensor")
    parts = split(bad, names=["a", "b", "c"])
    assert [part.shape for part in parts] == [(2,)] * 3
    with pytest.raises(UnsupportedError, match="tensor 'b': a sparse tensor"):
        parts[1].read()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda entry: split(entry, names=["a", "b", "c", "d"]), r"'w': axis 0 of shape \[6, 4\] cannot be cut into 4"),
        (lambda entry: split(entry, names=["a", "b"], sizes=[3, 4]), r"sizes \[3, 4\] make 7, and axis 0 .* has 6"),
        (lambda entry: split(entry, names=["a", "b"], sizes=[7, -1]), r"sizes \[7, -1\]"),
        (lambda entry: split(entry, names=["a", "b"], sizes=[6]), "1 sizes for 2 parts"),
        (lambda entry: split(entry, names=["a", "b"], axis=2), "has no axis 2"),
        (lambda entry: split(entry, names=["a", "b"], axis=-3), "has no axis -3"),
        (lambda entry: split(entry, names=["a", "a"]), "two of its parts would be called 'a'"),
        (lambda entry: split(entry, names=[]), "names are due"),
        (lambda entry: split(entry, names="ab"), "names are due"),
        (lambda entry: split(entry, names=["a", "b"], heads=2), "a part of extent 3 cannot be dealt out to 2 heads"),
        (lambda entry: split(entry, names=["a", "b"], heads=0), "to 0 heads"),
        (lambda entry: merge([entry, entry], name="x", heads=4), "a part of extent 6 cannot be dealt out to 4 heads"),
        (lambda entry: merge([], name="x"), "nothing to merge into 'x'"),
        (lambda entry: merge([entry, numbered("v", 6)], name="x"), r"'v': its shape \[6\] has not as many axes as 'w'"),
        (lambda entry: merge([numbered("v", 6), entry], name="x", axis=-1), "not as many axes as 'v'"),
        (lambda entry: stack([], name="x"), "nothing to stack into 'x'"),
        (lambda entry: unstack(entry, names=["a"]), r"gives 6 parts, and there are 1 names"),
        (lambda entry: unstack(entry, names="a"), r"'a' has \{\} 0 times"),
        (lambda entry: unstack(numbered("s"), names="a.{}"), r"shape \[\] has no axis 0"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call, message: str):
    with pytest.raises(RuleError, match=message):
        call(numbered("w", 6, 4))


def test_parts_of_other_types_or_extents_are_refused_by_name():
    with pytest.raises(EntryError, match="'v'"):
        stack([numbered("w", 2), numbered("v", 3)], name="x")


def test_parts_of_several_dtypes_are_all_named_and_what_the_remedy_says_works(tmp_path):
    parts = [numbered("a.q.w", 2), numbered("a.k.w", 2, dtype="F16"), numbered("a.v.w", 2, dtype="BF16")]
    for join in (merge, stack):
        with pytest.raises(RuleError, match=r"'a\.q\.w' is F32, 'a\.k\.w' is F16, 'a\.v\.w' is BF16") as caught:
            join(parts, name="a.qkv.w")
        assert "'a.qkv.w'" in str(caught.value)
        assert "dtype='F32'" in caught.value.remedy
    with pytest.raises(RuleError) as caught:
        merge([numbered("w", 2), numbered("v", 2, dtype="I32")], name="x")
    assert caught.value.remedy is None, "no cast makes them one"

    fuse = [{"merge": [r"\.q\.", r"\.k\.", r"\.v\."], "into": ".qkv."}]
    state = {"a.q.w": np.ones(2, np.float32), "a.k.w": np.ones(2, np.float16), "a.v.w": np.ones(2, np.float16)}
    model = {"a.qkv.w": np.zeros(6, np.float32)}
    firekeep.save(state, tmp_path / "parts.safetensors")
    with pytest.raises(RuleError, match="cannot be joined"):
        firekeep.load_into(model, tmp_path / "parts.safetensors", surgery=fuse)
    firekeep.convert(tmp_path / "parts.safetensors", tmp_path / "cast.safetensors", dtype="F32")
    assert firekeep.load_into(model, tmp_path / "cast.safetensors", surgery=fuse).exact
    firekeep.save(state, tmp_path / "fused.safetensors", surgery=fuse, dtype="F32")
    assert firekeep.load_into(model, tmp_path / "fused.safetensors").exact


QKV = Split.of(r"\.qkv\.", [".q.", ".k.", ".v."])


def fused(count: int = 2) -> list[TensorEntry]:
    return [
        entry
        for layer in range(count)
        for entry in (
            numbered(f"l.{layer}.qkv.weight", 6, 4),
            numbered(f"l.{layer}.qkv.bias", 6),
            numbered(f"l.{layer}.o.weight", 2, 2),
        )
    ]


def test_a_split_and_its_inverse_give_all_tensors_back_in_their_order():
    surgery = Surgery.of(QKV)
    cut = surgery.apply(fused())
    assert names(cut.entries)[:4] == ["l.0.q.weight", "l.0.k.weight", "l.0.v.weight", "l.0.q.bias"]
    assert cut.hits == ((r"split \.qkv\. into .q., .k., .v.", 4),)
    again = surgery.inverse().apply(cut.entries)
    assert [(entry.name, entry.shape, bytes_of(entry)) for entry in again.entries] == [
        (entry.name, entry.shape, bytes_of(entry)) for entry in fused()
    ]
    assert surgery.inverse().inverse() == surgery


@pytest.mark.parametrize(
    "operation",
    [
        QKV,
        Split.of(r"^(.*)\.qkv\.(weight|bias)$", ["$1.q.$2", "$1.k.$2", "$1.v.$2"], heads=2),
        Split.of(r"^(.*)\.qkv\.(weight|bias)$", ["q.$1.$2", "k.$1.$2", "v.$1.$2"], sizes=[2, 4, 0]),
        Split.of(r"\.qkv\.weight$", [".q.weight", ".k.weight"], sizes=[1, 3], axis=1),
        Split.of(r"\.qkv\.", [".a.", ".b."], sizes=[2, 4], heads=2),
        Unstack.of(r"^(.*)\.qkv\.weight$", "$1.part.{}.weight"),
        Unstack.of(r"\.qkv\.weight$", ".part.{}", axis=-1),
    ],
    ids=str,
)
def test_every_operation_can_be_turned_round_and_written_as_a_table(operation):
    for read in (operation, *Surgery.of([operation.table()]).operations):
        assert read == operation
        cut, hits = read.apply(fused())
        assert hits
        again, merged = read.inverse().apply(cut)
        assert merged == hits
        assert [(entry.name, entry.shape, bytes_of(entry)) for entry in again] == [
            (entry.name, entry.shape, bytes_of(entry)) for entry in fused()
        ]
        back = read.inverse()
        assert Surgery.of([back.table()]).operations == (back,)
        assert back.inverse().apply(fused())[1] == hits


def test_layers_are_stacked_and_taken_apart():
    entries = [numbered(f"layers.{layer}.{name}", 2) for layer in (1, 0, 10, *range(2, 10)) for name in ("w", "b")]
    made, hits = Stack.of(r"^layers\.{}\.", "layers.").apply(entries)
    assert (names(made), hits) == (["layers.w", "layers.b"], 2)
    assert made[0].shape == (11, 2)
    taken = Surgery.of(Stack.of(r"^layers\.{}\.", "layers.").inverse()).apply(made).entries
    assert sorted(names(taken)) == sorted(names(entries))


def test_a_part_that_is_missing_is_refused_with_those_that_are_there():
    with pytest.raises(
        RuleError, match=r"'l\.qkv' cannot be merged of 'l\.q', 'l\.v' alone: nothing was found for \\\.k\$"
    ) as caught:
        Merge.of([r"\.q$", r"\.k$", r"\.v$"], ".qkv").apply([numbered("l.q", 2), numbered("l.v", 2)])
    assert "narrower" in str(caught.value)


def test_parts_of_different_extents_are_refused_with_the_sizes_to_give():
    rule = Merge.of([r"\.q$", r"\.k$"], ".qk")
    entries = [numbered("l.q", 4), numbered("l.k", 2)]
    with pytest.raises(RuleError, match=r"Give sizes = \[4, 2\]"):
        rule.apply(entries)
    told = Merge.of([r"\.q$", r"\.k$"], ".qk", sizes=[4, 2])
    made, _ = told.apply(entries)
    assert names(told.inverse().apply(made)[0]) == ["l.q", "l.k"]
    with pytest.raises(RuleError, match=r"have the extents \[4, 2\].*\[2, 4\] ones are due"):
        Merge.of([r"\.q$", r"\.k$"], ".qk", sizes=[2, 4]).apply(entries)


def test_two_tensors_for_one_part_are_refused():
    with pytest.raises(RuleError, match=r"'a\.q' and 'b\.q' would be the same part of 'x'"):
        Merge.of([r"^[ab]\.q$", r"^k$"], "x").apply([numbered("a.q", 2), numbered("b.q", 2), numbered("k", 2)])
    with pytest.raises(RuleError, match=r"'l\.q': it was found by several patterns"):
        Merge.of([r"\.q$", r"^l\.q"], "x").apply([numbered("l.q", 2)])


def test_a_gap_in_the_indices_to_stack_is_refused():
    with pytest.raises(RuleError, match="the indices 0, 2: they do not run from 0 without a gap"):
        Stack.of("^l.{}$", "l").apply([numbered("l.0", 2), numbered("l.2", 2)])


def test_a_name_that_is_taken_already_is_refused():
    with pytest.raises(RuleError, match=r"several tensors of one name: 'l\.q\.w'"):
        Surgery.of(QKV).apply([numbered("l.qkv.w", 6), numbered("l.q.w", 2)])
    with pytest.raises(RuleError, match="several tensors of one name: 'x'"):
        Surgery.of(Merge.of(["^a$", "^b$"], "x")).apply([numbered("x", 2), numbered("a", 2), numbered("b", 2)])


def test_an_operation_whose_names_cannot_be_turned_round_says_so():
    with pytest.raises(RuleError, match="has no inverse"):
        Split.of("q+", ["a", "b"]).inverse()
    with pytest.raises(RuleError, match="do not say alike"):
        Merge.of([r"^q\.(\d+)\.([a-z]+)$", r"^k\.([a-z]+)\.(\d+)$"], "x.$1.$2").inverse()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "surgery 1: one of split, merge, stack, unstack is due, and there are none"),
        ({"split": "a", "merge": ["a"]}, "there are split, merge"),
        ({"split": "a"}, "split has no 'into'"),
        ({"split": "a", "into": "b"}, "into is 'b', where a list of texts is due"),
        ({"split": "a", "into": ["b"]}, "two replacements or more"),
        ({"split": "(", "into": ["b", "c"]}, "is not a regular expression"),
        ({"split": "a", "into": ["b", "c"], "size": [1]}, "split knows no 'size'. It takes into, sizes, axis, heads"),
        ({"split": "a", "into": ["b", "c"], "sizes": [1]}, "1 sizes for 2 parts"),
        ({"split": "a", "into": ["b", "c"], "sizes": ["1", 2]}, "where a list of numbers is due"),
        ({"split": "a", "into": ["b", "c"], "axis": "0"}, "axis is '0', where a number is due"),
        ({"split": "a", "into": ["b", "c"], "heads": 0}, "heads is 0, where a number from 1 on is due"),
        ({"split": "a", "into": ["b", "c"], "heads": True}, "heads is True"),
        ({"merge": "a", "into": "b"}, "merge is 'a', where a list of texts is due"),
        ({"merge": ["a", "b"], "into": 3}, "into is 3, where text is due"),
        ({"merge": ["a", "b"], "into": ["b", "c", "d"]}, "2 patterns and 3 replacements"),
        ({"merge": ["a"], "into": "b"}, "two patterns or more"),
        ({"stack": "a", "into": "b"}, r"stack 'a': \{\} is due once"),
        ({"unstack": "a", "into": "b"}, r"unstack 'a' into 'b': \{\} is due once"),
        ({"stack": "a.{}", "into": "b", "heads": 2}, "stack knows no 'heads'"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(table, message: str):
    with pytest.raises(RuleError, match=message):
        Surgery.of([table])


def test_a_surgery_without_operations_does_nothing():
    entries = fused()
    assert Surgery.of().apply(entries).entries == entries
    assert not Surgery.of()
    assert Surgery.of(QKV)
