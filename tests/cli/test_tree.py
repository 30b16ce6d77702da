"""Names become a tree; alike numbered siblings become one line."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.cli._output import natural
from firekeep.cli._tree import Node, Row, draw, grow


def rows(names: Iterable[str], *, shape: tuple[int, ...] = (2, 3), **fields: str) -> list[Row]:
    return [Row(name=name, dtype="F32", shape=shape, numel=6, nbytes=24, **fields) for name in names]


def drawn(names: Iterable[str] | list[Row], *, fold: bool = True) -> list[str]:
    made = [name if isinstance(name, Row) else rows([name])[0] for name in names]
    return [line.text for line in draw(grow(in_order(made), fold=fold))]


def in_order(made: list[Row]) -> list[Row]:
    return sorted(made, key=lambda row: natural(row.name))


@pytest.fixture(autouse=True)
def _utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


def test_groups_and_tensors_are_drawn_with_guides():
    assert drawn(["enc.w", "enc.b", "head.w"]) == ["enc", "├── b", "└── w", "head.w"]


def test_alike_numbered_subtrees_are_one_line():
    names = [f"model.layers.{i}.{part}" for i in range(30) for part in ("attn.q", "attn.k", "norm")]
    assert drawn(names) == ["model.layers.{0…29}", "├── attn", "│   ├── k", "│   └── q", "└── norm"]


def test_folding_goes_inwards_too():
    names = [f"layers.{i}.experts.{e}.w" for i in range(4) for e in range(8)]
    assert drawn(names) == ["layers.{0…3}.experts.{0…7}.w"]


def test_siblings_with_gaps_are_named_in_ranges():
    assert drawn(["net.0.w", "net.2.w", "net.4.w", "net.5.w"]) == ["net.{0,2,4…5}.w"]


def test_every_second_sibling_is_folded_as_a_step():
    names = [f"net.{i}.{'a' if i % 2 else 'b'}" for i in range(40)]
    assert drawn(names) == ["net", "├── {0,2…38}.b", "└── {1,3…39}.a"]


def test_scattered_siblings_are_folded_run_by_run():
    wide = {3, 7, 8, 15, 21, 22, 30, 41}
    made = [rows([f"net.{i}.w"], shape=(9,) if i in wide else (2,))[0] for i in range(50)]
    text = drawn(made)
    assert "├── {0…2}.w" in text
    assert "├── {4…6}.w" in text
    assert "├── {3,7…8,15,21…22,30,41}.w" in text


def test_siblings_that_differ_in_shape_stay_apart():
    first, second = rows(["b.0.w"], shape=(1,)), rows(["b.1.w"], shape=(2,))
    assert drawn(first + second) == ["b", "├── 0.w", "└── 1.w"]


def test_siblings_that_differ_in_a_problem_stay_apart():
    assert len(drawn(rows(["b.0.w"]) + rows(["b.1.w"], problem="sparse"))) == 3


def test_parameter_ids_do_not_keep_siblings_apart():
    assert drawn(rows(["b.0.w"], param_id="one") + rows(["b.1.w"], param_id="two")) == ["b.{0…1}.w"]


def test_without_folding_every_tensor_has_its_line():
    assert drawn(["b.0.w", "b.1.w"], fold=False) == ["b", "├── 0.w", "└── 1.w"]


def test_a_tensor_may_also_be_a_group():
    assert drawn(["a", "a.b"]) == ["a", "└── b"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [([""], ['""']), (["a..b"], ['a."".b']), (["a."], ['a.""']), (["."], ['"".""'])],
)
def test_empty_segments_are_shown(names: list[str], expected: list[str]):
    assert drawn(names) == expected


def test_numbers_with_leading_zeros_are_names():
    assert drawn(["b.00.w", "b.01.w"]) == ["b", "├── 00.w", "└── 01.w"]


def test_a_name_with_ten_thousand_dots_is_drawn():
    assert len(drawn(["x." * 10_000 + "y"])) == 1


def test_an_escape_sequence_in_a_name_is_spelled_out():
    assert drawn(["a\x1b[2J.w"]) == [r"a\x1b[2J.w"]


def test_without_box_characters_plain_ones_are_drawn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert drawn(["b.0.w", "b.1.w", "c.d", "c.e"]) == ["b.{0..1}.w", "c", "|-- d", "`-- e"]


@given(st.lists(st.text(alphabet="ab.012", max_size=7), unique=True, max_size=40), st.booleans())
def test_no_tensor_and_no_byte_is_lost(names: list[str], fold: bool):
    root = grow(in_order(rows(names)), fold=fold)
    assert root.tensors == len(names)
    assert root.nbytes == 24 * len(names)
    assert sum(_tensors(line.node) for line in draw(root)) >= (not fold) * len(names)


def _tensors(node: Node) -> int:
    return node.row is not None


def test_a_tied_tensor_counts_no_bytes():
    assert grow(rows(["a"]) + rows(["b"], tied_to="a"), fold=True).nbytes == 24
