"""Checks of LoaderTrainer in one process: DATASET FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

import gear_data
from gear_data.errors import InvalidArgumentError, StateMismatchError
from gear_data.integrations.transformers import LoaderTrainer
from tests.support.integrations.recorder import WIDTH

OPTIONS: dict[str, Any] = {"batch_size": 8, "context": 5}


class Policy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 3)

    def forward(self, observations: torch.Tensor, actions: torch.Tensor, **_: torch.Tensor) -> dict[str, Any]:
        return {"loss": (self.layer(observations) - actions).square().mean()}


class Predicting(Policy):
    def forward(self, observations: torch.Tensor, actions: torch.Tensor, **_: torch.Tensor) -> dict[str, Any]:
        found = self.layer(observations)
        return {"loss": (found - actions).square().mean(), "logits": found}


def arguments(**options: Any) -> TrainingArguments:
    return TrainingArguments(
        sys.argv[2], use_cpu=True, report_to="none", disable_tqdm=True, save_steps=2, label_names=["actions"], **options
    )


ds, folder = gear_data.open(sys.argv[1]), Path(sys.argv[2])
loader = gear_data.SequenceLoader(ds, **OPTIONS)
policy = Policy()
val = gear_data.SequenceLoader(ds, **OPTIONS, seed=1, steps=3, passes="repeat")

# A loader without an end, with an evaluation of a loader.
trainer = LoaderTrainer(policy, arguments(max_steps=4), train_dataset=loader, eval_dataset=val)
assert trainer.args.per_device_train_batch_size == 8
trainer.train()
assert loader.state_dict()["step"] == 4
measured = [trainer.evaluate() for _ in range(2)]
losses = [each["eval_loss"] for each in measured]
for each in measured:  # the seconds are rounded
    assert each["eval_samples_per_second"] * each["eval_runtime"] == pytest.approx(24, rel=0.1)
with torch.no_grad():
    expected = torch.stack([policy(**batch)["loss"] for batch in val]).mean().item()
assert losses == pytest.approx([expected, expected], rel=1e-5)

# The number of windows, also of a pass whose last batch is short, in batches of another size than in training.
short = gear_data.SequenceLoader(ds, 7, context=5, sampler="shuffle", epochs=1)
for each, windows in ((val, 24), (short, sum(len(batch["actions"]) for batch in short))):
    assert trainer.num_examples(trainer.get_eval_dataloader(each)) == windows
assert windows % 7

# Predictions, also those of a loader whose batches processes could not share equally, where none are gathered.
predicted = LoaderTrainer(Predicting(), arguments(max_steps=4), train_dataset=loader).predict(val)
assert predicted.predictions.shape == (24, 5, 3)
assert predicted.label_ids.tolist() == torch.cat([batch["actions"] for batch in val]).tolist()
uneven = gear_data.SequenceLoader(ds, 7, context=5, steps=2, rank=0, world_size=2)
assert LoaderTrainer(Policy(), arguments(max_steps=4), train_dataset=loader).evaluate(uneven)["eval_loss"] > 0
metered = LoaderTrainer(Predicting(), arguments(max_steps=4), train_dataset=loader, compute_metrics=lambda found: {})
for evaluation in (metered.evaluate, metered.predict):
    with pytest.raises(InvalidArgumentError, match="7 rows in a batch, and 7 in the last one, for 2 processes"):
        evaluation(uneven)

# Metrics of one batch after another end at the last batch.
ends: list[bool] = []


def measure(found: Any, compute_result: bool) -> dict[str, float]:
    ends.append(compute_result)
    return {"rows": len(found.predictions)}


by_batch = arguments(max_steps=4, batch_eval_metrics=True)
trainer = LoaderTrainer(Predicting(), by_batch, train_dataset=loader, compute_metrics=measure)
assert trainer.evaluate(val)["eval_rows"] == 8
assert ends == [False, False, True]
assert not trainer.accelerator.gradient_state.in_dataloader

# More steps of the same run, in the place of the state's step.
loader = gear_data.SequenceLoader(ds, **OPTIONS)
trainer = LoaderTrainer(Policy(), arguments(max_steps=6), train_dataset=loader)
trainer.train(resume_from_checkpoint=True)
assert (trainer.state.global_step, loader.state_dict()["step"]) == (6, 6)

with pytest.raises(
    InvalidArgumentError, match=r"stack several batches(.|\n)*LoaderTrainer\(model, args, train_dataset="
):
    Trainer(Policy(), arguments(max_steps=2), train_dataset=loader).train()
with pytest.raises(InvalidArgumentError, match="train_dataset is a list, not a SequenceLoader"):
    LoaderTrainer(Policy(), arguments(), train_dataset=[])
for evaluated in (loader, {"endless": loader}):
    with pytest.raises(InvalidArgumentError, match="the loader for evaluation has no end"):
        LoaderTrainer(Policy(), arguments(max_steps=6), train_dataset=loader, eval_dataset=evaluated)
with pytest.raises(InvalidArgumentError, match="the loader for evaluation has no end"):
    LoaderTrainer(Policy(), arguments(max_steps=6), train_dataset=loader).evaluate(loader)
with pytest.raises(InvalidArgumentError, match="dataloader_num_workers is 2"):
    LoaderTrainer(Policy(), arguments(max_steps=6, dataloader_num_workers=2), train_dataset=loader)
other = gear_data.SequenceLoader(ds, **OPTIONS, seed=7)
with pytest.raises(StateMismatchError, match="another seed"):
    LoaderTrainer(Policy(), arguments(max_steps=8), train_dataset=other).train(resume_from_checkpoint=True)
state = folder / "checkpoint-6" / "trainer_state.json"
saved = json.loads(state.read_text())
del saved["stateful_callbacks"]["SequenceLoader"]
state.write_text(json.dumps(saved))
with pytest.raises(StateMismatchError, match="step 6 has no state of a loader"):
    LoaderTrainer(Policy(), arguments(max_steps=8), train_dataset=loader).train(resume_from_checkpoint=True)
