"""A .gguf file is converted once; the conversion is the same model, found by contents, checked, and limited in size."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import wherewhat as ww
from tiny import tiny_model, write_gguf
from wherewhat.tracing.fingerprint import model_hash
from wherewhat.tracing.gguf_cache import cache_folder
from wherewhat.tracing.gguf_reader import small_reader


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    caplog.set_level(logging.INFO, "wherewhat")
    return gguf_file(tmp_path / "model.gguf")


def gguf_file(path: Path, seed: int = 0) -> Path:
    write_gguf(path, tiny_model("llama", seed, vocab_size=64, attention_bias=False, num_hidden_layers=1))
    return path


def kept() -> list[Path]:
    return sorted(path.parent for path in cache_folder().glob("*/*/conversion.json"))


def test_the_second_load_reads_the_conversion_and_gives_the_same_model(file, caplog, monkeypatch):
    plain = ww.load(file, cache=False)
    assert kept() == []
    first = ww.load(file)
    assert [path.name for path in kept()] == ["float32"]
    assert "Converted model.gguf once" in caplog.text
    moved = file.rename(file.with_name("renamed.gguf"))
    monkeypatch.setattr("gguf.GGUFReader.__init__", lambda *_: pytest.fail("read the .gguf file"))
    second = ww.load(moved)
    assert "Reading renamed.gguf from" in caplog.text
    assert model_hash(plain) == model_hash(first) == model_hash(second)
    ids = torch.arange(1, 20)[None]
    scores = [ww.score(ww.capture(model, ids)).positional for model in (plain, second)]
    assert torch.equal(*scores)
    assert second.config.name_or_path == str(moved)


def test_each_dtype_has_its_conversion(file):
    assert ww.load(file, dtype="bfloat16").dtype == torch.bfloat16
    assert ww.load(file, dtype="bfloat16").dtype == torch.bfloat16
    assert ww.load(file).dtype == torch.float32
    assert [path.name for path in kept()] == ["bfloat16", "float32"]


def test_a_damaged_conversion_is_made_again(file, caplog):
    expected = model_hash(ww.load(file))
    weights = kept()[0] / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 1
    weights.write_bytes(data)
    assert model_hash(ww.load(file)) == expected
    assert caplog.text.count("Converted model.gguf once") == 2
    assert weights.read_bytes() != data


def test_another_file_of_the_same_name_size_and_time_is_another_model(file):
    stat = file.stat()
    expected = model_hash(ww.load(file))
    gguf_file(file, seed=1)
    assert file.stat().st_size == stat.st_size
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert model_hash(ww.load(file)) != expected


def test_the_least_recently_used_conversions_are_removed(file, tmp_path, monkeypatch):
    ww.load(file)
    size = sum(path.stat().st_size for path in kept()[0].iterdir())
    monkeypatch.setenv("WHEREWHAT_CACHE_GB", str(2.5 * size / 1e9))
    second = gguf_file(tmp_path / "second.gguf", seed=1)
    ww.load(second)
    ww.load(file)  # used after the second one
    before = set(kept())
    assert len(before) == 2
    ww.load(gguf_file(tmp_path / "third.gguf", seed=2))
    assert len(kept()) == 2
    model_hash(ww.load(file))
    assert len(before & set(kept())) == 1


def test_a_cache_that_cannot_be_written_is_no_error(file, caplog, monkeypatch, tmp_path):
    (tmp_path / "occupied").write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "occupied"))
    ww.load(file)
    assert "model.gguf is converted at every load" in caplog.text


def test_the_small_reader_reads_what_the_parser_does_and_is_put_away(file):
    """Tensors and fields of both readers, byte by byte; also if loading fails."""
    import gguf

    own = gguf.GGUFReader, gguf.dequantize
    plain = gguf.GGUFReader(file)
    with small_reader():
        small = gguf.GGUFReader(file)
        for one, other in zip(plain.tensors, small.tensors, strict=True):
            assert one.name == other.name
            expected = own[1](one.data, one.tensor_type)
            assert np.array_equal(expected, gguf.dequantize(other.data, other.tensor_type))
            assert np.array_equal(expected, gguf.dequantize(other.data, other.tensor_type))  # after its pages went
    assert type(plain.tensors[0].data) is np.memmap
    assert type(small.tensors[0].data) is np.ndarray
    fields = [{name: field.contents() for name, field in reader.fields.items()} for reader in (plain, small)]
    assert fields[0] == fields[1]
    with pytest.raises(ZeroDivisionError), small_reader():
        raise ZeroDivisionError
    assert (gguf.GGUFReader, gguf.dequantize) == own
