"""Models: the paper's counts, names and classifiers."""

from __future__ import annotations

import math
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from common.algorithms import matching, svr_names
from common.errors import ConfigError
from common.models import build
from common.models.build import build_model, check_fit, classifier_names, count_parameters, tensor_specs
from common.models.memory_format import memory_format
from common.models.names import BUILT_IN
from common.models.spec import ModelSpec
from common.tensors.layout import Layout, Purpose
from common.tensors.torch_views import bind, flatten, tensor_views

HERE = Path(__file__).parent


def spec(name: str, num_classes: int = 10, dtype: str = "float32") -> ModelSpec:
    """A model for the images it is meant for."""
    shape = (1, 8, 8) if name == "cnn" else (3, 32, 32)
    return ModelSpec(name=name, num_classes=num_classes, image_shape=shape, dtype=dtype)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
@pytest.mark.parametrize("width", [0.25, 1.0])
@pytest.mark.parametrize("name", BUILT_IN)
def test_what_a_model_takes_is_known_before_it_is_built(
    name: str, width: float, shape: tuple[int, ...]
) -> None:
    spec = ModelSpec(name=name, num_classes=10, image_shape=shape, width=width)
    model = build_model(spec, 0)
    assert count_parameters(spec) == sum(parameter.numel() for parameter in model.parameters())
    made: list[int] = []
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _, __, output: made.append(output.numel()))
    model.eval()(torch.zeros(1, *shape))
    allowed = BUILT_IN[name].features * max(width, 0.5) * math.prod(shape[1:])
    assert sum(made) <= allowed, "what is told of a batch is not too little"


def test_counting_parameters_takes_no_memory_and_draws_nothing() -> None:
    state = torch.random.get_rng_state()
    large = ModelSpec(name="vgg11", num_classes=10, image_shape=(3, 32, 32), width=64)
    assert count_parameters(large) > 10**10
    with pytest.raises(ConfigError, match=r"model cnn of width 10+\.0 cannot be built"):
        count_parameters(ModelSpec(name="cnn", num_classes=10, image_shape=(1, 8, 8), width=1e12))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("name", "num_classes", "d", "v"),
    [
        ("vgg11", 10, 9_750_922, 530_442),
        ("vgg11", 100, 9_797_092, 576_612),
        ("resnet8", 10, 78_042, 650),
        ("resnet8", 100, 83_892, 6_500),
        ("resnet8-bn", 10, 78_042, 650),
        ("resnet8-bn", 100, 83_892, 6_500),
    ],
)
def test_parameter_counts_are_the_papers(name: str, num_classes: int, d: int, v: int) -> None:
    model = build_model(spec(name, num_classes), seed=0)
    counts = {n: p.numel() for n, p in model.named_parameters()}
    assert sum(counts.values()) == d
    assert sum(counts[n] for n in classifier_names(model)) == v


def test_tensor_order_and_names_are_those_of_the_released_code() -> None:
    vgg = [n for n, _ in build_model(spec("vgg11"), 0).named_parameters()]
    convolutions = [
        f"features.{k}.{kind}" for k in (0, 3, 6, 8, 11, 13, 16, 18) for kind in ("weight", "bias")
    ]
    linear = [f"intermediate_classifier.{k}.{kind}" for k in (1, 4) for kind in ("weight", "bias")]
    assert vgg == [*convolutions, *linear, "classifier.weight", "classifier.bias"]
    resnet = [n for n, _ in build_model(spec("resnet8"), 0).named_parameters()]
    assert len(resnet) == 29
    assert resnet[16] == "layer2.0.downsample.1.weight"
    assert resnet[27:] == ["classifier.weight", "classifier.bias"]


def test_batchnorm_buffers_are_buffers() -> None:
    specs = tensor_specs(build_model(spec("resnet8-bn"), 0))
    buffers = [s for s in specs if s.purpose is Purpose.BUFFER]
    assert len(buffers) == 27
    assert sum(s.num_elements for s in buffers) == 681
    assert not [s for s in tensor_specs(build_model(spec("resnet8"), 0)) if s.purpose is Purpose.BUFFER]


@pytest.mark.parametrize("name", ["vgg11", "resnet8"])
def test_convolutions_start_as_the_paper_says(name: str) -> None:
    for module in build_model(spec(name), 0).modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 5000:
            wanted = math.sqrt(2 / (module.kernel_size[0] ** 2 * module.out_channels))
            assert module.weight.std().item() == pytest.approx(wanted, rel=0.05)


def test_the_seed_fixes_every_parameter_and_leaves_the_callers_randomness_alone() -> None:
    torch.manual_seed(5)
    first = build_model(spec("cnn"), seed=1).state_dict()
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    again, other = (build_model(spec("cnn"), seed=s).state_dict() for s in (1, 2))
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not all(torch.equal(first[n], other[n]) for n in first)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_models_map_images_to_scores(dtype: str) -> None:
    for name in ("cnn", "resnet8", "resnet8-bn"):
        s = spec(name, 7, dtype)
        model = build_model(s, 0)
        images = torch.zeros(2, *s.image_shape, dtype=getattr(torch, dtype))
        check_fit(model, images, s)
        assert model(images).dtype == images.dtype


def test_a_model_that_does_not_fit_the_images_is_named() -> None:
    with pytest.raises(ConfigError, match="model vgg11 does not take examples of shape 1x8x8"):
        check_fit(build_model(spec("vgg11"), 0), torch.zeros(2, 1, 8, 8), spec("vgg11"))
    with pytest.raises(ConfigError, match=r"must return scores of shape \(2, 10\), got \(2, 3\)"):
        check_fit(nn.Linear(4, 3), torch.zeros(2, 4), spec("cnn"))


def test_unknown_models_are_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"unknown model 'lenet'; choose cnn, mlp, vgg11, resnet8"):
        build_model(spec("lenet"), 0)


def test_a_plugged_in_model_has_its_last_layer_as_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(HERE / "problem.py", tmp_path / "plugged_model.py")
    monkeypatch.chdir(tmp_path)
    model = build_model(spec("plugged_model:network", 3, "float64"), 0)
    assert classifier_names(model) == ["4.weight", "4.bias"]
    assert {p.dtype for p in model.parameters()} == {torch.float64}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(n): return 3", "expected factory.* -> nn.Module, got int"),
        ("def f(n): raise KeyError('x')", "factory.10. failed"),
        ("f = 3", "defines no function or class 'f'"),
        ("import does_not_exist", "importing .* failed"),
    ],
)
def test_bad_model_factories_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    module = f"bad_factory_{abs(hash(source))}"
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        build_model(spec(f"{module}:f"), 0)


def test_shared_and_integer_parameters_are_refused() -> None:
    shared = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    shared[1].weight = shared[0].weight
    with pytest.raises(ConfigError, match=r"0\.weight and 1\.weight are one tensor"):
        tensor_specs(shared)
    with pytest.raises(ConfigError, match="no parameters"):
        tensor_specs(nn.ReLU())
    complex_model = nn.Linear(2, 2, dtype=torch.complex64)
    with pytest.raises(ConfigError, match="weight is complex64"):
        tensor_specs(complex_model)


def test_a_bound_model_shares_memory_with_its_buffer() -> None:
    model = build_model(spec("resnet8-bn"), 0)
    layout = Layout(tensor_specs(model))
    flat = flatten(model, layout)
    bind(model, tensor_views(layout, flat))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model.train()(torch.ones(4, 3, 32, 32))
    assert layout.array(flat, 0).any() == 0
    counters = [k for k, s in enumerate(layout.specs) if s.name.endswith("num_batches_tracked")]
    assert [int(layout.array(flat, k)) for k in counters] == [1] * 9


def test_patterns_select_by_glob_or_module() -> None:
    names = ["features.0.weight", "features.0.bias", "classifier.weight", "classifier.bias"]
    assert matching("classifier", names) == names[2:]
    assert matching("*.bias", names) == [names[1], names[3]]
    assert matching("*", names) == names
    assert matching("none", names) == matching("", names) == []
    with pytest.raises(ConfigError, match="--svr 'head' selects no parameter"):
        matching("head", names)
    assert svr_names("fedpvr", ("classifier.bias", "features"), names, []) == (*names[:2], names[3])


def test_models_that_are_built_in_threads_are_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has one random generator; the clients of a simulation all join at once."""

    class Slow(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(3, 4))
            time.sleep(0.02)
            self.append(nn.Linear(4, 2))

    monkeypatch.setitem(build._BUILDERS, "mlp", lambda _: Slow())
    alone = build_model(spec("mlp"), seed=3).state_dict()
    with ThreadPoolExecutor(6) as pool:
        together = [model.state_dict() for model in pool.map(lambda _: build_model(spec("mlp"), 3), range(6))]
    for state in together:
        assert all(torch.equal(state[name], alone[name]) for name in alone)


@pytest.mark.parametrize(
    ("name", "width", "image_shape", "expected"),
    [
        ("resnet8", 1.0, (3, 32, 32), torch.channels_last),
        ("resnet8-bn", 0.5, (3, 32, 32), torch.channels_last),
        ("resnet8", 0.25, (3, 32, 32), torch.contiguous_format),
        ("resnet8-bn", 0.75, (3, 32, 32), torch.contiguous_format),
        ("resnet8", 1.0, (1, 28, 28), torch.contiguous_format),
        ("vgg11", 0.1, (3, 32, 32), torch.contiguous_format),
        ("mlp", 1.0, (64,), torch.contiguous_format),
    ],
)
def test_channels_last_is_for_models_that_ask_for_it_and_that_no_convolution_overruns_its_memory_in(
    name: str, width: float, image_shape: tuple[int, ...], expected: torch.memory_format
) -> None:
    model = build_model(ModelSpec(name=name, num_classes=10, image_shape=image_shape, width=width), 0)
    assert memory_format(model, image_shape) is expected
