"""SavedModels for tests, built in a child process so that pytest itself need not import TensorFlow.

`build(NAME, root)` returns the base path, with version 1 in it; `python -m tests.models NAME DIR` is the child.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.native.build import build as build_library

REPOSITORY = Path(__file__).resolve().parents[1]
_NUMBERS = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]
DTYPES = [*_NUMBERS, "bfloat16", "bool", "complex64", "complex128", "string"]
_VARIABLES = [*_NUMBERS, "bfloat16", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"]
VOCABULARY = ["apple", "pear", "plum"]
# What can be wrong with a checkpoint, and how to make it so.
CORRUPTIONS: dict[str, Callable[[Path, Path], object]] = {
    "truncated": lambda data, index: os.truncate(data, data.stat().st_size // 2),
    "missing_shard": lambda data, index: data.unlink(),
    "missing_index": lambda data, index: index.unlink(),
    "bad_index": lambda data, index: index.write_bytes(b"\0" * index.stat().st_size),
    "flipped": lambda data, index: flip_byte(data),
}


def build(name: str, root: Path) -> Path:
    """Builds the model under root, once, whoever asks and however often. Returns root/NAME.

    A child imports TensorFlow for seconds and saves a small model in a fraction of one: so it
    builds all models of the group.
    """
    root.mkdir(parents=True, exist_ok=True)
    group = next(names for names in _GROUPS if name in names)
    with open(root / ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / name).is_dir():
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
            child = subprocess.run(
                [sys.executable, "-m", "tests.models", ",".join(group), str(root)],
                check=False,
                cwd=REPOSITORY,
                env=environment,
                timeout=300,
                capture_output=True,
                text=True,
            )
            assert child.returncode == 0, f"exit status {child.returncode}: {child.stderr}"
    return root / name


def ops_library(root: Path) -> Path:
    """The shared library that "aborter", "faulter", "sleeper" and "dozer" need, for custom_ops."""
    return build_library(root / ".native")


def corrupt(base_path: Path, how: str, into: Path) -> Path:
    """A copy of the model under into, its checkpoint damaged in one of the ways of CORRUPTIONS."""
    shutil.copytree(base_path, into)
    variables = into / "1" / "variables"
    CORRUPTIONS[how](variables / "variables.data-00000-of-00001", variables / "variables.index")
    return into


def flip_byte(path: Path) -> None:
    """Inverts the first byte of a file."""
    content = bytearray(path.read_bytes())
    content[0] ^= 0xFF
    path.write_bytes(content)


def _half_plus_two(tf: Any, path: str, offset: float = 2.0) -> None:
    class Half(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = tf.Variable(0.5), tf.Variable(offset)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def predict(self, x: Any) -> Any:
            return {"y": self.a * x + self.b}

    half = Half()
    tf.saved_model.save(half, path, signatures={"serving_default": half.predict})


def _half_plus_three(tf: Any, path: str) -> None:
    _half_plus_two(tf, path, offset=3.0)


def _half_plus_two_wide(tf: Any, path: str) -> None:
    """With weights that are worth sharing: 2 MiB."""

    class Half(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = tf.Variable(tf.fill([2**19], 0.5)), tf.Variable(2.0)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def predict(self, x: Any) -> Any:
            return {"y": tf.gather(self.a, 0) * x + self.b}

    half = Half()
    tf.saved_model.save(half, path, signatures={"serving_default": half.predict})


def _half_plus_two_tf1(tf: Any, path: str) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        a = v1.get_variable("a", initializer=0.5, use_resource=False)
        b = v1.get_variable("b", initializer=2.0, use_resource=False)
        x = v1.placeholder(tf.float32, [None], name="x")
        y = tf.add(tf.multiply(a, x), b, name="y")
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, path, {"x": x}, {"y": y})


def _dice(tf: Any, path: str) -> None:
    class Dice(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def predict(self, x: Any) -> Any:
            return {"y": x + tf.random.uniform(tf.shape(x))}

    dice = Dice()
    tf.saved_model.save(dice, path, signatures={"serving_default": dice.predict})


def _batches_itself(tf: Any, path: str) -> None:
    """Each call waits half a second for others, within the graph, unless it has 8 rows."""

    class Batches(tf.Module):
        def __init__(self) -> None:
            self.ones = tf.Variable(tf.ones([2**19]))  # enough to be shared

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def predict(self, x: Any) -> Any:
            joined = tf.nondifferentiable_batch_function(
                num_batch_threads=1, max_batch_size=8, batch_timeout_micros=500_000
            )
            return {"y": joined(lambda x: x + self.ones[0])(x)}

    batches = Batches()
    tf.saved_model.save(batches, path, signatures={"serving_default": batches.predict})


def _endless(tf: Any, path: str) -> None:
    """Doubles x until none of it is zero: never, for the zeros of a warm-up."""

    class Endless(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def predict(self, x: Any) -> Any:
            (y,) = tf.while_loop(lambda y: tf.reduce_any(y == 0), lambda y: [y * 2], [x])
            return {"y": y}

    endless = Endless()
    tf.saved_model.save(endless, path, signatures={"serving_default": endless.predict})


def save_widedeep(
    tf: Any,
    path: str,
    *,
    columns: int = 26,
    vocabulary: int = 1000,
    dimension: int = 8,
    dense: int = 13,
    hidden: tuple[int, int] = (64, 32),
    seed: int = 7,
) -> None:
    """An embedding per categorical column and an MLP, plus a linear part: a recommender's usual shape."""
    import numpy as np

    random = np.random.default_rng(seed)

    def weights(*shape: int) -> Any:
        return tf.Variable(random.normal(0, 0.05, shape).astype(np.float32))

    class WideDeep(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (columns * dimension + dense, *hidden, 1)
            self.embeddings = [weights(vocabulary, dimension) for _ in range(columns)]
            self.wide = weights(columns * vocabulary)
            self.wide_dense = weights(dense, 1)
            self.w = [weights(*pair) for pair in itertools.pairwise(widths)]
            self.b = [weights(width) for width in widths[1:]]
            self.offsets = tf.constant(np.arange(columns, dtype=np.int64) * vocabulary)

        @tf.function(
            input_signature=[
                tf.TensorSpec([None, columns], tf.int64, name="cat"),
                tf.TensorSpec([None, dense], tf.float32, name="dense"),
            ]
        )
        def predict(self, cat: Any, dense: Any) -> Any:
            parts = [tf.gather(table, cat[:, i]) for i, table in enumerate(self.embeddings)]
            deep = tf.concat([*parts, dense], axis=1)
            for w, b in zip(self.w[:-1], self.b[:-1], strict=True):
                deep = tf.nn.relu(deep @ w + b)
            wide = tf.reduce_sum(tf.gather(self.wide, cat + self.offsets), axis=1, keepdims=True)
            return {"score": tf.sigmoid(deep @ self.w[-1] + self.b[-1] + wide + dense @ self.wide_dense)}

    model = WideDeep()
    tf.saved_model.save(model, path, signatures={"serving_default": model.predict})


def _multi_signature(tf: Any, path: str) -> None:
    class Several(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = tf.Variable([1.0, 2.0, 3.0])

        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
        def predict(self, x: Any) -> Any:
            scaled = x * self.scale
            return {"scaled": scaled, "total": tf.reduce_sum(scaled, axis=1)}

        @tf.function(
            input_signature=[
                tf.TensorSpec([None], tf.float32, name="a"),
                tf.TensorSpec([], tf.float32, name="b"),
            ]
        )
        def add(self, a: Any, b: Any) -> Any:
            return {"sum": a + b}

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, name="x")])
        def transpose(self, x: Any) -> Any:
            return {"y": tf.transpose(x)}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
        def classify(self, inputs: Any) -> Any:
            count = tf.shape(inputs)[0]
            return {
                "classes": tf.tile([["short", "long"]], [count, 1]),
                "scores": tf.stack([tf.cast(tf.strings.length(inputs) < 5, tf.float32)] * 2, axis=1),
            }

    several = Several()
    names = {"serving_default": several.predict, "add": several.add}
    names |= {"transpose": several.transpose, "classify": several.classify}
    tf.saved_model.save(several, path, signatures=names)


def _sequences(tf: Any, path: str) -> None:
    """Rows of any length. "length" is one number for all rows, and its signature does not say so."""

    class Sequences(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32, name="x")])
        def predict(self, x: Any) -> Any:
            return {"sum": tf.reduce_sum(x, axis=1), "same": tf.identity(x)}

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32, name="x")])
        def length(self, x: Any) -> Any:
            length = tf.compat.v1.placeholder_with_default(tf.shape(x)[1], None)
            return {"length": length, "sum": tf.reduce_sum(x, axis=1)}

    sequences = Sequences()
    names = {"serving_default": sequences.predict, "length": sequences.length}
    tf.saved_model.save(sequences, path, signatures=names)


def _write_vocabulary(path: str) -> str:
    file = Path(path).with_name("vocabulary.txt")
    file.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return str(file)


def _strings(tf: Any, path: str) -> None:
    class Lookup(tf.Module):
        def __init__(self, file: str) -> None:
            super().__init__()
            initializer = tf.lookup.TextFileInitializer(
                file,
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            )
            self.table = tf.lookup.StaticVocabularyTable(initializer, num_oov_buckets=1)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
        def predict(self, word: Any) -> Any:
            return {"id": self.table.lookup(word), "twice": tf.strings.join([word, word])}

    file = _write_vocabulary(path)
    lookup = Lookup(file)
    tf.saved_model.save(lookup, path, signatures={"serving_default": lookup.predict})
    os.unlink(file)


def _strings_tf1(tf: Any, path: str) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        file = _write_vocabulary(path)
        asset = tf.constant(file)
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, asset)
        initializer = tf.lookup.TextFileInitializer(
            asset,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        )
        table = tf.lookup.StaticVocabularyTable(initializer, num_oov_buckets=1)
        word = v1.placeholder(tf.string, [None], name="word")
        session.run(v1.tables_initializer())
        v1.saved_model.simple_save(
            session,
            path,
            {"word": word},
            {"id": table.lookup(word), "twice": tf.strings.join([word, word])},
            legacy_init_op=v1.tables_initializer(),
        )
        os.unlink(file)


def _dtypes(tf: Any, path: str) -> None:
    """One signature with an input "x" and an output "y" (its identity) per dtype, named by the dtype."""
    module = tf.Module()

    def echo(name: str) -> Any:
        spec = tf.TensorSpec(None, getattr(tf, name), name="x")
        return tf.function(lambda x: {"y": tf.identity(x)}, input_signature=[spec])

    module.echoes = {name: echo(name) for name in DTYPES}
    tf.saved_model.save(module, path, signatures=module.echoes)


def _alias(tf: Any, path: str) -> None:
    """Outputs that are one tensor under two aliases and an input; and "twice", one placeholder for two inputs."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], name="x")
        y = x + 1.0
        define = v1.saved_model.predict_signature_def
        _save_signatures(
            v1,
            session,
            path,
            serving_default=define({"x": x}, {"x": x, "y": y, "also_y": y}),
            twice=define({"x": x, "again": x}, {"y": y}),
        )


def _example_outputs(tf: Any, serialised: Any) -> dict[str, dict[str, Any]]:
    """What the signatures of "examples" answer to tf.Examples with x, x2 and words."""
    spec = {
        "x": tf.io.FixedLenFeature([1], tf.float32),
        "x2": tf.io.FixedLenFeature([1], tf.float32, default_value=[0.0]),
        "words": tf.io.FixedLenFeature([2], tf.string, default_value=["low", "high"]),
    }
    found = tf.io.parse_example(serialised, spec)
    y, y3 = found["x"] * 0.5 + 2.0, found["x2"] * 0.5 + 3.0
    both = tf.concat([y, y3], axis=1)
    return {
        "regress_x_to_y": {"outputs": y},
        "regress_x2_to_y3": {"outputs": tf.squeeze(y3, axis=1)},
        "classify_x_to_y": {"scores": y},
        "classify_words": {"classes": found["words"]},
        "classify_both": {"classes": found["words"], "scores": both},
        "wrong_rank": {"scores": tf.expand_dims(both, 2)},
        "wrong_type": {"outputs": tf.cast(y, tf.float64)},
        "wrong_classes": {"classes": both},
        "one_row_less": {"outputs": y[1:]},
        "uneven": {"classes": found["words"], "scores": y},
        "other_outputs": {"probabilities": both},
        "three_outputs": {"classes": found["words"], "scores": both, "y": y},
    }


_METHODS = {"regress": "tensorflow/serving/regress", "classify": "tensorflow/serving/classify"}


def _examples(tf: Any, path: str) -> None:
    """Signatures for Classify and Regress, right and wrong ones; "serving_default" is Predict's."""

    def signature(key: str) -> Any:
        spec = tf.TensorSpec([None], tf.string, name="inputs")
        return tf.function(lambda inputs: _example_outputs(tf, inputs)[key], input_signature=[spec])

    module = tf.Module()
    with tf.Graph().as_default():
        keys = list(_example_outputs(tf, tf.compat.v1.placeholder(tf.string, [None])))
    module.asked = {key: signature(key) for key in keys}
    plain = tf.TensorSpec([None], tf.float32, name="inputs")
    module.floats = tf.function(lambda inputs: {"outputs": inputs}, input_signature=[plain])
    spec = tf.TensorSpec([None], tf.float32, name="x")
    module.predict = tf.function(lambda x: {"y": x * 0.5 + 2.0}, input_signature=[spec])
    names = {**module.asked, "floats": module.floats, "serving_default": module.predict}
    tf.saved_model.save(module, path, signatures=names)


def _examples_tf1(tf: Any, path: str) -> None:
    """The same from a graph: all signatures but "floats" and "serving_default" share one placeholder."""
    v1 = tf.compat.v1
    define, describe = (
        v1.saved_model.signature_def_utils.build_signature_def,
        v1.saved_model.utils.build_tensor_info,
    )
    with tf.Graph().as_default(), v1.Session() as session:
        serialised = v1.placeholder(tf.string, [None], name="examples")
        signatures = {}
        for key, outputs in _example_outputs(tf, serialised).items():
            described = {alias: describe(output) for alias, output in outputs.items()}
            method = _METHODS.get(key.partition("_")[0], "tensorflow/serving/predict")
            signatures[key] = define({"inputs": describe(serialised)}, described, method)
        x = v1.placeholder(tf.float32, [None], name="x")
        signatures["floats"] = define({"inputs": describe(x)}, {"outputs": describe(x)}, _METHODS["regress"])
        signatures["serving_default"] = v1.saved_model.predict_signature_def({"x": x}, {"y": x * 0.5 + 2.0})
        _save_signatures(v1, session, path, **signatures)


def _save_signatures(v1: Any, session: Any, path: str, **signatures: Any) -> None:
    builder = v1.saved_model.Builder(path)
    builder.add_meta_graph_and_variables(session, ["serve"], signatures)
    builder.save()


def _defaults(tf: Any, path: str) -> None:
    """A signature whose input "b" may be left out, and is 5 then."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        a, b = v1.placeholder(tf.float32, [None], name="a"), v1.placeholder(tf.float32, [], name="b")
        signature = v1.saved_model.predict_signature_def({"a": a, "b": b}, {"sum": a + b})
        signature.defaults["b"].CopyFrom(tf.make_tensor_proto(5.0, tf.float32))
        _save_signatures(v1, session, path, serving_default=signature)


def _sparse(tf: Any, path: str) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.sparse_placeholder(tf.float32, [None, 4], name="x")
        dense = v1.placeholder(tf.float32, [None], name="dense")
        define = v1.saved_model.predict_signature_def
        _save_signatures(
            v1,
            session,
            path,
            serving_default=define({"x": x}, {"y": tf.sparse.reduce_sum(x)}),
            dense=define({"x": dense}, {"y": dense + 1.0}),
        )


def _training_tags(tf: Any, path: str) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], name="x")
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": x + 1.0})
        builder = v1.saved_model.Builder(path)
        builder.add_meta_graph_and_variables(session, ["train"], {"serving_default": signature})
        builder.add_meta_graph(["serve", "gpu"], {"serving_default": signature})
        builder.save()


def _keras(tf: Any) -> Any:
    tf.keras.utils.set_random_seed(3)
    layers = tf.keras.layers
    inputs = tf.keras.Input((4,), name="x")
    hidden = layers.BatchNormalization()(layers.Dense(8, activation="relu")(inputs))
    return tf.keras.Model(inputs, layers.Dense(1, name="y")(hidden))


def _keras_saved(tf: Any, path: str) -> None:
    tf.saved_model.save(_keras(tf), path)


def _keras_exported(tf: Any, path: str) -> None:
    _keras(tf).export(path, verbose=False)


def _mirrored(tf: Any, path: str) -> None:
    """A dense layer over two logical CPUs, which there have to be before TensorFlow runs anything."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    with tf.distribute.MirroredStrategy(devices=("/cpu:0", "/cpu:1")).scope():
        dense = tf.keras.layers.Dense(1, kernel_initializer="ones", bias_initializer="zeros")
        model = tf.keras.Sequential([tf.keras.layers.Input((1,), name="x"), dense])
    tf.saved_model.save(model, path)


def _sequential(tf: Any, path: str) -> None:
    """Gives what it is given."""
    layers = [tf.keras.layers.Input((1,), name="x"), tf.keras.layers.Lambda(lambda x: x, name="y")]
    tf.saved_model.save(tf.keras.Sequential(layers), path)


def _unknown_rank(tf: Any, path: str) -> None:
    """A checkpoint's function of a tensor of any shape."""
    root = tf.train.Checkpoint()
    root.three, root.two = tf.Variable(3.0), tf.Variable(2.0)
    root.scale = tf.function(lambda x: {"y": root.three * root.two * x})
    tf.saved_model.save(
        root, path, root.scale.get_concrete_function(tf.TensorSpec(None, tf.float32, name="x"))
    )


def _constants(tf: Any, path: str) -> None:
    """Two signatures that answer one number each, whatever they are given."""
    spec = tf.TensorSpec(None, tf.float32, name="x")
    root = tf.train.Checkpoint()
    root.one = tf.function(lambda x: {"y": 1.0}, input_signature=[spec])
    root.two = tf.function(lambda x: {"y": 2.0}, input_signature=[spec])
    tf.saved_model.save(root, path, {"serving_default": root.one, "custom_signature_key": root.two})


def _through(op: str) -> Callable[[Any, str], None]:
    """Half plus two: y = x / 2 + 2, after a test op of tests/native has seen x."""

    def save(tf: Any, path: str) -> None:
        library = tf.load_op_library(str(ops_library(Path(path).parents[1])))
        module = tf.Module()
        spec = tf.TensorSpec([None], tf.float32, name="x")
        module.f = tf.function(lambda x: {"y": getattr(library, op)(x=x) / 2 + 2}, input_signature=[spec])
        tf.saved_model.save(module, path, signatures={"serving_default": module.f})

    return save


def _ranker_tf1(*, resource: bool, parts: int = 0) -> Callable[[Any, str], None]:
    """An embedding, partitioned or not, a dense layer and a vocabulary table from an asset."""

    def save(tf: Any, path: str) -> None:
        v1 = tf.compat.v1
        with tf.Graph().as_default(), v1.Session() as session:
            ids = v1.placeholder(tf.int64, [None, 4], name="ids")
            word = v1.placeholder(tf.string, [None], name="word")
            partitioner = v1.fixed_size_partitioner(parts) if parts else None
            normal = v1.random_normal_initializer
            with v1.variable_scope("ranker", use_resource=resource, partitioner=partitioner):
                table = v1.get_variable("table", [1000, 32], initializer=normal(seed=1))
                w = v1.get_variable("w", [128, 8], initializer=normal(seed=2))
            with v1.variable_scope("ranker", use_resource=resource):
                b = v1.get_variable("b", [8], initializer=normal(seed=3))
            # What training leaves in a checkpoint: nothing that is served reads it.
            v1.get_variable("slot", [1000, 32], initializer=normal(seed=4), use_resource=resource)
            rows = v1.nn.embedding_lookup(table, ids, partition_strategy="div")
            file = _write_vocabulary(path)
            asset = tf.constant(file)
            v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, asset)
            vocabulary = tf.lookup.StaticHashTable(
                tf.lookup.TextFileInitializer(
                    asset,
                    tf.string,
                    tf.lookup.TextFileIndex.WHOLE_LINE,
                    tf.int64,
                    tf.lookup.TextFileIndex.LINE_NUMBER,
                ),
                default_value=-1,
            )
            place = tf.cast(vocabulary.lookup(word), tf.float32)
            y = tf.matmul(tf.reshape(rows, [-1, 128]), w) + b + place[:, None]
            session.run([v1.global_variables_initializer(), v1.tables_initializer()])
            v1.saved_model.simple_save(
                session,
                path,
                {"ids": ids, "word": word},
                {"y": y},
                legacy_init_op=v1.tables_initializer(),
            )
            os.unlink(file)

    return save


def _updated(tf: Any, path: str) -> None:
    """Each call adds one to all elements of a variable."""

    class Updated(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = tf.Variable(tf.range(4096, dtype=tf.float32))

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
        def add(self, x: Any) -> Any:
            return {"total": self.total.assign_add(tf.fill([4096], x))}

    updated = Updated()
    tf.saved_model.save(updated, path, signatures={"serving_default": updated.add})


def _updated_tf1(tf: Any, path: str) -> None:
    """The same with a reference variable, and one beside it that is only read."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [], name="x")
        total = v1.get_variable("total", initializer=tf.range(4096, dtype=tf.float32), use_resource=False)
        scale = v1.get_variable("scale", initializer=tf.ones([4096]), use_resource=False)
        added = v1.assign_add(total, scale * x)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, path, {"x": x}, {"total": added})


def _assigned(tf: Any, path: str) -> None:
    """Each call gives a variable another value; the one beside it is only read."""

    class Assigned(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = tf.Variable(tf.range(4096, dtype=tf.float32))
            self.scale = tf.Variable(tf.ones([4096]))

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
        def keep(self, x: Any) -> Any:
            return {"last": self.last.assign(self.scale * x)}

    assigned = Assigned()
    tf.saved_model.save(assigned, path, signatures={"serving_default": assigned.keep})


def _odd(tf: Any, path: str) -> None:
    """Every type of variable and shapes that cannot be shared; `tables` has them beside tables."""
    _save_odd(tf, path, tables=False)


def _tables(tf: Any, path: str) -> None:
    _save_odd(tf, path, tables=True)


def _save_odd(tf: Any, path: str, *, tables: bool) -> None:
    import numpy as np

    values = np.random.default_rng(5).uniform(0, 100, (64, 4)).astype(np.float32)

    def variable(name: str) -> Any:
        dtype = tf.dtypes.as_dtype(name)
        if dtype.is_complex:
            real = values.astype(dtype.real_dtype.as_numpy_dtype)
            return tf.Variable(tf.complex(real, -real))
        return tf.Variable(tf.cast(values, dtype))

    class Odd(tf.Module):
        def __init__(self, file: str) -> None:
            super().__init__()
            self.typed = {name: variable(name) for name in _VARIABLES}
            self.words = tf.Variable(["hello", "world"])
            self.scalar = tf.Variable(3.5)
            self.empty = tf.Variable(tf.zeros([0, 4]))
            self.counter = tf.Variable(0, dtype=tf.int64)
            self.uneven = tf.Variable(tf.cast(tf.range(1234) % 251, tf.uint8))
            self.unshaped = tf.Variable(tf.ones([32, 2]), shape=tf.TensorShape([None, 2]))
            if tables:
                initializer = tf.lookup.TextFileInitializer(
                    file,
                    tf.string,
                    tf.lookup.TextFileIndex.WHOLE_LINE,
                    tf.int64,
                    tf.lookup.TextFileIndex.LINE_NUMBER,
                )
                self.static = tf.lookup.StaticHashTable(initializer, -1)
                self.mutable = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, -1.0)
                self.mutable.insert(["apple", "plum"], [1.0, 2.0])

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
        def predict(self, word: Any) -> Any:
            outputs = {
                name: variable.read_value()
                if variable.dtype in {tf.bool, tf.complex64, tf.complex128}
                else tf.cast(variable, tf.float64)
                for name, variable in self.typed.items()
            }
            outputs["counter"] = self.counter.assign_add(1)
            for name in ("words", "scalar", "empty", "uneven", "unshaped"):
                outputs[name] = tf.identity(getattr(self, name))
            if tables:
                outputs |= {"static": self.static.lookup(word), "mutable": self.mutable.lookup(word)}
            else:
                outputs["word"] = tf.identity(word)
            return outputs

    file = _write_vocabulary(path)
    odd = Odd(file)
    tf.saved_model.save(odd, path, signatures={"serving_default": odd.predict})
    os.unlink(file)


def _mutable_table_tf1(tf: Any, path: str) -> None:
    """A table whose content is in the checkpoint, beside a resource variable."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        word = v1.placeholder(tf.string, [None], name="word")
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, -1.0)
        scale = v1.get_variable("scale", initializer=tf.fill([64], 3.0), use_resource=True)
        fill = table.insert(tf.constant(["apple", "plum"]), tf.constant([1.0, 2.0]))
        session.run(v1.global_variables_initializer())
        session.run(fill)
        y = table.lookup(word)[:, None] * scale
        v1.saved_model.simple_save(session, path, {"word": word}, {"y": y})


def _keras_words(tf: Any) -> Any:
    tf.keras.utils.set_random_seed(4)
    layers = tf.keras.layers
    word = tf.keras.Input((1,), dtype="string", name="word")
    x = tf.keras.Input((8,), name="x")
    looked_up = layers.StringLookup(vocabulary=VOCABULARY)(word)
    rows = layers.Flatten()(layers.Embedding(16, 16)(looked_up))
    hidden = layers.Concatenate()([rows, layers.Normalization(mean=1.0, variance=2.0)(x)])
    hidden = layers.BatchNormalization()(layers.Dense(32, activation="relu")(hidden))
    return tf.keras.Model([word, x], layers.Dense(1)(layers.Dropout(0.1)(hidden)))


def _keras_words_saved(tf: Any, path: str) -> None:
    tf.saved_model.save(_keras_words(tf), path)


def _keras_words_exported(tf: Any, path: str) -> None:
    _keras_words(tf).export(path, verbose=False)


LARGE_ROWS, LARGE_COLUMNS = 131_072, 128
# Its size is a multiple of eight bytes and no more.
UNEVEN_ROWS, UNEVEN_COLUMNS = 131_071, 50


def _large(rows: int, columns: int) -> Callable[[Any, str], None]:
    """A table whose rows are gathered."""

    def save(tf: Any, path: str) -> None:
        import numpy as np

        class Large(tf.Module):
            def __init__(self) -> None:
                super().__init__()
                self.table = tf.Variable(np.random.default_rng(6).random((rows, columns), np.float32))

            @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
            def predict(self, ids: Any) -> Any:
                return {"rows": tf.gather(self.table, ids)}

        large = Large()
        tf.saved_model.save(large, path, signatures={"serving_default": large.predict})

    return save


def _large_tf1(rows: int, columns: int) -> Callable[[Any, str], None]:
    """The same with a reference variable."""

    def save(tf: Any, path: str) -> None:
        v1 = tf.compat.v1
        with tf.Graph().as_default(), v1.Session() as session:
            ids = v1.placeholder(tf.int64, [None], name="ids")
            values = v1.random_uniform_initializer(seed=6)
            table = v1.get_variable("table", [rows, columns], initializer=values, use_resource=False)
            session.run(v1.global_variables_initializer())
            v1.saved_model.simple_save(session, path, {"ids": ids}, {"rows": tf.gather(table, ids)})

    return save


def _dozer(tf: Any, path: str) -> None:
    """X / 2 + 2, and a minute's sleep first where x begins with 13."""
    ops = tf.load_op_library(str(ops_library(Path(path).parents[1])))

    class Dozer(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def predict(self, x: Any) -> Any:
            with tf.control_dependencies([ops.testing_sleep(tf.where(x == 13.0, 60.0, 0.0))]):
                return {"y": x / 2 + 2}

    dozer = Dozer()
    tf.saved_model.save(dozer, path, signatures={"serving_default": dozer.predict})


def _gigabyte(tf: Any, path: str) -> None:
    """A table of 1 GB; row i holds i."""
    import numpy as np

    class Gigabyte(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = tf.Variable(np.repeat(np.arange(2_500_000, dtype=np.float32)[:, None], 100, axis=1))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
        def predict(self, ids: Any) -> Any:
            return {"rows": tf.gather(self.table, ids)[:, 0]}

    gigabyte = Gigabyte()
    tf.saved_model.save(gigabyte, path, signatures={"serving_default": gigabyte.predict})


_BUILDERS: dict[str, Callable[[Any, str], None]] = {
    "half_plus_two_wide": _half_plus_two_wide,
    "half_plus_two": _half_plus_two,
    "half_plus_three": _half_plus_three,
    "half_plus_two_tf1": _half_plus_two_tf1,
    "dice": _dice,
    "endless": _endless,
    "batches_itself": _batches_itself,
    "widedeep": save_widedeep,
    "multi_signature": _multi_signature,
    "sequences": _sequences,
    "strings": _strings,
    "strings_tf1": _strings_tf1,
    "dtypes": _dtypes,
    "alias": _alias,
    "examples": _examples,
    "examples_tf1": _examples_tf1,
    "defaults": _defaults,
    "sparse": _sparse,
    "training_tags": _training_tags,
    "keras_saved": _keras_saved,
    "keras_exported": _keras_exported,
    "ranker_ref": _ranker_tf1(resource=False),
    "ranker_resource": _ranker_tf1(resource=True),
    "ranker_ref_parts": _ranker_tf1(resource=False, parts=3),
    "ranker_resource_parts": _ranker_tf1(resource=True, parts=3),
    "updated": _updated,
    "updated_tf1": _updated_tf1,
    "assigned": _assigned,
    "odd": _odd,
    "tables": _tables,
    "mutable_table_tf1": _mutable_table_tf1,
    "large": _large(LARGE_ROWS, LARGE_COLUMNS),
    "large_tf1": _large_tf1(LARGE_ROWS, LARGE_COLUMNS),
    "uneven": _large(UNEVEN_ROWS, UNEVEN_COLUMNS),
    "uneven_tf1": _large_tf1(UNEVEN_ROWS, UNEVEN_COLUMNS),
    "keras_words_saved": _keras_words_saved,
    "keras_words_exported": _keras_words_exported,
    "gigabyte": _gigabyte,
    "mirrored": _mirrored,
    "sequential": _sequential,
    "unknown_rank": _unknown_rank,
    "constants": _constants,
    "aborter": _through("testing_abort"),
    "faulter": _through("testing_cuda_fault"),
    "sleeper": _through("testing_sleep"),
    "dozer": _dozer,
}
_CUSTOM = ("aborter", "faulter", "sleeper", "dozer")
_KERAS = tuple(name for name in _BUILDERS if name.startswith("keras"))
_WEIGHTS = (
    "ranker_ref",
    "ranker_resource",
    "ranker_ref_parts",
    "ranker_resource_parts",
    "updated",
    "updated_tf1",
    "assigned",
    "odd",
    "tables",
    "mutable_table_tf1",
    "large",
    "large_tf1",
    "uneven",
    "uneven_tf1",
)
_GIGABYTE = ("gigabyte",)
_SAVED = ("mirrored", "sequential", "unknown_rank", "constants")
_GROUPED = {*_CUSTOM, *_KERAS, *_WEIGHTS, *_GIGABYTE, *_SAVED}
_GROUPS = (
    _CUSTOM,
    _KERAS,
    _WEIGHTS,
    _GIGABYTE,
    _SAVED,
    tuple(name for name in _BUILDERS if name not in _GROUPED),
)


def main(names: str, root: str) -> None:
    """Builds each of the comma-separated names under root, whole or not at all."""
    import tensorflow as tf

    for name in names.split(","):
        unfinished = Path(root) / f".{name}.{os.getpid()}"
        unfinished.mkdir()
        _BUILDERS[name](tf, str(unfinished / "1"))
        unfinished.rename(Path(root) / name)


if __name__ == "__main__":
    main(*sys.argv[1:])
