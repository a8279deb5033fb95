"""vLLM's server with dummy weights of a trained model's size; run with `python -m`.

vLLM may start its workers as new processes, which import this module again before they load a
model. So the replacement is at the module's top.
"""

import runpy

from vllm.model_executor.model_loader import dummy_loader

from tuner.engines.dummy_weights import fill_weights

dummy_loader.initialize_dummy_weights = fill_weights

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=False)
