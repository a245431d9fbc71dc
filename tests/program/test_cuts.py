"""Where a row of pieces is cut."""

from __future__ import annotations

from automap_launch.program.cuts import choose_cuts

# Two layers, each of: a norm (x and its copy cross), a wide part, a sum that ends in x alone.
LAYER_WORK = [1, 1, 20, 20, 1]
LAYER_BYTES = [10, 20, 20, 60, 20]


def layers(count):
    return LAYER_WORK * count, LAYER_BYTES * count


def test_cut_between_layers_not_within():
    work, crossing = layers(8)
    assert choose_cuts(work, crossing, 16) == [5, 10, 15, 20, 25, 30, 35]


def test_equal_crossing_is_cut_where_the_work_is_equal():
    assert choose_cuts([10] * 8, [4] * 8, 4) == [2, 4, 6]


def test_few_bytes_at_the_loss_do_not_keep_the_layers_together():
    work, crossing = layers(8)
    assert choose_cuts([*work, 2, 1, 1], [*crossing, 5, 1, 1], 16)[:7] == [5, 10, 15, 20, 25, 30, 35]


def test_parts_with_hardly_any_work_are_joined():
    cuts = choose_cuts([1, 100, 100, 1], [0, 1, 1, 1], 4)
    assert cuts == [2]


def test_never_more_parts_than_allowed():
    work, crossing = layers(40)
    for most in (1, 2, 7, 32):
        assert len(choose_cuts(work, crossing, most)) < most or most == 1
    assert choose_cuts(work, crossing, 1) == []


def test_narrower_places_are_kept_longer():
    crossing = [0, 9, 10, 9, 10, 9, 10, 9]
    assert set(choose_cuts([10] * 8, crossing, 5)) <= {1, 3, 5, 7}


def test_no_work_no_cut():
    assert choose_cuts([0, 0], [0, 1], 4) == []
