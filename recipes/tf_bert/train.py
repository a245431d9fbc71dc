"""Trains a BERT (Devlin et al. 2018) by masked language modelling, in a custom loop of TensorFlow with `tf.function`.

The text is made: a sequence walks through the vocabulary by a rule, so that a masked token can be told from its
neighbours, and nothing is downloaded:

    python train.py --steps 20
    python train.py --layers 12 --hidden 768 --heads 12 --vocabulary 30522
"""

import argparse
import os
import time
from collections.abc import Iterator

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

MASK = 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--length", type=int, default=64, help="tokens a sequence")
    parser.add_argument("--batch-size", type=int, default=16, help="sequences a step")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10, help="steps between two printed losses")
    parser.add_argument("--permute-rows", action="store_true", help="reverse the sequences inside each batch")
    parser.add_argument("--dump", metavar="FILE", help="save the losses and the final state as an .npz file")
    return parser.parse_args()


# Data


def batches(args: argparse.Namespace) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Endless batches: tokens with masks, the tokens themselves, and where the masks are; each [rows, length]."""
    rng = np.random.default_rng(args.seed)
    words = args.vocabulary - 1
    order = slice(None, None, -1 if args.permute_rows else 1)
    while True:
        start = rng.integers(0, words, (args.batch_size, 1))
        stride = rng.integers(1, 8, (args.batch_size, 1))
        tokens = (1 + (start + stride * np.arange(args.length)) % words).astype(np.int32)
        hidden = rng.random(tokens.shape) < 0.15
        yield np.where(hidden, MASK, tokens)[order], tokens[order], hidden.astype(np.float32)[order]


# Model


class Positions(keras.layers.Layer):
    """Adds a learned vector for each place of a sequence."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.table = self.add_weight(shape=shape[1:], initializer="glorot_uniform", name="table")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + self.table


def bert(args: argparse.Namespace) -> keras.Model:
    """Tokens [rows, length] to logits [rows, length, vocabulary]; norms after each addition, as published."""
    tokens = keras.Input((args.length,), dtype="int32")
    x = keras.layers.LayerNormalization()(Positions()(keras.layers.Embedding(args.vocabulary, args.hidden)(tokens)))
    for _ in range(args.layers):
        attention = keras.layers.MultiHeadAttention(args.heads, args.hidden // args.heads)(x, x)
        x = keras.layers.LayerNormalization()(x + keras.layers.Dropout(args.dropout)(attention))
        inner = keras.layers.Dense(4 * args.hidden, activation="gelu")(x)
        inner = keras.layers.Dropout(args.dropout)(keras.layers.Dense(args.hidden)(inner))
        x = keras.layers.LayerNormalization()(x + inner)
    return keras.Model(tokens, keras.layers.Dense(args.vocabulary)(x))


# Training


class Trainer:
    """A model, its optimizer, and the step that trains it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.model = bert(args)
        self.optimizer = keras.optimizers.AdamW(args.learning_rate, weight_decay=0.01, global_clipnorm=1.0)

    @tf.function(jit_compile=True)
    def train_step(self, masked: tf.Tensor, tokens: tf.Tensor, hidden: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = self.model(masked, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tokens, logits=logits)
            hidden = tf.cast(hidden, losses.dtype)
            loss = tf.reduce_sum(losses * hidden) / tf.reduce_sum(hidden)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        right = tf.cast(tf.argmax(logits, -1, tf.int32) == tokens, hidden.dtype)
        return {"loss": loss, "accuracy": tf.reduce_sum(right * hidden) / tf.reduce_sum(hidden)}


def main() -> None:
    args = parse_arguments()
    keras.utils.set_random_seed(args.seed)
    trainer = Trainer(args)
    losses = []
    begin = time.perf_counter()
    for step, batch in zip(range(1, args.steps + 1), batches(args), strict=False):
        metrics = trainer.train_step(*batch)
        losses.append(metrics["loss"])
        if step % args.log_every == 0 or step == 1:
            print(f"step {step} loss {metrics['loss']:.4f} accuracy {float(metrics['accuracy']):.3f}", flush=True)
    seconds = time.perf_counter() - begin
    print(f"{args.steps} steps in {seconds:.1f} s, first loss {losses[0]:.4f}, last {losses[-1]:.4f}")
    if args.dump:
        state = {v.path: np.asarray(v) for v in [*trainer.model.variables, *trainer.optimizer.variables]}
        np.savez(args.dump, loss=np.array([float(loss) for loss in losses]), **state)


if __name__ == "__main__":
    main()
