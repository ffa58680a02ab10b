"""Steps as what trainers and tools take. Each module needs its package, an extra of this one; none is loaded without.

torch    tensors of the arrays of a step
verl     a step as verl's DataProto; what verl's fully-async trainer pulls from
parquet  samples of published batches as a file
"""


def missing(module: str, extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """What a module of this package raises when its own package is not there."""
    package = (error.name or "").partition(".")[0]
    return ModuleNotFoundError(
        f"{module} needs {package}, which is not installed: pip install 'rolloutlog[{extra}]'", name=error.name
    )
