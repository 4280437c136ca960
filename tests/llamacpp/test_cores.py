"""Threads: one a core, and how copies on the processor share what there is."""

from __future__ import annotations

import pytest

from lacli.llamacpp.devices import physical_cores, shared_threads, with_threads
from lacli.llamacpp.settings import ModelSettings


@pytest.mark.parametrize(
    ("threads", "copies", "each"), [(8, 2, 4), (8, 3, 2), (2, 3, 1), (1, 2, 1), (8, 1, 8), (8, 0, 8)]
)
def test_the_threads_are_the_machines_and_every_copy_has_one(threads: int, copies: int, each: int) -> None:
    shared = shared_threads(ModelSettings(threads=threads), copies)
    assert (shared.threads, shared.threads_batch) == (each, each)


def test_the_threads_of_batches_are_shared_by_themselves() -> None:
    shared = shared_threads(ModelSettings(threads=4, threads_batch=12), 2)
    assert (shared.threads, shared.threads_batch) == (2, 6)


def test_what_is_not_said_is_the_cores_of_the_machine() -> None:
    assert shared_threads(ModelSettings(), 1) == with_threads(ModelSettings())
    assert shared_threads(ModelSettings(), physical_cores()).threads == 1
