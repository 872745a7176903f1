"""Forked children of a process that used Polars get an error and do not hang."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys

import polars as pl
import pytest
from torch.utils.data import DataLoader

import gear_data
from gear_data import SequenceLoader, TopK, Weighted
from gear_data.errors import ForkedProcessError

WAIT = 60.0
OPTIONS = {"batch_size": 4, "context": 3, "steps": 6, "seed": 2, "passes": "repeat"}

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.processes]


def in_child(action):
    """Returns the result or the error of an action in a forked child."""
    context = multiprocessing.get_context("fork")
    received, sent = context.Pipe(duplex=False)

    def run():
        try:
            sent.send(action())
        except BaseException as error:
            sent.send(error)

    process = context.Process(target=run)
    process.start()
    answered = received.poll(WAIT)
    answer = received.recv() if answered else None
    process.kill()
    process.join()
    assert answered, "the child hangs"
    return answer


@pytest.fixture
def used(dataset):
    """The dataset, after Polars has computed in several threads."""
    frame = pl.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6]})
    assert frame.lazy().filter(pl.col("a") > 1).select(pl.col("a") + 1, pl.col("b")).collect().height == 2
    return dataset


NEEDS_POLARS = {
    "filter": lambda dataset: dataset.filter("length > 3"),
    "filter_steps": lambda dataset: dataset.filter_steps(pl.col("rewards") > 0),
    "Weighted": lambda dataset: SequenceLoader(dataset, sampler=Weighted("length"), **OPTIONS),
    "TopK": lambda dataset: SequenceLoader(dataset, sampler=TopK("length", 2), **OPTIONS),
    "episodes": lambda dataset: gear_data.open(dataset.path).episodes,
    "episodes of a view": lambda dataset: dataset.split({"a": 0.5, "b": 0.5})["a"].episodes,
}


@pytest.mark.parametrize("use", NEEDS_POLARS.values(), ids=NEEDS_POLARS)
def test_what_needs_polars_is_refused_in_a_forked_child(used, use):
    error = in_child(lambda: use(used))
    assert isinstance(error, ForkedProcessError)
    assert "multiprocessing_context='spawn'" in str(error) and "before the fork" in str(error)
    use(used)  # the parent goes on


def test_a_child_of_the_child_is_refused_too(used):
    error = in_child(lambda: in_child(lambda: used.filter("length > 3")))
    assert isinstance(error, ForkedProcessError)


def test_what_was_made_before_the_fork_works_in_the_child(used):
    view = used.filter("length > 3").filter_steps("rewards > 0")
    loader = SequenceLoader(view, sampler=Weighted("length + 1"), **OPTIONS)
    expected = [batch["observations"].numpy().tolist() for batch in loader]

    def use():
        again = SequenceLoader(view, **OPTIONS)
        assert len(list(again)) == 6 and view.episode_table.num_rows == len(view)
        return [batch["observations"].numpy().tolist() for batch in loader]

    assert in_child(use) == expected


def test_workers_of_a_dataloader_read_weighted_batches(used):
    loader = SequenceLoader(used, sampler=Weighted("length"), **OPTIONS)
    expected = [batch["observations"].clone() for batch in loader]
    workers = DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=WAIT)
    got = [batch["observations"].clone() for batch in workers]
    assert all((one == other).all() for one, other in zip(got, expected, strict=True))


def test_a_child_whose_parent_only_imported_polars_can_use_it(dataset):
    code = (
        "import os, sys, warnings\n"
        "import polars, gear_data\n"
        "warnings.simplefilter('ignore')\n"
        f"dataset = gear_data.open({str(dataset.path)!r})\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(10 + len(dataset.filter('length > 20')))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT, check=False)
    assert result.stdout == f"{10 + len(dataset.filter('length > 20'))}\n", result.stderr
