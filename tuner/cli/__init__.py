"""The `tuner` command: reads options, calls the rooms, prints. Wiring only.

Data goes to stdout, progress and messages to stderr. Exit code 0: done; 1: the work failed;
2: bad input. Commands import what they need themselves: `tuner --help` must not pay for
SQLAlchemy, Optuna or NumPy.
"""

from tuner.cli import attention, deploy, jobs, serve, service, tables, tuning  # noqa: F401  # each adds its commands to the app
from tuner.cli.app import app


def main() -> None:
    """The console script."""
    app()
