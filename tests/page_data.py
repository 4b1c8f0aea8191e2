"""The data of a page, read back from its HTML as a program of another kind would."""

from __future__ import annotations

import base64
import json
import re
import zlib

import numpy as np


def held(page: str) -> dict:
    """The data of a page."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def decoded(array: dict[str, str]) -> np.ndarray:
    if "deflate" in array:
        planes = np.frombuffer(zlib.decompress(base64.b64decode(array["deflate"])), "u1").reshape(2, -1)
        return np.frombuffer(planes.T.tobytes(), np.dtype("<" + array["type"]))
    return np.frombuffer(base64.b64decode(array["base64"]), np.dtype("<" + array["type"]))
