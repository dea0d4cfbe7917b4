"""Compares first passes over a text with the fastest other tokenizer libraries: fastokens, gigatoken and `tokenizers`.

Usage: `python benches/tokenize_cold.py FOLDER [--two] [--json] [NAME]…`; `cargo xtask bench tokenizers` fetches the definitions and texts.

A text is cut into parts, and every library encodes each part once, into an array (the fastest form of each library) or into a list:
the text is new to all of them, while words may repeat. Libraries take turns. The best of several processes counts, because noise only adds
time. Without `--two` the process runs on one core. Ratios are ours to theirs: above 1 LayerZero is faster.
"""

import argparse
import gc
import glob
import json
import os
import sysconfig
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

PROCESSES = 3
PARTS = 8
BYTES = 4_000_000
NAMES = ("llama3", "qwen3", "gpt4o", "deepseek_v3", "mistral_nemo", "gpt2", "gemma3", "llama2", "bert", "unigram")


def texts(folder):
    """A novel, Python's own sources, and hundreds of languages."""
    sources = []
    for path in sorted(glob.glob(sysconfig.get_paths()["stdlib"] + "/**/*.py", recursive=True)):
        if "site-packages" not in path and sum(map(len, sources)) < BYTES:
            with open(path, encoding="utf-8", errors="ignore") as file:
                sources.append(file.read())
    read = lambda name: open(f"{folder}/{name}", encoding="utf-8").read()  # noqa: E731
    all_texts = {"English": read("novel.txt"), "code": "".join(sources), "languages": read("languages.txt")}
    return {kind: text.encode()[:BYTES].decode(errors="ignore") for kind, text in all_texts.items()}


def layerzero(path):
    import layerzero as lz

    tokenizer = lz.Tokenizer.from_file(path)
    # Verification does not touch the text.
    tokenizer.wait_verified()
    options = {"add_special_tokens": False}
    return {
        "array": lambda text: tokenizer.encode(text, as_arrays=True, **options).tokens,
        "list": lambda text: tokenizer.encode(text, **options),
    }


def fastokens(path):
    import fastokens
    import numpy

    tokenizer = fastokens.Tokenizer.from_file(path)
    return {
        "array": lambda text: numpy.frombuffer(tokenizer.encode_batch_flat([text])[0], numpy.uint32),
        "list": lambda text: tokenizer.encode(text).ids,
    }


def gigatoken(path):
    import gigatoken

    with open(path, "rb") as file:
        tokenizer = gigatoken.Tokenizer.from_json(file.read())
    return {"array": tokenizer.encode, "list": lambda text: tokenizer.encode_batch_list([text])[0]}


def hugging_face(path):
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(path)
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids  # noqa: E731
    return {"array": encode, "list": encode}


LIBRARIES = {"layerzero": layerzero, "fastokens": fastokens, "gigatoken": gigatoken, "tokenizers": hugging_face}


def one_process(path, text, form, libraries):
    """Seconds of each library for all parts of a text, none of which it has seen, and a note for each that cannot be compared."""
    seconds, notes, encoders = {}, {}, {}
    for name in libraries:
        try:
            encoders[name] = LIBRARIES[name](path)[form]
            encoders[name]("one")
        except Exception as error:  # noqa: BLE001 - a library may refuse a definition with any error
            notes[name] = f"{type(error).__name__}: {error}"[:80]
    size = -(-len(text) // PARTS)
    for turn, part in enumerate(text[start : start + size] for start in range(0, len(text), size)):
        names = [name for name in encoders if name not in notes]
        turn %= len(names)
        ids = {}
        for name in names[turn:] + names[:turn]:
            gc.collect()
            start = time.perf_counter()
            ids[name] = encoders[name](part)
            seconds[name] = seconds.get(name, 0) + time.perf_counter() - start
        for name in names:
            if list(ids[name]) != list(ids["layerzero"]):
                notes[name] = "other tokens"
    return seconds, notes


def first_passes(path, text, form, libraries):
    """The best MB/s of each library in several processes, and the notes."""
    best = {}
    for _ in range(PROCESSES):
        # A process of its own, because libraries keep caches until the process ends.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            seconds, notes = pool.submit(one_process, path, text, form, libraries).result()
        for name in seconds.keys() - notes.keys():
            best[name] = max(best.get(name, 0), len(text.encode()) / 1e6 / seconds[name])
    return best, notes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the folder of the definitions and texts")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"definitions; default: {' '.join(NAMES)}")
    parser.add_argument("--two", action="store_true", help="use all cores")
    parser.add_argument("--json", action="store_true", help="one object per line")
    parser.add_argument("--without", default="", help="libraries that are left out, separated by commas")
    arguments = parser.parse_args()
    if not arguments.two:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os.environ["RAYON_NUM_THREADS"] = "1"
    libraries = [name for name in LIBRARIES if name not in arguments.without.split(",")]
    for name in arguments.names or NAMES:
        for kind, text in texts(arguments.folder).items():
            for form in ("array", "list"):
                best, notes = first_passes(f"{arguments.folder}/{name}.json", text, form, libraries)
                ours = best.pop("layerzero")
                ratios = {peer: round(ours / rate, 2) for peer, rate in best.items()}
                row = {"bench": "tokenizers", "case": f"{name} {kind} {form}", "MB/s": round(ours, 1), "ratios": ratios, "notes": notes}
                if arguments.json:
                    print(json.dumps(row), flush=True)
                else:
                    peers = "  ".join(f"{peer} {ratio:.2f} x" for peer, ratio in ratios.items())
                    missing = "".join(f"  ({peer}: {note})" for peer, note in notes.items())
                    print(f"{row['case']:32} {ours:7.1f} MB/s  {peers}{missing}", flush=True)


if __name__ == "__main__":
    main()
