"""Loops written as scripts write them, watched in this process: which function is found, or what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from automap_launch.errors import CaptureError
from automap_launch.frontends import detect_step, jit_hook
from automap_launch.frontends.build_step import build_step
from automap_launch.frontends.detect_step import StepDetector
from automap_launch.train_step import Entry

PARAMS = {"w": np.full((4, 2), 0.5, np.float32), "b": np.zeros(2, np.float32)}


class Accepted(BaseException):
    pass


def batches(count=10):
    for i in range(count):
        yield np.full((8, 4), i, np.float32), np.zeros((8, 2), np.float32)


def loss_fn(params, x, y):
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2) + 0.01 * jnp.sum(params["w"] ** 2)


def descend(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def sgd_step(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return descend(params, grads), loss


def run_to_the_end(script, detector):
    script()
    detector.decide()


def other_step(params, x, y):
    return sgd_step(params, x, y)


def found(script, **options):
    """The step that is found in `script`, a function, and whether it was proven by a second call."""

    def accept(call, before):
        raise Accepted(call, before)

    def refuse(error):
        raise error

    detector = StepDetector(1 << 20, accept, refuse, **options)
    uninstall = jit_hook.install(detector.on_call)
    try:
        with detector.trace, pytest.raises(Accepted) as caught:
            run_to_the_end(script, detector)
        call, before = caught.value.args
        with detector.trace:
            return build_step(call, before, Entry(script="x.py"), ["cpu"]), before is not None
    finally:
        uninstall()


def refusal(script, **options):
    with pytest.raises(CaptureError) as error:
        found(script, **options)
    return error.value


def test_a_step_is_proven_by_its_second_call_and_never_executed():
    executed = []

    def script():
        @jax.jit
        def train_step(params, x, y):
            jax.debug.callback(lambda: executed.append(1))
            return sgd_step(params, x, y)

        params = PARAMS
        for x, y in batches():
            params, _ = train_step(params, x, y)

    step, proven = found(script)
    jax.effects_barrier()
    assert proven
    assert executed == []
    assert step.identity.name == "train_step"
    assert [(a.path, a.role) for a in step.arguments] == [
        ("params/b", "state"),
        ("params/w", "state"),
        ("x", "batch"),
        ("y", "batch"),
    ]
    assert [(r.path, r.replaces) for r in step.results] == [("0/b", 0), ("0/w", 1), ("1", None)]


@pytest.mark.parametrize(
    "read", [float, bool, str, "{:.3f}".format, np.asarray, lambda x: x.item(), lambda x: x > 1 or 0]
)
def test_reading_the_loss_after_each_step_does_not_hinder_the_proof(read):
    def script():
        train_step, params = jax.jit(sgd_step), PARAMS
        for x, y in batches():
            params, loss = train_step(params, x, y)
            read(loss)

    assert found(script)[1]


def test_a_script_that_makes_one_step_is_found_by_structure():
    def script():
        _, loss = jax.jit(sgd_step)(PARAMS, *next(batches()))
        print(float(loss))

    step, proven = found(script)
    assert not proven
    assert [r.replaces for r in step.results] == [0, 1, None]
    assert [a.role for a in step.arguments] == ["state", "state", "batch", "batch"]


def test_an_exception_after_the_first_step_or_an_early_stop_leaves_the_structure():
    def script():
        train_step, params = jax.jit(sgd_step), PARAMS
        for x, y in batches():
            params, loss = train_step(params, x, y)
            if float(loss) < 1:
                break

    assert not found(script)[1]


def gradients_then_eager_update(read=lambda loss: None, count=10):
    grad_fn, params = jax.jit(jax.value_and_grad(loss_fn)), PARAMS
    for x, y in batches(count):
        loss, grads = grad_fn(params, x, y)
        read(loss)
        params = descend(params, grads)


@pytest.mark.parametrize("read", [lambda loss: None, float])
def test_gradients_with_an_eager_update_are_refused(read):
    error = refusal(functools.partial(gradients_then_eager_update, read))
    assert "returns gradients" in error.message
    assert "`loss_fn`" in error.message
    assert "train_step" in error.hint


def test_one_call_of_a_gradient_function_is_no_step():
    assert "none of its jitted functions" in refusal(lambda: gradients_then_eager_update(float, 1)).message


def test_gradients_and_update_jitted_apart_are_refused_by_both_names():
    @functools.wraps(loss_fn)
    def script():
        grad_fn = jax.jit(jax.grad(loss_fn))
        update = jax.jit(descend)
        params = PARAMS
        for x, y in batches():
            params = update(params, grad_fn(params, x, y))

    message = refusal(script).message
    assert "`loss_fn`" in message
    assert "`descend`" in message


def test_gradients_that_carry_statistics_are_still_gradients():
    def with_stats(params, stats, x, y):
        return loss_fn(params, x - stats, y), 0.9 * stats + 0.1 * x.mean(0)

    def script():
        grad_fn = jax.jit(jax.value_and_grad(with_stats, has_aux=True))
        params, stats = PARAMS, np.zeros(4, np.float32)
        for x, y in batches():
            (_, stats), grads = grad_fn(params, stats, x, y)
            params = descend(params, grads)

    assert "returns gradients" in refusal(script).message


def test_a_separate_moving_average_is_not_the_step():
    def script():
        train_step = jax.jit(sgd_step)
        average = jax.jit(lambda ema, p: jax.tree.map(lambda e, v: 0.9 * e + 0.1 * v, ema, p))
        params, ema = PARAMS, PARAMS
        ema = average(ema, params)
        for x, y in batches():
            params, _ = train_step(params, x, y)
            ema = average(ema, params)

    assert found(script)[0].identity.name == "sgd_step"


def test_a_target_network_that_the_script_averages_is_state():
    def with_target(params, target, x):
        def loss(p):
            return jnp.mean((x @ p["w"] - x @ target["w"]) ** 2)

        return descend(params, jax.grad(loss)(params))

    def script():
        train_step = jax.jit(with_target)
        params, target = PARAMS, {**PARAMS, "w": PARAMS["w"] * 2}
        for x, _ in batches():
            params = train_step(params, target, x)
            target = jax.tree.map(lambda t, p: 0.9 * t + 0.1 * p, target, params)

    step, proven = found(script)
    assert proven
    assert {a.path: a.role for a in step.arguments if a.path.startswith("target")} == {
        "target/b": "state",
        "target/w": "state",
    }


def test_clipping_outside_the_step_keeps_what_replaces_what():
    def script():
        train_step, params = jax.jit(sgd_step), PARAMS
        count = jnp.zeros(())
        for x, y in batches():
            params, _ = train_step(params, x, y)
            params = {**params, "w": jnp.clip(params["w"], -1, 1)}
        return count

    step, proven = found(script)
    assert proven
    assert [r.replaces for r in step.results] == [0, 1, None]


@pytest.mark.parametrize("critic_steps", [1, 3])
def test_adversarial_training_is_refused_by_both_names(critic_steps):
    def critic(c, g, x):
        return descend(c, jax.grad(lambda c: jnp.mean((x @ g["w"]) * c["w"].sum(0) + c["b"]))(c))

    def generator(g, c, x):
        return descend(g, jax.grad(lambda g: -jnp.mean((x @ g["w"]) * c["w"].sum(0) + g["b"]))(g))

    def script():
        critic_step, generator_step = jax.jit(critic), jax.jit(generator)
        c, g = PARAMS, PARAMS
        for i, (x, _) in enumerate(batches(20)):
            c = critic_step(c, g, x)
            if i % critic_steps == 0:
                g = generator_step(g, c, x)

    message = refusal(script).message
    assert "several steps" in message
    assert "`" in message.split("critic")[0]
    assert found(script, step_name="generator")[0].identity.name.endswith("generator")


def step_of(loss):
    """A step made by a factory, as one is made for each task of a model."""

    def update(own, other, x):
        value, grads = jax.value_and_grad(lambda own: loss(own, other, x))(own)
        return descend(own, grads), value

    return jax.jit(update)


def distance(own, other, x):
    return jnp.mean((x @ own["w"] + own["b"]) ** 2) + jnp.sum(other["w"])


@pytest.mark.parametrize("first_task_for", [1, 3])
def test_one_definition_that_updates_the_same_state_for_several_tasks_is_one_step(first_task_for):
    def script():
        tasks, params = [step_of(distance), step_of(lambda *args: 2 * distance(*args))], PARAMS
        for i, (x, _) in enumerate(batches(20)):
            params, loss = tasks[i % (first_task_for + 1) >= first_task_for](params, PARAMS, x)
            print(float(loss))

    step, _ = found(script)
    assert step.identity.name == "update"
    assert [a.role for a in step.arguments] == ["state"] * 4 + ["batch"]
    assert [r.replaces for r in step.results] == [0, 1, None]


def test_adversaries_made_by_one_factory_are_still_two_steps():
    def script():
        critic_step, generator_step = step_of(distance), step_of(lambda *args: -distance(*args))
        c, g = PARAMS, PARAMS
        for x, _ in batches(20):
            c, _ = critic_step(c, g, x)
            g, _ = generator_step(g, c, x)

    assert "several steps" in refusal(script).message


def whole_loop(params, xs, ys):
    def body(p, batch):
        return sgd_step(p, *batch)

    return jax.lax.scan(body, params, (xs, ys))


def stacked():
    return [np.stack(arrays) for arrays in zip(*batches(3), strict=True)]


def test_a_whole_loop_called_once_is_refused_by_name():
    def script():
        _, losses = jax.jit(whole_loop)(PARAMS, *stacked())
        print(losses[-1])

    message = refusal(script).message
    assert "`whole_loop`" in message
    assert "whole training loop" in message


def test_a_loop_over_some_steps_called_again_is_a_step():
    def script():
        epoch, params = jax.jit(whole_loop), PARAMS
        for _ in range(8):
            params, _ = epoch(params, *stacked())

    assert found(script)[0].identity.name == "whole_loop"


def test_hand_written_gradients_are_a_step_when_nothing_else_is():
    def by_hand(params, x, y):
        error = x @ params["w"] + params["b"] - y
        return {"w": params["w"] - 0.1 * x.T @ error, "b": params["b"] - 0.1 * error.sum(0)}, (error**2).mean()

    def script():
        step, params = jax.jit(by_hand), PARAMS
        for x, y in batches():
            params, loss = step(params, x, y)
            print(float(loss))

    step, proven = found(script)
    assert proven
    assert step.identity.name.endswith("by_hand")


def test_evaluation_that_carries_metrics_before_training_is_not_the_step():
    def evaluate(params, total, x, y):
        return total + loss_fn(params, x, y)

    def script():
        eval_step, train_step, params = jax.jit(evaluate), jax.jit(sgd_step), PARAMS
        total = jnp.zeros(())
        for x, y in batches(20):
            total = eval_step(params, total, x, y)
        print(float(total))
        for x, y in batches():
            params, _ = train_step(params, x, y)

    assert found(script)[0].identity.name == "sgd_step"


def test_frontend_step_names_the_function():
    def script():
        first, second, params = jax.jit(sgd_step), jax.jit(functools.partial(other_step)), PARAMS
        for x, y in batches():
            params, _ = first(params, x, y)
            params, _ = second(params, x, y)

    assert found(script, step_name="other_step")[0].identity.name == "other_step"
    error = refusal(script, step_name="train")
    assert "train" in error.message
    assert "`sgd_step`" in error.message
    assert "10 calls" in error.message


def test_the_named_function_must_return_state():
    assert "returns gradients" in refusal(gradients_then_eager_update, step_name="loss_fn").message
    once = functools.partial(gradients_then_eager_update, float, 1)
    assert "returns nothing" in refusal(once, step_name="loss_fn").message


def test_reading_an_abstract_array_names_the_line_and_the_limit():
    def script():
        table = jnp.ones((1024, 1024))
        print(table[0].sum() + 1)

    error = refusal(script)
    assert error.file == __file__
    assert "materialize_limit=1 MiB" in error.message
    assert "materialize_limit=4MiB" in error.hint


def test_no_jitted_function_at_all():
    assert "no jitted function" in refusal(lambda: None).message


def test_pmap_is_refused_by_name():
    error = refusal(lambda: jax.pmap(sgd_step)(PARAMS, *next(batches())))
    assert "`sgd_step`" in error.message
    assert "jax.jit" in error.hint


def test_a_function_jitted_anew_in_every_turn_is_one_function():
    def script():
        params = PARAMS
        for x, y in batches():
            params, _ = jax.jit(sgd_step)(params, x, y)

    assert found(script)[1]


def test_full_batch_training_has_a_batch():
    def script():
        (x, y), params = next(batches()), PARAMS
        x, y = jnp.asarray(x), jnp.asarray(y)
        step = jax.jit(sgd_step)
        for _ in range(10):
            params, _ = step(params, x, y)

    assert [a.role for a in found(script)[0].arguments] == ["state", "state", "batch", "batch"]


def test_the_decision_does_not_wait_for_ever_after_a_stand_in(monkeypatch):
    monkeypatch.setattr(detect_step, "LOOK_AHEAD_CALLS", 10**9)

    def script():
        train_step, other = jax.jit(sgd_step), jax.jit(loss_fn)
        _, loss = train_step(PARAMS, *next(batches()))
        print(float(loss))
        while True:
            other(PARAMS, *next(batches()))

    assert not found(script, wait_seconds=0.0)[1]
