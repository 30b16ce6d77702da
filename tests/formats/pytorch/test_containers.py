"""The four containers: what is read, what is noted, what is refused, and that a pickle is all an open looks at."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import firekeep
from contracts.format_contract import CountingSource
from firekeep.errors import (
    DigestError,
    FirekeepError,
    FormatError,
    LimitError,
    MetadataError,
    TruncatedError,
    UnsafePickleError,
    UnsupportedError,
    WrongFormatError,
)
from firekeep.formats import OpenOptions
from firekeep.formats.pytorch import open_container
from firekeep.limits import Limits
from pickles import (
    BINPERSID,
    FALSE,
    NONE,
    TRUE,
    call,
    floats,
    group,
    legacy_file,
    mapping,
    name,
    number,
    numbers,
    old_tar,
    ordered,
    pickled,
    raw_bytes,
    sequence,
    storage,
    tar_file,
    tensor,
    text,
    zip_file,
)

SIX = floats(1, 2, 3, 4, 5, 6)
W = ordered({"w": tensor("FloatStorage", "0", 6, view=NONE)})
W_ZIP = ordered({"w": tensor("FloatStorage", "0", 6)})


def values(data: bytes, **options: Any) -> dict[str, list[float]]:
    with firekeep.open(data, **options) as file:
        return {key: file.array(key).tolist() for key in file}


def test_the_variant_and_the_facts_of_a_zip_are_told():
    file = firekeep.open(
        zip_file(
            pickled(W_ZIP), {"0": SIX}, extra={"archive/.format_version": b"1", "archive/.storage_alignment": b"64"}
        )
    )
    assert (file.format, file.variant) == ("pytorch", "zip")
    facts = {
        "archive_version": 3,
        "format_version": 1,
        "storage_alignment": 64,
        "byte_order": "little",
        "pickle_protocol": 2,
    }
    assert facts.items() <= dict(file.details).items()
    assert file.details["storages"] == 1


def test_any_root_folder_will_do_and_none_too():
    assert values(zip_file(pickled(W_ZIP), {"0": SIX}, root="")) == {"w": [1, 2, 3, 4, 5, 6]}
    assert values(zip_file(pickled(W_ZIP), {"0": SIX}, root="a/b/")) == {"w": [1, 2, 3, 4, 5, 6]}


def test_the_pickle_nearest_to_the_top_is_the_one():
    deep = {"archive/extra/data.pkl": pickled(number(1))}
    assert values(zip_file(pickled(W_ZIP), {"0": SIX}, extra=deep)) == {"w": [1, 2, 3, 4, 5, 6]}


def test_two_pickles_at_one_depth_are_refused():
    with pytest.raises(MetadataError, match=r"2 pickles at the same place, 'archive/data\.pkl', 'other/data\.pkl'"):
        firekeep.open(zip_file(pickled(W_ZIP), {"0": SIX}, extra={"other/data.pkl": pickled(number(1))}))


def test_archives_without_a_pickle_say_what_is_in_them(tmp_path: Path):
    data = zip_file(b"", extra={"data/model.pth": b"x"}).replace(b"data.pkl", b"date.pkl")
    with pytest.raises(WrongFormatError, match=r"no data.pkl.*Unpack the archive and open 'data/model.pth'"):
        open_container(CountingSource(data), OpenOptions())


def test_several_archives_in_one_file_are_refused_with_their_number():
    data = zip_file(pickled(W_ZIP), {"0": SIX})
    with pytest.raises(MetadataError, match="3 archives one after the other"):
        open_container(CountingSource(data * 3), OpenOptions())


def test_an_archive_behind_other_bytes_is_read_and_noted():
    file = firekeep.open(b"header" + zip_file(pickled(W_ZIP), {"0": SIX}))
    assert file.array("w").tolist() == [1, 2, 3, 4, 5, 6]
    assert any("starts at byte 6" in note for note in file.notes)


def test_package_archives_are_refused_as_what_they_are():
    extra = {"archive/.data/extern_modules": b"torch\n", "archive/model/model.pkl": pickled(number(1))}
    with pytest.raises(WrongFormatError, match=r"torch\.package"):
        open_container(CountingSource(zip_file(pickled(number(1)), extra=extra)), OpenOptions())


def test_a_damaged_pickle_in_an_archive_is_not_read():
    data = zip_file(pickled(ordered({"needle": tensor("FloatStorage", "0", 6)})), {"0": SIX})
    with pytest.raises(DigestError, match=r"data\.pkl"):
        firekeep.open(data.replace(b"needle", b"noodle"))


def test_a_check_reads_every_member():
    data = bytearray(zip_file(pickled(W_ZIP), {"0": SIX}))
    assert list(firekeep.open(bytes(data)).container.check()) == []
    data[data.index(SIX)] ^= 1
    (finding,) = firekeep.open(bytes(data)).container.check()
    assert (finding.severity, finding.place) == ("error", "archive/data/0")
    assert "checksum" in finding.message


def test_a_check_names_members_nothing_refers_to():
    extra = {"archive/data/99": pickled(number(1)), "archive/notes.txt": b"hello", "stray": b"x"}
    findings = list(firekeep.open(zip_file(pickled(W_ZIP), {"0": SIX}, extra=extra)).container.check())
    assert [(finding.severity, finding.place) for finding in findings] == [
        ("warning", "archive/data/99"),
        ("warning", "archive/notes.txt"),
        ("warning", "stray"),
    ]
    assert "it is a pickle" in findings[0].message
    assert "pickle" not in findings[1].message


def test_bytes_behind_a_pickle_are_noted():
    file = firekeep.open(zip_file(pickled(W_ZIP) + b"more", {"0": SIX}))
    assert "4 bytes follow the pickle in 'archive/data.pkl'" in file.notes
    file = firekeep.open(pickled(number(5)) + b"rest")
    assert file.notes == ("4 bytes follow the pickle, at 5",)
    file = firekeep.open(legacy_file(W, {"0": (6, SIX)}) + b"rest")
    assert any(note.startswith("4 bytes follow the last storage") for note in file.notes)


@pytest.mark.parametrize("kind", ["zip", "legacy"])
def test_opening_reads_the_pickle_and_no_storage(kind: str):
    numel = 1 << 20
    raw = bytes(4 * numel)
    body = ordered({"w": tensor("FloatStorage", "0", numel, view=NONE if kind == "legacy" else None)})
    data = zip_file(pickled(body), {"0": raw}) if kind == "zip" else legacy_file(body, {"0": (numel, raw)})
    source = CountingSource(data)
    container = open_container(source, OpenOptions())
    assert source.seen < 1_500_000
    assert container.entries["w"].read().nbytes == 4 * numel


@pytest.mark.parametrize("protocol", range(2, 6))
def test_legacy_streams_of_all_protocols_are_read(protocol: int):
    file = firekeep.open(legacy_file(W, {"0": (6, SIX)}, protocol=protocol))
    assert (file.variant, file.details["pickle_protocol"]) == ("legacy", protocol)
    assert file.array("w").tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("protocol", range(6))
def test_the_magic_number_may_be_pickled_with_any_protocol(protocol: int):
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, protocol)
    assert values(legacy_file(W, {"0": (6, SIX)}, magic=magic)) == {"w": [1, 2, 3, 4, 5, 6]}


def test_persistent_ids_as_text_are_read():
    pid = b"P('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 6, None)\n"
    hooks = name("collections", "OrderedDict") + b")R"
    body = ordered(
        {"w": call("torch._utils", "_rebuild_tensor_v2", pid, number(0), numbers((6,)), numbers((1,)), FALSE, hooks)}
    )
    assert values(legacy_file(body, {"0": (6, SIX)})) == {"w": [1, 2, 3, 4, 5, 6]}


def test_views_of_storages_are_read():
    view = group(text("view"), number(2), number(3))
    part = storage("FloatStorage", "0", 6, view=view)
    body = mapping(
        {
            "bare": part,
            "w": tensor("FloatStorage", "0", 6, shape=(2,), offset=1, view=view),
            "all": tensor("FloatStorage", "0", 6, view=NONE),
        }
    )
    assert values(legacy_file(body, {"0": (6, SIX)})) == {"bare": [3, 4, 5], "w": [4, 5], "all": [1, 2, 3, 4, 5, 6]}


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (group(text("v"), number(4), number(3)), "elements 4 to 7 lies outside the 6 elements"),
        (group(text("v"), number(-1), number(3)), "the view of a storage is not"),
        (group(text("v"), number(1)), "the view of a storage is not"),
    ],
)
def test_views_outside_their_storage_are_refused(view: bytes, message: str):
    with pytest.raises(FormatError, match=message):
        firekeep.open(legacy_file(mapping({"w": storage("FloatStorage", "0", 6, view=view)}), {"0": (6, SIX)}))


def test_legacy_files_of_big_endian_machines_hold_little_endian_storages():
    for counts in ("little", "big"):
        file = firekeep.open(legacy_file(W, {"0": (6, SIX)}, little=FALSE, counts=counts))
        assert file.array("w").tolist() == [1, 2, 3, 4, 5, 6]
        assert any("big-endian machine" in note for note in file.notes)


def test_a_count_in_the_wrong_byte_order_is_refused_with_its_offset():
    data = legacy_file(W, {"0": (6, SIX)}, counts="big")
    offset = data.index(SIX) - 8
    with pytest.raises(
        MetadataError, match=f"storage '0' at byte {offset} says it has {6 << 56} elements, the pickle says 6"
    ):
        firekeep.open(data)


def test_a_legacy_storage_that_is_cut_is_refused_with_its_offset():
    data = legacy_file(W, {"0": (6, SIX)})
    start = data.index(SIX)
    with pytest.raises(TruncatedError, match=f"'0' takes bytes {start} to {start + 24}, but the file has {start + 20}"):
        firekeep.open(data[:-4])
    with pytest.raises(TruncatedError, match=f"'0' starts at byte {start - 8}, but the file has {start - 8} bytes"):
        firekeep.open(data[: start - 8])


def test_a_storage_the_pickle_does_not_mention_is_refused():
    with pytest.raises(MetadataError, match=r"storage 'stray' .* is not mentioned in the pickle"):
        firekeep.open(legacy_file(W, {"0": (6, SIX), "stray": (1, floats(1))}))


def test_a_storage_that_is_not_in_the_list_costs_only_its_tensors():
    body = ordered({"w": tensor("FloatStorage", "0", 6, view=NONE), "lost": tensor("FloatStorage", "9", 2, view=NONE)})
    file = firekeep.open(legacy_file(body, {"0": (6, SIX)}))
    assert file.array("w").tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(UnsupportedError, match="its storage '9' is not among those of the file"):
        file.array("lost")


def test_keys_may_be_numbers():
    body = mapping(
        {
            "w": call(
                "torch._utils",
                "_rebuild_tensor",
                group(text("storage"), name("torch", "FloatStorage"), number(77), text("cpu"), number(6), NONE)
                + BINPERSID,
                number(0),
                numbers((6,)),
                numbers((1,)),
            )
        }
    )
    data = legacy_file(body, {"77": (6, SIX)})
    assert values(data) == {"w": [1, 2, 3, 4, 5, 6]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"magic": pickled(number(5)) + b"\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"},
            "does not start with PyTorch's magic number",
        ),
    ],
)
def test_streams_that_only_look_legacy_are_refused(change: dict[str, Any], message: str):
    with pytest.raises(UnsafePickleError, match=message):
        firekeep.open(legacy_file(W, {"0": (6, SIX)}, **change))


def test_a_legacy_stream_of_another_protocol_is_refused():
    data = legacy_file(W, {"0": (6, SIX)}).replace(
        b"M\xe9\x03" if b"M\xe9\x03" in legacy_file(W) else pickled(number(1001)), pickled(number(1002)), 1
    )
    with pytest.raises(MetadataError, match="protocol 1002, not 1001"):
        firekeep.open(data)


def test_a_legacy_stream_without_the_byte_order_is_read_and_noted():
    file = firekeep.open(legacy_file(W, {"0": (6, SIX)}, little=None))
    assert any("does not say which byte order" in note for note in file.notes)


def test_a_main_pickle_longer_than_the_first_window_is_read():
    body = mapping({"filler": raw_bytes(bytes(700_000)), "w": tensor("FloatStorage", "0", 6, view=NONE)})
    assert values(legacy_file(body, {"0": (6, SIX)})) == {"w": [1, 2, 3, 4, 5, 6]}


def test_a_main_pickle_beyond_the_limit_is_refused():
    body = mapping({"filler": raw_bytes(bytes(700_000)), "w": tensor("FloatStorage", "0", 6, view=NONE)})
    with pytest.raises(LimitError, match="the main pickle does not end within 500,000 bytes"):
        firekeep.open(legacy_file(body, {"0": (6, SIX)}), limits=Limits(pickle_bytes=500_000))


def test_the_first_layout_of_pytorch_is_read():
    body = mapping(
        {
            "w": number(70) + BINPERSID,
            "t": call("torch.nn.parameter", "Parameter", number(71) + BINPERSID),
            "bare": text("3") + BINPERSID,
            "view": number(4) + BINPERSID,
        }
    )
    data = old_tar(
        body, {3: ("FloatStorage", SIX)}, {70: (3, (2, 3), (3, 1), 0), 71: (3, (3, 2), (1, 3), 0)}, views=[(4, 3, 1, 2)]
    )
    file = firekeep.open(data)
    assert file.variant == "tar"
    assert {key: file.array(key).tolist() for key in file} == {
        "w": [[1, 2, 3], [4, 5, 6]],
        "t": [[1, 4], [2, 5], [3, 6]],
        "bare": [1, 2, 3, 4, 5, 6],
        "view": [2, 3],
    }


def test_tensors_of_the_first_layout_inside_modules_are_read():
    source = group(name("models", "Net"), text("models.py"), text("class Net: ...")) + BINPERSID
    state = mapping(
        {"_parameters": ordered({"weight": number(70) + BINPERSID}), "_buffers": ordered({}), "_modules": ordered({})}
    )
    data = old_tar(source + b")\x81" + state + b"b", {3: ("FloatStorage", SIX)}, {70: (3, (6,), (1,), 0)})
    assert values(data) == {"weight": [1, 2, 3, 4, 5, 6]}


def test_storage_descriptions_that_are_no_persistent_ids_are_read():
    described = group(text("storage"), name("torch", "FloatStorage"), text("0"), text("cpu"), number(6))
    hooks = name("collections", "OrderedDict") + group(sequence()) + b"R"
    body = mapping(
        {
            "w": call(
                "torch._utils",
                "_rebuild_tensor_v2",
                described,
                number(0),
                numbers((2, 3)),
                numbers((3, 1)),
                FALSE,
                hooks,
            )
        }
    )
    held = (
        pickled(number(1))
        + pickled(group(text("0"), text("cpu"), name("torch", "FloatStorage")))
        + (6).to_bytes(8, "little")
        + SIX
    )
    data = tar_file({"sys_info": pickled(mapping({"little_endian": TRUE})), "pickle": pickled(body), "storages": held})
    assert values(data) == {"w": [[1, 2, 3], [4, 5, 6]]}


@pytest.mark.parametrize(
    ("tensors", "views", "message"),
    [
        ({70: (9, (6,), (1,), 0)}, (), "tensor '70' lies in storage '9', which is not in the file"),
        ({70: (3, (7,), (1,), 0)}, (), "reach element 6 of a storage of 6"),
        ({70: (3, (6,), (1,), 0)}, ((4, 9, 0, 1),), "storage '4' is a view of one that is not in the file"),
    ],
)
def test_the_first_layout_is_checked(tensors: dict[int, Any], views: Any, message: str):
    with pytest.raises(MetadataError, match=message):
        firekeep.open(old_tar(mapping({"w": number(70) + BINPERSID}), {3: ("FloatStorage", SIX)}, tensors, views))


@pytest.mark.parametrize(
    ("storages", "tensors", "message"),
    [
        (pickled(NONE), pickled(number(0)), "the number of storages is a NoneType"),
        (pickled(number(1)) + pickled(number(5)), pickled(number(0)), "a storage is not described by three values"),
        (
            pickled(number(1)) + pickled(group(number(1), text("cpu"), name("torch", "OddStorage"))),
            pickled(number(0)),
            "the class of storage '1' is unknown",
        ),
        (
            pickled(number(1))
            + pickled(group(number(1), text("cpu"), name("torch", "FloatStorage")))
            + (9).to_bytes(8, "little"),
            pickled(number(0)),
            "storage '1' in 'storages' has 9 elements, 36 bytes; 0 follow",
        ),
        (pickled(number(0)) + pickled(number(5)), pickled(number(0)), "the views of storages are not a list"),
        (pickled(number(0)) + pickled(sequence(number(5))), pickled(number(0)), "a view of a storage is not described"),
        (pickled(number(0)), pickled(number(1)) + pickled(number(1)), "a tensor is not described by three values"),
        (pickled(number(0)), pickled(number(-1)), "the number of tensors is -1"),
    ],
)
def test_odd_members_of_the_first_layout_are_refused(storages: bytes, tensors: bytes, message: str):
    facts = pickled(mapping({"little_endian": TRUE}))
    data = tar_file({"sys_info": facts, "pickle": pickled(NONE), "storages": storages, "tensors": tensors})
    with pytest.raises(FormatError, match=message):
        firekeep.open(data)


def test_a_rank_beyond_reason_is_refused():
    data = bytearray(old_tar(number(70) + BINPERSID, {3: ("FloatStorage", SIX)}, {70: (3, (6,), (1,), 0)}))
    at = data.rindex((1).to_bytes(4, "little") + bytes(4) + (6).to_bytes(8, "little"))
    data[at : at + 4] = (65).to_bytes(4, "little")
    with pytest.raises(MetadataError, match="tensor '70' has rank 65"):
        firekeep.open(bytes(data))


def test_first_layout_files_of_big_endian_machines_are_read():
    held = (
        pickled(number(1))
        + pickled(group(number(3), text("cpu"), name("torch", "FloatStorage")))
        + (6).to_bytes(8, "big")
        + SIX
    )
    facts = pickled(mapping({"little_endian": FALSE}))
    data = tar_file({"sys_info": facts, "pickle": pickled(mapping({"w": number(3) + BINPERSID})), "storages": held})
    file = firekeep.open(data)
    assert file.array("w").tolist() == [1, 2, 3, 4, 5, 6]
    assert any("big-endian machine" in note for note in file.notes)


def test_bytes_behind_the_end_of_a_tar_archive_are_noted():
    data = old_tar(mapping({}), {}, {})
    assert firekeep.open(data + bytes(7000)).notes == ()
    assert any("4 bytes follow the end of the tar archive" in note for note in firekeep.open(data + b"rest").notes)


@pytest.mark.parametrize(
    ("pid", "message"),
    [
        (text("x"), "names neither a storage nor a module's source"),
        (group(text("tensor"), number(1)), "names neither a storage nor a module's source"),
        (
            group(text("storage"), text("FloatStorage"), text("0"), text("cpu"), number(1)),
            "the class of a storage is a str",
        ),
        (
            group(text("storage"), name("torch", "FloatStorage"), text("0"), text("cpu"), number(-1)),
            "declares -1 elements",
        ),
        (
            group(text("storage"), name("torch", "FloatStorage"), text("0"), text("cpu"), TRUE),
            "declares a bool elements",
        ),
        (
            group(text("storage"), name("torch", "FloatStorage"), text("0"), text("cpu"), number(1 << 90)),
            "has 4 bytes, the pickle says",
        ),
        (
            group(text("storage"), name("torch", "FloatStorage"), NONE, text("cpu"), number(1)),
            "the key of a storage is a NoneType",
        ),
        (
            group(text("storage"), name("torch", "FloatStorage"), text("k" * 600), text("cpu"), number(1)),
            "the key of a storage is",
        ),
    ],
)
def test_odd_persistent_ids_are_refused(pid: bytes, message: str):
    with pytest.raises(FormatError, match=message):
        firekeep.open(zip_file(pickled(mapping({"w": pid + BINPERSID})), {"0": floats(1)}))


def test_storages_of_classes_from_elsewhere_are_not_guessed():
    pid = group(text("storage"), name("mine", "FloatStorage"), text("0"), text("cpu"), number(1)) + BINPERSID
    file = firekeep.open(zip_file(pickled(mapping({"w": pid})), {"0": floats(1)}))
    with pytest.raises(UnsupportedError, match=r"its storage is a mine\.FloatStorage"):
        file.array("w")


def test_a_storage_is_one_whatever_else_is_said_of_its_key():
    kinds = [
        storage("FloatStorage", "0", 2),
        storage("IntStorage", "0", 2),
        storage("FloatStorage", "0", 2),
        storage("IntStorage", "0", 2),
    ]
    file = firekeep.open(zip_file(pickled(sequence(*kinds)), {"0": floats(1, 2)}))
    assert file.ties == {"2": "0", "3": "1"}


def test_an_unknown_tensor_of_the_first_layout_is_refused():
    with pytest.raises(UnsafePickleError, match="there is no tensor or storage '71' in the file"):
        firekeep.open(old_tar(number(71) + BINPERSID, {3: ("FloatStorage", SIX)}, {}))


def test_tar_archives_of_others_are_refused():
    with pytest.raises(WrongFormatError, match="tar archive"):
        open_container(CountingSource(tar_file({"readme.txt": b"hello"})), OpenOptions())


@pytest.mark.parametrize("place", [0, 130, 150, 512 + 512])
def test_damaged_tar_headers_are_refused(place: int):
    data = bytearray(old_tar(mapping({}), {}, {}))
    data[place] ^= 0x41
    with pytest.raises(FormatError):
        open_container(CountingSource(bytes(data)), OpenOptions())


@pytest.mark.parametrize("protocol", range(6))
def test_plain_pickles_give_values_and_no_tensors(protocol: int):
    data = pickle.dumps({"epoch": 3, "name": "x", "list": [1, 2.5, None]}, protocol)
    file = firekeep.open(data)
    assert (file.variant, len(file)) == ("pickle", 0)
    assert file.values() == {"epoch": 3, "name": "x", "list": [1, 2.5, None]}
    assert list(file.container.check()) == []


def test_a_plain_pickle_that_needs_storages_is_refused_with_the_way_out():
    with pytest.raises(
        UnsafePickleError, match=r"storages .*'0'.* this bare pickle does not hold.* Open the whole file"
    ):
        firekeep.open(pickled(W_ZIP))


def test_tensors_pickled_with_their_storages_inside_are_read():
    inner = legacy_file(storage("FloatStorage", "0", 6, view=NONE), {"0": (6, SIX)})
    held = call("torch.storage", "_load_from_bytes", raw_bytes(inner))
    hooks = name("collections", "OrderedDict") + b")R"
    body = mapping(
        {
            "w": call(
                "torch._utils", "_rebuild_tensor_v2", held, number(0), numbers((3, 2)), numbers((1, 3)), FALSE, hooks
            )
        }
    )
    assert values(pickled(body)) == {"w": [[1, 4], [2, 5], [3, 6]]}


@pytest.mark.parametrize("held", [b"", b"rubbish", pickled(number(1)), legacy_file(number(1))])
def test_storages_inside_that_are_none_are_refused(held: bytes):
    body = call(
        "torch._utils",
        "_rebuild_tensor",
        call("torch.storage", "_load_from_bytes", raw_bytes(held)),
        number(0),
        numbers((1,)),
        numbers((1,)),
    )
    with pytest.raises(FormatError):
        firekeep.open(pickled(mapping({"w": body})))


def test_a_long_plain_pickle_is_refused_before_it_is_read():
    source = CountingSource(pickled(raw_bytes(bytes(5000))))
    with pytest.raises(LimitError, match="the pickle has 5,008 bytes; at most 1,000 are read"):
        open_container(source, OpenOptions(limits=Limits(pickle_bytes=1000)))
    assert source.seen < 1000


def test_other_bytes_are_no_pytorch_file():
    for data in (b"", b"\xff\xfe\xfd", b"<html>"):
        with pytest.raises(WrongFormatError, match="not a PyTorch file"):
            open_container(CountingSource(data), OpenOptions())


def file_of(kind: str) -> bytes:
    if kind == "zip":
        return zip_file(pickled(W_ZIP), {"0": SIX})
    if kind == "packed":
        return zip_file(pickled(W_ZIP), {"0": SIX}, packed=True)
    if kind == "legacy":
        return legacy_file(W, {"0": (6, SIX)})
    if kind == "tar":
        return old_tar(mapping({"w": number(70) + BINPERSID}), {3: ("FloatStorage", SIX)}, {70: (3, (6,), (1,), 0)})
    return pickled(mapping({"a": number(1), "b": sequence(TRUE, NONE)}))


@pytest.mark.parametrize("kind", ["zip", "packed", "legacy", "tar", "pickle"])
def test_a_file_cut_at_any_byte_is_refused(kind: str):
    data = file_of(kind)
    firekeep.open(data)
    for length in range(len(data)):
        with pytest.raises(FirekeepError):
            firekeep.open(data[:length])
