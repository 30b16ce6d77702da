from __future__ import annotations

from fractions import Fraction
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firekeep import floats
from firekeep.arrays import as_array, entry_of, numpy_dtype
from firekeep.blobs import DeferredBlob, MemoryBlob
from firekeep.dtypes import BY_NAME, TABLE
from firekeep.entry import TensorEntry, find_ties
from firekeep.errors import RuleError
from firekeep.rules import HALF_PRECISION_TYPES, Losses, can_cast, cast, cast_target, half_precision
from firekeep.rules.cast import CASTABLE

SMALL = [name for name in CASTABLE if name not in ("F64", "F32")]


def converted(values, source: str, target: str):
    """Cast numbers and give the array made and the losses."""
    array = np.asarray(values, np.float64).astype(numpy_dtype(BY_NAME[source]))
    losses = Losses()
    entry = cast(entry_of("w", array), BY_NAME[target], losses)
    return as_array(entry), losses


@cache
def grid(target: str) -> tuple[np.ndarray, np.ndarray]:
    """Give all numbers of a small type from 0 up, and their bit patterns."""
    dtype = numpy_dtype(BY_NAME[target])
    bits = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}")
    with np.errstate(all="ignore"):
        numbers = bits.view(dtype).astype(np.float64)
    chosen = np.isfinite(numbers) & (numbers >= 0)
    order = np.argsort(numbers[chosen], kind="stable")
    return numbers[chosen][order], bits[chosen][order].astype(int)


def nearest(number: float, target: str) -> float:
    """Round one number exactly: to the nearest of all numbers of a small type, ties to even."""
    values, patterns = grid(target)
    magnitude = Fraction(abs(number))
    place = int(np.searchsorted(values, float(abs(number))))
    around = [index for index in (place - 1, place, place + 1) if 0 <= index < len(values)]
    best = min(around, key=lambda index: (abs(Fraction(float(values[index])) - magnitude), patterns[index] & 1))
    largest = values[-1]
    if magnitude > largest:
        step = Fraction(float(largest)) - Fraction(float(values[-2]))
        # Past half a step beyond the largest number there is no nearest one left (a tie goes there where the largest is odd).
        beyond = magnitude - Fraction(float(largest)) - step / 2
        if beyond > 0 or (beyond == 0 and patterns[-1] & 1):
            return float("inf")
    return float(np.copysign(values[best], number))


def same(made: float, right: float, target: str) -> bool:
    if np.isinf(right) and not np.isfinite(numpy_inf(target)):
        return bool(np.isinf(made) or np.isnan(made))
    return made == right


def numpy_inf(target: str) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32("inf").astype(numpy_dtype(BY_NAME[target])))


@pytest.mark.parametrize("target", SMALL)
@pytest.mark.parametrize("source", ["F64", "F32"])
def test_every_midpoint_between_two_numbers_goes_to_the_even_one(source: str, target: str):
    positive = np.unique(grid(target)[0])
    finite = np.concatenate([-positive[:0:-1], positive])
    middles = (finite[1:] + finite[:-1]) / 2
    if len(middles) > 1000:
        middles = np.concatenate([middles[::97], middles[:40], middles[-40:], middles[len(middles) // 2 - 40 :][:80]])
    with np.errstate(all="ignore"):
        exact = middles.astype(np.float32).astype(np.float64) == middles
    middles = middles[exact]
    assert len(middles) > 100
    made, _ = converted(middles, source, target)
    for middle, got in zip(middles, made.astype(np.float64), strict=True):
        assert got == nearest(float(middle), target), middle


@pytest.mark.parametrize("target", SMALL)
@given(number=st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_of_64_bits_are_rounded_once(target: str, number: float):
    made, _ = converted([number], "F64", target)
    assert same(float(made[0]), nearest(number, target), target)


@pytest.mark.parametrize("target", SMALL)
@given(number=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_numbers_of_32_bits_are_rounded_to_the_nearest(target: str, number: float):
    made, _ = converted([number], "F32", target)
    assert same(float(made[0]), nearest(number, target), target)


def test_a_number_just_above_a_midpoint_is_not_rounded_down_by_a_step_between():
    made, _ = converted([1 + 2.0**-8 + 2.0**-40, -(1 + 2.0**-8 + 2.0**-40), 1 + 2.0**-8], "F64", "BF16")
    assert made.astype(np.float64).tolist() == [1 + 2.0**-7, -(1 + 2.0**-7), 1.0]


@pytest.mark.parametrize("source", [name for name in CASTABLE if name != "F64"])
def test_a_wider_type_holds_every_number_as_it_was(source: str):
    dtype = numpy_dtype(BY_NAME[source])
    width = min(dtype.itemsize, 2)
    bits = np.arange(1 << 8 * width, dtype=f"u{width}")
    array = (bits.astype(np.uint32) << 16 if dtype.itemsize == 4 else bits).view(dtype)
    losses = Losses()
    for target in ("F64", "F32"):
        made = as_array(cast(entry_of("w", array), BY_NAME[target], losses))
        with np.errstate(all="ignore"):
            assert np.array_equal(made, array.astype(np.float64), equal_nan=True)
    assert losses == Losses()


def test_what_became_infinite_or_zero_is_counted_by_tensor():
    made, losses = converted([70000.0, -1e30, np.inf, np.nan, 1e-9, 0.0, -0.0, 1.0], "F32", "F16")
    assert made[:2].tolist() == [np.inf, -np.inf]
    assert losses == Losses(overflowed={"w": 2}, vanished={"w": 1})


def test_a_type_without_infinity_counts_numbers_that_became_nan():
    made, losses = converted([1e6, 448.0, np.nan], "F32", "F8_E4M3")
    assert np.isnan(made.astype(np.float32)).tolist() == [True, False, True]
    assert losses.overflowed == {"w": 1}


def test_rounding_up_past_the_largest_number_is_an_overflow():
    _, losses = converted([3.4e38], "F32", "BF16")
    assert losses.overflowed == {"w": 1}


def test_a_clean_cast_loses_nothing():
    _, losses = converted([1.0, 2.5, -3.0, 0.0], "F64", "F16")
    assert losses == Losses()


def test_counting_twice_does_not_add_up():
    losses = Losses()
    entry = cast(entry_of("w", np.array([1e6], np.float32)), BY_NAME["F16"], losses)
    entry.read()
    entry.read()
    assert losses.overflowed == {"w": 1}


def test_chunks_of_any_size_give_the_same_bytes_and_counts():
    values = np.linspace(-1e6, 1e6, 1001, dtype=np.float32)
    whole = Losses()
    wanted = bytes(cast(entry_of("w", values), BY_NAME["F16"], whole).read())
    for size in (2, 3, 7, 64, 1000, 1 << 20):
        losses = Losses()
        pieces = list(cast(entry_of("w", values), BY_NAME["F16"], losses).blob.chunks(size))
        assert b"".join(pieces) == wanted
        assert all(piece.nbytes <= max(size, 2) for piece in pieces)
        assert losses == whole


def test_nothing_is_drawn_before_the_bytes_are_asked_for():
    drawn = []

    def provide() -> bytes:
        drawn.append(1)
        return np.ones(4, np.float32).tobytes()

    entry = cast(TensorEntry("w", BY_NAME["F32"], (4,), DeferredBlob(16, provide)), BY_NAME["BF16"], Losses())
    assert (entry.nbytes, entry.dtype, drawn) == (8, BY_NAME["BF16"], [])
    assert as_array(entry).tolist() == [1, 1, 1, 1]
    assert drawn == [1]


def test_empty_and_scalar_tensors_are_cast():
    for array in (np.empty((0, 3), np.float32), np.float32(2.5)):
        entry = cast(entry_of("w", array), BY_NAME["F16"], Losses())
        made = as_array(entry)
        assert made.shape == array.shape
        assert made.dtype == np.float16
        assert np.array_equal(made, array)


def test_tied_tensors_stay_tied():
    array = np.ones(3, np.float32)
    entries = [cast(entry_of(name, array), BY_NAME["BF16"], Losses()) for name in ("a", "b")]
    assert find_ties(entries) == {"b": "a"}
    assert find_ties([entry_of("a", array), entries[1]]) == {}


def test_flex32_becomes_f32_without_a_copy():
    blob = MemoryBlob(b"\0" * 4)
    made = cast(TensorEntry("w", BY_NAME["FLEX32"], (1,), blob), BY_NAME["F32"], Losses())
    assert (made.dtype, made.blob) == (BY_NAME["F32"], blob)


@pytest.mark.parametrize("row", [row for row in TABLE if row.kind != "float"], ids=str)
def test_what_is_no_float_is_left_as_it_is(row):
    entry = TensorEntry("w", row, (2,), MemoryBlob(bytes(row.nbytes((2,)))))
    assert not can_cast(entry, BY_NAME["F16"])
    assert cast(entry, BY_NAME["F16"], Losses()) is entry


@pytest.mark.parametrize("name", ["F4", "F6_E2M3", "F6_E3M2", "F8_E8M0"])
def test_packed_floats_and_their_scales_are_left_as_they_are(name: str):
    row = BY_NAME[name]
    entry = TensorEntry("w", row, (8,), MemoryBlob(bytes(row.nbytes((8,)))))
    assert cast(entry, BY_NAME["F32"], Losses()) is entry


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("bf16", "BF16"),
        ("BFloat16", "BF16"),
        ("float16", "F16"),
        ("half", "F16"),
        ("fp32", "F32"),
        ("torch.float64", "F64"),
        ("float8_e4m3fn", "F8_E4M3"),
        ("f8_e4m3fn", "F8_E4M3"),
        ("F8_E5M2", "F8_E5M2"),
    ],
)
def test_types_go_by_all_their_names(name: str, row: str):
    assert cast_target(name) is BY_NAME[row]


@pytest.mark.parametrize("name", ["int8", "bool", "f4", "f8_e8m0", "c64", "flex32", "nonsense", ""])
def test_a_type_that_is_no_target_is_refused_with_those_that_are(name: str):
    with pytest.raises(RuleError, match="f64, f32, f16, bf16") as caught:
        cast_target(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("name", CASTABLE)
def test_the_span_of_a_type_is_what_its_library_says(name: str):
    info = ml_dtypes.finfo(numpy_dtype(BY_NAME[name]))
    assert floats.span(BY_NAME[name]) == (float(info.smallest_subnormal), float(info.max))


@pytest.mark.parametrize("name", [*CASTABLE, "F8_E8M0"])
def test_numbers_are_told_apart_by_their_bits(name: str):
    dtype = numpy_dtype(BY_NAME[name])
    rng = np.random.default_rng(7)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-8])
    with np.errstate(all="ignore"):
        array = np.concatenate([special.astype(dtype), rng.integers(0, 256, 4096, np.uint8).view(dtype)])
        numbers = array.astype(np.float64)
    assert np.array_equal(floats.is_finite(array), np.isfinite(numbers))
    assert np.array_equal(floats.is_nan(array), np.isnan(numbers))
    assert floats.count_nonzero(array) == np.count_nonzero(numbers)


OWNERS = {
    "fc.weight": "Linear",
    "bn.running_var": "BatchNorm",
    "own": "",
    "rms.gamma": "Struct:RMSNorm",
    "inorm.weight": "InstanceNorm2d",
    "act.alpha": "PReLU",
    "mine.w": "Enum:MyModule",
}


def halved(target: str, source: str = "F32", **options) -> dict[str, str]:
    entries = [entry_of(name, np.ones(2, numpy_dtype(BY_NAME[source]))) for name in OWNERS]
    made = half_precision(entries, BY_NAME[target], Losses(), owner_of=OWNERS.__getitem__, **options)
    return {entry.name: entry.dtype.name for entry in made}


@pytest.mark.parametrize("target", ["F16", "BF16"])
def test_half_precision_is_for_the_layers_that_bear_it(target: str):
    made = halved(target)
    assert {name for name, dtype in made.items() if dtype == target} == {
        "fc.weight",
        "rms.gamma",
        "inorm.weight",
        "act.alpha",
    }
    assert {dtype for name, dtype in made.items()} == {target, "F32"}


def test_half_precision_is_taken_back_for_the_same_layers():
    made = halved("F32", source="F16")
    assert (made["fc.weight"], made["bn.running_var"]) == ("F32", "F16")


def test_types_of_ones_own_take_part_when_they_are_named():
    assert halved("F16", types={*HALF_PRECISION_TYPES, "MyModule"})["mine.w"] == "F16"
    assert halved("F16", types={"Enum:MyModule"})["fc.weight"] == "F32"
    assert halved("F16", types=HALF_PRECISION_TYPES - {"Linear"})["fc.weight"] == "F32"


@pytest.mark.parametrize("source", ["F8_E4M3", "I32", "BOOL"])
def test_half_precision_leaves_small_floats_and_what_is_no_float(source: str):
    assert set(halved("F16", source=source).values()) == {source}


def test_there_are_fourteen_types_and_batch_norm_is_none():
    assert len(HALF_PRECISION_TYPES) == 14
    assert "BatchNorm" not in HALF_PRECISION_TYPES


@pytest.mark.parametrize("target", ["F64", "F8_E4M3", "I32"])
def test_half_precision_of_another_width_is_refused(target: str):
    with pytest.raises(RuleError, match=f"and not {target}"):
        halved(target)


def test_what_half_precision_loses_is_counted():
    losses = Losses()
    entry = entry_of("w", np.array([1e6, 1e-9], np.float32))
    [made] = half_precision([entry], BY_NAME["F16"], losses, owner_of=lambda name: "Linear")
    made.read()
    assert losses == Losses(overflowed={"w": 1}, vanished={"w": 1})


def test_complex_numbers_are_cast_by_their_parts():
    array = np.array([[1 + 2j, 1e300 - 1j], [3 - 1e300j, 0]], np.complex128)
    losses = Losses()
    made = as_array(cast(entry_of("w", array), BY_NAME["C64"], losses))
    assert made.dtype == np.complex64
    assert np.array_equal(made.real, [[1, np.inf], [3, 0]])
    assert np.array_equal(made.imag, [[2, -1], [-np.inf, 0]])
    assert losses.overflowed == {"w": 2}
