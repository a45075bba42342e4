#!/usr/bin/env python3
"""Writes the corpus of safetensors files that must be refused (bad/) or accepted (good/).

`generate.py` rewrites both folders and expect.json; `generate.py --check` compares instead and
fails on any difference. The files are built by hand here, not by a safetensors library, so
that they can be wrong in exactly one way each.
"""

import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).parent


def entry(dtype="F32", shape=(2, 2), offsets=(0, 16), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def raw(header: bytes, data: bytes = b"", length=None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def built(tensors, data=16) -> bytes:
    return raw(json.dumps(tensors, separators=(",", ":")).encode(), bytes(range(data)))


ONE = {"a": entry()}
one_text = json.dumps(ONE).encode()
pair = {"a": entry(), "b": entry(offsets=(16, 32))}

# name: (content, what the refusal must say)
BAD = {
    "empty": (b"", "the file is empty"),
    "seven_bytes": (b"\x10\0\0\0\0\0\0", "too short"),
    "lfs_pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 17000000000\n",
        "Git LFS pointer",
    ),
    "header_absurd": (raw(one_text, bytes(16), 2**64 - 1), "claims 18446744073709551615 bytes"),
    "header_past_end": (raw(one_text, bytes(16), len(one_text) + 17), "the file has only"),
    "header_zero": (raw(b"", bytes(16)), "does not begin with {"),
    "header_array": (raw(b"[]", b""), "does not begin with {"),
    "header_leading_space": (raw(b" " + one_text, bytes(16)), "does not begin with {"),
    "html_page": (b"<!DOCTYPE html><html>Not found</html>", "claims"),
    "json_cut": (raw(one_text[:-1], bytes(16)), "expected a comma or the closing bracket"),
    "json_trailing": (raw(one_text + b"x", bytes(16)), "expected the end"),
    "json_trailing_comma": (raw(one_text[:-1] + b",}", bytes(16)), "expected a string"),
    "json_not_utf8": (raw(one_text.replace(b'"a"', b'"\xff"'), bytes(16)), "expected valid UTF-8"),
    "json_lone_surrogate": (raw(one_text.replace(b'"a"', b'"\\ud800x"'), bytes(16)), "surrogate"),
    "json_negative": (raw(one_text.replace(b"[2, 2]", b"[-2, 2]"), bytes(16)), "an unsigned integer"),
    "json_fraction": (raw(one_text.replace(b"[2, 2]", b"[2.0, 2]"), bytes(16)), "an unsigned integer"),
    "json_big_number": (raw(one_text.replace(b"[2, 2]", b"[18446744073709551616]"), bytes(16)), "below 2^64"),
    "json_deep": (raw(b'{"a":' + b"[" * 5000, b""), "expected an object"),
    "offsets_reversed": (built({"a": entry(offsets=(16, 0))}), "tensor a: data_offsets 16..0 are reversed"),
    "offsets_overlap": (built({"a": entry(), "b": entry(offsets=(8, 24))}, 24), "tensors a and b overlap"),
    "offsets_same": (built({"a": entry(), "b": entry()}, 16), "overlap"),
    "offsets_past_end": (built({"a": entry(offsets=(4, 20))}), "past the file's 16 bytes"),
    "offsets_one": (built({"a": entry(offsets=(0,))}), "data_offsets must be two numbers"),
    "offsets_three": (built({"a": entry(offsets=(0, 16, 16))}), "data_offsets must be two numbers"),
    "hole_middle": (built({"a": entry(), "b": entry(offsets=(20, 36))}, 36), "4 bytes between a and b"),
    "hole_start": (built({"a": entry(offsets=(4, 20))}, 20), "4 bytes between the start and a"),
    "file_longer": (built(ONE, 17), "longer than its header says"),
    "file_shorter": (built(pair, 31), "tensor b: data_offsets end at 32"),
    "no_tensors_but_data": (built({}, 1), "longer than its header says"),
    "name_twice": (
        raw(one_text[:-1] + b", " + json.dumps({"a": entry(offsets=(16, 32))}).encode()[1:], bytes(32)),
        "the tensor name a occurs twice",
    ),
    "name_twice_escaped": (
        raw(one_text[:-1] + b', "\\u0061"' + json.dumps({"a": entry(offsets=(16, 32))}).encode()[4:], bytes(32)),
        "the tensor name a occurs twice",
    ),
    "name_long": (built({"n" * 2000: entry()}), "longer than 1024 bytes"),
    "dtype_unknown": (built({"a": entry("F33")}), 'unknown dtype "F33"'),
    "dtype_lower": (built({"a": entry("f32")}), 'unknown dtype "f32"'),
    "dtype_size": (built({"a": entry("BF16")}), "need 8 bytes, data_offsets give 16"),
    "shape_size": (built({"a": entry(shape=(2, 3))}), "need 24 bytes, data_offsets give 16"),
    "shape_2_42": (built({"a": entry(shape=(2**42,))}), "need 17592186044416 bytes"),
    "shape_overflow": (built({"a": entry(shape=(2**42, 2**42))}), "overflows"),
    "shape_overflow_zero": (built({"a": entry(shape=(2**42, 2**42, 0), offsets=(0, 0))}, 0), "overflows"),
    "shape_rank": (built({"a": entry(shape=(1,) * 9, offsets=(0, 4))}, 4), "more than 8 dimensions"),
    "dtype_missing": (built({"a": {"shape": [4], "data_offsets": [0, 16]}}), "dtype is missing"),
    "shape_missing": (built({"a": {"dtype": "F32", "data_offsets": [0, 16]}}), "shape is missing"),
    "offsets_missing": (built({"a": {"dtype": "F32", "shape": [4]}}), "data_offsets is missing"),
    "field_unknown": (built({"a": entry(strides=[2, 1])}), 'unknown field "strides"'),
    "field_twice": (raw(one_text.replace(b"{\"dtype\"", b"{\"dtype\": \"F32\", \"dtype\""), bytes(16)), "dtype occurs twice"),
    "metadata_number": (raw(b'{"__metadata__": {"n": 1}, ' + one_text[1:], bytes(16)), "expected a string"),
    "metadata_twice": (
        raw(b'{"__metadata__": {}, "__metadata__": {}, ' + one_text[1:], bytes(16)),
        "__metadata__ occurs twice",
    ),
}

GOOD = {
    "one": built(ONE),
    "no_tensors": built({}, 0),
    "shape_zero": built({"z": entry(shape=(0,), offsets=(0, 0)), "a": entry(), "y": entry("F64", (3, 0), (16, 16))}),
    "scalar": built({"s": entry(shape=(), offsets=(0, 4))}, 4),
    "order_of_keys": built({"b": entry(offsets=(16, 32)), "a": entry()}, 32),
    "padded": raw(one_text + b" " * 7, bytes(16)),
    "odd_bytes": built({"a": entry("U8", (3,), (0, 3)), "b": entry("BF16", (2,), (3, 7))}, 7),
    "escaped_name": raw(one_text.replace(b'"a"', b'"\\u0061\\ud83d\\ude00\\"\\\\"'), bytes(16)),
    "every_dtype": built(
        {
            name: entry(name, (1,), (at, at + size))
            for name, size, at in [
                ("BOOL", 1, 0), ("U8", 1, 1), ("I8", 1, 2), ("F8_E5M2", 1, 3), ("F8_E4M3", 1, 4),
                ("F8_E8M0", 1, 5), ("I16", 2, 6), ("U16", 2, 8), ("F16", 2, 10), ("BF16", 2, 12),
                ("I32", 4, 14), ("U32", 4, 18), ("F32", 4, 22), ("F64", 8, 26), ("I64", 8, 34), ("U64", 8, 42),
            ]
        },
        50,
    ),
}


def main():
    files = {f"bad/{n}.safetensors": c for n, (c, _) in BAD.items()}
    files |= {f"good/{n}.safetensors": c for n, c in GOOD.items()}
    expect = {n: says for n, (_, says) in BAD.items()}
    files["expect.json"] = (json.dumps(expect, indent=1, sort_keys=True) + "\n").encode()
    check = "--check" in sys.argv[1:]
    wrong = []
    for name, content in files.items():
        path = HERE / name
        if check:
            if not path.is_file() or path.read_bytes() != content:
                wrong.append(name)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
    present = {str(p.relative_to(HERE)) for d in ("bad", "good") for p in (HERE / d).iterdir()}
    wrong += sorted(present - files.keys())
    if wrong:
        sys.exit("differs from what this script makes: " + ", ".join(wrong))


main()
