"""Load models and tokenizers by name, folder or file, with a clear error where that fails."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict, Unpack
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ..errors import BadInput
from ..lab import Transformer, embedded, load_checkpoint
from ..lab.checkpoint import is_run, read_run
from ..tasks import TASKS
from ..words import check_dtype_name, check_model_name, model_name
from .gguf_cache import converted, keep_converted
from .gguf_reader import small_reader
from .offload import read_device_map
from .unwrap import describe, unwrap

DEFAULTS = ("float32", "cpu", True)  # of the options that load a model, beside None and False


class Loading(TypedDict, total=False):
    """How a model given by name is loaded: parameters of `ww.load`, with its defaults."""

    revision: str | None
    dtype: str
    device: str
    device_map: str | None
    trust_remote_code: bool
    cache: bool


AnyModel = PreTrainedModel | Transformer | str | Path | Any  # Any: wrappers of other packages, see `unwrap`


@dataclass(frozen=True)
class OpenedModel:
    """A model that is ready to be measured, with its name and, if it has them, its tokenizer and its task."""

    model: Any
    name: str  # as the user gave it, or what the model calls itself
    task: str | None = None  # the task that a model of the lab was trained on
    given_tokenizer: Any = None
    loading: Loading = field(default_factory=Loading)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer passed by the user, or the one that comes with the model."""
        if self.given_tokenizer is None:
            known = ("revision", "trust_remote_code", "cache")
            given: Any = {name: value for name, value in self.loading.items() if name in known}
            return load_tokenizer(self.name, **given)
        return self.given_tokenizer

    @property
    def short_name(self) -> str:
        return model_name(self.name)


def open_model(model: AnyModel, tokenizer: Any = None, **loading: Unpack[Loading]) -> OpenedModel:
    """Open anything that stands for a model: a loaded model, "number" or "letter", the folder of a training run, or
    anything that `ww.load` takes.

    >>> open_model("number").task                                      # doctest: +SKIP
    'number'
    """
    if isinstance(model, (str, Path)):
        if is_lab_model(model):
            if given := [name for name, value in loading.items() if value not in (None, False, *DEFAULTS)]:
                raise BadInput(f"{', '.join(given)}: only for language models; {model} is a model of the lab")
            if Path(model).exists():
                return OpenedModel(load_checkpoint(model), str(model), read_run(model).get("task"))
            return OpenedModel(embedded(str(model)), str(model), str(model))
        return OpenedModel(load(model, **loading), str(model), None, tokenizer, loading)
    if loading:
        raise BadInput(f"{', '.join(loading)}: only for a model given by name")
    model = unwrap(model)
    if isinstance(model, Transformer):
        return OpenedModel(model, model.name, model.name or None)
    if not isinstance(model, PreTrainedModel):
        raise BadInput(describe(model))
    return OpenedModel(model, model.config.name_or_path or "", None, tokenizer)


def is_lab_model(name: str | Path) -> bool:
    """Whether a name stands for a bundled model or the folder of a training run, not for a language model."""
    return is_run(name) or (str(name) in TASKS and not Path(name).exists())


def load(
    name: str | Path,
    *,
    dtype: torch.dtype | str = torch.float32,
    device: str | None = None,
    device_map: str | dict[str, Any] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    cache: bool = True,
    **options: Any,
) -> PreTrainedModel:
    """Load a causal language model for measuring; code from the hub runs only with `trust_remote_code`.

    With `cache`, a .gguf file is converted once and read from its conversion after that; see `gguf_cache`.

    `device_map` spreads a big model over devices with accelerate: "auto", "auto:0=20GB,cpu=50GB" with memory limits, or
    a dictionary with the device of each module. Weights that do not fit, or are placed on "disk", are read from disk
    whenever their layer runs.

    >>> model = ww.load("HuggingFaceTB/SmolLM2-135M")        # doctest: +SKIP
    >>> model = ww.load("models/SmolLM2.Q4_1.gguf")          # doctest: +SKIP
    """
    source, found = locate(name, revision)
    check_devices(device, device_map)
    options |= {"dtype": check_dtype(dtype), "trust_remote_code": trust_remote_code}
    caching = cache and "gguf_file" in found and device_map is None
    part = str(options["dtype"]).removeprefix("torch.")
    if caching and (kept := converted(Path(name), part)) is not None:
        source, found, caching = str(kept), {}, False
    options |= found
    if found.get("local_files_only"):
        options["adapter_kwargs"] = {"local_files_only": True}  # with peft, transformers looks for an adapter first
    if device_map is not None:
        options |= read_device_map(device_map) if isinstance(device_map, str) else {"device_map": device_map}
    scratch = None if device_map is None or "offload_folder" in options else TemporaryDirectory(prefix="wherewhat-")
    if scratch is not None:
        options["offload_folder"] = scratch.name  # for weights that must be converted first, as those of .gguf files
    try:
        with small_reader() if "gguf_file" in options else nullcontext():
            loaded: Any = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True, **options)
        model, report = loaded
    except Exception as error:
        raise BadInput(f"{name}: cannot be loaded ({_reason(error, options)})") from error
    if missing := sorted(report["missing_keys"]):
        # transformers would initialise them at random, and their heads would be scored as if they were trained.
        raise BadInput(f"{name}: {len(missing)} weights are missing, among them {missing[0]}")
    if "gguf_file" in options:
        _as_plain(model)
    if Path(name).suffix == ".gguf":
        model.config.name_or_path = str(name)  # not the folder of the file or of its conversion
    if caching:
        keep_converted(Path(name), part, model.save_pretrained)
    if scratch is not None:
        vars(model)["offload_folder"] = scratch  # lives as long as the model
    if device is not None and device_map is None:
        model.to(device)
    return model.eval()


def _as_plain(model: PreTrainedModel) -> None:
    """The weights of a .gguf file are dequantised when they are read: the model is a plain one, and can be saved."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # pyright: ignore[reportAttributeAccessIssue] - only on quantised models
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        vars(model).pop(name, None)


def load_tokenizer(
    name: str | Path, *, revision: str | None = None, trust_remote_code: bool = False, cache: bool = True
) -> Any:
    """The tokenizer of a model; for a .gguf file, the one in the same folder, or else the one inside the file.

    >>> tokenizer = load_tokenizer("models/SmolLM2.Q4_1.gguf")       # doctest: +SKIP
    """
    source, options = locate(name, revision)
    if "gguf_file" in options and any(Path(source).glob("tokenizer*")):
        del options["gguf_file"]
    caching = cache and "gguf_file" in options
    if caching and (kept := converted(Path(name), "tokenizer")) is not None:
        source, options, caching = str(kept), {}, False
    try:
        with small_reader() if "gguf_file" in options else nullcontext():
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code, **options)
    except Exception as error:
        if "gguf_file" in options:
            raise BadInput(f"{name}: not readable, maybe truncated or damaged ({_reason(error, options)})") from error
        if Path(source).is_dir() and not any(Path(source).glob("*token*")):
            raise BadInput(f"{name}: the folder holds no tokenizer") from error
        raise BadInput(f"{name}: its tokenizer cannot be loaded ({_reason(error, options)})") from error
    if caching:
        keep_converted(Path(name), "tokenizer", tokenizer.save_pretrained)
    return tokenizer


def locate(name: str | Path, revision: str | None = None) -> tuple[str, dict[str, Any]]:
    """The location of a model, and the options that transformers needs to load it from there."""
    check_model_name(name, revision)
    path = Path(name)
    if path.suffix == ".gguf":
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        return str(path), {}
    return str(name), {"revision": revision, "local_files_only": not hub_answers()}


def hub_answers() -> bool:
    """Whether the hub can be reached; if not, only the local cache is used, without retries.

    Behind a proxy only a request would tell, so the answer is always yes.
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
    """The dtype of this name; refuses those that are not supported."""
    if isinstance(dtype, str):
        check_dtype_name(dtype)
        return getattr(torch, dtype)
    return dtype


def check_devices(device: str | None, device_map: object) -> None:
    """Refuse a device that this machine does not have, before anything is loaded."""
    if device_map is not None and find_spec("accelerate") is None:
        raise BadInput("--device-map needs accelerate: pip install accelerate")
    if device is not None:
        if device.startswith("meta"):
            raise BadInput("device meta holds no weights, so there is nothing to measure")
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
