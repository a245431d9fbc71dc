from automap_launch.frontends.matching import match_by_structure
from automap_launch.train_step import Argument, Result


def arguments(*paths, shape=(2,)):
    return [Argument(path, shape, "float32", "other") for path in paths]


def results(*paths, shape=(2,)):
    return [Result(path, shape, "float32") for path in paths]


def test_the_longest_common_end_wins():
    matched = match_by_structure(
        arguments("params/w", "opt/0/mu/w", "opt/0/nu/w"), results("0/w", "1/0/nu/w", "1/0/mu/w")
    )
    assert matched == {0: 0, 1: 2, 2: 1}


def test_a_bare_tree_is_matched():
    assert match_by_structure(arguments("params/a/w", "params/b/w"), results("b/w", "a/w")) == {0: 1, 1: 0}


def test_shape_and_dtype_must_agree():
    assert match_by_structure(arguments("p/w"), results("0/w", shape=(3,))) == {}
    assert match_by_structure(arguments("p/w"), [Result("0/w", (2,), "int32")]) == {}


def test_lone_arrays_match_only_if_something_was_added():
    assert match_by_structure(arguments("w", "x"), results("0")) == {}
    assert match_by_structure(arguments("x", "w"), results("0"), additive={(1, 0)}) == {0: 1}


def test_among_equals_the_sum_wins():
    assert match_by_structure(arguments("ema/w", "params/w"), results("0/w"), additive={(1, 0)}) == {0: 1}
