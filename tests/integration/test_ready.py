"""When a pool says that it is ready, every request that its configuration promises an answer has one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tests.conftest import PoolStarter
from tests.polling import until

INSTANCE = b'{"instances": [2.0]}'
CONFIG = """
models:
  half_plus_two:
    base_path: {base}
    version_policy: [1, 2]
    version_labels: {{stable: 1, canary: 2}}
    cpu_slots: 1
"""


def test_who_asks_by_a_label_is_answered_once_it_is_ready(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """The newest is loaded first; until the other has been, /readyz says no, and a request for it is to be tried again."""
    (version,) = (folder for folder in model_dir("half_plus_two").iterdir() if folder.name.isdigit())
    for number in "12":
        shutil.copytree(version, tmp_path / "models" / number)
    config = tmp_path / "pool.yaml"
    config.write_text(CONFIG.format(base=tmp_path / "models"))
    pool = start_pool(config)

    def asked(path: str, body: bytes | None = None) -> tuple[int, bytes]:
        try:
            with urlopen(f"http://127.0.0.1:{pool.rest_port}{path}", body, timeout=30) as answer:
                return answer.status, answer.read()
        except HTTPError as error:
            return error.code, error.read()
        except URLError:
            return 0, b""  # it does not listen yet

    def is_ready() -> bool:
        newest, _ = asked("/v1/models/half_plus_two:predict", INSTANCE)
        ready, _ = asked("/readyz")
        code, text = asked("/v1/models/half_plus_two/labels/stable:predict", INSTANCE)
        if ready == 200:
            assert (code, json.loads(text)) == (200, {"predictions": [3.0]})
        elif newest == 200:
            assert code == 200 or (code, b"try again" in text) == (503, True), text
        return ready == 200

    until(is_ready, 60, "it is ready")
    pool.wait()
