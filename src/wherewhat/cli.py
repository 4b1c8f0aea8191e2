"""The command line: parse, call, show."""


def main() -> None:
    raise SystemExit("wherewhat: no command yet")
