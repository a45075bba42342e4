"""Kimi K3 (text) in numpy, sums in float64: the definition that makes vectors/kimi_k3.

    python3 reference/kimi_k3.py           writes the golden files
    python3 reference/kimi_k3.py --check   makes them anew and compares

Written from the model's description, not from the Rust code, and shares nothing with it: the
weights of the tiny model are made here a second time from the rule of crates/testkit (a
counter-based generator), so not even a weight has to be stored. Needs numpy and nothing else.
"""
import hashlib
import json
import pathlib
import sys

import numpy as np

OUT = pathlib.Path(__file__).resolve().parent.parent / "vectors" / "kimi_k3"


# ---------------------------------------------------------------- the model

def sigmoid(x):
    with np.errstate(over="ignore"):  # exp may become infinite: the quotient is then zero
        return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def rms(x, weight, eps):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def situ(gate, up, beta, linear_beta):
    """SiTU-GLU; the sigmoid sees the uncapped gate."""
    return beta * np.tanh(gate / beta) * sigmoid(gate) * (linear_beta * np.tanh(up / linear_beta))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attn_res(sources, norm, proj, eps):
    """sources [n, hidden]: scored normalised, summed raw."""
    return softmax(rms(sources, None, eps) @ (norm * proj)) @ sources


def conv(x, taps, history):
    """One position of the causal depthwise convolution. x [p], taps [p, k] oldest first."""
    window = np.vstack([history, x])
    return silu((window * taps.T).sum(0)), window[1:]


def decay(z, a_log, dt_bias, lower):
    """z [heads, d]; A_log has one value a head."""
    return np.exp(lower * sigmoid(np.exp(a_log)[:, None] * (z + dt_bias)))


def delta(S, q, k, v, alpha, beta):
    """One position of the recurrence, heads first: S [h, key, value]."""
    S = S * alpha[:, :, None]
    u = np.einsum("hkv,hk->hv", S, k)
    S = S + np.einsum("hk,hv->hkv", k * beta[:, None], v - u)
    return S, np.einsum("hkv,hk->hv", S, q)


def route(x, gate, bias, k, scale):
    """Selection by score + bias, ties to the lower index; weights from the score alone."""
    score = sigmoid(gate @ x)
    pick = np.argsort(-(score + bias), kind="stable")[:k]
    weight = score[pick] / (score[pick].sum() + 1e-20) * scale
    return pick, weight


class K3:
    """`get` returns a tensor by its released name (without prefix) as float64; experts as
    `layers.L.block_sparse_moe.experts.X.w1` and so on."""

    def __init__(self, config, mla_eps, get):
        self.c, self.mla_eps, self.get = config, mla_eps, get
        self.full = {l - 1 for l in config["full_attn_layers"]}

    def eps(self):
        return self.c["rms_norm_eps"]

    def situ(self, gate, up):
        return situ(gate, up, self.c["situ_beta"], self.c["situ_linear_beta"])

    def layer(self, l):
        return lambda name: self.get(f"layers.{l}.{name}")

    def kda(self, l, x, state):
        c, w = self.c, lambda name: self.layer(l)("self_attn." + name)
        h, d, taps = c["kda_num_heads"], c["kda_head_dim"], c["short_conv_kernel_size"]
        if state is None:
            state = {"S": np.zeros((h, d, d))} | {n: np.zeros((taps - 1, h * d)) for n in "qkv"}
        r = {}
        for n in "qkv":
            projected = w(f"{n}_proj.weight") @ x
            kernel = w(f"{n}_conv1d.weight").reshape(h * d, taps)
            r[n], state[n] = conv(projected, kernel, state[n])
        q, k, v = (r[n].reshape(h, d) for n in "qkv")
        unit = lambda a: a / np.sqrt((a * a).sum(-1, keepdims=True) + 1e-6)
        q, k = unit(q) / np.sqrt(d), unit(k)
        z = (w("f_b_proj.weight") @ (w("f_a_proj.weight") @ x)).reshape(h, d)
        alpha = decay(z, w("A_log")[:h], w("dt_bias").reshape(h, d), c["gate_lower_bound"])
        beta = sigmoid(w("b_proj.weight") @ x)
        state["S"], o = delta(state["S"], q, k, v, alpha, beta)
        o = rms(o, w("o_norm.weight"), self.eps()).reshape(-1)
        return w("o_proj.weight") @ (o * sigmoid(w("g_proj.weight") @ x)), state

    def mla(self, l, x, rows):
        """Keys and values expanded from the latent: the textbook form, on purpose another one
        than the absorbed form of the engine."""
        c, w = self.c, lambda name: self.layer(l)("self_attn." + name)
        h, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        lat, v = c["kv_lora_rank"], c["v_head_dim"]
        qa = rms(w("q_a_proj.weight") @ x, w("q_a_layernorm.weight"), self.mla_eps)
        q = (w("q_b_proj.weight") @ qa).reshape(h, nope + rope)
        kv = w("kv_a_proj_with_mqa.weight") @ x
        latent = rms(kv[:lat], w("kv_a_layernorm.weight"), self.mla_eps)
        row = np.concatenate([latent, kv[lat:]])[None]
        rows = row if rows is None else np.vstack([rows, row])
        up = w("kv_b_proj.weight").reshape(h, nope + v, lat)
        expanded = np.einsum("hnl,sl->shn", up, rows[:, :lat])
        shared = np.repeat(rows[:, None, lat:], h, 1)
        keys = np.concatenate([expanded[:, :, :nope], shared], 2)
        p = softmax(np.einsum("hd,shd->hs", q, keys) / np.sqrt(nope + rope))
        o = np.einsum("hs,shv->hv", p, expanded[:, :, nope:]).reshape(-1)
        return w("o_proj.weight") @ (o * sigmoid(w("g_proj.weight") @ x)), rows

    def ffn(self, w, x):
        hidden = self.situ(w("gate_proj.weight") @ x, w("up_proj.weight") @ x)
        return w("down_proj.weight") @ hidden

    def moe(self, l, x):
        c, w = self.c, lambda name: self.layer(l)("block_sparse_moe." + name)
        pick, weight = route(x, w("gate.weight"), w("gate.e_score_correction_bias"),
                             c["num_experts_per_token"], c["routed_scaling_factor"])
        z = w("routed_expert_down_proj.weight") @ x
        total = 0
        for e, share in zip(pick, weight):
            part = lambda n: w(f"experts.{e}.{n}")
            total = total + share * (part("w2") @ self.situ(part("w1") @ z, part("w3") @ z))
        total = rms(total, w("routed_expert_norm.weight"), self.eps())
        routed = w("routed_expert_up_proj.weight") @ total
        return routed + self.ffn(lambda n: w("shared_experts." + n), x)

    def one_layer(self, l, h, snapshots, state):
        """One position: (residual, snapshots, state) after layer l."""
        w, eps = self.layer(l), self.eps()
        res = lambda part, r: attn_res(np.array(snapshots + [r]), w(part + "_res_norm.weight"),
                                       w(part + "_res_proj.weight").reshape(-1), eps)
        r = h
        if snapshots:
            h = res("self_attention", r)
        starts_block = l % self.c["attn_res_block_size"] == 0
        if starts_block:
            snapshots = snapshots + [r]
        x = rms(h, w("input_layernorm.weight"), eps)
        a, state = (self.mla if l in self.full else self.kda)(l, x, state)
        r = a if starts_block else r + a
        x = rms(res("mlp", r), w("post_attention_layernorm.weight"), eps)
        dense = l < self.c["first_k_dense_replace"]
        m = self.ffn(lambda n: w("mlp." + n), x) if dense else self.moe(l, x)
        return r + m, snapshots, state

    def step(self, token, states):
        h, snapshots = self.get("embed_tokens.weight")[token], []
        for l in range(self.c["num_hidden_layers"]):
            h, snapshots, states[l] = self.one_layer(l, h, snapshots, states[l])
        h = attn_res(np.array(snapshots + [h]), self.get("output_attn_res_norm.weight"),
                     self.get("output_attn_res_proj.weight").reshape(-1), self.eps())
        return self.get("lm_head.weight") @ rms(h, self.get("norm.weight"), self.eps())

    def states(self):
        return [None] * self.c["num_hidden_layers"]


# ------------------------------------------- the weights of testkit's tiny model

MASK = (1 << 64) - 1


def hash64(key, i):
    """The counter-based generator of crates/testkit/src/random.rs, over an array of counters."""
    with np.errstate(over="ignore"):
        z = np.uint64(key) + np.asarray(i, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def stream(seed, name):
    key = int(hash64(seed, 0))
    for b in name.encode():
        key = int(hash64(key, b + 1))
    return key


def uniform(key, i):
    return (hash64(key, i) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)


def normal(key, i):
    h = hash64(key, i)
    total = sum((h >> np.uint64(s)) & np.uint64(0xFFFF) for s in (0, 16, 32, 48))
    return (total.astype(np.float32) - np.float32(131070)) * np.float32(1 / 37837)


def bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits >> np.uint32(16)).astype(np.uint16)


class Tiny:
    """testkit::k3::Shape::tiny() of a seed: tensors by released name without prefix."""

    CONFIG = dict(
        hidden_size=96, num_hidden_layers=13, vocab_size=320, rms_norm_eps=1e-5,
        full_attn_layers=[4, 8, 12, 13], kda_num_heads=3, kda_head_dim=16,
        short_conv_kernel_size=4, gate_lower_bound=-5.0, num_attention_heads=4, q_lora_rank=40,
        kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=20, num_experts=12,
        num_experts_per_token=3, num_shared_experts=2, routed_expert_hidden_size=64,
        moe_intermediate_size=32, routed_scaling_factor=1.0, first_k_dense_replace=1,
        intermediate_size=144, attn_res_block_size=3, situ_beta=4.0, situ_linear_beta=25.0)

    def __init__(self, seed):
        self.seed, self.tensors, self.digest = seed, {}, hashlib.sha256()
        c = self.CONFIG
        e, v = c["hidden_size"], c["vocab_size"]
        self.matrix("embed_tokens.weight", v, e, 32)
        for l in range(c["num_hidden_layers"]):
            self.layer(f"layers.{l}.", l)
        self.gain("output_attn_res_norm.weight", e)
        self.around("output_attn_res_proj.weight", "bf16", (1, e), 0, self.spread(1, e))
        self.gain("norm.weight", e)
        self.matrix("lm_head.weight", v, e, 2)

    def key(self, name):
        prefix = "language_model." if name.startswith("lm_head") else "language_model.model."
        return stream(self.seed, prefix + name)

    @staticmethod
    def spread(gain, cols):
        return np.float32(gain) / np.sqrt(np.float32(cols))

    def store(self, name, kind, values):
        raw = bf16(values) if kind == "bf16" else values.astype(np.float32)
        self.digest.update(raw.tobytes())
        if kind == "bf16":
            values = (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
        self.tensors[name] = values.astype(np.float64)

    def matrix(self, name, rows, cols, gain):
        key = self.key(name)
        x = normal(key, np.arange(rows * cols)).reshape(rows, cols)
        u = uniform(MASK ^ key, np.arange(rows))
        scale = self.spread(gain, cols) * (np.float32(0.6) + np.float32(0.8) * u)
        self.store(name, "bf16", scale[:, None] * x)

    def around(self, name, kind, shape, mid, spread):
        x = normal(self.key(name), np.arange(np.prod(shape))).reshape(shape)
        self.store(name, kind, np.float32(mid) + np.float32(spread) * x)

    def gain(self, name, n):
        self.around(name, "bf16", (n,), 1, 0.1)

    def flat(self, name, shape, low, high):
        x = uniform(self.key(name), np.arange(np.prod(shape))).reshape(shape)
        self.store(name, "f32", np.float32(low) + (np.float32(high) - np.float32(low)) * x)

    def layer(self, p, l):
        c = self.CONFIG
        e = c["hidden_size"]
        self.gain(p + "input_layernorm.weight", e)
        self.gain(p + "post_attention_layernorm.weight", e)
        for part in ("self_attention", "mlp"):
            self.gain(p + part + "_res_norm.weight", e)
            self.around(p + part + "_res_proj.weight", "bf16", (1, e), 0, self.spread(1, e))
        (self.mla if l + 1 in c["full_attn_layers"] else self.kda)(p + "self_attn.")
        if l < c["first_k_dense_replace"]:
            self.ffn(p + "mlp.", c["intermediate_size"])
            return
        m, lat, n = p + "block_sparse_moe.", c["routed_expert_hidden_size"], c["num_experts"]
        self.matrix(m + "gate.weight", n, e, 1)
        self.around(m + "gate.e_score_correction_bias", "f32", (n,), 0, 0.05)
        self.matrix(m + "routed_expert_down_proj.weight", lat, e, 1)
        self.matrix(m + "routed_expert_up_proj.weight", e, lat, 1)
        self.gain(m + "routed_expert_norm.weight", lat)
        width = c["moe_intermediate_size"]
        self.ffn(m + "shared_experts.", c["num_shared_experts"] * width)
        for x in range(n):
            for part, rows, cols in (("w1", width, lat), ("w2", lat, width), ("w3", width, lat)):
                self.mxfp4(f"{m}experts.{x}.{part}", rows, cols)

    def ffn(self, p, width):
        e = self.CONFIG["hidden_size"]
        self.matrix(p + "gate_proj.weight", width, e, 1)
        self.matrix(p + "up_proj.weight", width, e, 1)
        self.matrix(p + "down_proj.weight", e, width, 1)

    def kda(self, p):
        c = self.CONFIG
        e, h, d, taps = (c["hidden_size"], c["kda_num_heads"], c["kda_head_dim"],
                         c["short_conv_kernel_size"])
        for n in "qkvg":
            self.matrix(f"{p}{n}_proj.weight", h * d, e, 1)
        self.matrix(p + "o_proj.weight", e, h * d, 1)
        for n in "qkv":
            self.around(f"{p}{n}_conv1d.weight", "f32", (h * d, 1, taps), 0.2, 0.4)
        self.matrix(p + "f_a_proj.weight", d, e, 1)
        self.matrix(p + "f_b_proj.weight", h * d, d, 1)
        self.matrix(p + "b_proj.weight", h, e, 1)
        self.flat(p + "A_log", (max(d, h),), 0, 1.5)
        self.flat(p + "dt_bias", (h * d,), -3, 0.5)
        self.around(p + "o_norm.weight", "f32", (d,), 1, 0.1)

    def mla(self, p):
        c = self.CONFIG
        e, h, lat = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
        nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        self.matrix(p + "q_a_proj.weight", c["q_lora_rank"], e, 1)
        self.gain(p + "q_a_layernorm.weight", c["q_lora_rank"])
        self.matrix(p + "q_b_proj.weight", h * (nope + rope), c["q_lora_rank"], 2)
        self.matrix(p + "kv_a_proj_with_mqa.weight", lat + rope, e, 1)
        self.gain(p + "kv_a_layernorm.weight", lat)
        self.matrix(p + "kv_b_proj.weight", h * (nope + v), lat, 1)
        self.matrix(p + "o_proj.weight", e, h * v, 1)
        self.matrix(p + "g_proj.weight", h * v, e, 1)

    def mxfp4(self, name, rows, cols):
        """Packed nibbles, low nibble first, one power-of-two scale for 32 columns."""
        i = np.arange(rows * cols // 2)
        h = hash64(self.key(name + ".weight_packed"), i // 8)
        packed = ((h >> (np.uint64(8) * (i % 8).astype(np.uint64))) & np.uint64(255))
        packed = packed.astype(np.uint8)
        want = np.float32(1) / np.sqrt(np.float32(cols))
        mid = next(k for k in range(126, 0, -1)
                   if np.float32(2.93) * np.float32(2.0 ** (k - 127)) <= want)
        groups = np.arange(rows * cols // 32)
        chance = hash64(self.key(name + ".weight_scale"), groups) % np.uint64(3)
        scales = (mid - 1 + chance.astype(np.int64)).astype(np.uint8)
        self.digest.update(packed.tobytes())
        self.digest.update(scales.tobytes())
        e2m1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6])
        nibbles = np.stack([packed & 15, packed >> 4], 1).reshape(-1)
        values = np.where(nibbles & 8, -1.0, 1.0) * e2m1[nibbles & 7]
        values = values.reshape(-1, 32) * 2.0 ** (scales.astype(np.float64) - 127)[:, None]
        self.tensors[name] = values.reshape(rows, cols)


# ---------------------------------------------------------------- golden files

def numbers(x, digits=None):
    """An array as {shape, data}; f32 values in the shortest decimals that give them back."""
    x = np.asarray(x)
    if digits is None:
        data = [float(str(np.float32(v))) for v in x.reshape(-1)]
    else:
        data = [round(float(v), digits) for v in x.reshape(-1)]
    return {"shape": list(x.shape), "data": data}


def whole():
    """Teacher forcing, greedy and incremental runs of the tiny model."""
    tiny = Tiny(1)
    model = K3(Tiny.CONFIG, 1e-6, tiny.tensors.__getitem__)
    prompt = [(37 * i * i + 11 * i + 5) % 320 for i in range(12)]
    ids, predicted, heads, margins, states = list(prompt), [], [], [], model.states()
    for i in range(32):
        logits = model.step(ids[i], states)
        best = np.sort(logits)[::-1]
        margins.append(float(best[0] - best[1]))
        predicted.append(int(logits.argmax()))
        heads.append([round(float(v), 6) for v in logits[:8]])
        if i + 1 == len(ids) and len(ids) < 32:
            ids.append(predicted[-1])
    assert min(margins) > 1e-3, "a tie too close to be golden"
    return {"seed": 1, "weights_sha256": tiny.digest.hexdigest(), "prompt_ids": prompt,
            "full_ids": ids, "tf_pred": predicted, "smallest_margin": round(min(margins), 6),
            "logits_head": heads}


class Ops:
    """Fixtures of single operations, in the form of the public ones."""

    CONFIG = dict(
        hidden_size=32, num_hidden_layers=13, vocab_size=64, rms_norm_eps=1e-5,
        tie_word_embeddings=False, kda_num_heads=2, kda_head_dim=8, short_conv_kernel_size=4,
        gate_lower_bound=-5.0, num_attention_heads=3, q_lora_rank=14, kv_lora_rank=12,
        qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=7, mla_use_output_gate=True,
        num_experts=5, num_experts_per_token=2, num_shared_experts=2,
        routed_expert_hidden_size=16, moe_intermediate_size=10, routed_scaling_factor=1.0,
        moe_renormalize=True, latent_moe_use_norm=True, first_k_dense_replace=1,
        intermediate_size=24, attn_res_block_size=3, situ_beta=4.0, situ_linear_beta=25.0,
        full_attn_layers=[4, 8, 12, 13])

    def __init__(self):
        self.rng = np.random.default_rng(20)
        self.files = {"MANIFEST": {"config": self.CONFIG,
                                   "tolerance": {"fp32_abs": 1e-5, "fp32_rel": 1e-4}}}
        self.c = c = self.CONFIG
        self.e, self.h, self.d = c["hidden_size"], c["kda_num_heads"], c["kda_head_dim"]

    def f32(self, *shape, scale=1.0, mid=0.0):
        return (mid + scale * self.rng.standard_normal(shape)).astype(np.float32)

    def weight(self, rows, cols):
        return self.f32(rows, cols, scale=cols ** -0.5)

    def save(self, name, scalars=None, inputs=None, outputs=None):
        entry = dict(scalars or {})
        entry |= {k: numbers(v) for k, v in (inputs or {}).items()}
        entry |= {k: numbers(v, 8) for k, v in (outputs or {}).items()}
        self.files[name] = entry

    def kda_weights(self):
        e, p, d, h = self.e, self.h * self.d, self.d, self.h
        w = {f"{n}_proj": self.weight(p, e) for n in "qkvg"} | {"o_proj": self.weight(e, p)}
        w |= {"f_a": self.weight(d, e), "f_b": self.weight(p, d), "b_proj": self.weight(h, e)}
        w |= {f"{n}_conv": self.f32(p, 1, 4, scale=0.5) for n in "qkv"}
        return w | {"A_log": np.linspace(0, 2, h).astype(np.float32),
                    "dt_bias": self.f32(p), "o_norm": self.f32(d, scale=0.2, mid=1)}

    @staticmethod
    def kda_name(key):
        if key in ("A_log", "dt_bias"):
            return key
        if key == "o_norm":
            return "o_norm.weight"
        if key.endswith("_conv"):
            return key[0] + "_conv1d.weight"
        return key.removesuffix("_proj") + "_proj.weight"

    def mla_weights(self):
        c, e = self.c, self.e
        heads, lat, rope = c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
        nope, v, lora = c["qk_nope_head_dim"], c["v_head_dim"], c["q_lora_rank"]
        return {"q_a_proj": self.weight(lora, e), "q_a_layernorm": self.f32(lora, scale=.2, mid=1),
                "q_b_proj": 2 * self.weight(heads * (nope + rope), lora),
                "kv_a_proj_with_mqa": self.weight(lat + rope, e),
                "kv_a_layernorm": self.f32(lat, scale=.2, mid=1),
                "kv_b_proj": self.weight(heads * (nope + v), lat),
                "o_proj": self.weight(e, heads * v), "g_proj": self.weight(heads * v, e)}

    def moe_weights(self):
        """Names as in the public fixtures, and the released ones they stand for."""
        c, e = self.c, self.e
        n, lat, w = c["num_experts"], c["routed_expert_hidden_size"], c["moe_intermediate_size"]
        public = {"gate_weight": self.weight(n, e), "e_score_correction_bias": self.f32(n, scale=.3),
                  "down_weight": self.weight(lat, e), "up_weight": self.weight(e, lat),
                  "norm_weight": self.f32(lat, scale=.2, mid=1),
                  "shared_w1_weight": self.weight(2 * w, e), "shared_w3_weight": self.weight(2 * w, e),
                  "shared_w2_weight": self.weight(e, 2 * w)}
        released = dict(zip(
            ("gate.weight", "gate.e_score_correction_bias", "routed_expert_down_proj.weight",
             "routed_expert_up_proj.weight", "routed_expert_norm.weight",
             "shared_experts.gate_proj.weight", "shared_experts.up_proj.weight",
             "shared_experts.down_proj.weight"), public.values()))
        for x in range(n):
            for part, shape in (("w1", (w, lat)), ("w2", (lat, w)), ("w3", (w, lat))):
                t = self.weight(*shape)
                public[f"experts_{x}_{part}_weight"] = released[f"experts.{x}.{part}"] = t
        return public, released

    def model(self, tensors):
        return K3(self.c, self.c["rms_norm_eps"], lambda n: tensors[n].astype(np.float64))

    def kda_layers(self):
        for t in (1, 8):
            w, x = self.kda_weights(), self.f32(1, t, self.e)
            m = self.model({f"layers.0.self_attn.{self.kda_name(k)}": v for k, v in w.items()})
            state, out = None, []
            for row in x[0].astype(np.float64):
                y, state = m.kda(0, row, state)
                out.append(y)
            self.save(f"kda_layer{t}", None, {"in": x} | w,
                      {"out": np.array([out]), "state_out": state["S"][None]})

    def small(self):
        c, e, h, d = self.c, self.e, self.h, self.d
        x, w = self.f32(3, e), self.f32(e, scale=.3, mid=1)
        self.save("rmsnorm", {"eps": 1e-5}, {"in": x, "weight": w},
                  {"out": rms(x.astype(float), w.astype(float), 1e-5)})
        x = np.concatenate([self.f32(1, 16, scale=s) for s in (.1, 1, 4, 25, 100, 1000)])
        self.save("situ_glu", None, {"in": x},
                  {"out": situ(x[:, :8].astype(float), x[:, 8:].astype(float), 4.0, 25.0)})

        x, nxt, taps = self.f32(1, 5, h * d), self.f32(1, 1, h * d), self.f32(h * d, 1, 4, scale=.5)
        history, out = np.zeros((3, h * d)), []
        for row in np.concatenate([x[0], nxt[0]]).astype(float):
            y, history = conv(row, taps.reshape(-1, 4).astype(float), history)
            out.append(y)
        self.save("shortconv", None, {"in": x, "in_next": nxt, "weight": taps},
                  {"out": np.array([out[:5]]), "out_next": np.array([out[5:]]),
                   "state_after": x[0, 2:].T[None]})

        z, a, bias = self.f32(1, 4, h * d, scale=3), self.f32(h), self.f32(h * d)
        alpha = [decay(row.astype(float).reshape(h, d), a.astype(float),
                       bias.astype(float).reshape(h, d), -5.0) for row in z[0]]
        self.save("kda_decay", None, {"z": z, "A_log": a, "dt_bias": bias},
                  {"alpha": np.array([alpha])})

        for t in (1, 8):
            q, k, v = (self.f32(t, h, d, scale=d ** -0.5) for _ in range(3))
            alpha = self.rng.uniform(.05, 1, (t, h, d)).astype(np.float32)
            beta = self.rng.uniform(0, 1, (t, h)).astype(np.float32)
            S, out = np.zeros((h, d, d)), []
            scale = float(np.float32(d ** -0.5))
            for i in range(t):
                part = (a[i].astype(float) for a in (k, v, alpha, beta))
                S, o = delta(S, q[i].astype(float) * scale, *part)
                out.append(o)
            self.save(f"kda_recur{t}", {"q_scale": scale},
                      {"q": q, "k": k, "v": v, "alpha": alpha, "beta": beta},
                      {"out": np.array(out), "state_out": S})

        n, k = c["num_experts"], c["num_experts_per_token"]
        gate, bias, x = self.weight(n, e), self.f32(n, scale=.3), self.f32(6, e)
        picks = [route(row.astype(float), gate.astype(float), bias.astype(float), k, 1.0) for row in x]
        self.save("router", {"top_k": k}, {"gate_weight": gate, "bias": bias, "in": x},
                  {"topk_idx": np.array([p for p, _ in picks]),
                   "topk_weight": np.array([w for _, w in picks])})

        r, blocks = self.f32(4, e), self.f32(4, 3, e)
        norm, proj = self.f32(e, scale=.2, mid=1), self.f32(e, scale=.5)
        out = [attn_res(np.vstack([b, p[None]]).astype(float), norm.astype(float),
                        proj.astype(float), 1e-5) for b, p in zip(blocks, r)]
        self.save("attnres", None, {"prefix_sum": r, "block_residual": blocks,
                                    "norm_weight": norm, "proj_weight": proj}, {"out": np.array(out)})

    def mla(self):
        w, x = self.mla_weights(), self.f32(1, 6, self.e)
        m = self.model({f"layers.3.self_attn.{k}.weight": v for k, v in w.items()})
        rows, out, lat = None, [], self.c["kv_lora_rank"]
        for row in x[0].astype(np.float64):
            y, rows = m.mla(3, row, rows)
            out.append(y)
        self.save("mla", None, {"in": x} | {k + "_weight": v for k, v in w.items()},
                  {"out": np.array([out]), "kv_latent": rows[None, :, :lat],
                   "k_rope": rows[None, :, lat:]})

    def moe(self):
        public, released = self.moe_weights()
        x = self.f32(1, 3, self.e)
        m = self.model({f"layers.1.block_sparse_moe.{k}": v for k, v in released.items()})
        out = [m.moe(1, row.astype(np.float64)) for row in x[0]]
        self.save("moe", None, {"in": x} | public, {"out": np.array([out])})

    def layers(self):
        e = self.e
        for name, l in (("layer_kda", 1), ("layer_mla", 3)):
            if l == 3:
                w = self.mla_weights()
                fixture = {f"self_attn_{k}_weight": v for k, v in w.items()}
                tensors = {f"self_attn.{k}.weight": v for k, v in w.items()}
            else:
                w = self.kda_weights()
                tensors = {"self_attn." + self.kda_name(k): v for k, v in w.items()}
                fixture = {k.replace(".", "_"): v for k, v in tensors.items()}
            public, released = self.moe_weights()
            fixture |= {"mlp_" + k: v for k, v in public.items()}
            tensors |= {"block_sparse_moe." + k: v for k, v in released.items()}
            norms = ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm",
                     "mlp_res_norm")
            extra = {f"{n}.weight": self.f32(e, scale=.2, mid=1) for n in norms}
            extra |= {f"{n}_res_proj.weight": self.f32(1, e, scale=.5)
                      for n in ("self_attention", "mlp")}
            tensors |= extra
            fixture |= {k.replace(".", "_"): v for k, v in extra.items()}
            x, blocks = self.f32(1, 4, e), self.f32(4, 2, e)
            m = self.model({f"layers.{l}.{k}": v for k, v in tensors.items()})
            state, out, after = None, [], []
            for row, block in zip(x[0].astype(np.float64), blocks.astype(np.float64)):
                y, snapshots, state = m.one_layer(l, row, list(block), state)
                out.append(y)
                after.append(snapshots)
            self.save(name, {"layer_idx": l}, {"in": x, "block_residual_in": blocks} | fixture)
            self.files[name] |= {"out": numbers(np.array([out]), 8),
                                 "block_residual_out": numbers(np.array(after))}

    def make(self):
        self.small()
        self.kda_layers()
        self.mla()
        self.moe()
        self.layers()
        return self.files


def agree(a, b):
    """Equal, numbers to one unit of the last decimal written (other machines' sums may differ)."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(agree(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(agree, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 2e-6
    return a == b


def main():
    files = {"model.json": whole()}
    files |= {f"ops/{name}.json": value for name, value in Ops().make().items()}
    differ = []
    for name, value in files.items():
        text = json.dumps(value, separators=(",", ":")) + "\n"
        path = OUT / name
        if sys.argv[1:] == ["--check"]:
            if not path.exists() or not agree(json.loads(path.read_text()), json.loads(text)):
                differ.append(name)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if differ:
        sys.exit("differ: " + ", ".join(differ))
    print(f"{len(files)} files", "agree" if sys.argv[1:] else "written")


if __name__ == "__main__":
    main()
