"""The `tuner` command: wiring only."""


def main() -> None:
    raise SystemExit(2)
