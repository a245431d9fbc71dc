from automap_launch.frontends.roles import assign_roles
from automap_launch.train_step import Argument


def roles(specification, **known):
    names = list(specification)
    arguments = [Argument(p, s, d, "other") for p, (s, d) in specification.items()]
    indexed = {key: [names.index(path) for path in paths] for key, paths in known.items()}
    return dict(zip(names, assign_roles(arguments, **{"carried": [], **indexed}), strict=True))


FLOAT, INT = "float32", "int32"


def test_carried_is_state_arrays_are_batch_scalars_and_keys_are_other():
    found = roles(
        {
            "params/w": ((4, 3), FLOAT),
            "step": ((), INT),
            "rate": ((), FLOAT),
            "key": ((), "key<fry>"),
            "old_key": ((2,), "uint32"),
            "batch/x": ((8, 4), FLOAT),
            "batch/y": ((8,), INT),
        },
        carried=["params/w", "step"],
        unchanged=["rate"],
    )
    assert found == {
        "params/w": "state",
        "step": "state",
        "rate": "other",
        "key": "other",
        "old_key": "other",
        "batch/x": "batch",
        "batch/y": "batch",
    }


def test_full_batch_training_passes_the_same_arrays_every_time():
    found = roles(
        {"params/w": ((4, 3), FLOAT), "x": ((100, 4), FLOAT), "y": ((100,), INT)},
        carried=["params/w"],
        unchanged=["x", "y"],
    )
    assert found["x"] == found["y"] == "batch"


def test_an_unchanged_table_of_another_size_is_other():
    found = roles(
        {"w": ((4,), FLOAT), "x": ((8, 4), FLOAT), "mask": ((8, 2), FLOAT), "table": ((32, 2), FLOAT)},
        carried=["w"],
        unchanged=["table", "mask"],
    )
    assert found["table"] == "other"
    assert found["mask"] == "batch"


def test_frozen_parameters_are_state():
    specification = {
        "lora/a": ((4, 2), FLOAT),
        "base/w1": ((4, 8), FLOAT),
        "base/w2": ((8, 4), FLOAT),
        "x": ((16, 4), FLOAT),
    }
    for known in ({"unchanged": ["base/w1", "base/w2"]}, {}):
        found = roles(specification, carried=["lora/a"], **known)
        assert found["base/w1"] == found["base/w2"] == "state"
        assert found["x"] == "batch"


def test_what_the_script_derives_from_results_is_state():
    found = roles(
        {"w": ((4,), FLOAT), "target": ((4,), FLOAT), "x": ((8, 4), FLOAT)}, carried=["w"], derived=["target"]
    )
    assert found["target"] == "state"
