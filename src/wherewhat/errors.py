"""The two ways in which wherewhat says no. The command line turns both into one line and exit code 2."""


class BadInput(ValueError):
    """What was asked for cannot be: the message says what was given and what would work."""


class NotMeasurable(RuntimeError):
    """The model cannot be measured right at this level, so it is not measured at all."""
