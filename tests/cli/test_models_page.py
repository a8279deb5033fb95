"""The commands of docs/models.md run: what may be named as a model, and engines on disk.

Times are predicted for one batch size. tests/cli/test_engines_cli.py adds and removes engines.
"""

import re
import shlex

import pytest
from cases import ROOT
from checkpoints import config_json
from commands import run
from running_servers import sglang_server
from tiers import only

PAGE = (ROOT / "docs" / "models.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
LINES = [line for block in BLOCKS for line in block.splitlines()]
RUN = [line for line in LINES if not {"--add", "--remove"} & {*line.split()}]
SHORT = ["--effort", "quick", "--batch-sizes", "1"]


@pytest.mark.usefixtures("few_kernels")
@pytest.mark.parametrize("line", only([one for one in RUN if "config.json" not in one], RUN))
def test_a_command_of_the_page(line, env, tmp_path):
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_bytes(config_json())
    program, *words = shlex.split(line)
    assert program == "tuner"
    if words[0] == "tune":
        words += [*SHORT, *([] if "--measure" in words else ["--measure", "predict"])]
    with sglang_server("0.5.16", model_path="mixtral-8x7b", tp_size=2) as url:
        words = [word.replace("http://HOST:30000", url) for word in words]
        assert run(*words, env=env, cwd=tmp_path, code=0).stdout
