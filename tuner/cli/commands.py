"""The app with all its commands."""

from tuner.cli import (  # noqa: F401  # each adds its commands to the app
    bundle,
    check,
    coverage,
    deploy,
    diagnose,
    engines,
    export,
    jobs,
    keys,
    plan,
    results,
    service,
    submit,
    tuning,
)
from tuner.cli.app import add_examples, app

add_examples(app)

__all__ = ["app"]
