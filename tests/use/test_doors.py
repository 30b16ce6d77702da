"""What holds for every door: sources of all kinds, errors of ours for damaged files, reports that are plain data and fit a screen."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import firekeep
from firekeep import FirekeepError, Limits
from use.checkpoints import state_dict

CASES = Path(__file__).parents[1] / "data" / "cases" / "files"
ARRAYS = {"fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "fc.bias": np.ones(2, np.float32)}

DOORS: dict[str, Callable[..., Any]] = {
    "open": lambda source, out, **options: firekeep.open(source, **options).close(),
    "load_file": lambda source, out, **options: firekeep.load_file(source, **options),
    "convert": lambda source, out, **options: firekeep.convert(source, out / "out.safetensors", **options),
    "verify": lambda source, out, **options: firekeep.verify(source, values=True, **options),
    "diff": lambda source, out, **options: firekeep.diff(source, FILES["bpk"], **options),
    "scan": lambda source, out, **options: firekeep.scan(source, **options),
    "doctor": lambda source, out, **options: firekeep.doctor(source, **options),
}
FILES = {
    "bpk": firekeep.save_bytes(ARRAYS, format="burnpack", scalars={"step": 3}, digest=True),
    "safetensors": firekeep.save_bytes(ARRAYS, format="safetensors", metadata={"k": "v"}, digest=True),
    "pt": state_dict(ARRAYS),
}
every_door = pytest.mark.parametrize("door", DOORS)
every_file = pytest.mark.parametrize("kind", FILES)
REPORTS = ("convert", "verify", "diff", "scan", "doctor")


@every_door
@every_file
def test_every_door_takes_every_source(door: str, kind: str, tmp_path: Path):
    path = tmp_path / f"m.{kind}"
    path.write_bytes(FILES[kind])
    with path.open("rb") as handle:
        for source in (path, str(path), FILES[kind], bytearray(FILES[kind]), io.BytesIO(FILES[kind]), handle):
            DOORS[door](source, tmp_path)


@every_door
def test_every_door_lets_a_missing_file_be_one(door: str, tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        DOORS[door](tmp_path / "nothing.bpk", tmp_path)


@every_door
def test_every_door_refuses_what_is_no_source(door: str, tmp_path: Path):
    with pytest.raises(TypeError, match="a path, bytes, a binary file"):
        DOORS[door](3, tmp_path)


@every_door
@every_file
def test_every_door_opens_sets_and_folders(door: str, kind: str, tmp_path: Path):
    folder = CASES / "safetensors" / "fluxml_shard"
    DOORS[door](folder, tmp_path)
    DOORS[door](folder / "model.safetensors.index.json", tmp_path)


@pytest.mark.parametrize("door", REPORTS)
@every_file
def test_reports_are_plain_data_and_readable_lines(door: str, kind: str, tmp_path: Path):
    report = DOORS[door](FILES[kind], tmp_path)
    document = report.to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    lines = str(report).splitlines()
    assert lines
    if door in ("convert", "verify", "diff"):
        assert all(len(line) <= 80 or str(tmp_path) in line for line in lines)
    with pytest.raises(AttributeError):
        setattr(report, dataclasses.fields(report)[0].name, "x")


@every_door
@every_file
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_is_an_error_of_ours_or_a_finding(door: str, kind: str, data: st.DataObject, tmp_path: Path):
    raw = bytearray(FILES[kind])
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), min_size=1, max_size=3)
    ):
        raw[place] = byte
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut])):
        try:
            DOORS[door](damaged, tmp_path)
        except FirekeepError:
            assert door not in ("doctor", "scan")


@pytest.mark.parametrize("door", ["open", "load_file", "convert"])
def test_limits_reach_the_reader(door: str, tmp_path: Path):
    with pytest.raises(firekeep.LimitError):
        DOORS[door](FILES["safetensors"], tmp_path, limits=Limits(safetensors_tensors=1))


def test_limits_are_findings_where_findings_are_given(tmp_path: Path):
    report = firekeep.verify(FILES["safetensors"], limits=Limits(safetensors_tensors=1))
    assert not report.ok
    assert not firekeep.doctor(FILES["safetensors"], limits=Limits(safetensors_tensors=1)).opens


def test_the_doctor_knows_folders(tmp_path: Path):
    found = firekeep.doctor(CASES / "safetensors" / "fluxml_shard")
    assert found.opens
    assert found.kind == "sharded-set"
    empty = firekeep.doctor(tmp_path)
    assert not empty.opens
    assert empty.kind == "directory"
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    broken = firekeep.doctor(tmp_path)
    assert not broken.opens
    assert "gone.safetensors" in broken.findings[0].message


def test_the_doctor_knows_the_reason_of_a_damaged_file(tmp_path: Path):
    found = firekeep.doctor(FILES["bpk"][:-3])
    assert not found.opens
    assert any("truncated" in finding.message for finding in found.findings)


def test_a_scan_of_a_file_without_pickles_is_safe():
    report = firekeep.scan(FILES["bpk"])
    assert report.safe
    assert report.pickles == 0
    assert firekeep.scan(FILES["pt"]).pickles == 1


def test_examples_of_the_docstrings_are_calls_that_exist():
    import re

    for name in ("open", "load_file", "save_file", "save_bytes", "convert", "verify", "diff", "scan", "doctor"):
        doc = getattr(firekeep, name).__doc__
        shown = set(re.findall(r"firekeep\.(\w+)\(", doc))
        assert name in shown
        assert all(hasattr(firekeep, each) for each in shown)
