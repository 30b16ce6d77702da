"""Models of several parts into which exports of PyTorch were once loaded by Burn: lists of blocks, enums, renames in a chain, parts of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import firekeep
from firekeep.module import BatchNorm, Conv2d, Linear, Module, Relu, Variant, walk
from use.experiments import BURN, close, refusal, run, state_of, stream, untouched


class ConvBlock(Module):
    conv: Conv2d
    norm: BatchNorm

    def __call__(self, x: Any) -> Any:
        return self.norm(self.conv(x))


class Complex(Module):
    conv_blocks: list[ConvBlock]
    norm1: BatchNorm
    fc1: Linear
    fc2: Linear

    def __call__(self, x: Any) -> Any:
        for block in self.conv_blocks:
            x = block(x)
        x = self.norm1(x).reshape(len(x), -1)
        x = self.fc2(Relu()(self.fc1(x)))
        return x - np.log(np.exp(x).sum(1, keepdims=True))


class Partial(Module):
    conv1: ConvBlock
    extra_field: bool = True

    def __call__(self, x: Any) -> Any:
        return self.conv1(x)


class TorchBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, (3, 2))
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x))


class TorchComplex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_blocks = nn.Sequential(TorchBlock(2, 4), TorchBlock(4, 6))
        self.norm1 = nn.BatchNorm2d(6)
        self.fc1 = nn.Linear(120, 12)
        self.fc2 = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm1(self.conv_blocks(x)).flatten(1)
        return torch.log_softmax(self.fc2(torch.relu(self.fc1(x))), 1)


def make_block(inputs: int, outputs: int) -> ConvBlock:
    return ConvBlock(conv=Conv2d(inputs, outputs, (3, 2)), norm=BatchNorm(outputs))


def make_complex() -> Complex:
    return Complex(
        conv_blocks=[make_block(2, 4), make_block(4, 6)], norm1=BatchNorm(6), fc1=Linear(120, 12), fc2=Linear(12, 10)
    )


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the export again: from its seed, after two steps of statistics."""
    torch.manual_seed(2)
    model = TorchComplex()
    for value in (0.9, 0.7):
        model(torch.full((1, 2, 9, 6), value))
    path = tmp_path_factory.mktemp("nested") / "complex_nested.pt"
    torch.save(model.state_dict(), path)
    return path


class TestAListOfBlocks:
    X = np.full((1, 2, 9, 6), 0.5, np.float32)
    EXPECTED = (
        *(-2.306613, -2.0589454, -2.2983727, -2.358294, -2.2963955),
        *(-2.4160905, -2.107669, -2.4284208, -2.526469, -2.3199186),
    )

    def test_all_of_it(self, nested: Path):
        model = make_complex()
        report = firekeep.PytorchStore(nested).load_into(model)
        assert report.exact
        assert len(report.applied) == 20
        assert len(report.no_counterpart) == 3
        assert report.applied[:3] == ("conv_blocks.0.conv.bias", "conv_blocks.0.conv.weight", "conv_blocks.0.norm.beta")
        close(run(model, self.X), [self.EXPECTED])

    def test_by_pytorch(self, nested: Path):
        model = TorchComplex().eval()
        assert len(firekeep.load_into(model, nested).applied) == 23
        close(run(model, self.X), [self.EXPECTED])

    def test_in_half_precision_it_is_nearly_the_same(self, nested: Path):
        model = make_complex()
        assert firekeep.load_into(model, nested, dtype="f16").exact
        assert {str(visited.param.dtype) for visited in walk(model)} == {"F16"}
        close(run(model, self.X), [self.EXPECTED], 5e-3)

    @pytest.mark.parametrize("door", ["load_into", "store"])
    def test_one_block_under_another_name(self, nested: Path, door: str):
        model = Partial(conv1=make_block(2, 4))
        rule = r"conv_blocks\.0\.(.*)=>conv1.$1"
        if door == "store":
            report = firekeep.PytorchStore(nested, rename=rule).load_into(model)
        else:
            report = firekeep.load_into(model, nested, rename=rule, allow_unused=True)
        assert report.complete
        assert len(report.applied) == 6
        assert len(report.unused) == 16
        assert abs(float(run(model, self.X).sum()) - 4.871538) < 2e-6
        assert model.extra_field is True


class Net(Module):
    conv: Variant

    def __call__(self, x: Any) -> Any:
        return self.conv(x)


class Depthwise(Module):
    dconv: Conv2d
    pconv: Conv2d

    def __call__(self, x: Any) -> Any:
        return self.pconv(self.dconv(x))


class TestAnEnum:
    X = stream(1, 38, 1, 2, 5, 5)

    def test_of_a_layer(self):
        model = Net(conv=Variant("Conv", Conv2d(2, 2, 3), enum="Conv"))
        report = firekeep.PytorchStore(BURN / "burn_enum_depthwise_false.pt").load_into(model)
        assert report.exact
        assert report.applied == ("conv.Conv.bias", "conv.Conv.weight")
        close(run(model, self.X)[0, 0, 0], [0.35449377, -0.02832414, 0.4909761])
        theirs = nn.Module()
        theirs.conv = nn.Conv2d(2, 2, 3)
        firekeep.load_into(theirs, BURN / "burn_enum_depthwise_false.pt")
        close(run(model, self.X), run(theirs.conv, self.X))

    def test_of_a_part_of_two_layers(self):
        part = Depthwise(dconv=Conv2d(2, 2, 3, groups=2), pconv=Conv2d(2, 2, 1))
        model = Net(conv=Variant("DwsConv", part, enum="Conv"))
        report = firekeep.load_into(model, BURN / "burn_enum_depthwise_true.pt")
        assert report.exact
        assert [(one.file_name, one.name) for one in report.renamed if "bias" in one.name] == [
            ("conv.dconv.bias", "conv.DwsConv.dconv.bias"),
            ("conv.pconv.bias", "conv.DwsConv.pconv.bias"),
        ]
        close(run(model, self.X)[0, 0, 0], [0.77874625, 0.8590176, 0.8342835])

    def test_of_the_other_kind_is_refused(self):
        part = Depthwise(dconv=Conv2d(2, 2, 3, groups=2), pconv=Conv2d(2, 2, 1))
        model = Net(conv=Variant("DwsConv", part, enum="Conv"))
        report = refusal(firekeep.load_into, model, BURN / "burn_enum_depthwise_false.pt")
        assert len(report.missing) == 4
        assert untouched(model)

    @pytest.mark.parametrize("match", ["auto", "exact"])
    def test_beside_a_classifier(self, match: Any):
        class Model(Module):
            feature: Variant
            classifier: Linear

        model = Model(feature=Variant("BaseConv", Linear(3, 64), enum="ConvBlock"), classifier=Linear(64, 10))
        store = firekeep.PytorchStore(BURN / "burn_model_without_enum_variants.pt", match=match, allow_partial=True)
        report = store.load_into(model)
        assert report.applied[:2] == ("classifier.bias", "classifier.weight")
        names = ("feature.BaseConv.bias", "feature.BaseConv.weight")
        assert (report.applied[2:], report.missing) == ((names, ()) if match == "auto" else ((), names))


class Block(Module):
    conv: Conv2d
    bn: BatchNorm

    def __call__(self, x: Any) -> Any:
        return self.bn(self.conv(x))


class Layer(Module):
    blocks: list[Block]


class Chained(Module):
    conv: Conv2d
    bn: BatchNorm
    layer: Layer

    def __call__(self, x: Any) -> Any:
        x = self.bn(self.conv(x))
        for block in self.layer.blocks:
            x = block(x)
        return x


class TestRenamesInAChain:
    FILE = BURN / "burn_key_remap~2.pt"
    RULES = (
        r"(.+)\.block\.0\.(.+)=>$1.conv.$2",
        r"(.+)\.block\.1\.(.+)=>$1.bn.$2",
        r"layer\.([0-9])\.(.+)=>layer.blocks.$1.$2",
    )

    def make(self) -> Chained:
        blocks = [Block(conv=Conv2d(6, 6, 1, bias=False), bn=BatchNorm(6)) for _ in range(2)]
        return Chained(conv=Conv2d(3, 6, 3, bias=False), bn=BatchNorm(6), layer=Layer(blocks=blocks))

    def test_all_three(self):
        model = self.make()
        report = firekeep.PytorchStore(self.FILE, rename=self.RULES).load_into(model)
        assert report.exact
        assert len(report.applied) == 15
        assert len(report.no_counterpart) == 3
        out = run(model, stream(42, 234, 1, 3, 4, 4))
        assert out.shape == (1, 6, 2, 2)
        close(out[0, 0], [[0.1989671, 0.17847246], [0.06883702, 0.20012866]])
        close(out[0, 5], [[0.16868964, 0.1332693], [0.06917118, 0.35094324]])

    def test_without_the_last_it_is_refused(self):
        model = self.make()
        report = refusal(firekeep.PytorchStore(self.FILE, rename=self.RULES[:2]).load_into, model)
        assert {name.rpartition(".")[0] for name in report.missing} == {
            f"layer.blocks.{index}.{part}" for index in (0, 1) for part in ("conv", "bn")
        }
        assert untouched(model)

    def test_by_pytorch(self):
        theirs = nn.Module()
        theirs.conv, theirs.bn = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6)
        theirs.layer = nn.Sequential()
        for _ in range(2):
            part = nn.Module()
            part.block = nn.Sequential(nn.Conv2d(6, 6, 1, bias=False), nn.BatchNorm2d(6))
            theirs.layer.append(part)
        assert firekeep.load_into(theirs, self.FILE).exact
        assert state_of(theirs) == {name: array.tobytes() for name, array in firekeep.load_file(self.FILE).items()}
        chain = nn.Sequential(theirs.conv, theirs.bn, *(part.block for part in theirs.layer)).eval()
        model = self.make()
        firekeep.load_into(model, self.FILE, rename=self.RULES)
        x = stream(42, 234, 1, 3, 4, 4)
        close(run(model, x), run(chain, x))


class TestIndicesWithGaps:
    FILE = BURN / "burn_non_contiguous_indexes.pt"
    X = stream(1, 190, 1, 2, 5, 5)

    def make(self) -> Any:
        class Convs(Module):
            fc: list[Conv2d]

            def __call__(self, x: Any) -> Any:
                for layer in self.fc:
                    x = Relu()(layer(x))
                return x

        return Convs(fc=[Conv2d(2, 2, 3, padding="same") for _ in range(5)])

    def test_are_closed(self):
        model = self.make()
        report = firekeep.PytorchStore(self.FILE).load_into(model)
        assert report.exact
        assert report.applied == tuple(f"fc.{index}.{last}" for index in range(5) for last in ("bias", "weight"))
        expected = np.zeros((1, 2, 5, 5), np.float32)
        expected[0, 0, 4] = [0.04485746, 0.03582812, 0.03432692, 0.02892298, 0.0138443]
        close(run(model, self.X), expected, 1e-7)

    def test_are_kept_where_equal_names_are_asked_for(self):
        store = firekeep.PytorchStore(self.FILE, match="exact")
        report = refusal(store.load_into, self.make())
        assert {name.split(".")[1] for name in report.missing} == {"1", "3"}
        assert "fc.8.bias" in store.keys()  # noqa: SIM118 - a store is not a dict
        assert store.entry("fc.4.weight").shape == (2, 2, 3, 3)

    def test_by_pytorch(self):
        theirs = nn.Module()
        theirs.fc = nn.Sequential()
        for _ in range(5):
            theirs.fc.extend([nn.Conv2d(2, 2, 3, padding="same"), nn.ReLU()])
        assert firekeep.load_into(theirs, self.FILE).exact
        model = self.make()
        firekeep.load_into(model, self.FILE)
        close(run(theirs.fc, self.X), run(model, self.X), 1e-7)


class TestAPartOfAFile:
    FILE = BURN / "burn_top_level_key.pt"

    def make(self) -> Any:
        class One(Module):
            conv1: Conv2d

        return One(conv1=Conv2d(2, 2, 2))

    @pytest.mark.parametrize(
        "options", [{"top_level_key": "my_state_dict"}, {"rename": [r"^my_state_dict\.=>"]}], ids=str
    )
    def test_is_named(self, options: dict[str, Any]):
        model = self.make()
        report = firekeep.PytorchStore(self.FILE, **options).load_into(model)
        assert report.exact
        assert report.applied == ("conv1.bias", "conv1.weight")
        arrays = firekeep.load_file(self.FILE, top_level_key="my_state_dict")
        assert model.conv1.weight.value.tolist() == arrays["conv1.weight"].tolist()

    def test_without_its_name_it_is_refused_with_what_would_help(self):
        model = self.make()
        report = refusal(firekeep.PytorchStore(self.FILE).load_into, model)
        assert report.nothing_matched
        assert [(remedy.python, remedy.gain) for remedy in report.remedies] == [('rename=[r"^my_state_dict\\.=>"]', 2)]
        assert untouched(model)

    def test_under_a_key_that_is_not_there_is_refused(self):
        model = self.make()
        with pytest.raises(firekeep.FirekeepError, match="my_state_dict"):
            firekeep.PytorchStore(self.FILE, top_level_key="model").load_into(model)
        assert untouched(model)

    def test_beside_a_configuration(self):
        class Linears(Module):
            fc1: Linear
            fc2: Linear

        model = Linears(fc1=Linear(2, 3), fc2=Linear(3, 4, bias=False))
        file = BURN / "burn_weights_with_config.pt"
        report = firekeep.load_into(model, file, top_level_key="my_model")
        assert report.applied == ("fc1.bias", "fc1.weight", "fc2.weight")
        twin = Linears(fc1=Linear(2, 3), fc2=Linear(3, 4, bias=False))
        firekeep.load_into(twin, file)
        assert state_of(twin) == state_of(model)


def test_a_field_that_the_file_lacks_is_named():
    class Model(Module):
        do_not_exist_in_pt: Conv2d

    model = Model(do_not_exist_in_pt=Conv2d(4, 2, 3))
    with pytest.raises(firekeep.NothingMatchedError, match="do_not_exist_in_pt") as caught:
        firekeep.PytorchStore(BURN / "burn_missing_module_field.pt").load_into(model)
    assert caught.value.report.missing == ("do_not_exist_in_pt.bias", "do_not_exist_in_pt.weight")
    assert caught.value.report.unused == ("conv1.bias", "conv1.weight")
    assert untouched(model)
