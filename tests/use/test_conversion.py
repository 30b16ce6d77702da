from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import firekeep
import pickles
from firekeep import ExistsError, FirekeepError, RuleError, Scalar, TensorNotFoundError, UnsupportedError
from firekeep.blobs import MemoryBlob
from firekeep.dtypes import BY_NAME
from firekeep.entry import TensorEntry
from use.checkpoints import Checkpoint, state_dict, training

CASES = Path(__file__).parents[1] / "data" / "cases" / "files"
ARRAYS = {
    "fc1.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fc1.bias": np.array([1.5, -2], np.float64),
    "norm.count": np.array(7, np.int64),
}


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def equal(path: Path, wanted: dict[str, np.ndarray]) -> bool:
    loaded = firekeep.load_file(path)
    return loaded.keys() == wanted.keys() and all(
        loaded[name].dtype == wanted[name].dtype and np.array_equal(loaded[name], wanted[name]) for name in wanted
    )


def plain(report: Any) -> Any:
    """What `to_dict` gives has to pass through JSON unchanged."""
    document = report.to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    return document


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return put(tmp_path / "in.pt", state_dict(ARRAYS))


@pytest.mark.parametrize("target", [".bpk", ".safetensors"])
@pytest.mark.parametrize("origin", [".pt", ".bpk", ".safetensors"])
def test_tensors_go_from_any_format_to_any(origin: str, target: str, tmp_path: Path):
    src = tmp_path / f"in{origin}"
    if origin == ".pt":
        put(src, state_dict(ARRAYS))
    else:
        firekeep.save_file(ARRAYS, src)
    report = firekeep.convert(src, tmp_path / f"out{target}")
    assert equal(tmp_path / f"out{target}", ARRAYS)
    assert report.tensors == 3
    assert report.destinations == (str(tmp_path / f"out{target}"),)
    assert report.nbytes == (tmp_path / f"out{target}").stat().st_size
    assert not report.dry_run


@pytest.mark.parametrize("case", ["burn/burn_mnist.pt", "burn/burn_mnist.safetensors", "burn/mnist_web_model.bpk"])
@pytest.mark.parametrize("suffix", [".bpk", ".safetensors"])
def test_real_files_keep_every_tensor(case: str, suffix: str, tmp_path: Path):
    report = firekeep.convert(CASES / case, tmp_path / f"out{suffix}", digest=True)
    assert firekeep.diff(CASES / case, tmp_path / f"out{suffix}").equal
    assert firekeep.verify(tmp_path / f"out{suffix}").digests == report.tensors > 0


def test_a_file_converted_to_its_own_format_is_the_same_file(tmp_path: Path):
    first = firekeep.save_file(
        ARRAYS, tmp_path / "a.bpk", metadata={"k": "v"}, scalars={"step": 3}, param_ids={"fc1.bias": 9}
    )
    firekeep.convert(first, tmp_path / "b.bpk")
    assert (tmp_path / "b.bpk").read_bytes() == first.read_bytes()
    first = firekeep.save_file(ARRAYS, tmp_path / "a.safetensors", metadata={"format": "pt", "k": "v"})
    firekeep.convert(first, tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == first.read_bytes()


# Filters, casts and renames


def test_filters_speak_the_names_of_the_source_and_renames_come_last(source: Path, tmp_path: Path):
    report = firekeep.convert(
        source,
        tmp_path / "out.bpk",
        include=["^fc1"],
        exclude=["bias"],
        rename=[r"^fc(\d)=>head.$1", ("weight$", "w")],
        dtype="bf16",
    )
    assert equal(tmp_path / "out.bpk", {"head.1.w": ARRAYS["fc1.weight"].astype(ml_dtypes.bfloat16)})
    assert report.excluded == ("fc1.bias", "norm.count")
    assert report.renames == ((r"^fc(\d)=>head.$1", 1), ("weight$=>w", 1))
    assert report.renamed == 1
    assert report.casts == {"F32 -> BF16": 1}
    (note,) = report.notes
    assert "Burn itself would misread the weights of Linear layers, unless written with layout='burn'" in note


def test_patterns_and_rules_that_do_nothing_are_told(source: Path, tmp_path: Path):
    report = firekeep.convert(source, tmp_path / "out.bpk", exclude="typo", rename=["nothing=>x"])
    assert "the pattern 'typo' was found in no name" in report.notes
    assert "the rename 'nothing=>x' was found in no name" in report.notes
    assert report.renames == (("nothing=>x", 0),)
    assert "typo" in str(report)


def test_nothing_left_is_an_error(source: Path, tmp_path: Path):
    with pytest.raises(RuleError, match="none of the 3 tensors is left"):
        firekeep.convert(source, tmp_path / "out.bpk", include="nothing")
    assert not (tmp_path / "out.bpk").exists()


def test_names_that_meet_are_refused_with_both_sources(source: Path, tmp_path: Path):
    with pytest.raises(RuleError, match=r"'fc1\.weight' and 'fc1\.bias' become 'fc1\.x'") as caught:
        firekeep.convert(source, tmp_path / "out.bpk", rename=["(weight|bias)=>x"])
    assert caught.value.path == str(source)


def test_a_bad_rule_is_refused_before_anything_is_read(tmp_path: Path):
    for wrong in ({"include": "("}, {"rename": "x"}, {"dtype": "int3"}, {"ties": "both"}):
        with pytest.raises(FirekeepError):
            firekeep.convert(put(tmp_path / "in.pt", state_dict(ARRAYS)), tmp_path / "out.bpk", **wrong)
    assert not (tmp_path / "out.bpk").exists()


def test_only_floats_are_cast(source: Path, tmp_path: Path):
    report = firekeep.convert(source, tmp_path / "out.safetensors", dtype="f16")
    loaded = firekeep.load_file(tmp_path / "out.safetensors")
    assert {name: array.dtype.name for name, array in loaded.items()} == {
        "fc1.weight": "float16",
        "fc1.bias": "float16",
        "norm.count": "int64",
    }
    assert report.casts == {"F32 -> F16": 1, "F64 -> F16": 1}


def test_numbers_lost_in_a_cast_are_counted_by_tensor(tmp_path: Path):
    arrays = {"big": np.array([1e5, 1e6, 1], np.float32), "small": np.array([1e-9, 1], np.float32)}
    src = firekeep.save_file(arrays, tmp_path / "in.bpk")
    report = firekeep.convert(src, tmp_path / "out.bpk", dtype="f16", rename="big=>large")
    assert report.overflowed == {"big": 2}
    assert report.vanished == {"small": 1}
    assert "WARNING: 2 numbers became infinite or NaN in the cast: 'big' 2" in str(report)


def test_packed_floats_are_not_cast_and_told(tmp_path: Path):
    packed = TensorEntry("q", BY_NAME["F4"], (4,), MemoryBlob(b"\x21\x43"))
    src = firekeep.save_file({"q": packed, "w": np.ones(2, np.float32)}, tmp_path / "in.safetensors")
    report = firekeep.convert(src, tmp_path / "out.safetensors", dtype="bf16")
    assert any("packed floats" in note and "'q'" in note for note in report.notes)
    with firekeep.open(tmp_path / "out.safetensors") as file:
        assert {name: str(entry.dtype) for name, entry in file.entries.items()} == {"w": "BF16", "q": "F4"}


# What a PyTorch file holds besides the model


def test_the_one_model_in_a_checkpoint_is_taken_and_the_rest_is_told(tmp_path: Path):
    src = put(tmp_path / "run.ckpt", training(ARRAYS))
    report = firekeep.convert(src, tmp_path / "out.safetensors")
    assert equal(tmp_path / "out.safetensors", ARRAYS)
    assert report.part == "state_dict"
    assert report.left_out == ("optimizer.state.0.exp_avg",)
    assert report.dropped.values == ("epoch", "optimizer")
    text = str(report)
    assert "ATTENTION" in text
    assert "top_level_key=''" in text
    assert "'epoch', 'optimizer'" in text
    assert plain(report)["left_out"] == ["optimizer.state.0.exp_avg"]


def test_all_of_a_checkpoint_is_taken_on_request(tmp_path: Path):
    src = put(tmp_path / "run.ckpt", training(ARRAYS))
    report = firekeep.convert(src, tmp_path / "out.safetensors", top_level_key="")
    assert report.left_out == ()
    assert report.part is None
    assert "optimizer.state.0.exp_avg" in firekeep.load_file(tmp_path / "out.safetensors")
    assert "state_dict.fc1.bias" in firekeep.load_file(tmp_path / "out.safetensors")


def test_another_part_is_taken_by_its_key(tmp_path: Path):
    src = put(tmp_path / "run.ckpt", training(ARRAYS, ema=ARRAYS))
    report = firekeep.convert(src, tmp_path / "out.safetensors", top_level_key="ema")
    assert equal(tmp_path / "out.safetensors", ARRAYS)
    assert report.part == "ema"
    assert "what lies under 'ema'" in str(report)
    with pytest.raises(TensorNotFoundError, match="emma"):
        firekeep.convert(src, tmp_path / "out.safetensors", top_level_key="emma")


def test_of_two_models_none_is_guessed(tmp_path: Path):
    src = put(tmp_path / "run.ckpt", training(ARRAYS, ema=ARRAYS))
    with pytest.raises(RuleError, match=r"2 parts of the file look like a model: 'state_dict', 'ema'") as caught:
        firekeep.convert(src, tmp_path / "out.safetensors")
    assert "top_level_key='state_dict'" in str(caught.value)
    assert not (tmp_path / "out.safetensors").exists()


def test_a_key_is_refused_where_it_would_be_ignored(tmp_path: Path):
    src = firekeep.save_file(ARRAYS, tmp_path / "in.bpk")
    with pytest.raises(RuleError, match="is for PyTorch files, and this is a burnpack file"):
        firekeep.convert(src, tmp_path / "out.safetensors", top_level_key="state_dict")


def test_tensors_without_bytes_are_refused_unless_left_out(tmp_path: Path):
    made = Checkpoint()
    state = pickles.ordered(
        {"fine": made.tensor(np.ones(2, np.float32)), "lost": pickles.tensor("FloatStorage", "7", 4)}
    )
    src = put(tmp_path / "in.pt", made.file(state))
    with pytest.raises(UnsupportedError, match=r"tensor 'lost': .*exclude='\^lost\$'"):
        firekeep.convert(src, tmp_path / "out.bpk")
    assert not (tmp_path / "out.bpk").exists()
    report = firekeep.convert(src, tmp_path / "out.bpk", exclude=["^lost$"])
    assert report.tensors == 1


# Metadata, layouts, scalars, ids


@pytest.mark.parametrize(
    ("suffix", "metadata", "target", "layout", "written"),
    [
        (".pt", None, ".safetensors", "torch", {"format": "pt"}),
        (".pt", None, ".bpk", "torch", {"firekeep.layout": "torch"}),
        (".safetensors", {}, ".bpk", "torch", {"firekeep.layout": "torch"}),
        (".safetensors", {"format": "pt"}, ".bpk", "torch", {"format": "pt", "firekeep.layout": "torch"}),
        (".safetensors", {"format": "pt"}, ".safetensors", "torch", {"format": "pt"}),
        (".safetensors", {}, ".safetensors", "torch", {}),
        (".safetensors", {"format": "flax"}, ".bpk", "flax", {"format": "flax", "firekeep.layout": "flax"}),
        (
            ".safetensors",
            {"format": "safetensors", "producer": "burn"},
            ".bpk",
            "burn",
            {"producer": "burn"},
        ),
        (
            ".bpk",
            {"format": "burnpack", "producer": "burn"},
            ".safetensors",
            "burn",
            {"producer": "burn", "firekeep.layout": "burn"},
        ),
        (".bpk", {"format": "burnpack"}, ".bpk", "burn", {"format": "burnpack"}),
        (".bpk", {"firekeep.layout": "torch"}, ".safetensors", "torch", {"format": "pt"}),
        (".bpk", {"firekeep.layout": "torch"}, ".bpk", "torch", {"firekeep.layout": "torch"}),
        (".safetensors", {"firekeep.layout": "burn"}, ".bpk", "burn", {}),
        (".safetensors", {"firekeep.layout": "burn"}, ".safetensors", "burn", {"firekeep.layout": "burn"}),
    ],
)
def test_layouts_stay_and_are_named_where_they_would_not_be_expected(
    suffix: str, metadata: dict[str, str] | None, target: str, layout: str, written: dict[str, str], tmp_path: Path
):
    src = tmp_path / f"in{suffix}"
    if suffix == ".pt":
        put(src, state_dict(ARRAYS))
    else:
        firekeep.save_file(ARRAYS, src, metadata=metadata)
    report = firekeep.convert(src, tmp_path / f"out{target}")
    assert report.layout == layout
    assert f"{layout} layout" in str(report)
    with firekeep.open(tmp_path / f"out{target}") as file:
        assert file.metadata == written


def test_metadata_of_the_caller_goes_over_that_of_the_source(tmp_path: Path):
    src = firekeep.save_file(ARRAYS, tmp_path / "in.bpk", metadata={"a": "1", "b": "2"})
    report = firekeep.convert(
        src, tmp_path / "out.safetensors", metadata={"b": "3", "c": "4", "firekeep.layout": "torch"}
    )
    with firekeep.open(tmp_path / "out.safetensors") as file:
        assert file.metadata == {"a": "1", "b": "3", "c": "4", "format": "pt", "firekeep.layout": "torch"}
    assert report.layout == "torch"


def test_scalars_and_ids_are_kept_where_they_can_be_and_told_where_not(tmp_path: Path):
    src = firekeep.save_file(
        ARRAYS, tmp_path / "in.bpk", scalars={"step": 3, "lr": 0.1}, param_ids={"fc1.bias": 9, "fc1.weight": 8}
    )
    kept = firekeep.convert(src, tmp_path / "kept.bpk", rename="fc1=>fc2")
    with firekeep.open(tmp_path / "kept.bpk") as file:
        assert file.scalars == {"step": Scalar("int", 3), "lr": Scalar("float", 0.1)}
        assert file.entry("fc2.bias").param_id == 9
        assert file.entry("norm.count").param_id is None
    assert str(kept.dropped) == ""
    lost = firekeep.convert(src, tmp_path / "lost.safetensors")
    assert set(lost.dropped.scalars) == {"step", "lr"}
    assert lost.dropped.param_ids == 2
    assert "not carried over: 2 scalars" in str(lost)
    assert plain(lost)["dropped"]["param_ids"] == 2


def test_digests_of_the_source_are_made_anew(tmp_path: Path):
    src = firekeep.save_file(ARRAYS, tmp_path / "in.bpk", digest=True)
    first = firekeep.convert(src, tmp_path / "out.safetensors", dtype="f16", rename="fc1=>fc2")
    assert (first.digests, first.checked) == (True, 3)
    assert "compared with the source's digests: 3 tensors" in str(first)
    assert plain(first)["checked"] == 3
    checked = firekeep.verify(tmp_path / "out.safetensors")
    assert (checked.ok, checked.digests) == (True, 3)
    report = firekeep.convert(src, tmp_path / "again.safetensors", dtype="f16", digest=True)
    assert report.digests
    assert firekeep.verify(tmp_path / "again.safetensors").digests == 3
    assert firekeep.verify(tmp_path / "again.safetensors").ok


# Ties


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    shared = np.ones((50, 50), np.float32)
    return firekeep.save_file({"model.head.w": shared, "model.embed.w": shared}, tmp_path / "tied.safetensors")


@pytest.mark.parametrize("suffix", [".bpk", ".safetensors"])
def test_ties_stay_ties_through_casts_and_renames(suffix: str, tied: Path, tmp_path: Path):
    out = tmp_path / f"out{suffix}"
    report = firekeep.convert(tied, out, dtype="bf16", rename=r"^model\.=>")
    assert len(report.ties) == 1
    assert out.stat().st_size < 6000
    loaded = firekeep.load_file(out)
    assert sorted(loaded) == ["embed.w", "head.w"]
    assert np.shares_memory(loaded["embed.w"], loaded["head.w"])
    with firekeep.open(out) as file:
        assert "model.head.w" not in file.metadata
    assert "tied, stored once" in str(report)


def test_ties_are_written_out_on_request(tied: Path, tmp_path: Path):
    report = firekeep.convert(tied, tmp_path / "out.safetensors", ties="expand")
    assert report.ties == {}
    with firekeep.open(tmp_path / "out.safetensors") as file:
        assert len(file) == 2
        assert file.ties == {}


def test_a_tied_tensor_survives_without_its_other_name(tied: Path, tmp_path: Path):
    report = firekeep.convert(tied, tmp_path / "out.safetensors", exclude="embed")
    assert report.excluded == ("model.embed.w",)
    with firekeep.open(tmp_path / "out.safetensors") as file:
        assert file.keys() == ["model.head.w"]
        assert file.metadata == {}


# Types the new format has no name for


def test_all_tensors_of_types_without_a_name_are_refused_with_what_would_help(tmp_path: Path):
    arrays = {
        "a": np.ones(2, ml_dtypes.float8_e4m3fn),
        "b": np.ones(2, ml_dtypes.float8_e4m3fn),
        "fine": np.ones(2, np.float32),
    }
    src = firekeep.save_file(arrays, tmp_path / "in.safetensors")
    with pytest.raises(UnsupportedError, match=r"cannot hold 2 tensors: F8_E4M3 \('a', 'b'\)") as caught:
        firekeep.convert(src, tmp_path / "out.bpk")
    remedy = caught.value.remedy or ""
    assert "dtype='bf16'" in remedy
    assert "write .safetensors" in remedy
    assert "exclude='^(a|b)$'" in remedy
    assert firekeep.convert(src, tmp_path / "out.bpk", dtype="bf16").tensors == 3
    assert firekeep.convert(src, tmp_path / "out.bpk", exclude=["^(a|b)$"]).tensors == 1
    assert firekeep.convert(src, tmp_path / "out.safetensors").tensors == 3


def test_a_remedy_that_would_not_help_is_not_given(tmp_path: Path):
    src = firekeep.save_file({"z": np.ones(2, np.complex64)}, tmp_path / "in.safetensors")
    with pytest.raises(UnsupportedError, match="C64") as caught:
        firekeep.convert(src, tmp_path / "out.bpk")
    assert "dtype=" not in (caught.value.remedy or "")


def test_types_of_burn_alone_are_stored_as_the_plain_ones_and_told(tmp_path: Path):
    entries = {
        "flex": TensorEntry("flex", BY_NAME["FLEX32"], (1,), MemoryBlob(np.float32([2]).tobytes())),
        "wide": TensorEntry("wide", BY_NAME["BOOL_U32"], (2,), MemoryBlob(np.uint32([1, 0]).tobytes())),
    }
    src = firekeep.save_file(entries, tmp_path / "in.bpk")
    report = firekeep.convert(src, tmp_path / "out.safetensors")
    assert equal(tmp_path / "out.safetensors", {"flex": np.float32([2]), "wide": np.array([True, False])})
    assert "1 tensor of FLEX32 stored as F32" in report.notes
    assert "1 tensor of BOOL_U32 stored as BOOL" in report.notes


# Where it goes


@pytest.mark.parametrize("suffix", [".bpk", ".safetensors"])
def test_a_file_is_converted_onto_itself(suffix: str, tmp_path: Path):
    arrays = {f"t{index}": np.full(50_000, index, np.float32) for index in range(8)}
    path = firekeep.save_file(arrays, tmp_path / f"m{suffix}")
    firekeep.convert(path, path, dtype="f16", rename="^t=>u")
    assert equal(path, {f"u{index}": np.full(50_000, index, np.float16) for index in range(8)})


def test_a_file_is_converted_onto_itself_through_a_link(tmp_path: Path):
    path = firekeep.save_file(ARRAYS, tmp_path / "m.bpk")
    link = tmp_path / "link.bpk"
    link.symlink_to(path)
    firekeep.convert(link, path, include="weight")
    firekeep.convert(path, link, rename="fc1=>fc2")
    assert link.is_symlink()
    assert list(firekeep.load_file(path)) == ["fc2.weight"]


def test_an_existing_file_is_kept_without_overwrite(source: Path, tmp_path: Path):
    out = put(tmp_path / "out.bpk", b"precious")
    for dry_run in (False, True):
        with pytest.raises(ExistsError, match="overwrite=True"):
            firekeep.convert(source, out, overwrite=False, dry_run=dry_run)
    assert out.read_bytes() == b"precious"
    firekeep.convert(source, out)
    assert equal(out, ARRAYS)


def test_a_failure_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    src = firekeep.save_file(ARRAYS, tmp_path / "in.bpk")
    out = put(tmp_path / "out.bpk", b"precious")

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        firekeep.convert(src, out, progress=stop)
    assert out.read_bytes() == b"precious"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.bpk", "out.bpk"]


def test_a_dry_run_tells_all_and_writes_nothing(source: Path, tmp_path: Path):
    wet = firekeep.convert(source, tmp_path / "wet.bpk", dtype="bf16", rename="fc1=>fc2")
    dry = firekeep.convert(source, tmp_path / "dry.bpk", dtype="bf16", rename="fc1=>fc2", dry_run=True)
    assert not (tmp_path / "dry.bpk").exists()
    different = {"destinations", "dry_run"}
    assert {key for key, value in plain(wet).items() if plain(dry)[key] != value} == different
    assert "would become" in str(dry)
    with pytest.raises(FileNotFoundError):
        firekeep.convert(source, tmp_path / "nowhere" / "dry.bpk", dry_run=True)


def test_a_folder_is_no_file(source: Path, tmp_path: Path):
    with pytest.raises(RuleError, match=r"this is a folder. Name the file in it, or give max_shard_size"):
        firekeep.convert(source, tmp_path)


def test_formats_that_are_not_written_are_refused(source: Path, tmp_path: Path):
    with pytest.raises(UnsupportedError, match="they are pickles"):
        firekeep.convert(source, tmp_path / "out.pt")
    assert firekeep.convert(source, tmp_path / "out.bin", format="burnpack").format == "burnpack"


def test_any_source_that_opens_is_converted(tmp_path: Path):
    data = state_dict(ARRAYS)
    report = firekeep.convert(data, tmp_path / "out.bpk")
    assert report.source is None
    assert str(report).startswith("the source (pytorch zip)")
    folder = CASES / "safetensors" / "fluxml_shard"
    firekeep.convert(folder, tmp_path / "one.safetensors")
    assert firekeep.diff(folder, tmp_path / "one.safetensors").equal


def test_trailing_bytes_are_taken_for_granted_on_request(tmp_path: Path):
    src = firekeep.save_file(ARRAYS, tmp_path / "in.safetensors")
    put(src, src.read_bytes() + b"extra")
    with pytest.raises(FirekeepError, match="allow_trailing"):
        firekeep.convert(src, tmp_path / "out.bpk")
    report = firekeep.convert(src, tmp_path / "out.bpk", allow_trailing=True)
    assert any("5 bytes after the last tensor" in note for note in report.notes)


def test_progress_goes_up_to_the_total(tmp_path: Path):
    arrays = {f"t{index}": np.ones(10_000, np.float32) for index in range(5)}
    src = firekeep.save_file(arrays, tmp_path / "in.bpk")
    told: list[tuple[int, int]] = []
    firekeep.convert(src, tmp_path / "out.bpk", progress=lambda done, total: told.append((done, total)), digest=True)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1]


def test_reports_fit_80_columns(tmp_path: Path):
    names = {f"a.rather.long.name.of.a.tensor.in.a.model.number.{index}": np.ones(1, np.float32) for index in range(30)}
    src = firekeep.save_file(names, tmp_path / "in.bpk", scalars={"step": 1})
    report = firekeep.convert(src, tmp_path / "o.safetensors", rename="rather=>very", exclude="9$", dtype="f16")
    long = [line for line in str(report).splitlines() if len(line) > 80 and str(tmp_path) not in line]
    assert long == []


def test_memory_is_bounded_by_the_largest_tensor(tmp_path: Path):
    arrays = {f"t{index}": np.ones(1 << 20, np.float32) for index in range(16)}
    src = firekeep.save_file(arrays, tmp_path / "in.bpk")
    del arrays
    firekeep.convert(src, tmp_path / "warm.bpk", include="t0$", dtype="f16")
    for options in ({}, {"dtype": "f16"}, {"dtype": "f64", "digest": True}):
        tracemalloc.start()
        try:
            firekeep.convert(src, tmp_path / "out.bpk", **options)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 40 << 20, options
