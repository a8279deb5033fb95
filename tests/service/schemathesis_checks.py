"""A check that Schemathesis loads beside its own.

A schema cannot say that `deepseek-r1` is a model and `deepseek-r0` is none, so 422 may answer data
that the schema allows. But then for its meaning: data that the schema allows must be understood.
"""

import schemathesis


@schemathesis.check
def allowed_data_is_understood(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """No answer calls data invalid that the schema allows."""
    generated = case.meta.generation.mode if case.meta else None
    if generated is schemathesis.GenerationMode.POSITIVE and response.status_code == 422:
        problem = response.json()
        assert not problem["type"].endswith(":invalid-request"), problem["detail"]
