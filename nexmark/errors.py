"""What can be wrong with a workload, found before anything starts."""


class WorkloadError(ValueError):
    """A workload that cannot run as configured."""


class ParameterError(WorkloadError):
    """A parameter of the generator, of a rate schedule or of a query is out of its range."""


class ReplayError(WorkloadError):
    """Files that cannot be replayed; the message names the file, the row and the field."""


def require_int(owner: str, name: str, value: object, least: int, most: int = 2**62) -> None:
    """YAML does not check types: 1e4 is a float there and yes a boolean."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError(f"{owner}: {name} must be a whole number (no point, no exponent), got {value!r}")
    if not least <= value <= most:
        raise ParameterError(f"{owner}: {name} must be at least {least} and at most {most}, got {value}")
