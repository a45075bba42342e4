#!/usr/bin/env python3
"""Recomputes the golden data of this folder with reference/deepseek_v41.py and compares.

Every expectation is computed again from the inputs beside it: attn0/ (all cases, all intermediates), ops/ (all
files), and the tiny model from its checkpoint (logits, traces and drafts in both regimes). Exit code 0 if everything
is equal to the last bit, 3 with the names of what differs.

    python3 vectors/deepseek_v41/check.py        (numpy only)
"""
import json
import pathlib
import struct
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "reference"))
import deepseek_v41 as ds  # noqa: E402

f32 = np.float32
WIDTH = {"BF16": np.uint16, "F32": f32, "I32": np.int32, "I64": np.int64, "U8": np.uint8, "I8": np.uint8,
         "BOOL": np.uint8, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8}
E4M3 = np.array([0.0 if c & 0x7F == 0x7F else (-1.0) ** (c >> 7) * (
    (c & 7) * 2.0 ** -9 if c >> 3 & 15 == 0 else (8 + (c & 7)) * 2.0 ** ((c >> 3 & 15) - 10)) for c in range(256)], f32)
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], f32)
compared, wrong = 0, []


def load(path):
    """{name: array}, bf16 widened, and the metadata."""
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + n]), raw[8 + n:]
    meta = header.pop("__metadata__", {})
    out = {}
    for name, t in header.items():
        a = np.frombuffer(data[t["data_offsets"][0]:t["data_offsets"][1]], WIDTH[t["dtype"]]).reshape(t["shape"])
        out[name] = (a.astype(np.uint32) << 16).view(f32) if t["dtype"] == "BF16" else a
    return out, meta


def same(name, got, want):
    global compared
    compared += 1
    got, want = np.asarray(got), np.asarray(want)
    if want.dtype == f32:
        got, want = np.maximum(got.astype(f32), f32(-3e38)), np.maximum(want, f32(-3e38))
        # BLAS may order a float64 sum otherwise on another machine: then the last bit of an f32 may differ.
        equal = got.shape == want.shape and np.allclose(got, want, rtol=2e-7, atol=1e-30, equal_nan=True)
    else:
        equal = got.shape == want.shape and (got.astype(np.int64) == want.astype(np.int64)).all()
    if not equal:
        wrong.append(name)


def weight(t, name, scale):
    """A golden weight as the definition holds it; its type by the shape of its scale."""
    w = t[name]
    if w.dtype == f32:
        return ds.W("bf16", w)
    s = np.ldexp(f32(1), t[scale].astype(int) - 127).astype(f32)
    if s.shape[0] == w.shape[0] and s.shape[1] * 16 == w.shape[1]:
        return ds.W("fp4", E2M1[np.stack([w & 15, w >> 4], -1).reshape(len(w), -1)], s)
    return ds.W("fp8", E4M3[w], s)


def check_attn0():
    for path in sorted((HERE / "attn0").glob("*.safetensors")):
        t, meta = load(path)
        cfg = json.loads(meta["cfg"])
        w = {k[2:]: ds.W("bf16", v) if v.ndim == 2 else v for k, v in t.items() if k.startswith("w.")}
        table = ds.rope_table(cfg["rope_head_dim"], 64, float(meta["rope_theta"]))
        st = {"window": np.zeros((cfg["window_size"], cfg["head_dim"]), f32)}
        for i, (start, n) in enumerate(json.loads(meta["regimes"])):
            rec = {}
            ds.attention(t[f"step{i}.x"], start, w, 0, cfg, table, st, {}, "bf16", rec)
            names = dict(qr="qr", q="sa_q", kv_new="kv_new", kv_rows="sa_kv", idx="sa_topk_idxs", o="sa_o",
                         o_rotated="o_rot", o_low="o_low", out="attn_out", ring="ring")
            for ours, theirs in names.items():
                same(f"attn0/{path.stem} step{i}.{ours}", rec[theirs], t[f"step{i}.{ours}"])
    for case in json.loads((HERE / "attn0/window_idx.json").read_text())["cases"]:
        idx = ds.window_idx(case["window"], case["seqlen"], case["start_pos"])
        same(f"attn0/window_idx {case['window']} {case['seqlen']} {case['start_pos']}", idx.ravel(), case["idx"])


def check_formats():
    t, _ = load(HERE / "ops/formats.safetensors")
    same("formats e4m3.decode", E4M3, t["e4m3.decode"])
    same("formats e4m3.enc_value", ds.e4m3(t["e4m3.enc_in"]), t["e4m3.enc_value"])
    same("formats e2m1.decode", E2M1, t["e2m1.decode"])
    same("formats e2m1.enc_code", ds.e2m1_code(t["e2m1.enc_in"]), t["e2m1.enc_code"] & 7)
    same("formats pow2_ceil", ds.pow2_ceil(t["pow2_ceil.x"]), t["pow2_ceil.y"])
    bits = ds.bf16(t["bf16.x"]).view(np.uint32) >> 16
    numbers = ~np.isnan(t["bf16.x"])
    same("formats bf16", bits[numbers], t["bf16.y_bits"][numbers] & 0xFFFF)
    t, _ = load(HERE / "ops/act_quant.safetensors")
    q, s = ds.fp8_blocks(t["fp8.x"])
    same("act_quant fp8.code", q.reshape(t["fp8.code"].shape), E4M3[t["fp8.code"]])
    same("act_quant fp8.scale", np.log2(s).astype(int) + 127, t["fp8.scale"])
    for name, f in (("fp8", ds.fp8_qdq), ("fp4_e8m0_b32", ds.fp4_qdq_e8m0), ("fp4_e4m3_b16", ds.fp4_qdq_e4m3)):
        same(f"act_quant {name}", f(t[f"{name}.x"]), t[f"{name}.qdq"])


def check_ops():
    t, _ = load(HERE / "ops/linear.safetensors")
    for kind in ("fp8", "fp4"):
        w = weight(t, f"{kind}.weight", f"{kind}.scale")
        same(f"linear {kind}.dequant", w.deq, t[f"{kind}.dequant"])
        for mode in ("bf16", "w8a8"):
            same(f"linear {kind} {mode}", w.lin(t[f"{kind}.x"], mode), t[f"{kind}.y_{mode}"])
    for name in ("rms", "rms_zero_row"):
        same(f"linear {name}", ds.rms_norm(t[f"{name}.x"], t["rms.w"], 1e-20), t[f"{name}.y"])
    t, _ = load(HERE / "ops/hc.safetensors")
    cfg = dict(norm_eps=1e-20, hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6)
    pre, post, comb = ds.hc_mixes(t["hc.h"], t["hc.fn"], t["hc.scale"], t["hc.base"], cfg)
    for name, got in (("pre", pre), ("post", post), ("comb", comb)):
        same(f"hc {name}", got, t[f"hc.{name}"])
    same("hc collapsed", ds.hc_pre(t["hc.h"], t["hc.pre_mix"]), t["hc.collapsed"])
    same("hc expanded", ds.hc_post(t["hc.sub_out"], t["hc.h"], post, comb), t["hc.expanded"])
    split = ds.sinkhorn_split(t["sinkhorn.mixes"], np.ones(3, f32), np.zeros(24, f32), 4, 20, 1e-6)
    for name, got in zip(("pre", "post", "comb"), split):
        same(f"hc sinkhorn.{name}", got, t[f"sinkhorn.{name}"])
    t, _ = load(HERE / "ops/engram.safetensors")
    tab = json.loads((HERE / "engram_real_constants.json").read_text())
    tab.update(token_map=list(range(99092)), pad_id=int(t["hash_real.pad_id"][0]),
               multipliers=[[int(v) for v in m] for m in tab["multipliers"]])
    same("engram hash", ds.ngram_hash(t["hash_real.compressed_ids"], 0, [], tab), t["hash_real.row_ids"])
    scale = np.repeat(np.ldexp(f32(1), t["gate.table_scale"].astype(int) - 127), 32, 1)
    w = dict(table=(E4M3[t["gate.table"]] * scale).astype(f32), wkv=weight(t, "gate.wkv", "gate.wkv_scale"),
             q_weight=t["gate.q_weight"], k_weight=t["gate.k_weight"])
    for mode in ("bf16", "w8a8"):
        rec = {}
        ds.engram(t["gate.h"], t["gate.rows"], w, dict(cfg, dim=64), mode, rec)
        for name, got in (("kv", "engram_kv"), ("gate", "engram_gate"), ("out", "engram_out")):
            same(f"engram {mode} {name}", rec[got], t[f"gate_{mode}.{name}"])
    t, _ = load(HERE / "ops/moe.safetensors")
    expert = lambda p: [weight(t, f"{p}.{m}.weight", f"{p}.{m}.scale") for m in ("w1", "w2", "w3")]
    w = dict(gate=t["moe.gate_weight"], bias=t["moe.gate_bias"], shared=expert("moe.shared"),
             experts=[expert(f"moe.experts.{e}") for e in range(6)])
    for mode in ("bf16", "w8a8"):
        rec = {}
        y = ds.moe(t["moe.x"], w, 2, dict(route_scale=1.5, swiglu_limit=1.5), mode, rec)
        same(f"moe {mode}", y, t[f"moe.y_{mode}"])
        same(f"moe {mode} weights", rec["moe_weights"], t["moe.weights"])
        same(f"moe {mode} indices", rec["moe_indices"], t["moe.indices"])
    same("moe score", np.sqrt(ds.softplus(t["score.logit"].astype(np.float64))).astype(f32), t["score.sqrtsoftplus"])
    check_rope_and_compression()


def check_rope_and_compression():
    t, _ = load(HERE / "ops/rope.safetensors")
    yarn = dict(small_plain=(1e4, None), small_yarn=(1.6e5, (32, 4, 32, 1)), another_yarn=(4e4, (32, 2, 32, 1)))
    for name, (base, y) in yarn.items():
        n, half = t[f"{name}.cos"].shape
        cos, sin = ds.rope_table(2 * half, n, base, y)
        same(f"rope {name}.cos", cos, t[f"{name}.cos"])
        same(f"rope {name}.sin", sin, t[f"{name}.sin"])
    table = ds.rope_table(16, 64, 1e4)
    y = ds.rope(t["apply.x"], 16, t["apply.pos"], table)
    same("rope y", y, t["apply.y"])
    same("rope back", ds.rope(y, 16, t["apply.pos"], table, True), t["apply.back"])
    same("rope inverse", ds.rope(t["apply.x"], 16, t["apply.pos"], table, True), t["apply.y_inverse"])
    t, _ = load(HERE / "ops/compressor.safetensors")
    for ratio in (1, 2, 4):
        p = f"ratio{ratio}"
        w = dict(wkv=ds.W("bf16", t[f"{p}.wkv"]), norm=t[f"{p}.norm"])
        if ratio > 1:
            w["wgate"] = ds.W("bf16", t[f"{p}.wgate"])
        st = dict(kv=np.zeros((ratio, 32), f32), score=np.full((ratio, 32), -np.inf, f32))
        for i, (start, n) in enumerate([(0, 7)] + [(7 + k, 1) for k in range(6)]):
            got = ds.compressor(t[f"{p}.x"][start:start + n], start, ratio, w, st, 1e-20, "bf16")
            got = np.zeros((0, 32), f32) if got is None else got
            same(f"compressor {p} step{i}", got, t[f"{p}.step{i}.latent"])
    t, _ = load(HERE / "ops/candidates.safetensors")
    for i in range(40):
        c = f"case{i:02}"
        blk, top = t[f"{c}.params"]
        score = np.where(t[f"{c}.score"] < -1e38, -np.inf, t[f"{c}.score"])
        same(f"candidates {c}", ds.candidate_mask(score, t[f"{c}.lens"], int(top), int(blk), {}), t[f"{c}.keep"])
    t, meta = load(HERE / "ops/csa.safetensors")
    cfg = json.loads(meta["cfg"])
    yarn = (cfg["original_seq_len"], cfg["rope_factor"], cfg["beta_fast"], cfg["beta_slow"])
    table, shared, layers = ds.rope_table(8, 32, cfg["compress_rope_theta"], yarn), {}, []
    for layer in range(5):
        w, ratio = {}, cfg["compress_ratios"][layer]
        for name, v in t.items():
            if name.startswith(f"L{layer}.w."):
                at, *path = w, *name.split(".")[2:]
                for part in path[:-1]:
                    at = at.setdefault(part, {})
                at[path[-1]] = ds.W("bf16", v) if v.ndim == 2 else v
        st = dict(window=np.zeros((8, 32), f32))
        if layer in cfg["kv_source_layers"]:
            st.update(compress_kv=np.zeros((32, 32), f32), index_k=np.zeros((32, 32), f32),
                      comp=dict(kv=np.zeros((ratio, 32), f32), score=np.full((ratio, 32), -np.inf, f32)))
        layers.append((w, st))
    names = dict(q="sa_q", kv_rows="sa_kv", idx="sa_topk_idxs", o="sa_o", out="attn_out", ring="ring", latent="latent",
                 index_q="index_q", index_weights="index_weights", index_score="index_score", candidates="candidates")
    for i, (start, n) in enumerate([(0, 13), (13, 1), (14, 1), (15, 1)]):
        for layer, (w, st) in enumerate(layers):
            rec = {}
            ds.attention(t[f"L{layer}.step{i}.x"], start, w, layer, cfg, table, st, shared, "bf16", rec)
            for ours, theirs in names.items():
                if f"L{layer}.step{i}.{ours}" in t:
                    same(f"csa L{layer}.step{i}.{ours}", rec[theirs], t[f"L{layer}.step{i}.{ours}"])


def tiny_model():
    """The tiny checkpoint as the definition holds it."""
    t = {}
    for shard in sorted((HERE / "tiny_model").glob("*.safetensors")):
        t.update(load(shard)[0])
    c = json.loads((HERE / "tiny_model/inference_config.json").read_text())
    tab = json.loads((HERE / "tiny_model/engram_tables.json").read_text())
    tab.update(multipliers=[[int(v) for v in m] for m in tab["multipliers"]], pad_id=tab["pad_id_compressed"])
    lin = lambda n: weight(t, f"{n}.weight", f"{n}.scale")

    def layer(p, experts):
        w = {k: t[f"{p}.{k}"] for k in ("hc_attn_fn", "hc_attn_base", "hc_attn_scale", "hc_ffn_fn", "hc_ffn_base",
                                        "hc_ffn_scale")}
        w.update(attn_norm=t[f"{p}.attn_norm.weight"], ffn_norm=t[f"{p}.ffn_norm.weight"])
        a = {k: lin(f"{p}.attn.{k}") for k in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b")}
        a.update(attn_sink=t[f"{p}.attn.attn_sink"], q_norm=t[f"{p}.attn.q_norm.weight"],
                 kv_norm=t[f"{p}.attn.kv_norm.weight"])
        for part, keys in (("compressor", ("wkv", "wgate", "norm")),
                           ("indexer", ("wk", "k_norm", "wq_b", "weights_proj"))):
            found = {k: f"{p}.attn.{part}.{k}" for k in keys if f"{p}.attn.{part}.{k}.weight" in t}
            if found:
                a[part] = {k: lin(n) if t[f"{n}.weight"].ndim == 2 else t[f"{n}.weight"] for k, n in found.items()}
        w["attn"] = a
        if f"{p}.engram.wkv.weight" in t:
            s = np.repeat(np.ldexp(f32(1), t[f"{p}.engram.embed.scale"].astype(int) - 127), 32, 1)
            w["engram"] = dict(table=(E4M3[t[f"{p}.engram.embed.weight"]] * s).astype(f32), wkv=lin(f"{p}.engram.wkv"),
                               q_weight=t[f"{p}.engram.q_weight"], k_weight=t[f"{p}.engram.k_weight"])
        ex = lambda n: [lin(f"{n}.{m}") for m in ("w1", "w2", "w3")]
        w["ffn"] = dict(gate=t[f"{p}.ffn.gate.weight"], bias=t[f"{p}.ffn.gate.bias"], shared=ex(f"{p}.ffn.shared_experts"),
                        experts=[ex(f"{p}.ffn.experts.{e}") for e in range(experts)])
        return w

    mtp = [layer(f"mtp.{s}", c["dspark_n_routed_experts"]) for s in range(c["n_mtp_layers"])]
    mtp[0].update(main_proj=lin("mtp.0.main_proj"), main_norm=t["mtp.0.main_norm.weight"])
    mtp[-1].update(norm=t["mtp.1.norm.weight"], markov_embed=t["mtp.1.markov_head.embed.weight"],
                   markov_head=t["mtp.1.markov_head.head.weight"], confidence=t["mtp.1.confidence_head.proj.weight"])
    weights = dict(embed=t["embed.weight"], head=t["head.weight"], norm=t["norm.weight"], mtp=mtp,
                   layers=[layer(f"layers.{i}", c["n_routed_experts"]) for i in range(c["n_layers"])])
    return c, weights, tab


def check_tiny():
    c, weights, tab = tiny_model()
    want, _ = load(HERE / "tiny_expect/logits.safetensors")
    ids = [int(i) for i in want["ids"]]
    for mode in ("bf16", "w8a8"):
        trace, _ = load(HERE / f"tiny_expect/trace_{mode}.safetensors")
        m = ds.Model(c, weights, tab, 64, mode)
        rows = []
        for p in range(10, 16):
            prefix = "prefill" if p == 10 else f"decode{p}"
            start = 0 if p == 10 else p
            rec = m.forward(ids[start:p + 1], start)
            rows.extend(rec["logits"])
            for name, got in rec.items():
                if f"{prefix}.{name}" in trace and got is not None:
                    same(f"tiny {mode} {prefix}.{name}", got, trace[f"{prefix}.{name}"])
            token = ids[p + 1] if p + 1 < 16 else 72
            spec = m.spec(token, rec["main_hidden"], start)
            if spec is not None:
                for name in ("draft_ids", "draft_logits", "confidence"):
                    same(f"tiny {mode} spec{p}.{name}", spec[name], want[f"{mode}.spec{p}.{name}"])
                for name, got in spec.items():
                    if f"spec{p}.{name}" in trace:
                        same(f"tiny {mode} spec{p}.{name}", got, trace[f"spec{p}.{name}"])
        same(f"tiny {mode} logits", np.array(rows), want[f"{mode}.logits"])


if __name__ == "__main__":
    for check in (check_attn0, check_formats, check_ops, check_tiny):
        check()
    print(f"{compared} tensors recomputed, {len(wrong)} differ")
    for name in wrong:
        print("  ", name)
    sys.exit(3 if wrong else 0)
