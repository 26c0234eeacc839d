"""Threads of the CPU: what one of them has waited for, another has not, unless they tell each other."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from emulation.races.patterns.scaffold import N, beside, current, gpu, pinned, versions

Tell = Callable[[], object]


@contextmanager
def beside_thread(runs: Tell) -> Any:
    thread = threading.Thread(target=runs)
    thread.start()
    yield
    thread.join()


# -- ways in which a thread tells another that it may go on ------------------------------------------


def by_a_queue() -> tuple[Tell, Tell]:
    passed = queue.Queue[None]()
    return lambda: passed.put(None), passed.get


def by_an_event() -> tuple[Tell, Tell]:
    passed = threading.Event()
    return passed.set, passed.wait


def by_a_lock() -> tuple[Tell, Tell]:
    lock = threading.Lock()
    lock.acquire()
    return lock.release, lock.acquire


def by_a_condition() -> tuple[Tell, Tell]:
    passed, done = threading.Condition(), False

    def tells() -> None:
        nonlocal done
        with passed:
            done = True
            passed.notify()

    def asks() -> None:
        with passed:
            passed.wait_for(lambda: done)

    return tells, asks


def by_a_future() -> tuple[Tell, Tell]:
    passed: Future[None] = Future()
    return lambda: passed.set_result(None), passed.result


def by_a_barrier() -> tuple[Tell, Tell]:
    both = threading.Barrier(2)
    return both.wait, both.wait


def by_a_deque() -> tuple[Tell, Tell]:
    passed = deque[None]()

    def asks() -> None:
        while not passed:
            time.sleep(0.001)

    return lambda: passed.append(None), asks


def by_a_name() -> tuple[Tell, Tell]:
    passed = False

    def tells() -> None:
        nonlocal passed
        passed = True

    def asks() -> None:
        while not passed:
            time.sleep(0.001)

    return tells, asks


WAYS = (
    by_a_queue, by_an_event, by_a_lock, by_a_condition, by_a_future, by_a_barrier, by_a_deque, by_a_name,
)  # fmt: skip


@versions(
    read_in_another_thread_wrong_801=(by_an_event, False),
    **{f"read_in_another_thread_told_{way.__name__}": (way, True) for way in WAYS},
)
def read_in_another_thread(way: Any, behind: bool) -> None:
    """The loop waits, for something else; the thread reads when it is told to."""
    tells, asks = way()
    host = pinned(1)

    def reads() -> None:
        asks()
        time.sleep(0.005)  # so that the loop could be first
        host.item()

    with beside_thread(reads):
        host.copy_(gpu(1), non_blocking=True)
        if not behind:
            tells()
        torch.cuda.synchronize()
        if behind:
            tells()


@versions(
    stream_waits_in_another_thread_wrong_803=(by_an_event, False),
    stream_waits_in_another_thread_told=(by_an_event, True),
)
def stream_waits_in_another_thread(way: Any, behind: bool) -> None:
    """Both threads launch in the default stream; one of them makes it wait for the copy."""
    tells, asks = way()
    target = torch.zeros(N, device="cuda")

    def uses() -> None:
        asks()
        time.sleep(0.005)
        target.sum()

    with beside_thread(uses):
        with beside() as side:
            target.copy_(torch.randn(N).pin_memory(), non_blocking=True)
        if not behind:
            tells()
        current().wait_stream(side)
        if behind:
            tells()


@versions(
    refilled_by_another_thread_wrong_802=(by_an_event, False),
    refilled_by_another_thread_told=(by_an_event, True),
)
def refilled_by_another_thread(way: Any, behind: bool) -> None:
    tells, asks = way()
    staging = pinned()

    def refills() -> None:
        asks()
        time.sleep(0.005)
        staging.fill_(1)

    with beside_thread(refills):
        staging.to("cuda", non_blocking=True)
        if not behind:
            tells()
        current().synchronize()
        if behind:
            tells()


# -- generators --------------------------------------------------------------------------------------


def drawing(generator: Any, until: threading.Event) -> None:
    while not until.wait(0.0005):
        torch.rand(8, device="cuda", generator=generator)


def of_its_own(generator: Any) -> Any:
    return torch.Generator(device="cuda").manual_seed(1)


@versions(
    generator_of_two_threads_wrong_806=(lambda generator: generator, 0, True),
    generator_of_each_thread=(of_its_own, 0, True),
    default_generator_of_two_threads_wrong_806=(lambda generator: None, 0, True),
    default_generator_that_is_not_seeded=(lambda generator: None, None, True),
    generators_one_after_the_other=(lambda generator: generator, 0, False),
)
def generators(of_the_thread: Any, seed: int | None, at_once: bool) -> None:
    if seed is not None:
        torch.manual_seed(seed)
    done, generator = threading.Event(), torch.Generator(device="cuda").manual_seed(0)
    of_thread = of_the_thread(generator)
    own = generator if of_thread is not None else None
    with beside_thread(lambda: drawing(of_thread, done)):
        if not at_once:
            time.sleep(0.01)
            done.set()
        if at_once:
            for _ in range(60):
                torch.randn(8, device="cuda", generator=own)
                time.sleep(0.0005)
        done.set()
    torch.randn(8, device="cuda", generator=own)


@versions(evaluated_beside_training=())
def evaluated_beside_training() -> None:
    """Attention and dropout that draw nothing share no numbers."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).cuda()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).cuda().eval()
    x = torch.ones(2, 4, 8, device="cuda")
    torch.cuda.synchronize()

    def evaluates() -> None:
        for _ in range(4):
            model(layer(x))

    with beside_thread(evaluates), ThreadPoolExecutor(1) as executor:
        executor.submit(evaluates)
        evaluates()


@versions(draws_in_turn=())
def draws_in_turn() -> None:
    """A thread draws when it is asked to, and whoever asks waits for its numbers."""
    torch.manual_seed(0)
    requests, answers = queue.Queue[Any](), queue.Queue[Any]()

    def makes() -> None:
        while requests.get():
            answers.put(torch.rand(8, device="cuda"))

    with beside_thread(makes):
        for _ in range(4):
            requests.put(True)
            answers.get() + torch.rand(8, device="cuda")
        requests.put(False)
