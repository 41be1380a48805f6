"""A site's model, data and test data, set up as they were in a run; trains and judges without a server."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from common.data.batches import Batches
from common.devices.place import PROCESSOR, Place
from common.errors import DataError, WrongRunError
from common.models.build import build_model, tensor_specs
from common.models.memory_format import memory_format
from common.models.spec import ModelSpec
from common.records.client import Baseline, KnownRun
from common.server_step.rules import Rules
from common.tensors.layout import Flat, Layout, fingerprint
from common.tensors.torch_views import bind, flatten, tensor_views
from common.wire.encoding import Encoding
from fedclient.evaluation.evaluator import Evaluator
from fedclient.evaluation.transform import transformed
from fedclient.own_data import OwnData
from fedclient.site import Site
from fedclient.training.minibatches import Minibatches
from fedclient.training.task import Task, Update
from fedclient.training.train import Trainer
from fedclient.worth.counts import Confusion, confusion


@dataclass(frozen=True)
class TestData:
    """What models are judged on."""

    name: str
    batches: Batches
    indices: torch.Tensor


class Bench:
    """Of one run."""

    def __init__(self, run: KnownRun, own: OwnData, site: Site, place: Place = PROCESSOR) -> None:
        site.require_model(run.model)
        for kind, name in (("loss", run.loss), ("transform", run.transform)):
            if name:
                site.require_code(kind, name)
        self.run = run
        self.own = own
        self._place = place
        shape = run.image_shape
        spec = ModelSpec(
            name=run.model, num_classes=run.num_classes, image_shape=shape, dtype=run.dtype, width=run.width
        )
        self._model = build_model(spec, run.seed)
        specs = tensor_specs(self._model)
        if fingerprint(specs) != run.fingerprint:
            raise WrongRunError(
                f"model {run.model} here has fingerprint {fingerprint(specs)[:12]}, the run's was "
                f"{run.fingerprint[:12]}; use the release that took part in it"
            )
        self.layout = Layout(specs)
        self.x0 = flatten(self._model, self.layout)
        self._batches = self._prepared(own)
        evaluator = Evaluator(None, run.loss) if run.evaluates else None
        self._trainer = Trainer(self._model, self._batches, run.seed, run.index, evaluator=evaluator)

    @property
    def examples(self) -> int:
        """Of the site."""
        return self._trainer.examples

    def _prepared(self, own: OwnData) -> Batches:
        run = self.run
        dataset = own.load(run.class_names, run.image_shape)
        if run.transform:
            dataset = transformed(dataset, run.transform)
        if dataset.images.dtype == np.uint8:
            dataset = replace(dataset, mean=run.mean, std=run.std)
        if (dataset.image_shape, dataset.model_dtype) != (run.image_shape, run.dtype):
            raise DataError(
                f"the run was for {run.dtype} examples of shape {run.image_shape}, "
                f"these are {dataset.model_dtype} {dataset.image_shape}"
            )
        return Batches(dataset, self._place, memory_format(self._model, run.image_shape))

    def rules(self, r: int) -> Rules:
        """Of a round in which nobody else takes part."""
        run = self.run
        return Rules(
            round=r,
            rounds=run.rounds,
            local_epochs=run.local_epochs,
            local_steps=run.local_steps,
            batch_size=run.batch_size,
            eta_l=run.eta_l,
            momentum=run.momentum,
            augment=run.augment,
            validation=run.validation,
            algorithm="fedavg",
            num_clients=1,
        )

    def after(self, x: Flat, r: int) -> Update:
        """x after a local round on the site's own data: as its payload."""
        task = Task(rules=self.rules(r), layout=self.layout, broadcast=x, encoding=Encoding(self.layout))
        return self._trainer.train(task, task.state_layout.allocate())

    def alone(self) -> tuple[Flat, Baseline]:
        """A model trained here from the run's first x, with as many rounds and steps as the run has."""
        x, steps, loss = self.x0, 0, 0.0
        for r in range(1, self.run.rounds + 1):
            update = self.after(x, r)
            x, steps, loss = update.payload.copy(), steps + update.steps, update.loss
        return x, Baseline(examples=self.examples, rounds=self.run.rounds, steps=steps, loss=loss)

    def test_data(self, own: OwnData | None) -> TestData:
        """A test set of the site's own or, without one, what the run held out for validation here."""
        if own is not None:
            batches = self._prepared(own)
            return TestData("the site's test data", batches, torch.arange(len(batches)))
        run = self.run
        shares = Minibatches(self._batches, run.seed, run.index, by_class=run.evaluates)
        held_out = shares.split(self.rules(1))[1]
        if not len(held_out):
            raise DataError("the run held no examples out for validation; give --test FOLDER or a data set")
        return TestData("what the run held out for validation", self._batches, torch.from_numpy(held_out))

    def judged(self, x: Flat, test: TestData) -> Confusion:
        """How often a model is right."""
        bind(self._model, self._place.put_all(tensor_views(self.layout, x.copy())))
        return confusion(self._model, test.batches, test.indices, self.run.num_classes)
