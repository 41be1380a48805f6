"""What a client needs for a run: its data, the model, and what it remembers of an earlier process."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from torch import nn

from common.data import datasets
from common.data.batches import Batches
from common.errors import ConfigError, RunError, StateError, WireError, WrongRunError
from common.events import Emit
from common.models.build import build_model, tensor_specs
from common.models.memory_format import memory_format
from common.models.spec import ModelSpec
from common.tensors.classes import TensorClasses
from common.tensors.layout import Layout, TensorSpec, fingerprint
from fedclient.config import ClientConfig
from fedclient.evaluation.evaluator import Evaluator
from fedclient.evaluation.events import TestUnused
from fedclient.evaluation.transform import transformed
from fedclient.events import StoredUpdateDamaged, StoredUpdateFound
from fedclient.midround.saving import Saving
from fedclient.rpc.seat import Seat
from fedclient.run.demands import Demands
from fedclient.store.run_state import ClientState, RunState
from fedclient.store.stored_update import Sender, StoredUpdate
from fedclient.training.own_tensors import OwnTensors
from fedclient.training.train import Trainer


@dataclass(frozen=True)
class Equipment:
    """What a client has for one run; it stays the same for all rounds."""

    seat: Seat
    sender: Sender
    """As whom it hands in updates."""
    trainer: Trainer
    layout: Layout
    """Of the tensors that x has."""
    state: RunState
    threads: int | None
    demands: Demands
    """What the run may ask for, round by round."""


Build = Callable[[ModelSpec, int], nn.Module]
"""Makes a model of a description and a seed."""


def prepare(
    config: ClientConfig, seat: Seat, state: ClientState, emit: Emit, build: Build = build_model
) -> Equipment:
    """Loads the data, builds the model and opens the state of the run; raises if they do not fit it."""
    demands = Demands(seat, config.site, own_data=config.own_data is not None)
    dataset = examples_for(config, seat, demands, emit)
    model = build(seat.model, seat.seed)
    specs = tensor_specs(model)
    demands.require_built(Layout(specs))
    if fingerprint(specs) != seat.fingerprint:
        raise WrongRunError(
            f"model {seat.model.name} here has fingerprint {fingerprint(specs)[:12]}, the server's "
            f"{seat.fingerprint[:12]}; install the same code on both"
        )
    classes = seated_classes(seat, specs)
    in_order = partial(Batches, place=config.place, memory_format=memory_format(model, dataset.image_shape))
    evaluator = None
    if seat.evaluates:
        test = _test_set(config, seat)
        evaluator = Evaluator(None if test is None else in_order(test), seat.loss)
    elif config.test_data is not None:
        emit(TestUnused())
    own = OwnTensors(model, classes)
    kept = state.of_run(seat.run_id, config.name, seat.fingerprint)
    saving = None
    if kept.midround is not None and config.save_every_s:
        saving = Saving(kept.midround, seat.run_id, config.save_every_s, emit)
    trainer = Trainer(model, in_order(dataset), seat.seed, seat.index, own, evaluator, saving)
    return Equipment(
        seat,
        Sender(seat.run_id, config.name, seat.fingerprint, trainer.examples),
        trainer,
        classes.shared,
        kept,
        config.threads,
        demands,
    )


def seated_classes(seat: Seat, specs: list[TensorSpec]) -> TensorClasses:
    """What the server says of each tensor, after checking that it makes sense."""
    if bool(seat.frozen) != bool(re.fullmatch("[0-9a-f]{64}", seat.frozen_digest)):
        raise WireError.broken_contract("frozen tensors have a SHA-256, and nothing else has one")
    try:
        return TensorClasses(specs, personal=seat.personal, frozen=seat.frozen)
    except ConfigError as error:
        raise WireError.broken_contract(str(error)) from error


def left_over(equipment: Equipment, emit: Emit) -> StoredUpdate | None:
    """The update that an earlier process of this client was about to hand in."""
    data = equipment.state.stored_update()
    if data is None:
        return None
    try:
        update = StoredUpdate.restored(data, equipment.sender)
    except StateError as error:
        emit(StoredUpdateDamaged(reason=str(error)))
        equipment.state.drop_update()
        return None
    emit(StoredUpdateFound(round=update.round))
    return update


def examples_for(config: ClientConfig, seat: Seat, demands: Demands, emit: Emit) -> datasets.Dataset:
    """The client's examples with the labels, the size and the normalisation of the run."""
    if config.own_data is not None:
        test = config.test_data
        demands.require_data(config.own_data.examples + (test.examples if test is not None else 0))
        dataset = config.own_data.load(seat.class_names, seat.model.image_shape)
    elif seat.dataset is not None:
        dataset = _assigned(seat.dataset, config.data_dir, seat, demands, emit)
    else:
        raise RunError("the server assigned no shard; start the client with --dataset or --data")
    return _as_the_run_has_it(dataset, seat)


def _test_set(config: ClientConfig, seat: Seat) -> datasets.Dataset | None:
    """A test set of the client's own, in the same form."""
    if config.test_data is None:
        return None
    return _as_the_run_has_it(config.test_data.load(seat.class_names, seat.model.image_shape), seat)


def _as_the_run_has_it(dataset: datasets.Dataset, seat: Seat) -> datasets.Dataset:
    """Transformed and normalised; raises if the run is for other examples."""
    if seat.transform:
        dataset = transformed(dataset, seat.transform)
    if dataset.images.dtype == np.uint8:
        dataset = replace(dataset, mean=seat.mean, std=seat.std)
    if (dataset.image_shape, dataset.model_dtype) != (seat.model.image_shape, seat.model.dtype):
        raise RunError(
            f"the run is for {seat.model.dtype} examples of shape {seat.model.image_shape}, "
            f"this client has {dataset.model_dtype} {dataset.image_shape}"
        )
    return dataset


def _assigned(name: str, data_dir: str, seat: Seat, demands: Demands, emit: Emit) -> datasets.Dataset:
    """The shard that the server assigns; pictures in folders are all decoded first, at their final size."""
    size = _image_size(seat)
    if name == "imagefolder":
        demands.require_data(datasets.count_pictures(data_dir, "train"))
        return _shard(datasets.load(name, "train", data_dir, size, emit), seat.indices)
    own = _shard(datasets.load(name, "train", data_dir, emit=emit), seat.indices)
    demands.require_data(len(own.labels))
    return own if size is None else datasets.resized(own, (size, size))


def _shard(train: datasets.Dataset, indices: list[int]) -> datasets.Dataset:
    if not indices or max(indices) >= len(train.labels):
        raise RunError(
            f"the server assigned {len(indices)} examples up to number {max(indices, default=0)}, "
            f"but {train.name} has {len(train.labels)} here; both need the same data"
        )
    if len(indices) > len(train.labels) or len(set(indices)) < len(indices):
        raise WireError.broken_contract(f"the {len(indices)} examples of a shard must differ")
    return train.subset(np.array(indices, np.int64))


def _image_size(seat: Seat) -> int | None:
    """The size that the run brought its images to, where there is one size."""
    shape = seat.model.image_shape
    return shape[1] if len(shape) == 3 and shape[1] == shape[2] else None
