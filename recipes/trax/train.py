"""Trains a model of Trax 1.4.1: an MLP, a TransformerLM or a residual network, with `trax.supervised.training.Loop`.

The text is the language reference behind Python's `help()`, the rest is made, so nothing is downloaded:

    python train.py --model mlp
    python train.py --model lm --steps 1000 --learning-rate 5e-4
    python train.py --model resnet50 --batch-size 256 --output-dir runs/resnet50
"""

import argparse
import pydoc_data.topics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import trax
from trax import layers as tl
from trax.supervised import training

VOCABULARY = 256  # a token is a byte
CLASSES = 10

Batches = Iterator[tuple[np.ndarray, ...]]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=PROBLEMS, default="mlp")
    parser.add_argument("--steps", type=int, default=200, help="to end with, those of a checkpoint counted")
    parser.add_argument("--batch-size", type=int, default=32, help="examples a step")
    parser.add_argument("--length", type=int, default=64, help="bytes a sequence of text")
    parser.add_argument("--layers", type=int, default=2, help="blocks of the language model")
    parser.add_argument("--width", type=int, default=128, help="of the MLP and the language model")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=10, help="steps until the full learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20, help="steps between two evaluations")
    parser.add_argument("--output-dir", metavar="DIR", help="for checkpoints and summaries; goes on where it left off")
    parser.add_argument("--permute-rows", action="store_true", help="shuffle the examples inside each batch")
    parser.add_argument("--dump", metavar="FILE", help="save the losses and the final state as an .npz file")
    return parser.parse_args()


# Data: the step's number seeds the batch, so that a run that goes on from a checkpoint goes on with its data.


def made_classes(
    shape: tuple[int, ...], rows: int, seed: int
) -> Callable[[np.random.Generator], tuple[np.ndarray, ...]]:
    """Noisy copies of one random pattern a class: [rows, *shape] float32, labels [rows] int32, weights [rows]."""
    patterns = np.random.default_rng(seed).normal(size=(CLASSES, *shape)).astype(np.float32)

    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        labels = rng.integers(0, CLASSES, rows).astype(np.int32)
        noise = rng.normal(size=(rows, *shape)).astype(np.float32)
        return patterns[labels] + noise, labels, np.ones(rows, np.float32)

    return make


def text(rows: int, length: int) -> Callable[[np.random.Generator], tuple[np.ndarray, ...]]:
    """Random windows of the text: [rows, length] int32, one byte on their targets, and weights [rows, length]."""
    topics = pydoc_data.topics.topics
    tokens = np.frombuffer("\n\n".join(topics[name] for name in sorted(topics)).encode(), np.uint8).astype(np.int32)

    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        starts = rng.integers(0, len(tokens) - length, rows)
        windows = tokens[starts[:, None] + np.arange(length + 1)]
        return windows[:, :-1], windows[:, 1:], np.ones((rows, length), np.float32)

    return make


def batches(make: Callable[[np.random.Generator], tuple[np.ndarray, ...]], seed: int, permute: bool) -> Batches:
    step = 0
    while True:
        step += 1
        batch = make(np.random.default_rng([seed, step]))
        if permute:
            order = np.random.default_rng([seed + 1, step]).permutation(len(batch[0]))
            batch = tuple(array[order] for array in batch)
        yield batch


# Models


@dataclass(frozen=True)
class Problem:
    """`model(mode)` makes a fresh model; `data` makes a batch of a random generator."""

    model: Callable[[str], tl.Layer]
    data: Callable[[np.random.Generator], tuple[np.ndarray, ...]]


def mlp(args: argparse.Namespace) -> Problem:
    def model(mode: str) -> tl.Layer:
        hidden = [[tl.Dense(args.width), tl.Relu(), tl.Dropout(args.dropout, mode=mode)] for _ in range(2)]
        return tl.Serial(*hidden, tl.LayerNorm(), tl.Dense(CLASSES))

    return Problem(model, made_classes((64,), args.batch_size, args.seed))


def language_model(args: argparse.Namespace) -> Problem:
    def model(mode: str) -> tl.Layer:
        return trax.models.TransformerLM(
            VOCABULARY,
            d_model=args.width,
            d_ff=4 * args.width,
            n_layers=args.layers,
            n_heads=4,
            max_len=args.length,
            dropout=args.dropout,
            mode=mode,
        )

    return Problem(model, text(args.batch_size, args.length))


def residual(size: int) -> Callable[[argparse.Namespace], Problem]:
    """ResNet-50 on images of 224 x 224, a small wide ResNet on 32 x 32; both with batch norm."""

    def problem(args: argparse.Namespace) -> Problem:
        def model(mode: str) -> tl.Layer:
            if size == 224:
                return trax.models.Resnet50(n_output_classes=CLASSES, mode=mode)
            return trax.models.WideResnet(n_blocks=1, widen_factor=1, n_output_classes=CLASSES, mode=mode)

        return Problem(model, made_classes((size, size, 3), args.batch_size, args.seed))

    return problem


PROBLEMS = {"mlp": mlp, "lm": language_model, "resnet": residual(32), "resnet50": residual(224)}


# Training


def save(path: str, history: Any, trees: dict[str, Any]) -> None:
    losses = [float(loss) for _, loss in history.get("train", "metrics/loss")]
    leaves = jax.tree_util.tree_flatten_with_path(trees)[0]
    arrays = {jax.tree_util.keystr(name, simple=True, separator="/"): np.asarray(leaf) for name, leaf in leaves}
    np.savez(path, loss=np.asarray(losses), **arrays)


def main() -> None:
    args = parse_arguments()
    problem = PROBLEMS[args.model](args)
    model = problem.model("train")
    train_task = training.TrainTask(
        labeled_data=batches(problem.data, args.seed, args.permute_rows),
        # It gives the shapes; without it, Trax takes the first batch away from the training.
        sample_batch=problem.data(np.random.default_rng(args.seed)),
        loss_layer=tl.WeightedCategoryCrossEntropy(),
        loss_name="loss",
        optimizer=trax.optimizers.Adam(args.learning_rate),
        lr_schedule=trax.lr.warmup_and_rsqrt_decay(args.warmup, args.learning_rate),
        n_steps_per_checkpoint=max(args.steps // 2, 1),
    )
    eval_task = training.EvalTask(
        labeled_data=batches(problem.data, args.seed + 2, False),
        metrics=[tl.WeightedCategoryCrossEntropy(), tl.WeightedCategoryAccuracy()],
        metric_names=["loss", "accuracy"],
        n_eval_batches=2,
    )
    loop = training.Loop(
        model,
        train_task,
        eval_model=problem.model("eval"),
        eval_tasks=[eval_task],
        eval_at=lambda step: step % args.log_every == 0,
        output_dir=args.output_dir,
        random_seed=args.seed,
    )
    for _ in range(loop.step):
        train_task.next_batch()
    loop.run(n_steps=args.steps - loop.step)
    if args.dump:
        trees = {"params": loop.model.weights, "state": loop.model.state, "slots": train_task.optimizer.slots}
        save(args.dump, loop.history, trees)


if __name__ == "__main__":
    main()
