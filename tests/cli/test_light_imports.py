"""What a process of the command line loads is light."""

import subprocess
import sys


def test_the_table_loads_without_heavy_imports():
    code = (
        "import sys, tuner.devices.table as d, tuner.models.table as m; d.devices(); m.presets();"
        "print({'torch', 'triton', 'optuna', 'sqlalchemy', 'numpy'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
