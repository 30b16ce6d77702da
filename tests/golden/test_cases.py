"""Files that other software wrote give what their references read, or are refused with the true cause."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import firekeep

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "data" / "cases"


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tools_cases", ROOT / "tools" / "cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


tool = load_tool()
CASES = tool.read_cases(FOLDER)
JUDGED = [case for case in CASES if case.truth is not None and not case.tensors]
TENSORS = next(case for case in CASES if case.name == "burn/asterinas_mlp_weights.bpk")

each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@each_case
def test_a_file_is_as_it_was_written(case: Any):
    data = case.file.read_bytes()
    assert hashlib.sha256(data).hexdigest() == case.manifest["sha256"]
    assert len(data) == int(case.manifest["bytes"])


@each_case
def test_a_file_gives_what_its_reference_reads(case: Any):
    assert tool.judge(case).faults == []


@each_case
def test_the_commands_answer_for_a_file(case: Any):
    assert tool.judge_commands(case) == []


def test_the_folder_is_listed_whole():
    files = {str(file.relative_to(FOLDER / "files")) for file in (FOLDER / "files").rglob("*") if file.is_file()}
    assert files == {case.name for case in CASES}
    assert [case.name for case in CASES if case.truth is None] == [
        "safetensors/fluxml_shard/model.safetensors.index.json"
    ]


def test_an_index_opens_all_its_shards():
    folder = FOLDER / "files" / "safetensors" / "fluxml_shard"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    with firekeep.open(folder / "model.safetensors.index.json") as whole:
        assert set(whole.keys()) == set(index["weight_map"])
        for name, shard in index["weight_map"].items():
            with firekeep.open(folder / shard) as part:
                assert whole[name].tobytes() == part[name].tobytes()


@pytest.mark.parametrize(("words", "cause"), tool.CAUSES)
def test_every_rule_about_causes_judges_some_file(words: str, cause: str):
    fitting = [case for case in JUDGED if re.search(words, case.description)]
    assert fitting
    assert all(tool.judge_cause(case, "something is wrong", None) for case in fitting)
    re.compile(cause)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another value": (lambda truth: truth["tensors"][0].update(sha256="0" * 64), "expected .*000"),
    "another shape": (lambda truth: truth["tensors"][0].update(shape=[1]), r"expected \('F32', \(1,\)"),
    "another dtype": (lambda truth: truth["tensors"][0].update(dtype="float64"), r"expected \('F64'"),
    "another name": (lambda truth: truth["tensors"][0].update(name="other"), r"1 missing: \['other'\]"),
    "another id": (lambda truth: truth["tensors"][0].update(param_id=1), "has id .* expected 1"),
    "a tensor less": (lambda truth: truth["tensors"].pop(), "1 too many"),
    "other metadata": (lambda truth: truth.update(metadata={"a": "b"}), "metadata .* expected"),
    "no tensors": (lambda truth: truth.update(tensors=[]), "6 tensors where none are"),
}


@pytest.mark.parametrize(("change", "fault"), CHANGES.values(), ids=CHANGES)
def test_a_difference_from_the_truth_is_noticed(change: Callable[[dict[str, Any]], object], fault: str):
    truth = copy.deepcopy(dict(TENSORS.truth))
    change(truth)
    assert re.search(fault, "; ".join(tool.judge(replace(TENSORS, truth=truth)).faults))


def test_a_refusal_of_a_good_file_is_noticed():
    case = replace(TENSORS, file=FOLDER / "files" / "other" / "mnist.onnx")
    assert tool.judge(case).faults == ["refused, though the reference reads it"]
