"""The `tuner` command. It reads options, calls the other packages, and prints the results.

Data goes to stdout, progress and messages to stderr. Exit code 0: done; 1: the work failed;
2: bad input. Commands import other packages inside their functions, so that `tuner --help` does
not load SQLAlchemy, Optuna or NumPy.
"""

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


main = app  # the console script
