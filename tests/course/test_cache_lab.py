"""The caches that graded tests of kernels make: spread over more than 32 bits, or one sequence."""

import numpy as np
import pytest
import torch

from minipaged.course.judge.cache_lab import OneSequence, spread
from minipaged.course.signatures import first_wrong_value


def test_neighbors_are_as_far_apart_as_asked():
    array = np.arange(24.0).reshape(3, 2, 4)
    tensor = spread(array, 2**30, 0, "cpu", "float16")
    assert tensor.stride() == (2**30, 4, 1)
    assert tensor.tolist() == array.tolist()


def test_what_stands_outside_of_the_axis_goes_on_at_that_distance():
    array = np.arange(48.0).reshape(2, 2, 3, 4)
    tensor = spread(array, 100, 1, "cpu")
    assert tensor.stride() == (200, 100, 4, 1)
    assert tensor.dtype is torch.float64
    assert tensor.tolist() == array.tolist()


def test_entries_must_not_overlap():
    with pytest.raises(ValueError, match="stride 7 is less than the 8 elements of one entry"):
        spread(np.zeros((3, 2, 4)), 7, 0, "cpu")


def test_one_sequence_attends_to_its_tokens():
    from minipaged.kernels.paged_decode_v0 import paged_decode_v0

    seq = OneSequence(paged_decode_v0, block_size=2)
    assert seq.attend(1) == 0.0
    for key, value in ((0, 4), (0, 12), (1000, -7)):
        seq.append(key, value)
    assert (seq.num_tokens, seq.attend(0), seq.attend(1), seq.attend(-1)) == (3, 3.0, -7.0, 8.0)


def test_a_first_wrong_value_does_not_depend_on_a_line_of_the_kernel():
    told = "out of bounds: load of q [2] at offset 2 (in elements, of 2) by program (0, 0, 0) of k"
    assert first_wrong_value(f"{told}, line 7: block 3") == f"{told}: block 3"
    assert first_wrong_value(f"{told}, line 71") == told
