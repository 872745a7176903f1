"""The prefetcher: order, hand-over of errors, and no thread left behind."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter

import numpy as np
import pytest

from gear_data import ExecutionOptions, SequenceLoader, Weighted
from gear_data.common.cancellation import call_interruptibly
from gear_data.errors import InvalidArgumentError
from gear_data.loaders import prefetch
from gear_data.loaders.builders.cpu import CpuBatchBuilder
from gear_data.loaders.prefetch import END_SECONDS, Prefetcher
from tests.support.feed.batches import same, take
from tests.support.running.eventually import eventually
from tests.support.running.interrupts import interrupted
from tests.support.running.python_calls import python_calls

SHAPES = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (8, 2), (5, 3), (1, 0), (4, 0)]  # depth, threads
every_shape = pytest.mark.parametrize(("depth", "threads"), SHAPES)
WAIT = 30.0


def alive():
    return [thread for thread in threading.enumerate() if thread.name.startswith("gear-prefetch")]


def ended():
    """Whether all threads end. A thread whose prefetcher died ends by itself."""
    return eventually(lambda: not alive())


@pytest.fixture(autouse=True)
def no_thread_left():
    assert ended()
    yield
    assert ended()


@every_shape
@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_items_come_in_order_and_each_is_made_once(depth, threads, count):
    made: Counter[int] = Counter()

    def make(item):
        # Makers overtake each other.
        time.sleep(0.002 if item % 3 == 0 else 0)
        made[item] += 1
        return item * item

    prefetcher = Prefetcher(make, count, depth, threads, threading.Lock())
    assert [prefetcher.get(item) for item in range(count)] == [item * item for item in range(count)]
    prefetcher.close()
    assert made == Counter(range(count))


@pytest.mark.parametrize("depth", [1, 4])
def test_without_threads_the_consumer_makes_items_ahead(depth):
    made = []

    def make(item):
        made.append((item, threading.get_ident()))
        return item

    prefetcher = Prefetcher(make, 20, depth, 0, threading.Lock())
    for item in range(20):
        prefetcher.get(item)
        assert made == [(each, threading.get_ident()) for each in range(min(item + depth + 1, 20))]
    assert not alive()
    prefetcher.close()


@every_shape
def test_no_more_than_depth_items_are_ahead_of_the_consumer(depth, threads):
    taken, worst = 0, 0
    lock = threading.Lock()

    def make(item):
        nonlocal worst
        with lock:
            worst = max(worst, item - taken)
        return item

    prefetcher = Prefetcher(make, None, depth, threads, threading.Lock())
    for item in range(60):
        prefetcher.get(item)
        with lock:
            taken = item + 1
    prefetcher.close()
    # `get` lets another item start before this loop counts `taken` up, so one more item may be ahead.
    assert worst <= depth + threads - 1 + 1


def test_a_thread_that_frees_items_is_still_waited_for() -> None:
    """At exit, a thread that frees the items of a prefetcher that died would be unwound inside the tensors' code."""
    main, second, dropped = threading.current_thread(), threading.Event(), threading.Event()
    seen: list[list[bool]] = []

    class Item:
        def __del__(self) -> None:
            if threading.current_thread() is not main:
                seen.append([lock.locked() for lock in prefetch._running])

    def make(number: int) -> Item:
        if number == 1:
            second.set()
            dropped.wait()
        return Item()

    before = list(prefetch._running)
    prefetcher = Prefetcher(make, None, 2, 1, threading.Lock())
    second.wait()
    del prefetcher
    gc.collect()
    dropped.set()
    assert eventually(lambda: len(seen) == 2 and list(prefetch._running) == before)
    assert all(len(locked) > len(before) and all(locked) for locked in seen)


@every_shape
def test_an_error_is_raised_at_the_turn_of_its_item(depth, threads):
    def make(item):
        if item == 5:
            raise KeyError("item 5")
        return item

    prefetcher = Prefetcher(make, None, depth, threads, threading.Lock())
    assert [prefetcher.get(item) for item in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError, match="item 5"):
        prefetcher.get(5)
    prefetcher.close()


class Script:
    """A `Pace` that follows a list.

    ways: for each item that is taken, whether the items after it are made ahead; then again from the beginning.
    """

    def __init__(self, *ways, ahead=True):
        self.ahead, self.ways, self.making = ahead, itertools.cycle(ways), 0.0

    def enter(self):
        pass

    def leave(self):
        self.ahead = next(self.ways)


CHANGES = [(False,), (True, False), (False, False, False, True), (True,) * 9 + (False,) * 9]
every_change = pytest.mark.parametrize("ways", CHANGES, ids=str)


@every_change
@pytest.mark.parametrize(("depth", "threads"), [(1, 1), (8, 2)])
@pytest.mark.parametrize("count", [None, 200, 197, 3])
def test_items_come_in_order_while_the_way_changes(depth, threads, count, ways):
    made: Counter[int] = Counter()

    def make(item):
        made[item] += 1
        return item * item

    prefetcher = Prefetcher(make, count, depth, threads, threading.Lock(), Script(*ways))
    taken = 200 if count is None else count
    assert [prefetcher.get(item) for item in range(taken)] == [item * item for item in range(taken)]
    assert prefetcher.started <= taken + depth + threads + 1
    prefetcher.close()
    assert set(made.values()) == {1}
    assert set(made) >= set(range(taken))
    assert count is None or set(made) == set(range(count))


def test_an_item_that_is_not_made_ahead_is_made_by_the_consumer_when_it_is_taken():
    makers = {}

    def make(item):
        makers[item] = threading.current_thread()
        return item

    script = Script(False)
    prefetcher = Prefetcher(make, None, 2, 1, threading.Lock(), script)
    prefetcher.get(0)
    ahead = 4  # as many as without a pace, before the first item is taken
    for item in range(1, 40):
        prefetcher.get(item)
        assert prefetcher.started <= max(ahead, item + 1)
    assert {makers[item] for item in range(ahead, 40)} == {threading.main_thread()}
    # Threads still wait for work, and get it again.
    script.ways = itertools.repeat(True)
    prefetcher.get(40)
    assert eventually(lambda: {makers.get(item) for item in range(41, 45)} - {None, threading.main_thread()})
    prefetcher.close()


@every_change
@pytest.mark.parametrize("failing", [5, 6, 17])
def test_an_error_is_raised_at_the_turn_of_its_item_while_the_way_changes(ways, failing):
    def make(item):
        if item == failing:
            raise KeyError(f"item {failing}")
        return item

    prefetcher = Prefetcher(make, None, 2, 1, threading.Lock(), Script(*ways))
    assert [prefetcher.get(item) for item in range(failing)] == list(range(failing))
    with pytest.raises(KeyError, match=f"item {failing}"):
        prefetcher.get(failing)
    with pytest.raises(InvalidArgumentError, match="follows one that failed"):
        prefetcher.get(failing + 1)
    prefetcher.close()


@every_change
def test_items_alive_are_bounded_while_the_way_changes(ways):
    depth, threads = 2, 1
    prefetcher = Prefetcher(Item, None, depth, threads, threading.Lock(), Script(*ways))
    for item in range(100):
        prefetcher.get(item)
        assert len(Item.living) <= depth + threads + 1
    prefetcher.close()
    del prefetcher
    gc.collect()
    assert not Item.living


def test_threads_that_wait_for_work_end_with_their_prefetcher():
    for close in (True, False):
        prefetcher = Prefetcher(lambda item: item, None, 2, 2, threading.Lock(), Script(False))
        for item in range(20):
            prefetcher.get(item)
        assert len(alive()) == 2
        if close:
            prefetcher.close()
        del prefetcher
        assert ended()


@pytest.fixture
def changing(monkeypatch):
    """Makes loaders change the way after some groups of batches, and take several that were not made ahead."""
    ways = [True] * 2 + [False] * 7
    monkeypatch.setattr("gear_data.loaders.batch_iterator.Pace", lambda settling: Script(*ways))


OPTIONS = {"batch_size": 10, "context": 6, "seed": 3, "preset": "decision_transformer"}


@pytest.mark.parametrize("prefetch", [1, 4])
def test_batches_and_states_are_the_same_while_the_way_changes(dataset, changing, prefetch):
    expected = take(SequenceLoader(dataset, prefetch=0, steps=70, **OPTIONS), 71)
    loader = SequenceLoader(dataset, prefetch=prefetch, steps=70, **OPTIONS)
    for step, batch in enumerate(loader, 1):
        same([batch], expected[step - 1 : step])
        assert loader.state_dict()["step"] == step
        if step % 9 == 0:
            resumed = SequenceLoader(dataset, prefetch=prefetch, steps=70, **OPTIONS)
            resumed.load_state_dict(loader.state_dict())
            same(take(resumed, 99), expected[step:])
    assert step == 70


def test_a_consumer_builds_one_by_one_what_is_not_built_ahead(dataset, monkeypatch):
    monkeypatch.setattr("gear_data.loaders.batch_iterator.Pace", lambda settling: Script(False))
    built, build = [], CpuBatchBuilder.build

    def noted(self, steps):
        built.append((threading.current_thread() is threading.main_thread(), list(steps)))
        return build(self, steps)

    monkeypatch.setattr(CpuBatchBuilder, "build", noted)
    iterator = iter(
        SequenceLoader(dataset, prefetch=2, steps=39, execution=ExecutionOptions(batches_at_once=4), **OPTIONS)
    )
    ahead = 4 * 3  # the groups that may be started before the pace has been asked
    for step in range(39):
        next(iterator)
        if step >= ahead:
            assert built[-1] == (True, [step])
            assert iterator.unstarted_step == min(step // 4 * 4 + 4, 39)


@pytest.mark.parametrize("failing", range(1, 40, 3))
def test_a_transform_fails_at_its_step_while_the_way_changes(dataset, changing, failing):
    drawn = np.random.Generator(np.random.Philox(key=np.array([OPTIONS["seed"], failing], np.uint64))).random()

    def transform(batch, rng):
        if rng.random() == drawn:
            raise OSError("transform broke")
        return batch

    loader = SequenceLoader(
        dataset, prefetch=2, transform=transform, execution=ExecutionOptions(batches_at_once=1), **OPTIONS
    )
    iterator = iter(loader)
    for _ in range(failing):
        next(iterator)
    with pytest.raises(OSError, match="transform broke"):
        next(iterator)
    assert next(iterator, None) is None
    assert loader.state_dict()["step"] == failing


def test_an_update_holds_after_the_batches_that_were_built_while_the_way_changes(dataset, changing):
    loader = SequenceLoader(dataset, prefetch=2, sampler=Weighted(np.ones(len(dataset))), **OPTIONS)
    versions, starts = [], []
    for step, batch in enumerate(loader, 1):
        versions += batch["weights_version"].unique().tolist()
        if step % 7 == 0:
            starts.append(loader.update_weights([0], [step]))
        if step == 70:
            break
    # Version n holds from the first step of update n on.
    assert versions == [sum(start <= each for start in starts) for each in range(70)]


def test_no_item_is_started_after_a_failure():
    """It could wait for a node as long as the failed item did."""
    made, failing = [], threading.Event()

    def make(item):
        made.append(item)
        if item == 1:
            failing.set()
            raise KeyError("item 1")
        # The first item ends after the second, so that the thread could go on to others.
        assert failing.wait(WAIT)
        return item

    prefetcher = Prefetcher(make, None, 8, 1, threading.Lock())
    assert prefetcher.get(0) == 0
    with pytest.raises(KeyError, match="item 1"):
        prefetcher.get(1)
    with pytest.raises(InvalidArgumentError, match="follows one that failed"):
        prefetcher.get(2)
    prefetcher.close()
    assert sorted(made) == [0, 1]


class Stop(BaseException):
    pass


def test_a_base_exception_is_handed_over():
    def make(item):
        raise Stop

    prefetcher = Prefetcher(make, None, 2, 2, threading.Lock())
    with pytest.raises(Stop):
        prefetcher.get(0)
    prefetcher.close()


@pytest.mark.skipif(
    sys.gettrace() is not None, reason="threads that change over so often cannot install a trace function"
)
@every_shape
def test_closing_at_any_moment_ends_the_threads(depth, threads):
    """Closing races with the threads; a lost race would wait for ever."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change over within every few instructions
    try:
        for turn in range(400):
            prefetcher = Prefetcher(lambda item: item, None, depth, threads, threading.Lock())
            for item in range(turn % 4):
                prefetcher.get(item)
            closing = threading.Thread(target=prefetcher.close, daemon=True)
            closing.start()
            closing.join(WAIT)
            assert not closing.is_alive()
            assert ended()
    finally:
        sys.setswitchinterval(before)


def test_closing_twice_and_after_the_end_is_fine():
    prefetcher = Prefetcher(lambda item: item, 3, 4, 2, threading.Lock())
    assert [prefetcher.get(item) for item in range(3)] == [0, 1, 2]
    prefetcher.close()
    prefetcher.close()


def test_closing_waits_for_items_in_progress():
    started, let_go, finished = threading.Event(), threading.Event(), []

    def make(item):
        started.set()
        let_go.wait(WAIT)
        finished.append(item)
        return item

    prefetcher = Prefetcher(make, None, 1, 1, threading.Lock())
    assert started.wait(WAIT)
    closing = threading.Thread(target=prefetcher.close)
    closing.start()
    assert closing.is_alive()
    let_go.set()
    closing.join(WAIT)
    assert finished == [0]


class Item:
    """Records when it is freed."""

    living: set[int] = set()  # noqa: RUF012

    def __init__(self, number):
        self.number = number
        self.living.add(number)

    def __del__(self):
        self.living.discard(self.number)


def test_an_item_is_released_after_it_is_handed_over():
    prefetcher = Prefetcher(Item, 40, 2, 2, threading.Lock())
    for item in range(40):
        prefetcher.get(item)
        # The thread lets go of it just after it has handed it over.
        assert eventually(lambda each=item: each not in Item.living)
    prefetcher.close()
    del prefetcher
    gc.collect()
    assert not Item.living


@pytest.mark.processes
def test_the_interpreter_ends_while_items_are_in_progress():
    code = (
        "import threading, time\n"
        "from gear_data.loaders.prefetch import Prefetcher\n"
        "p = Prefetcher(lambda item: time.sleep(0.01) or item, None, 8, 2, threading.Lock())\n"
        "print(p.get(0))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "0\n", "")


@pytest.mark.processes
def test_an_iterator_alive_at_exit_ends_quietly(dataset):
    """The iterator closes the prefetcher again after the modules' names are gone."""
    code = (
        "import gear_data\n"
        f"iterator = iter(gear_data.SequenceLoader(gear_data.open({str(dataset.path)!r}), 2, context=3))\n"
        "print(len(next(iterator)['valid_count']))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "2\n", "")


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_must_make_a_new_iterator(dataset):
    context = multiprocessing.get_context("fork")
    received, sent = context.Pipe(duplex=False)
    loader = SequenceLoader(dataset, 2, context=3)
    iterator = iter(loader)
    next(iterator)

    def child():
        try:
            # More batches than the parent's threads had ready.
            for _ in range(9):
                next(iterator)
        except InvalidArgumentError as error:
            sent.send(str(error))
        own = iter(loader)
        sent.send(len(next(own)["valid_count"]))
        own.close()

    process = context.Process(target=child)
    process.start()
    process.join(WAIT)
    hung = process.is_alive()
    process.kill()
    assert not hung
    assert "make a new iterator in the child" in received.recv()
    assert received.recv() == 2
    assert process.exitcode == 0
    assert len(next(iterator)["valid_count"]) == 2
    iterator.close()


@pytest.mark.processes
def test_closing_in_a_forked_child_returns():
    """The child has no threads, and its copy of the lock has any state."""
    prefetcher = Prefetcher(lambda item: item, None, 4, 2, threading.Lock())
    process = multiprocessing.get_context("fork").Process(target=prefetcher.close)
    process.start()
    process.join(WAIT)
    hung = process.is_alive()
    process.kill()
    assert not hung
    assert prefetcher.get(0) == 0
    prefetcher.close()


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_no_python_code_runs_when_an_iterator_dies(dataset, prefetch):
    """An interrupt in such code would be lost."""
    iterators = [iter(SequenceLoader(dataset, 2, context=3, prefetch=prefetch)) for _ in range(3)]
    for iterator in iterators[1:]:
        next(iterator)
    iterators[-1].close()
    del iterator
    assert python_calls(iterators.clear) == []


def test_an_interrupt_at_any_moment_of_the_start_leaves_no_thread():
    moments = 0
    while interrupted(lambda: Prefetcher(lambda item: item, None, 1, 2, threading.Lock()), moments):
        moments += 1
    assert moments > 10
    assert ended()


def test_no_thread_object_dies_in_the_consumers_thread(monkeypatch):
    """Python code runs when it dies: an interrupt in it would be lost."""
    died = []
    dangling = threading._dangling

    class Dangling:
        def add(self, thread):
            weakref.finalize(thread, lambda: died.append(threading.get_ident()))
            dangling.add(thread)

    monkeypatch.setattr(threading, "_dangling", Dangling())
    for _ in range(300):
        Prefetcher(lambda item: item, None, 1, 2, threading.Lock())
    assert ended() and eventually(lambda: len(died) == 600)
    assert threading.get_ident() not in died


def test_an_interrupted_iterator_is_closed(dataset):
    """An interrupt can arrive between taking and counting a batch."""

    def interrupt(batch, rng):
        if interrupted:
            raise KeyboardInterrupt
        return batch

    interrupted = []
    loader = SequenceLoader(dataset, 2, context=3, prefetch=0, transform=interrupt)
    iterator = iter(loader)
    next(iterator)
    interrupted.append(True)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert next(iterator, None) is None
    assert loader.state_dict()["step"] == 1


class Busy:
    """Makes items; in a thread, making an item takes until `let_go` is set."""

    def __init__(self):
        self.started, self.let_go = threading.Event(), threading.Event()

    def __call__(self, item):
        if threading.current_thread() is not threading.main_thread():
            self.started.set()
            self.let_go.wait(WAIT)
        return item


def test_closing_does_not_wait_for_ever():
    busy = Busy()
    prefetcher = Prefetcher(busy, None, 1, 1, threading.Lock())
    assert busy.started.wait(WAIT)
    began = time.monotonic()
    prefetcher.close()
    assert END_SECONDS <= time.monotonic() - began < WAIT / 2
    assert alive()
    busy.let_go.set()


EXIT = """
import sys, threading, time
from pathlib import Path
from gear_data.common.cancellation import call_user_function
from gear_data.loaders.prefetch import END_SECONDS, Prefetcher

folder, what, state = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
begun = threading.Event()

def make(item):
    if threading.current_thread() is threading.main_thread():
        return item
    begun.set()
    if what == "user":
        call_user_function(threading.Event().wait)
    time.sleep(END_SECONDS + 1)  # stands for a compiled call
    (folder / "ended").touch()

prefetcher = Prefetcher(make, None, 1, 1, threading.Lock())
begun.wait()
if state == "closed":
    prefetcher.close()
if state == "dropped":
    del prefetcher
"""


@pytest.mark.processes
@pytest.mark.parametrize("state", ["alive", "dropped", "closed"])
@pytest.mark.parametrize("what", ["own", "user"])
def test_the_end_of_the_process_waits_for_all_but_the_users_functions(what, state, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", EXIT, tmp_path, what, state], timeout=600, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "ended").exists() == (what == "own")


def test_closing_cancels_a_wait_of_the_thread():
    """The thread may wait for a node that does not answer."""
    started, cancelled = threading.Event(), threading.Event()

    def make(item):
        if threading.current_thread() is threading.main_thread():
            return item
        started.set()
        return call_interruptibly(lambda: cancelled.wait(WAIT), cancelled.set)

    prefetcher = Prefetcher(make, None, 1, 1, threading.Lock())
    assert started.wait(WAIT)
    prefetcher.close()
    assert cancelled.is_set()


def test_an_item_of_a_thread_that_ends_late_is_dropped():
    started, let_go, items = threading.Event(), threading.Event(), []

    def make(item):
        started.set()
        let_go.wait(WAIT)
        items.append(Item(item))
        return items[-1]

    prefetcher = Prefetcher(make, None, 1, 1, threading.Lock())
    assert started.wait(WAIT)
    prefetcher.close()
    let_go.set()
    assert ended()
    items.clear()
    assert not Item.living


@pytest.mark.processes
@pytest.mark.parametrize("interrupts", [1, 2])
def test_a_process_ends_while_a_thread_is_busy(interrupts):
    """Once with the exit that a second interrupt hastens."""
    code = (
        "import threading, time\n"
        "from gear_data.common.cancellation import call_user_function\n"
        "from gear_data.loaders.prefetch import Prefetcher\n"
        "main = threading.main_thread()\n"
        "busy = lambda: call_user_function(time.sleep, 600)\n"
        "make = lambda item: item if threading.current_thread() is main else busy()\n"
        "p = Prefetcher(make, None, 1, 2, threading.Lock())\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        for _ in range(interrupts):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        _, errors = process.communicate(timeout=WAIT)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors and "ignored" not in errors
