"""sglang's server with dummy weights of a trained model's size; run with `python -m`.

sglang starts its schedulers as new processes, which import this module again before they load a
model. So the replacement is at the module's top.
"""

import runpy

from sglang.srt.model_loader import loader

from benchmarks.served.dummy_weights import fill_weights

loader.initialize_dummy_weights = fill_weights

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)
