"""The app with all its commands."""

from tuner.cli import (  # noqa: F401  # each adds its commands to the app
    admin,
    bundle,
    check,
    coverage,
    deploy,
    diagnose,
    export,
    jobs,
    keys,
    known,
    nightly,
    plan,
    results,
    service,
    submit,
    tuning,
)
from tuner.cli.app import app
from tuner.cli.help import add_examples

add_examples(app)

__all__ = ["app"]
