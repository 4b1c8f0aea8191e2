"""From a hub id, a folder or a .gguf file to a model, with one clear sentence where that fails."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ..errors import BadInput
from .offload import read_device_map

DTYPES = ("float32", "bfloat16", "float16")


def load(
    name: str | Path,
    *,
    dtype: torch.dtype | str = torch.float32,
    device: str | None = None,
    device_map: str | dict[str, Any] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> PreTrainedModel:
    """Load a causal language model for measuring; nothing from the hub is executed unless asked for.

    `device_map` spreads a big model over devices with the help of accelerate: "auto", "auto:0=20GB,cpu=50GB" with
    limits, or a device a module; what does not fit or is put on "disk" is read from there whenever its layer runs.

    >>> model = ww.load("HuggingFaceTB/SmolLM2-135M")        # doctest: +SKIP
    >>> model = ww.load("models/SmolLM2.Q4_1.gguf")          # doctest: +SKIP
    """
    source, found = locate(name, revision)
    check_devices(device, device_map)
    options |= found | {"dtype": check_dtype(dtype), "trust_remote_code": trust_remote_code}
    if device_map is not None:
        options |= read_device_map(device_map) if isinstance(device_map, str) else {"device_map": device_map}
    scratch = None if device_map is None or "offload_folder" in options else TemporaryDirectory(prefix="wherewhat-")
    if scratch is not None:
        options["offload_folder"] = scratch.name  # for weights that are not on disk as the model has them, as of .gguf
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True, **options)
        model, report = loaded
    except Exception as error:
        raise BadInput(f"{name}: cannot be loaded ({_reason(error, options)})") from error
    if missing := sorted(report["missing_keys"]):
        # transformers would draw them at random, and their heads would be scored as if they had learnt something.
        raise BadInput(f"{name}: {len(missing)} weights are missing, among them {missing[0]}")
    if scratch is not None:
        vars(model)["offload_folder"] = scratch  # there as long as the model is
    if device is not None and device_map is None:
        model.to(device)
    return model.eval()


def load_tokenizer(name: str | Path, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model; that of a .gguf file stands beside it, or else in it.

    >>> tokenizer = load_tokenizer("models/SmolLM2.Q4_1.gguf")       # doctest: +SKIP
    """
    source, options = locate(name, revision)
    if "gguf_file" in options and any(Path(source).glob("tokenizer*")):
        del options["gguf_file"]
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code, **options)
    except Exception as error:
        if "gguf_file" in options:
            raise BadInput(f"{name}: not readable, maybe cut or damaged ({_reason(error, options)})") from error
        if Path(source).is_dir() and not any(Path(source).glob("*token*")):
            raise BadInput(f"{name}: the folder holds no tokenizer") from error
        raise BadInput(f"{name}: its tokenizer cannot be loaded ({_reason(error, options)})") from error


def locate(name: str | Path, revision: str | None = None) -> tuple[str, dict[str, Any]]:
    """Where a model lies, and the options that transformers needs to find it there."""
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise BadInput(f"{path}: no such file")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise BadInput(f"{path}: the folder holds no config.json")
        return str(path), {}
    if path.is_absolute() or str(name).count("/") > 1 or str(name).startswith(".") or str(name).endswith("/"):
        raise BadInput(f"{name}: neither a folder, a .gguf file nor a hub id of the form owner/name")
    return str(name), {"revision": revision, "local_files_only": not hub_answers()}


def hub_answers() -> bool:
    """Whether the hub can be reached: without it, only what is in the cache is looked at, and nothing is tried again.

    Behind a proxy only a request would tell, so there it is taken for granted.
    """
    if constants.HF_HUB_OFFLINE:
        return False
    if {"https", "http", "all"} & getproxies().keys():
        return True
    hub = urlsplit(constants.ENDPOINT)
    try:
        with socket.create_connection((hub.hostname, hub.port or 443), timeout=5):
            return True
    except OSError:
        return False


def check_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """A number type that can be measured in, from its name."""
    if isinstance(dtype, str):
        if dtype not in DTYPES:
            raise BadInput(f"dtype is {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, got {dtype}")
        return getattr(torch, dtype)
    return dtype


def check_devices(device: str | None, device_map: object) -> None:
    """Refuse a device that this machine does not have, before anything is loaded for it."""
    if device_map is not None and find_spec("accelerate") is None:
        raise BadInput("--device-map needs accelerate: pip install accelerate")
    if device is not None:
        if device.startswith("meta"):
            raise BadInput("device meta holds no weights to measure")
        try:
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:
            raise BadInput(f"device {device} cannot be used ({_first_line(error)})") from error


def _reason(error: Exception, options: dict[str, Any]) -> str:
    if options.get("local_files_only") and isinstance(error, OSError):
        return f"there is no connection to {constants.ENDPOINT}, and it is not in the local cache"
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
