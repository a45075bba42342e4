#!/usr/bin/env python3
"""Makes the tokenizer vectors of this folder with the original libraries as oracles.

    pip install tiktoken==0.14.0 tokenizers==0.23.3
    python3 generate.py            # writes
    python3 generate.py --check    # compares with what is committed, writes nothing

k3/tiktoken.model is a small vocabulary trained here (the released one is not redistributed); the pattern,
the slicing of long text and the merging are those of the released Kimi K3 tokenizer, run by tiktoken.
deepseek/tokenizer.json is the tokenizer of the synthetic DeepSeek-V4.1 checkpoint, run by tokenizers.
"""
import base64, collections, itertools, json, pathlib, random, re, sys

import tiktoken
import tokenizers

HERE = pathlib.Path(__file__).parent
CHECK = "--check" in sys.argv
RNG = random.Random(20261130)

CORPUS = """The capital of France is Paris. I'm sure you've heard it; they'll say it'd be so, don't they?
fn main() { let x: u32 = 1234567; println!("{x:?}"); } // code with    spaces and\ttabs
    if (a != b && c >= 0x1F) { return a[i++] ^ ~b; }
Свежие новости: погода в Москве. Η γρήγορη αλεπού. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया। สวัสดีชาวโลก
中文分词是一个有趣的问题。日本語のテキスト、カタカナ・ひらがな。한국어 문장입니다. 〇〡〢 ⺀⺁ 々
naïve café CAFÉ Ǆungla ǅ ﬁn ªº x² ½ Ⅷ ٣٤٥ 😀 👩‍👩‍👧 🇸🇪 e\u0301 A\u030a\u0323 \u200d \u00a0 \u3000 \u2028
HTTPServer XMLHttpRequest iPhone McDonald's O'Neil'S I'LL 'tis rock'n'roll WE'RE ſ'ſ
{"name": "get_weather", "arguments": {"city": "Paris", "n": [1, 2.5, null, true]}}
message role="user" type="thinking-effort" think response tools call argument key index system assistant
aaaaaaaaaaaaaaaaaaaaaaaa aaaa aaaaaaa bbbbbbbb                     ----------------------------------
"""

UP = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOW = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
TAIL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?{UP}*{LOW}+{TAIL}", rf"[^\r\n\p{{L}}\p{{N}}]?{UP}+{LOW}*{TAIL}",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

CONTROL = ["[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>", "[start_header_id]",
           "<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>"]


def put(name, content):
    data = content if isinstance(content, bytes) else content.encode()
    path = HERE / name
    if CHECK:
        if path.read_bytes() != data:
            sys.exit(f"{name} differs from what is committed")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def merged(ids, pair, new):
    out, i = [], 0
    while i < len(ids):
        hit = i + 1 < len(ids) and (ids[i], ids[i + 1]) == pair
        out.append(new if hit else ids[i])
        i += 2 if hit else 1
    return out


def train():
    """Ranks: the bytes in shuffled order, merges inside words, then merges across everything (so that a wrong cut
    shows in the ids), and some tokens no merge reaches (a piece that is a token is not merged)."""
    order = list(range(256))
    RNG.shuffle(order)
    tokens = [bytes([b]) for b in order]
    rank = {t: i for i, t in enumerate(tokens)}
    words = re.findall(r" ?\w+|\s+|[^\w\s]+", CORPUS)
    for pieces, size in ((words, 700), (CORPUS.split("\n"), 1200)):
        table = [[rank[bytes([b])] for b in p.encode()] for p in pieces]
        while len(tokens) < size:
            count = collections.Counter(p for t in table for p in itertools.pairwise(t))
            if not count:
                break
            pair = max(count, key=lambda p: (count[p], p))
            joined = tokens[pair[0]] + tokens[pair[1]]
            if joined not in rank:
                rank[joined] = len(tokens)
                tokens.append(joined)
            table = [merged(t, pair, rank[joined]) for t in table]
    tokens += [t.encode() for t in ("xyzzyplugh", " qwertz", "\n\n\n\n\n\n\n", "語語語")]
    return tokens


def python_slices(s, longest):
    """Runs of more than `longest` blank or non-blank characters are cut, as the released tokenizer does."""
    length, blank, start = 0, s[0].isspace() if s else False, 0
    for i, c in enumerate(s):
        if c.isspace() != blank:
            length, blank = 1, c.isspace()
        else:
            length += 1
            if length > longest:
                yield s[start:i]
                start, length = i, 1
    yield s[start:]


def nasty(n):
    """Texts of characters that pre-tokenizers disagree about, and of chunks of the corpus."""
    alphabet = list(" \t\n\r\u00a0\u3000\u0085\u2028\x1c\x1f\x0babcstrevmldABCSTǅǆǄſªʰ'’.,!-_<|>$+²½Ⅷ0123٣"
                    "éÉ\u0301\u030a\u0323中文々〇〡⺀カ・かー한\u200d\u00ad\ufeff😀👩🇸\ue000\u0378\U00016ff0\U0010ffff")
    parts = re.findall(r"\s*\S+", CORPUS)
    for _ in range(n):
        if RNG.random() < 0.7:
            yield "".join(RNG.choices(alphabet, k=RNG.randint(1, 24)))
        else:
            yield "".join(RNG.choice(parts) + RNG.choice(["", RNG.choice(alphabet)]) for _ in range(RNG.randint(1, 6)))


SPELLED = ["<|open|>message role=\"system\"<|sep|>", "[EOS]", "x[BOS]y<|end_of_msg|>z", "<|media_pad|>",
           "<｜User｜>hi<｜Assistant｜></think>", "a<think>b｜DSML｜ c<｜end▁of▁sentence｜>", "<|open", "｜DSML"]
FIXED = ["", " ", "  ", "\n", " \n ", "a", "xyzzyplugh", " xyzzyplugh", "xyzzyplughs", " qwertz", "\n" * 7, "語語語", "I'LL'S it'ſ",
         "\x1c\x1d", "e\u0301\u0301X", "ʰAB", "!\u0301AB", "\u0301ABc", "中\U00016ff0A", "a\u200d\u200d1", "  12", "12  34\r\n\r\n5 "]
# [unit, repeats]: long runs, and the places where the released tokenizer cuts.
LONG = [["a", 1000], ["a", 25000], ["a", 25001], [" ", 25001], [" \n", 25001], ["中", 26000], ["A", 26000], ["ab ", 140000],
        ["\u0301", 3000], ["aB", 5000], ["1", 1000], ["'", 999], ["\x1c", 25003], ["-", 700]]


def digest(ids):
    """FNV-1a, 64 bits, over the ids as little-endian u32: long results without long files."""
    h = 0xcbf29ce484222325
    for byte in b"".join(i.to_bytes(4, "little") for i in ids):
        h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return {"count": len(ids), "fnv1a64": f"{h:016x}", "tail": ids[-4:]}


def k3():
    tokens = train()
    put("k3/tiktoken.model", b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(tokens)))
    control = {c: len(tokens) + i for i, c in enumerate(CONTROL)}
    config = {"added_tokens_decoder": {str(i): {"content": c, "special": True} for c, i in control.items()},
              "bos_token": "[BOS]", "eos_token": "[EOS]", "tokenizer_class": "TikTokenTokenizer"}
    put("k3/tokenizer_config.json", json.dumps(config, indent=1) + "\n")
    oracle = tiktoken.Encoding("k3", pat_str=PATTERN, mergeable_ranks={t: i for i, t in enumerate(tokens)}, special_tokens=control)

    def encode(text):
        return [i for at in range(0, len(text), 400_000) for s in python_slices(text[at:at + 400_000], 25_000)
                for i in oracle.encode_ordinary(s)]

    write("k3/cases.json", encode, lambda t: oracle.encode(t, allowed_special="all"))


def deepseek():
    oracle = tokenizers.Tokenizer.from_file(str(HERE / "deepseek/tokenizer.json"))
    plain = json.loads((HERE / "deepseek/tokenizer.json").read_text())
    base = len([t for t in plain["added_tokens"] if t["id"] < len(plain["model"]["vocab"])])
    plain["added_tokens"] = plain["added_tokens"][:base]
    plain = tokenizers.Tokenizer.from_str(json.dumps(plain))

    def encode(text):
        # Without the added tokens, and cut where the remaining three would be found: plain text only.
        parts = re.split("(<｜begin▁of▁sentence｜>|<｜end▁of▁sentence｜>|<｜▁pad▁｜>)", text)
        assert len(parts) == 1, "spell these only in trusted cases"
        return plain.encode(text, add_special_tokens=False).ids

    write("deepseek/cases.json", encode, lambda t: oracle.encode(t, add_special_tokens=False).ids, skip="▁")


def classes():
    """Where DeepSeek's chain cuts around every code point, as ranges [first, cuts]: the cuts are character
    offsets in three probes. Shows every difference between Unicode tables."""
    chain = tokenizers.Tokenizer.from_file(str(HERE / "deepseek/tokenizer.json")).pre_tokenizer
    ranges = []
    for code in itertools.chain(range(0xd800), range(0xe000, 0x110000)):
        c, cuts = chr(code), []
        for probe in (f"a{c}a", f"!{c}\n", f"  {c}  {c}1"):
            # Byte-level pieces have one character a byte.
            lengths = [len(piece) for piece, _ in chain.pre_tokenize_str(probe)]
            # In characters, so that a range may span UTF-8 lengths.
            ends = list(itertools.accumulate(len(x.encode()) for x in probe))
            cuts.append([1 + ends.index(at) for at in itertools.accumulate(lengths[:-1])])
        signature = "|".join("".join(map(str, cut)) for cut in cuts)
        if not ranges or ranges[-1][1] != signature:
            ranges.append([code, signature])
    put("deepseek/classes.json", "[\n" + ",\n".join(json.dumps(r) for r in ranges) + "\n]\n")


def write(name, encode, trusted, skip=None):
    texts = FIXED + CORPUS.split("\n") + [CORPUS] + [s for s in SPELLED if not skip or skip not in s] + list(nasty(400))
    lines = [json.dumps({"text": t, "ids": encode(t)}, ensure_ascii=True) for t in texts]
    lines += [json.dumps({"unit": u, "repeats": n, **digest(encode(u * n))}) for u, n in LONG]
    lines += [json.dumps({"text": t, "trusted": trusted(t)}) for t in SPELLED + ["a" + s + " b" for s in SPELLED]]
    put(name, "[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    k3()
    deepseek()
    classes()
    print("checked" if CHECK else "written")
