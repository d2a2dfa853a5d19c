"""The call of our own engine with nothing around it: one process of the in-process limit.

Argument: a folder. Each line on stdin is "INPUTS.npz ANSWER.npz START SECONDS": calls the model on
the inputs from START (CLOCK_MONOTONIC) on for so many seconds, writes the last outputs and
"latencies_ms" to the answer's file, and says so on stdout with one line.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import tf_model  # type: ignore[import-not-found]


def _loop(
    call: Callable[[tf_model.Arrays], tf_model.Arrays], inputs: tf_model.Arrays, start: float, seconds: float
) -> tuple[tf_model.Arrays, list[float]]:
    for _ in range(20):
        call(inputs)
    time.sleep(max(0.0, start - time.monotonic()))
    outputs, latencies, now = {}, [], time.perf_counter()
    end = now + seconds
    while now < end:
        outputs = call(inputs)
        before, now = now, time.perf_counter()
        latencies.append(now - before)
    return outputs, latencies


def main() -> None:
    call = tf_model.load()
    print("ready", flush=True)
    for line in sys.stdin:
        inputs_file, answer_file, start, seconds = line.split()
        with np.load(inputs_file) as file:
            inputs = dict(file)
        outputs, latencies = _loop(call, inputs, float(start), float(seconds))
        np.savez(answer_file, latencies_ms=np.array(latencies) * 1000, **outputs)
        print("done", flush=True)


if __name__ == "__main__":
    main()
