"""Imports of packages that may be missing: those of an optional extra, `datasets`, and pandas."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from gear_data.errors import MissingExtraError

if TYPE_CHECKING:
    import h5py
    import PIL.Image

__all__ = ["EXTRAS", "PIL", "h5py", "import_datasets", "import_extra", "leave_out_pandas"]

#: Extra -> its purpose, as docs/how-to/install.md lists them.
EXTRAS = {
    "torch": "batches of PyTorch tensors",
    "jax": "batches of JAX arrays",
    "hdf5": "HDF5 files: D4RL, robomimic, ALOHA, Minari; export to D4RL and Minari",
    "images": "decoding of PNG, JPEG and other images; pictures in reports",
    "video": "cameras that are stored as video",
    "gym": "record, and Rollout with environments",
    "train": "the demo and the training scripts",
    "report": "reports with charts",
    "completion": "completion of commands in the shell",
    "zarr": "Zarr stores",
    "umi": "Zarr stores of JPEG XL and other images",
    "rlds": "RLDS datasets",
    "lance": "Lance tables",
    "s3": "s3:// URLs",
    "gcs": "gs:// URLs",
    "ray": "conversion on a Ray cluster",
    "tls": "certificates of runs on several machines",
    "metrics": "metrics of gear-data serve",
    "gpu": "kernels on NVIDIA GPUs, CUDA 13",
    "gpu-cuda12": "kernels on NVIDIA GPUs, CUDA 12",
    "cudf": "filters on NVIDIA GPUs",
}


def import_extra(module: str, extra: str = "train") -> Any:
    """Imports a module of an optional extra of gear-data.

    Raises:
        MissingExtraError: the import failed.
    """
    return _import(module, f"pip install 'gear-data[{extra}]'")


def import_datasets() -> Any:
    """Imports HuggingFace `datasets`, which few sources and exports need.

    Raises:
        MissingExtraError: the import failed.
    """
    return _import("datasets", "pip install datasets")


def _import(module: str, hint: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(f"{package} cannot be imported: {error}", hint=hint) from error


class _Lazy:
    """A package of an extra, imported when an attribute is first read."""

    def __init__(self, module: str, extra: str) -> None:
        self._module = module
        self._extra = extra

    def __getattr__(self, name: str) -> Any:
        import_extra(self._module, self._extra)
        return getattr(sys.modules[self._module.partition(".")[0]], name)


if not TYPE_CHECKING:
    #: Modules that read some sources import these names, and can be imported without the extras.
    h5py = _Lazy("h5py", "hdf5")
    PIL = _Lazy("PIL.Image", "images")


class _NoPandas:
    """A finder of modules that finds no pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def leave_out_pandas() -> None:
    """Makes pyarrow do without pandas in this process, whose import takes half as long as all others.

    pyarrow looks for it once: when it first converts Python objects. This is for processes without objects of pandas. A
    module that needs pandas can still import it.
    """
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)
