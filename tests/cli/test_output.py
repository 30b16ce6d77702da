"""What reaches the terminal, and what reaches JSON."""

from __future__ import annotations

import io
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.cli import _output


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("encoder.weight", "encoder.weight"),
        ("权重", "权重"),
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("a\x9bb", r"a\x9bb"),
        ("line\nbreak\r", r"line\nbreak\r"),
        ("bell\x07", r"bell\x07"),
        ("right\u202eleft", r"right\u202eleft"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("line\u2028end", r"line\u2028end"),
        ("half \udc9b pair", r"half \udc9b pair"),
        ("[red]markup[/red]", "[red]markup[/red]"),
        ("tag \U000e0041", r"tag \U000e0041"),
    ],
)
def test_what_a_terminal_would_act_on_is_spelled_out(raw: str, shown: str):
    assert _output.escape(raw) == shown


@given(st.text())
def test_no_escaped_text_holds_a_character_that_does_not_print(text: str):
    assert _output.escape(text).isprintable()


def test_a_long_text_is_cut_and_says_its_length():
    assert _output.shorten("x" * 5000, 10) == "xxxxxxxxxx... (5,000 characters)"


def test_natural_order_puts_two_before_ten_and_a_group_after_its_own_tensor():
    names = ["layers.10.w", "layers.2.w", "layers.2", "layer", "layers.2.w2", "layers.2.w10", "layers.a", "10", "9"]
    assert sorted(names, key=_output.natural) == [
        *("9", "10", "layer", "layers.2", "layers.2.w", "layers.2.w2", "layers.2.w10", "layers.10.w", "layers.a"),
    ]


def test_natural_order_takes_numbers_of_any_length_and_any_script():
    names = ["w" + "9" * 6000, "w" + "1" * 6001, "w٣", "w²", "w007"]
    assert sorted(names, key=_output.natural)[:3] == ["w007", "w" + "9" * 6000, "w" + "1" * 6001]


@given(st.lists(st.text(alphabet="ab.019", max_size=8)))
def test_natural_order_compares_any_names(names: list[str]):
    assert sorted(sorted(names, key=_output.natural)) == sorted(names)


def test_columns_line_up_under_wide_and_combining_characters():
    lines = _output.columns([("权重", "1"), ("abcd", "2"), ("e\u0301bcd", "3")])
    assert [_output.width(line) for line in lines] == [7, 7, 7]


def test_right_aligned_columns_end_at_the_same_place():
    assert _output.columns([("a", "1"), ("b", "100")], right=[1]) == ["a    1", "b  100"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        ({1: (2, 3.5)}, {"1": [2, 3.5]}),
        (b"\x00\x01", "<2 bytes>"),
        ({"deep": {"set": frozenset({7})}}, {"deep": {"set": [7]}}),
        (None, None),
        (2**200, 2**200),
    ],
)
def test_plain_values_are_what_json_can_say(value: object, expected: object):
    assert _output.plain(value) == expected


def test_a_value_that_contains_itself_ends():
    loop: list[object] = []
    loop.append(loop)
    text = json.dumps(_output.plain(loop))
    assert "not shown" in text
    assert len(text) < 1000


def test_shared_values_that_multiply_end():
    value: object = "lol"
    for _ in range(60):
        value = [value] * 10
    assert len(json.dumps(_output.plain(value))) < 50_000_000


def test_json_is_ascii_and_never_says_nan(capsys: pytest.CaptureFixture[str]):
    _output.write_json({"name": "权\x1b", "loss": float("nan")})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"name": "权\x1b", "loss": "NaN"}


def test_characters_that_the_terminal_lacks_come_out_as_escapes(monkeypatch: pytest.MonkeyPatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    _output.prepare()
    assert not _output.can_print("├")
    _output.write_lines(["权重  F32"])
    assert raw.getvalue() == b"\\u6743\\u91cd  F32\n"
