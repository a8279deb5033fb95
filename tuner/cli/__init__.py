"""The `tuner` command. It reads options, calls the other packages, and prints the results.

Data goes to stdout, progress and messages to stderr. Exit code 0: done; 1: the work failed;
2: bad input; 130: interrupted. Commands import other packages inside their functions, so that
`tuner --help` does not load SQLAlchemy, Optuna or NumPy.
"""

import errno
import os
import sys

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main() -> None:
    """Run the console script. Commands are imported here, so that Ctrl-C ends that quietly too."""
    try:
        from tuner.cli.commands import app

        app()
    except KeyboardInterrupt:
        sys.stderr.write("tuner: interrupted\n")
        sys.exit(130)
    except OSError as error:
        if error.filename or error.errno not in _DISK_FULL:  # errors of files have their names
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write(f"tuner: error: standard output cannot be written: {error.strerror}\n")
        sys.exit(2)
