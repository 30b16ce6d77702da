"""Parameter ids and their text form."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep.errors import FormatError
from firekeep.ids import ParamId

TEXTS = {
    14755144371902836595: "edntuk51pn2co",
    14101554053607715927: "avq43klip2pc6",
    3222552515581354512: "22h48qbgpqs2o",
    5953471385704291703: "etelnddevaf54",
    0: "0000000000000",
    1: "0400000000000",
    123456: "83h0200000000",
    (1 << 64) - 1: "vvvvvvvvvvvvu",
}


@pytest.mark.parametrize(("number", "text"), TEXTS.items())
def test_the_text_form_is_burns(number: int, text: str) -> None:
    assert str(ParamId(number)) == text
    assert ParamId.parse(text) == number
    assert ParamId.parse(text.upper()) == number


@given(st.integers(0, (1 << 64) - 1))
def test_every_id_comes_back_from_its_text(number: int) -> None:
    text = str(ParamId(number))
    assert len(text) == 13
    assert ParamId.parse(text) == number


def test_shorter_texts_are_extended_with_zeros() -> None:
    assert ParamId.parse("83h02") == ParamId.parse("83h0200000000") == 123456
    six_bytes = (0xA1B2C3D4E5F6).to_bytes(6, "little")
    assert int.from_bytes(six_bytes, "little") == ParamId.parse(str(ParamId(0xA1B2C3D4E5F6))[:10])


@pytest.mark.parametrize("text", ["", "w000000000000", "00000000000000", "-1", "fc.bias", "é", "\ud800", "0 0"])
def test_texts_that_are_no_ids_are_refused(text: str) -> None:
    with pytest.raises(FormatError, match="is not a parameter id"):
        ParamId.parse(text)


def test_a_uuid_is_refused() -> None:
    with pytest.raises(FormatError, match="is not a parameter id"):
        ParamId.parse("123e4567-e89b-12d3-a456-426614174000")


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_numbers_beyond_64_bits_are_refused(number: int) -> None:
    with pytest.raises(FormatError, match="does not fit 64 unsigned bits"):
        ParamId(number)


def test_fresh_ids_differ() -> None:
    assert len({ParamId.fresh() for _ in range(100)}) == 100


def test_an_id_is_an_integer_and_says_what_it_is() -> None:
    identity = ParamId(42)
    assert identity == 42
    assert {identity: "x"}[42] == "x"  # type: ignore[index]
    assert repr(identity) == "ParamId(42)"


def test_ids_can_be_copied_and_pickled() -> None:
    for twin in (copy.deepcopy(ParamId(7)), pickle.loads(pickle.dumps(ParamId(7)))):
        assert twin == 7
        assert type(twin) is ParamId
