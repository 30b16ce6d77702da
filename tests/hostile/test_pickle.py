"""Pickles made to hang, to fill memory, to overflow stacks or to run: refused or read inert, whatever they ask for."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import firekeep
from contracts.format_contract import touch_everything
from firekeep.errors import FirekeepError, LimitError, TruncatedError, UnsafePickleError
from firekeep.formats import OpenOptions
from firekeep.formats.pytorch import open_container, scan_source
from firekeep.formats.pytorch._opcodes import NAMES
from firekeep.sources import MemorySource
from pickles import (
    BINPERSID,
    NONE,
    call,
    floats,
    group,
    legacy_file,
    mapping,
    module,
    name,
    number,
    numbers,
    old_tar,
    ordered,
    pickled,
    sequence,
    storage,
    tensor,
    text,
    zip_file,
)

TESTS = Path(__file__).parents[1]
PROTO = b"\x80\x02"


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def long_text(size: int, end: str = "") -> bytes:
    raw = b"a" * (size - len(end.encode())) + end.encode()
    return b"X" + u32(size) + raw


BOMBS: dict[str, tuple[Callable[[], bytes], type[FirekeepError] | None, str]] = {
    "a memo index of 2**32 - 1": (lambda: PROTO + b"Nr" + b"\xff" * 4 + b".", None, ""),
    "a memo index of 100,000 digits": (lambda: b"Np" + b"9" * 100_000 + b"\n.", UnsafePickleError, "opcode PUT"),
    "two million scattered memo indices": (
        lambda: PROTO + b"N" + b"".join(b"r" + u32(10 + 7 * index) for index in range(2_100_000)) + b".",
        LimitError,
        "values",
    ),
    "50 million DUPs": (lambda: PROTO + b"N" + b"2" * 50_000_000 + b".", LimitError, "values"),
    "five million MEMOIZEs": (lambda: b"\x80\x04N" + b"\x94" * 5_000_000 + b".", LimitError, "values"),
    "a million MARKs": (lambda: PROTO + b"(" * 1_000_000 + b".", LimitError, "open marks"),
    "five million dicts": (lambda: PROTO + b"}" * 5_000_000 + b".", LimitError, "values"),
    "dicts that are remembered and popped": (
        lambda: b"\x80\x04" + b"}\x940" * 2_100_000 + b"N.",
        LimitError,
        "values",
    ),
    "work for nothing": (lambda: PROTO + b"N0" * 2_100_000 + b"N.", LimitError, "values"),
    "three million nested tuples": (lambda: PROTO + b"N" + b"\x85" * 3_000_000 + b".", LimitError, "values"),
    "1.5 million nested tuples": (lambda: PROTO + b"N" + b"\x85" * 1_500_000 + b".", LimitError, "levels"),
    "half a million nested lists": (lambda: PROTO + b"]" * 500_000 + b"a" * 499_999 + b".", LimitError, "levels"),
    "a key of 100,000 nested tuples": (
        lambda: PROTO + b"}N" + b"\x85" * 100_000 + b"Ns.",
        UnsafePickleError,
        "a dictionary key is a tuple",
    ),
    "a key that takes 2**60 steps to hash": (
        lambda: (
            PROTO
            + b"})"
            + b"".join(b"q" + bytes([level]) + b"h" + bytes([level]) + b"\x86" for level in range(60))
            + b"Ns."
        ),
        UnsafePickleError,
        "a dictionary key is a tuple",
    ),
    "keys that hash alike": (
        lambda: (
            PROTO
            + b"}("
            + b"".join(
                b"\x8a\x10" + (factor * ((1 << 61) - 1)).to_bytes(16, "little") + b"N" for factor in range(1, 40_000)
            )
            + b"u."
        ),
        UnsafePickleError,
        "a dictionary key is an integer",
    ),
    "BINBYTES8 of an exabyte": (
        lambda: b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b".",
        TruncatedError,
        "1152921504606846976 bytes",
    ),
    "BYTEARRAY8 of eight exabytes": (
        lambda: b"\x80\x05\x96" + struct.pack("<Q", 1 << 63) + b".",
        TruncatedError,
        "9223372036854775808 bytes",
    ),
    "a frame of four exabytes": (
        lambda: b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
        TruncatedError,
        "4611686018427387904 bytes",
    ),
    "an integer of two gigabytes": (lambda: PROTO + b"\x8b" + u32((1 << 31) - 1) + b".", TruncatedError, "2147483647"),
    "an integer of half a million digits": (lambda: b"I" + b"9" * 500_000 + b"\n.", UnsafePickleError, "opcode INT"),
    "a list copied by short calls": (
        lambda: PROTO + b"](" + NONE * 500_000 + b"eq\0cbuiltins\nlist\nq\1" + b"h\1h\0\x85R" * 5_000 + b".",
        LimitError,
        "values",
    ),
    "a text encoded again and again": (
        lambda: (
            PROTO + long_text(5_000_000) + b"q\0c_codecs\nencode\nq\1U\6latin1q\2" + b"h\1h\0h\2\x86R" * 5_000 + b"."
        ),
        LimitError,
        "bytes of text",
    ),
    "texts that one character makes four times as wide": (
        lambda: PROTO + long_text(4_000, "\U0001f525") * 10_000 + b".",
        LimitError,
        "bytes of text",
    ),
    "one such text": (lambda: PROTO + long_text(30_000_000, "\U0001f525") + b".", LimitError, "bytes of text"),
    "names that multiply": (
        lambda: PROTO + b"}" + long_text(60_000) + b"](" + b"]" * 500_000 + b"es.",
        LimitError,
        "bytes of names",
    ),
    "an object built again and again": (
        lambda: PROTO + b"cx\ny\n)\x81" + b"}U\1aK\1sb" * 100_000 + b".",
        LimitError,
        "levels",
    ),
    "three million numbers": (
        lambda: PROTO + b"](" + (b"G" + struct.pack(">d", 1.5)) * 3_000_000 + b"e.",
        LimitError,
        "values",
    ),
    "a path of a million parts": (
        lambda: PROTO + b"cpathlib\nPosixPath\n(" + long_text(60_000) + b"q\0" + b"h\0" * 500_000 + b"tR.",
        None,
        "",
    ),
    "lists of lists of the same list": (
        lambda: (
            PROTO
            + b"]q\x000"
            + b"".join(b"]q" + bytes([level + 1]) + b"(" + (b"h" + bytes([level])) * 10 + b"e0" for level in range(100))
            + b"h\x64."
        ),
        None,
        "",
    ),
    "a list that holds itself": (lambda: PROTO + b"]q\0h\0a.", None, ""),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_or_harmless(bomb: str):
    make, error, message = BOMBS[bomb]
    data = make()
    if error is None:
        container = open_container(MemorySource(data), OpenOptions())
        assert not container.entries
        container.values()
    else:
        with pytest.raises(error, match=message):
            open_container(MemorySource(data), OpenOptions())


MEASURE = """
import json, resource, sys
from hostile.test_pickle import BOMBS
from firekeep.sources import MemorySource
from firekeep.errors import FirekeepError
from firekeep.formats import OpenOptions
from firekeep.formats.pytorch import open_container

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

grown = {}
before = peak()
for name, (make, _, _) in BOMBS.items():
    data = make()
    before = peak()
    try:
        open_container(MemorySource(data), OpenOptions())
    except FirekeepError:
        pass
    grown[name] = peak() - before
    del data
print(json.dumps(grown))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts differently elsewhere")
def test_no_bomb_takes_much_memory():
    done = subprocess.run([sys.executable, "-c", MEASURE], cwd=TESTS, capture_output=True, text=True, check=True)
    grown = json.loads(done.stdout)
    assert grown.keys() == BOMBS.keys()
    assert max(grown.values()) < 250, grown


def test_a_million_declared_elements_cost_nothing():
    huge = tensor("FloatStorage", "0", 1 << 50, shape=(1 << 50,))
    with pytest.raises(FirekeepError):
        firekeep.open(zip_file(pickled(mapping({"w": huge})), {"0": floats(1)}))
    with pytest.raises(FirekeepError):
        firekeep.open(
            legacy_file(mapping({"w": tensor("FloatStorage", "0", 1 << 50, view=NONE)}), {"0": (1 << 50, b"")})
        )
    with pytest.raises(FirekeepError):
        firekeep.open(old_tar(number(7) + BINPERSID, {3: ("FloatStorage", floats(1))}, {7: (3, (1 << 50,), (0,), 0)}))


ATTACKS = [
    call("os", "system", text("touch {}")),
    call("builtins", "exec", text("open('{}', 'w')")),
    call("subprocess", "getoutput", text("touch {}")),
    name("builtins", "open") + group(text("{}"), text("w")) + b"\x81",
    b"(" + text("{}") + text("w") + b"iio\nopen\n",
    call("torch.storage", "_load_from_bytes", b"B" + u32(40) + pickled(call("os", "system", text("touch {}")))[:40]),
    module({"_modules": {"x": call("os", "system", text("touch {}"))}}),
    call("pathlib", "Path.touch", call("pathlib", "PosixPath", text("{}"))),
]


@pytest.mark.parametrize("number_", range(len(ATTACKS)))
def test_nothing_in_a_pickle_is_run(number_: int, tmp_path: Path):
    trace = str(tmp_path / "trace")
    body = ATTACKS[number_]
    placed = body.replace(u32(len("touch {}")) + b"touch {}", u32(len(f"touch {trace}")) + f"touch {trace}".encode())
    placed = placed.replace(u32(2) + b"{}", u32(len(trace)) + trace.encode())
    placed = placed.replace(
        u32(len("open('{}', 'w')")) + b"open('{}', 'w')",
        u32(len(f"open('{trace}', 'w')")) + f"open('{trace}', 'w')".encode(),
    )
    for data in (pickled(placed), zip_file(pickled(mapping({"x": placed}))), legacy_file(placed)):
        with suppress(FirekeepError):
            touch_everything(open_container(MemorySource(data), OpenOptions()))
        scan_source(MemorySource(data), OpenOptions())
    assert not Path(trace).exists()


def test_modules_named_in_a_pickle_are_not_imported():
    for found in ("this", "antigravity"):
        sys.modules.pop(found, None)
        data = zip_file(pickled(mapping({"x": call(found, "anything")})))
        firekeep.open(data).values()
        scan_source(MemorySource(data), OpenOptions())
        assert found not in sys.modules


SEEDS = {
    "zip": zip_file(
        pickled(
            ordered(
                {"w": tensor("FloatStorage", "0", 6, shape=(3, 2), strides=(1, 3)), "b": tensor("BoolStorage", "1", 2)}
            )
        ),
        {"0": floats(1, 2, 3, 4, 5, 6), "1": b"\0\1"},
    ),
    "model": zip_file(
        pickled(
            module(
                {"_modules": {"fc": module({"_parameters": {"w": tensor("HalfStorage", "0", 3)}})}},
                {"x": sequence(number(1))},
            )
        ),
        {"0": bytes(6)},
    ),
    "legacy": legacy_file(ordered({"w": tensor("FloatStorage", "0", 2, view=NONE)}), {"0": (2, floats(1, 2))}),
    "tar": old_tar(mapping({"w": number(7) + BINPERSID}), {3: ("FloatStorage", floats(1, 2))}, {7: (3, (2,), (1,), 0)}),
    "plain": pickled(
        mapping({"a": sequence(number(1), numbers((1, 2))), "s": call("builtins", "set", sequence(text("x")))})
    ),
    "nested": pickled(
        call(
            "torch._utils",
            "_rebuild_tensor",
            call(
                "torch.storage",
                "_load_from_bytes",
                b"B"
                + u32(len(inner := legacy_file(storage("FloatStorage", "0", 1, view=NONE), {"0": (1, floats(1))})))
                + inner,
            ),
            number(0),
            numbers((1,)),
            numbers((1,)),
        )
    ),
}


def mutated(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(out))
        match chance.randrange(5):
            case 0:
                out[at] = chance.randrange(256)
            case 1:
                out[at] = chance.choice(list(NAMES))
            case 2:
                out[at:at] = bytes([chance.choice(list(NAMES))])
            case 3:
                del out[at : at + chance.randrange(1, 6)]
            case _:
                other = chance.randrange(len(out))
                out[at:at] = out[other : other + chance.randrange(1, 30)]
        if not out:
            break
    return bytes(out)


@pytest.mark.parametrize("kind", SEEDS)
def test_damaged_files_raise_nothing_but_errors_of_ours(kind: str):
    chance = random.Random(kind)
    refused = 0
    for _ in range(400):
        data = mutated(SEEDS[kind], chance)
        try:
            touch_everything(open_container(MemorySource(data), OpenOptions()))
        except FirekeepError as error:
            refused += 1
            assert str(error)  # noqa: PT017 - the message itself must not fail
        report = scan_source(MemorySource(data), OpenOptions())
        assert str(report)
        assert json.dumps(report.to_dict())
    assert refused > 20
