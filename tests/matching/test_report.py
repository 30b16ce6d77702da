from __future__ import annotations

import json
import pickle

import pytest

from firekeep.errors import FirekeepError
from firekeep.matching import IMPORT, LENIENT, STRICT, find_remedies
from firekeep.report import LoadError, LoadReport, NothingMatchedError, Problem, Renamed, make_report
from matching.sides import match, offer, offers, want, wants


def report(model, file, policy=STRICT, **more):
    return make_report(match(model, file), policy=policy, source="net.pt", target="Net", **more)


def test_a_whole_load():
    made = report(["a", "b"], ["a", "b"])
    assert (made.applied, made.wanted, made.offered) == (("a", "b"), 2, 2)
    assert made
    assert made.exact
    assert made.complete
    assert made.ok
    assert str(made) == "net.pt: 2 tensors loaded into Net"
    made.raise_if()


def test_unused_tensors_leave_it_complete_and_not_exact():
    made = report(["a"], ["a", "zzz"], IMPORT)
    assert made.ok
    assert made.complete
    assert not made.exact
    assert not made
    made.raise_if(unused=False)
    with pytest.raises(LoadError):
        made.raise_if()


def test_missing_tensors_leave_it_ok_where_they_are_allowed():
    made = report(["a", "zzz"], ["a"], LENIENT)
    assert made.ok
    assert not made.complete
    with pytest.raises(LoadError):
        made.raise_if(unused=False, errors=False)


def test_a_refused_load_applies_nothing_and_names_all_reasons():
    made = report(["a", "q.w", want("c", (3,)), want("d", dtype="I64")], ["a", "c", "d", "x.v"])
    assert made.refused
    assert made.applied == ()
    assert made.refusals == ("1 missing", "1 unused", "1 of another shape", "1 of another kind")
    assert [(one.kind, one.name, one.expected, one.found) for one in made.errors] == [
        ("shape", "c", "[3]", "[2, 2]"),
        ("kind", "d", "I64", "F32"),
    ]
    with pytest.raises(LoadError) as caught:
        made.raise_if(missing=False, unused=False)
    assert caught.value.report is made


def test_shapes_that_are_allowed_to_differ_are_listed_and_not_applied():
    made = report(["a", want("c", (3,))], ["a", "c"], LENIENT)
    assert made.applied == ("a",)
    assert made.ok
    assert not made.complete
    assert [error.name for error in made.errors] == ["c"]


def test_the_error_reads_as_the_report_and_survives_a_process():
    made = report(["a", "q.w"], ["a"])
    error = made.error()
    assert str(error) == str(made)
    assert error.path == "net.pt"
    assert error.message == "not loaded into Net, nothing was changed: 1 missing"
    assert isinstance(error, FirekeepError)
    assert isinstance(error, RuntimeError)
    assert pickle.loads(pickle.dumps(error)).report == made


def test_nothing_matched_is_an_error_of_its_own_under_any_policy():
    made = report(["a.q"], ["unrelated.v"], LENIENT)
    assert made.nothing_matched
    with pytest.raises(NothingMatchedError, match="no name matched"):
        made.raise_if(missing=False, unused=False)


def test_names_are_in_natural_order():
    made = report([f"l.{n}.w" for n in (10, 2, 1)], ["z.10.q", "z.9.q", "l.1.w"], LENIENT)
    assert made.missing == ("l.2.w", "l.10.w")
    assert made.unused == ("z.9.q", "z.10.q")


def test_what_the_other_side_cannot_have_is_overlooked():
    made = report(
        ["bn.w", "rng.key"], ["bn.w", "bn.num_batches_tracked"], no_counterpart={"bn.num_batches_tracked", "rng.key"}
    )
    assert made.exact
    assert made.no_counterpart == ("bn.num_batches_tracked", "rng.key")


def test_names_of_the_model_and_of_the_file_as_each_calls_them():
    one = want("norm.weight", slots=("norm.gamma",))
    split = want("attn.in_proj_weight", slots=("attn.query.weight", "attn.key.weight"))
    made = make_report(
        match([one, split, "same"], ["norm.weight", "attn.in_proj_weight", "same"]),
        policy=STRICT,
        sources={"norm.weight": "ln.weight"},
    )
    assert made.applied == ("attn.key.weight", "attn.query.weight", "norm.gamma", "same")
    assert made.renamed == (
        Renamed("ln.weight", "norm.gamma", ("rename", "layout")),
        Renamed("attn.in_proj_weight", "attn.query.weight", ("layout",)),
        Renamed("attn.in_proj_weight", "attn.key.weight", ("layout",)),
    )


def test_a_place_that_lacks_one_of_its_tensors_is_missing_and_not_applied():
    parts = [want(f"attn.{part}.weight", slots=("attn.in_proj_weight",)) for part in ("query", "key")]
    made = report([*parts, "a"], ["attn.query.weight", "a"], LENIENT)
    assert made.missing == ("attn.in_proj_weight",)
    assert made.applied == ("a",)
    assert made.wanted == 2


def test_suggestions_speak_the_names_of_the_model_and_those_after_the_renames():
    made = make_report(
        match([want("fc1.bias", slots=("fc1.b",)), "x"], ["fc.bias", "x"]),
        policy=LENIENT,
        sources={"fc.bias": "old.fc.bias"},
    )
    assert made.suggestions["fc1.b"].name == "fc.bias"


def test_everything_is_in_the_data():
    made = report(
        ["a", *(f"zz{n}.w" for n in range(40)), want("c", (3,))],
        ["a", "c", *(f"q.{n}.v" for n in range(40))],
        skipped=["s"],
        casts={"a": ("F32", "BF16")},
        losses={"a": 3},
        notes=["hm"],
    )
    data = json.loads(json.dumps(made.to_dict()))
    assert len(data["missing"]) == len(data["unused"]) == 40
    assert data["missing"][0] == {"name": "zz0.w", "shape": [2, 2], "near": data["missing"][0]["near"]}
    assert data["casts"] == {"a": ["F32", "BF16"]}
    assert data["errors"][0]["file_name"] == "c"
    fields = set(LoadReport.__dataclass_fields__) - {
        "suggestions",
        "missing_shapes",
        "unused_shapes",
        "unused_renamed",
        "nothing_matched",
    }
    assert fields <= set(data)


def test_a_load_in_words():
    made = report(
        ["net.0.w", "net.1.w"],
        ["module.net.0.w", "module.net.2.w", "bn.0.num_batches_tracked", "bn.1.num_batches_tracked"],
        no_counterpart={"bn.0.num_batches_tracked", "bn.1.num_batches_tracked"},
        casts={"net.0.w": ("F32", "BF16"), "net.1.w": ("F32", "BF16")},
        losses={"net.1.w": 3},
        skipped=["head.w"],
        ids_restored=2,
        notes=["the tie of 'a' and 'b' was kept"],
    )
    assert (
        str(made)
        == """\
net.pt: 2 tensors loaded into Net
  prefix 'module.' was taken off 2 names of the file
  net.0, net.2 of the file are net.0, net.1 of the model
  cast: 2 tensors F32 -> BF16
  WARNING: 3 numbers became infinite or NaN in the cast: 'net.1.w' 3
  2 parameter ids restored
  left out by the filter: 1 tensor ('head.w')
  without a counterpart on the other side: 2 tensors
    ('bn.{0,1}.num_batches_tracked')
  note: the tie of 'a' and 'b' was kept"""
    )


def test_a_refusal_in_words():
    model = [*(f"layers.{n}.attn.w" for n in range(30)), "fc1.bias", "own.thing", want("head.w", (10, 2))]
    file = [*(f"layers.{n}.attn.v" for n in range(30)), "fc.bias", offer("head.w", (7, 2))]
    assert (
        str(report(model, file))
        == """\
net.pt:
  not loaded into Net, nothing was changed: 32 missing, 31 unused, 1 of another
    shape
  errors: 1
    'head.w': its shape is [10, 2] in the model, [7, 2] in the file
  missing in the file: 32
    'fc1.bias' [2, 2]; near: 'fc.bias'
    'layers.{0…29}.attn.w' [2, 2]; near: 'layers.{0…29}.attn.v'
    'own.thing' [2, 2]
  in the file only: 31
    'fc.bias' [2, 2]
    'layers.{0…29}.attn.v' [2, 2]"""
    )


def test_remedies_in_words_take_the_place_of_single_suggestions():
    model, file = ["a.w", "b.w"], ["encoder.a.w", "encoder.b.w"]
    made = report(model, file, remedies=find_remedies(match(model, file), wants(model), offers(file)))
    assert str(made).splitlines()[-4:] == [
        "  remedy: names of the file begin with 'encoder.', those of the model do not; 2",
        "    more tensors would be loaded with",
        '      rename=[r"^encoder\\.=>"]',
        "      --rename '^encoder\\.=>'",
    ]


def test_the_first_ten_lines_of_a_list_and_the_number_of_the_rest():
    letters = "abcdefghijklm"
    told = str(report(["x", *(f"{one}.w" for one in letters)], ["x"], LENIENT)).splitlines()
    assert told[:2] == ["net.pt: 1 of 14 tensors loaded into Net", "  missing in the file: 13"]
    assert told[2] == "    'a.w' [2, 2]"
    assert told[-1] == "    ... and 3 more"
    assert len(told) == 13


def test_a_dry_run_and_a_failure_in_words():
    assert str(report(["a"], ["a"], dry_run=True)) == "net.pt: 1 tensor would be loaded into Net"
    refused = report(["a"], ["zz"], dry_run=True)
    assert str(refused).startswith("net.pt: would not be loaded into Net: no name matched, 1 missing, 1 unused\n")
    broken = Problem(kind="read", name="b", message="the file ends before its data", file_name="b")
    failed = report(["a", "b"], ["a", "b"], applied=["a"], failed=True, problems=[broken])
    assert not failed.ok
    assert (
        str(failed)
        == """\
net.pt: reading broke off; 1 of 2 tensors of Net had been set
  errors: 1
    'b': the file ends before its data"""
    )


def test_doubts_in_words():
    told = str(report(["fc.w"], ["model.fc.w", "module.fc.w"], LENIENT))
    assert "  in doubt, so not taken: 1" in told
    assert "'fc.w': more than one tensor of the file may be meant: 'model.fc.w'," in told


def test_names_that_a_terminal_would_act_on_are_spelled_out():
    assert "\x1b" not in str(report(["a\x1b[31m"], ["b\x1b[0m", "c"], LENIENT))
