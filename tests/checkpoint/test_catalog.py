"""What is found in a directory: complete steps only, the others with the reason, and nothing of what a manifest claims is believed."""

from __future__ import annotations

import json
import math
import os

import pytest

from checkpoint.states import State, names_in
from firekeep.checkpoint import CheckpointManager, KeepAll, scan_steps
from firekeep.checkpoint import _names as names
from firekeep.errors import RuleError


@pytest.fixture
def folder(tmp_path):
    manager = CheckpointManager(tmp_path / "run", keep=KeepAll(), durable=False)
    for step in (1, 2, 30):
        manager.save(State(step), step=step, metrics={"loss": step / 2})
    return manager.directory


def change(folder, fields):
    path = folder / "step-00000030" / "manifest.json"
    document = json.loads(path.read_text())
    document.update(fields)
    path.write_text(json.dumps(document))


def reason(folder):
    catalog = scan_steps(folder)
    assert [info.step for info in catalog.steps] == [1, 2]
    assert catalog.latest().step == 2
    assert catalog.find(30) is None
    (found,) = catalog.incomplete
    assert (found.step, found.name) == (30, "step-00000030")
    assert found.reason in str(catalog).replace("\n    ", " ")
    return found.reason


def test_steps_are_found_with_all_that_is_known_of_them(folder):
    catalog = scan_steps(folder)
    assert [info.step for info in catalog.steps] == [1, 2, 30]
    info = catalog.latest()
    assert info.metrics == {"loss": 15.0}
    assert set(info.paths) == {"model", "optimizer"}
    assert all(path.stat().st_size for path in info.paths.values())
    assert info.nbytes == sum(path.stat().st_size for path in info.paths.values())
    assert {"host", "pid"} <= set(info.facts)
    assert json.loads(json.dumps(catalog.to_dict()))["steps"][2]["step"] == 30
    assert "3 complete steps" in str(catalog)


def test_metrics_that_json_has_no_word_for_are_kept(tmp_path):
    manager = CheckpointManager(tmp_path, durable=False)
    values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": -0.0, "e": 5e-324, "f": 3}
    manager.save(State(), step=0, metrics=values)

    def refuse(word):
        raise AssertionError(word)

    json.loads((tmp_path / "step-00000000" / "manifest.json").read_text(), parse_constant=refuse)
    found = manager.latest().metrics
    assert {name: repr(value) for name, value in found.items()} == {
        name: repr(float(value)) for name, value in values.items()
    }
    json.dumps(manager.latest().to_dict(), allow_nan=False)


def test_a_directory_that_is_not_there_holds_no_steps(tmp_path):
    assert scan_steps(tmp_path / "none").steps == ()
    assert scan_steps(tmp_path / "none").latest() is None


@pytest.mark.parametrize("name", ["model.bpk", "optimizer.bpk", "manifest.json"])
def test_a_step_with_a_missing_file_is_incomplete(folder, name):
    (folder / "step-00000030" / name).unlink()
    assert reason(folder).startswith(name)


@pytest.mark.parametrize("nbytes", [0, -1, 1])
def test_a_step_with_a_file_of_another_size_is_incomplete(folder, nbytes):
    path = folder / "step-00000030" / "model.bpk"
    size = path.stat().st_size
    os.truncate(path, size + nbytes if nbytes else 0)
    assert reason(folder) == f"model.bpk has {path.stat().st_size} bytes, and {size} were written"


def test_links_and_folders_are_no_files_of_a_step(folder):
    path = folder / "step-00000030" / "model.bpk"
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")
    assert reason(folder) == "model.bpk is no regular file"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"kind": "firekeep checkpoint"}', "[" * 100_000, "\xff"])
def test_a_manifest_that_is_none_makes_no_step(folder, text):
    (folder / "step-00000030" / "manifest.json").write_bytes(text.encode("latin-1"))
    assert "manifest.json cannot be used" in reason(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"step": 2},
        {"step": True},
        {"step": "30"},
        {"step": 30.0},
        {"kind": "x"},
        {"manifest": 2},
        {"time": None},
        {"time": 10**400},
        {"metrics": []},
        {"metrics": {"loss": None}},
        {"metrics": {"loss": "12"}},
        {"metrics": {"loss": True}},
        {"facts": {"a": []}},
        {"files": None},
        {"files": ["model.bpk"]},
        {"files": {"model.bpk": 5}},
        {"files": {"model.bpk": {"nbytes": -1}}},
        {"files": {"model.bpk": {"nbytes": "5"}}},
        {"files": {"model.bpk": {"nbytes": 5, "xxh3": 5}}},
        {"files": {"model.bpk": {"nbytes": 5, "section": "../x"}}},
    ],
    ids=str,
)
def test_a_manifest_of_other_kinds_makes_no_step(folder, fields):
    change(folder, fields)
    assert reason(folder)


@pytest.mark.parametrize(
    "name",
    [
        "../step-00000001/model.bpk",
        "/etc/passwd",
        "..bpk",
        ".bpk",
        "a/b.bpk",
        "model.pt",
        "a\0.bpk",
        "-a.bpk",
        "",
        "A" * 200 + ".bpk",
    ],
)
def test_names_in_a_manifest_lead_nowhere(folder, name):
    change(folder, {"files": {name: {"nbytes": 5}}})
    assert "is no name of a file of a step" in reason(folder)


def test_a_manifest_of_gigabytes_is_not_read(folder):
    os.truncate(folder / "step-00000030" / "manifest.json", 1 << 40)
    assert "no file that firekeep writes" in reason(folder)


@pytest.mark.parametrize(
    "name",
    ["step-3", "step-000000030", "Step-00000005", "step-00000005.bak", "step-0000000x", "step-٠٠٠٠٠٠٠٥", "latest"],
)
def test_folders_of_other_names_are_somebody_elses(folder, name):
    (folder / "step-00000030").rename(folder / name)
    catalog = scan_steps(folder)
    assert [info.step for info in catalog.steps] == [1, 2]
    assert catalog.incomplete == ()


def test_a_folder_with_nothing_of_ours_is_no_step(folder):
    (folder / "step-00000031").mkdir()
    (folder / "step-00000031" / "notes.txt").write_text("mine")
    (folder / "step-00000032").write_text("a file")
    catalog = scan_steps(folder)
    assert catalog.latest().step == 30
    assert catalog.incomplete == ()


def test_scratch_folders_are_told_from_steps(folder):
    left = [names.scratch_name(7, kind) for kind in (names.WRITING, names.ASIDE, names.DOOMED)]
    for name in left:
        (folder / name).mkdir()
    catalog = scan_steps(folder)
    assert list(catalog.scratch) == left
    assert [info.step for info in catalog.steps] == [1, 2, 30]
    assert "3 unfinished saves" in str(catalog)
    CheckpointManager(folder, keep=KeepAll())
    assert names_in(folder) == [names.LOCK, "step-00000001", "step-00000002", "step-00000030"]


def test_a_step_set_aside_stands_for_itself_until_it_is_put_back(folder):
    (folder / "step-00000030").rename(folder / names.scratch_name(30, names.ASIDE))
    assert scan_steps(folder).latest().step == 30
    manager = CheckpointManager(folder, keep=KeepAll())
    assert manager.latest().folder == folder / "step-00000030"


@pytest.mark.parametrize("step", [0, 1, 99_999_999, 100_000_000, 10**18 - 1])
def test_numbers_of_steps_survive_their_names(step):
    assert names.step_of(names.step_name(step)) == step
    assert names.scratch_of(names.scratch_name(step, names.WRITING))[::2] == (step, names.WRITING)


@pytest.mark.parametrize("step", [-1, 10**18, 1.0, "1", None, True])
def test_what_is_no_step_is_refused(tmp_path, step):
    with pytest.raises(RuleError, match=r"a (whole )?number"):
        CheckpointManager(tmp_path).save(State(), step=step)
    assert scan_steps(tmp_path).steps == ()


@pytest.mark.parametrize("value", [None, "0.5", [1], object()])
def test_a_metric_that_is_no_number_is_refused_by_name(tmp_path, value):
    with pytest.raises(RuleError, match=r"the metric 'loss' is .*, where a number is due"):
        CheckpointManager(tmp_path).save(State(), step=1, metrics={"loss": value})
