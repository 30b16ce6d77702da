"""Files that are not the model's: each is refused, and the model stays as it was to the bit."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import firekeep
import firekeep.module as fm
from firekeep import FirekeepError, LoadError
from interop.architectures.twins import TWINS
from interop.architectures.zoo import (
    ZOO,
    assert_equal_states,
    assert_same_model,
    differing,
    every_architecture,
    fresh,
    trained,
)

SUFFIXES = ("bpk", "safetensors", "pt")
every_suffix = pytest.mark.parametrize("suffix", SUFFIXES)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Every architecture in every kind of file."""
    folder = tmp_path_factory.mktemp("zoo")
    for name in ZOO:
        firekeep.save(trained(name), folder / f"{name}.bpk", durable=False)
        firekeep.save(trained(name), folder / f"{name}.safetensors", durable=False)
        torch.save(trained(name).state_dict(), folder / f"{name}.pt")
    return folder


def refused(model: nn.Module, source: object, **options: object) -> FirekeepError:
    """Load, see that it is refused and that nothing was changed, and give the error."""
    before = {key: (value, value.clone()) for key, value in model.state_dict().items()}
    with pytest.raises(FirekeepError) as caught:
        firekeep.load_into(model, source, **options)
    for key, value in model.state_dict().items():
        assert value.data_ptr() == before[key][0].data_ptr()
        assert torch.equal(value, before[key][1])
    return caught.value


def state_file(state: dict[str, Tensor]) -> bytes:
    out = io.BytesIO()
    torch.save(state, out)
    return out.getvalue()


@every_architecture
@every_suffix
def test_the_file_of_every_other_architecture_is_refused(name, suffix, files):
    for other in ZOO:
        if other != name:
            error = refused(fresh(name), files / f"{other}.{suffix}")
            assert isinstance(error, LoadError)
            assert not error.report.ok
            assert error.report.missing or error.report.unused


@pytest.mark.parametrize("name", TWINS)
@every_suffix
def test_a_twin_refuses_the_file_of_every_other_architecture(name, suffix, files):
    for other in ZOO:
        if other != name:
            twin = TWINS[name]()
            with pytest.raises(LoadError):
                firekeep.load_into(twin, files / f"{other}.{suffix}")
            assert not any(one.param.is_initialized for one in fm.walk(twin) if one.path.endswith("weight"))


@every_architecture
@every_suffix
def test_what_fits_of_another_architecture_is_all_that_is_changed(name, suffix, files):
    """Without strictness: the report names what was set, and that is what differs."""
    for other in ZOO:
        model, before = fresh(name), fresh(name)
        try:
            report = firekeep.load_into(model, files / f"{other}.{suffix}", strict=False)
        except LoadError:
            assert not differing(model, before)
        else:
            assert differing(model, before) <= set(report.applied)
            assert report.exact is (other == name)


@every_architecture
@every_suffix
def test_a_cut_file_is_refused(name, suffix, files):
    data = (files / f"{name}.{suffix}").read_bytes()
    draw = random.Random(name + suffix)
    for cut in {1, len(data) // 2, len(data) - 1, *(draw.randrange(len(data)) for _ in range(4))}:
        refused(fresh(name), data[:cut])


@every_architecture
@pytest.mark.parametrize("suffix", ["bpk", "safetensors"])
def test_a_file_with_a_damaged_table_is_loaded_whole_or_not_at_all(name, suffix, files):
    """A bit of a name, a shape, an offset or of what nobody reads is another."""
    data = (files / f"{name}.{suffix}").read_bytes()
    draw = random.Random(name)
    for _ in range(12):
        place = draw.randrange(min(len(data), 1500))
        damaged = data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]
        model, before = fresh(name), fresh(name)
        try:
            report = firekeep.load_into(model, damaged)
        except FirekeepError:
            assert not differing(model, before)
        else:
            assert report.exact


@every_architecture
def test_one_tensor_more_less_or_other_is_named(name):
    state = trained(name).state_dict()
    further = {key for pair in ZOO[name].ties for key in pair}
    key = random.Random(name).choice([key for key in state if key not in further and "num_batches" not in key])
    lacking = {other: value for other, value in state.items() if other != key}
    wider = {**state, key: torch.zeros(*state[key].shape, 2)}
    other_kind = {**state, key: torch.zeros(state[key].shape, dtype=torch.complex64)}
    assert refused(fresh(name), state_file(lacking)).report.missing == (key,)
    assert refused(fresh(name), state_file({**state, "further.part": torch.zeros(2)})).report.unused == (
        "further.part",
    )
    for made in (wider, other_kind):
        assert [problem.name for problem in refused(fresh(name), state_file(made)).report.errors] == [key]


@every_architecture
@every_suffix
def test_what_is_missing_is_told_by_the_names_and_shapes_of_the_model(name, suffix, files):
    model = fresh(name)
    model.further = nn.Module()
    model.further.head = nn.Linear(3, 2)
    model.further.attention = nn.MultiheadAttention(4, 2)
    report = refused(model, files / f"{name}.{suffix}").report
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items() if key.startswith("further.")}
    assert dict(report.missing_shapes) == shapes
    assert not report.unused
    assert firekeep.load_into(model, files / f"{name}.{suffix}", allow_missing=True).missing == tuple(sorted(shapes))


@pytest.mark.parametrize("name", ["resnet", "gpt", "tagger"])
def test_what_is_no_model_is_refused(name, tmp_path):
    model = trained(name)
    optimizer = torch.optim.AdamW(model.parameters())
    for value in model.parameters():
        value.grad = torch.ones_like(value)
    optimizer.step()
    (tmp_path / "empty.bpk").write_bytes(b"")
    (tmp_path / "text.safetensors").write_text("weights\n" * 50)
    (tmp_path / "noise.pt").write_bytes(random.Random(1).randbytes(5000))
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    torch.save({}, tmp_path / "nothing.pt")
    torch.save([1, 2, "three"], tmp_path / "list.pt")
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    safetensors.torch.save_file({}, tmp_path / "nothing.safetensors")
    for path in sorted(tmp_path.iterdir()):
        refused(fresh(name), path)
        refused(fresh(name), path, strict=False)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_two_tensors_for_one_tied_tensor_are_refused(suffix, tmp_path):
    untied = trained("gpt")
    untied.lm_head.weight = nn.Parameter(torch.randn(23, 12))
    path = tmp_path / f"untied.{suffix}"
    if suffix == "pt":
        torch.save(untied.state_dict(), path)
    else:
        firekeep.save(untied, path, durable=False)
    error = refused(fresh("gpt"), path)
    assert [(problem.kind, problem.name) for problem in error.report.errors] == [("tie", "lm_head.weight")]
    target = fresh("gpt")
    report = firekeep.load_into(target, path, strict=False)
    assert not report.exact
    assert target.lm_head.weight is target.transformer["wte"].weight


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_model_that_is_not_tied_takes_a_tied_file(suffix, files):
    target = fresh("gpt")
    target.lm_head.weight = nn.Parameter(torch.randn(23, 12))
    assert firekeep.load_into(target, files / f"gpt.{suffix}").exact
    assert_equal_states(target, trained("gpt"))
    assert target.lm_head.weight is not target.transformer["wte"].weight
    assert target.lm_head.weight.data_ptr() != target.transformer["wte"].weight.data_ptr()


def test_old_names_of_norms_and_wrappers_of_scripts_are_found():
    """As checkpoints of BERT had them: gamma and beta, under the name of the task's model."""
    old = {
        f"bert.{key}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for key, value in trained("bert").state_dict().items()
    }
    target = fresh("bert")
    report = firekeep.load_into(target, state_file(old), rename=r"^bert\.=>")
    assert report.exact
    assert {one.name for one in report.renamed if "spelling" in one.via} == {
        f"embeddings.LayerNorm.{what}" for what in ("weight", "bias")
    }
    assert_same_model("bert", target, trained("bert"))


def test_a_layer_that_is_square_is_turned_by_what_the_file_says_and_not_by_its_shape(files):
    """In the mixer's head no shape tells the layout; the layers of Burn have other names besides."""
    head = trained("mixer").head.weight
    for suffix in SUFFIXES:
        target = fresh("mixer")
        firekeep.load_into(target, files / f"mixer.{suffix}")
        assert torch.equal(target.head.weight, head)
    turned = fresh("mixer")
    firekeep.load_into(turned, files / "mixer.safetensors", layout="burn", include=r"^head\.")
    assert torch.equal(turned.head.weight, head.T)
    refused(fresh("mixer"), files / "mixer.safetensors", layout="burn", match="exact")
