"""Paths of parameters in a table."""

from __future__ import annotations

from automap_launch.plan.names import common_root, some_names

LAYERS = [f"state/params/block_{layer}/mlp/{name}" for layer in range(12) for name in ("wi", "wo")]
EMBEDDING = "state/params/embedding"


def test_what_all_paths_begin_with_is_left_out():
    assert common_root([*LAYERS, EMBEDDING]) == "state/params/"
    assert common_root([EMBEDDING]) == "state/params/"
    assert common_root(["w", "b/w"]) == ""
    assert common_root([]) == ""
    assert some_names([EMBEDDING], "state/params/") == "embedding"


def test_layers_are_one_name_and_the_rest_is_counted():
    assert some_names(LAYERS, "state/params/") == "block_*/mlp/wi, block_*/mlp/wo"
    assert some_names([*LAYERS, EMBEDDING], "state/params/") == "block_*/mlp/wi, block_*/mlp/wo and 1 more"
    assert some_names(LAYERS[:1], "state/params/") == "block_*/mlp/wi"
    assert some_names(["layers/0/w1", "layers/1/w1", "layers/10/w2"]) == "layers/*/w1, layers/*/w2"
    assert some_names([]) == ""


def test_long_paths_lose_their_middle():
    path = "decoder/block_*/cross_attention/multi_head/key/kernel"
    assert some_names([path, "w"]) == "…/cross_attention/multi_head/key/kernel and 1 more"
    assert some_names(["a" * 60]) == "a" * 19 + "…" + "a" * 19
