"""Other threads than the one that trains: they read, they evaluate, they train."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator
from typing import Any

import torch

from tests.multiprocess.programs.base import (
    STEPS,
    Program,
    Run,
    begun,
    loss_of,
    stepped,
    trained,
)


@contextlib.contextmanager
def _beside(work: Any) -> Iterator[None]:
    """Do ``work()`` over and over on another thread."""
    over, errors = threading.Event(), []

    def loop() -> None:
        try:
            while not over.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]


def a_thread_reads_weights(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    with _beside(lambda: {name: value.clone() for name, value in model.state_dict().items()}):
        for step in range(2 * STEPS):
            optimizer.zero_grad()
            loss_of(wrapped(run.batch(step))).backward()
            optimizer.step()
    run.end(model, optimizer)


def a_thread_reads_the_state(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    loss_of(wrapped(run.batch(0))).backward()
    optimizer.step()
    with _beside(lambda: copy.deepcopy(optimizer.state_dict())):
        for step in range(2 * STEPS):
            optimizer.zero_grad()
            loss_of(wrapped(run.batch(step))).backward()
            optimizer.step()
    run.end(model, optimizer)


def a_thread_reads_gradients_on_rank_1(run: Run) -> None:
    """It has them from the thread that trains: to set ``p.grad`` meanwhile is a race in torch."""
    for _, model, _, _ in trained(run):
        gradients = [parameter.grad for parameter in model.parameters()]
        norms: list[float] = []

        def look(gradients: Any = gradients, norms: Any = norms) -> None:
            norms.extend(float(gradient.abs().max()) for gradient in gradients)

        if run.rank == 1:
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            run.see("norms", norms)


def a_thread_evaluates(run: Run) -> None:
    wrapped, model, optimizer = begun(run)

    def evaluate() -> None:
        with torch.no_grad():
            model(torch.ones(2, 8))

    with _beside(evaluate):
        for step in range(2 * STEPS):
            optimizer.zero_grad()
            loss_of(wrapped(run.batch(step))).backward()
            optimizer.step()
    run.end(model, optimizer)


def saved_on_a_thread(run: Run) -> None:
    """An asynchronous checkpoint: taken after the step, awaited after the next."""
    wrapped, model, optimizer = begun(run)
    for _ in stepped(run, wrapped, optimizer):
        if run.rank == 0:
            found: list[Any] = []
            thread = threading.Thread(
                target=lambda found=found: found.append(
                    copy.deepcopy((model.state_dict(), optimizer.state_dict()))
                )
            )
            thread.start()
            thread.join()
            run.see("saved", found)
    run.end(model, optimizer)


def trained_on_a_thread(run: Run) -> None:
    """The thread that trains is not the main one."""
    errors: list[BaseException] = []

    def train() -> None:
        try:
            for _, model, _, _ in trained(run):
                run.see("norm", model[0].weight.grad.abs().max())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def another_thread_in_every_step(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    errors: list[BaseException] = []
    for step in range(STEPS):

        def train(step: int = step) -> None:
            try:
                optimizer.zero_grad()
                loss_of(wrapped(run.batch(step))).backward()
                optimizer.step()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
    run.end(model, optimizer)


def steps_on_another_thread(run: Run) -> None:
    wrapped, model, optimizer = begun(run)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped(run.batch(step))).backward()
        thread = threading.Thread(target=optimizer.step)
        thread.start()
        thread.join()
    run.end(model, optimizer)


PROGRAMS: list[Program] = [
    a_thread_reads_weights,
    a_thread_reads_the_state,
    a_thread_reads_gradients_on_rank_1,
    a_thread_evaluates,
    saved_on_a_thread,
    trained_on_a_thread,
    another_thread_in_every_step,
    steps_on_another_thread,
]
