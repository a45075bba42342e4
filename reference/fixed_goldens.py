"""Recomputes golden files of the integer core with the Python definition and compares, or rewrites them.

usage: fixed_goldens.py [--write] vectors/fixed/synthetic_tiny.json ...

A golden file names its model and holds the parameters of every run (prompt, maximum tokens, temperature,
seed, allowance); everything else in it is computed: digests, plans, work, tokens, text. Needs numpy.
Runs take minutes in Python for the larger models; synthetic_* take seconds.
"""
import json, os, sys
import numpy as np
import fixed_core as core

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

def model(name):
    """Checkpoint and tokenizer bytes of the model that a golden file's name tells."""
    base = name.removeprefix('synthetic_').split('_')[0]
    if base == 'facit-tales': paths = 'assets/facit-tales/model.bin', 'assets/facit-tales/tokenizer.bin'
    elif base == 'stories260K': paths = '../shared/models/stories260K.bin', '../shared/models/tok512.bin'
    elif base == 'rand15M': return generated(RAND15M), open(os.path.join(ROOT, '../shared/models/tokenizer32k.bin'), 'rb').read()
    elif base == 'sections3': return generated(SECTIONS3), sections3_tokenizer()
    else: paths = f'vectors/fixed/models/{base}.bin', f'vectors/fixed/models/{base}.tok'
    return tuple(open(os.path.join(ROOT, p), 'rb').read() for p in paths)

RAND15M = dict(seed=15, config=(288, 768, 6, 6, 6, 32000, 256), emb=1.0)
SECTIONS3 = dict(seed=6, config=(256, 64, 1, 4, 2, -40500, 32), emb=8.0)

def generated(g):
    """A checkpoint of counted random numbers; vectors/fixed/README.md says how."""
    d, h, L, heads, kvh, vocab, seq = g['config']; V, kv = abs(vocab), d // heads * kvh; at = 0
    def unit(n):
        nonlocal at
        with np.errstate(over='ignore'):
            z = np.uint64(g['seed']) + np.arange(at + 1, at + n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15); at += n
            z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9); z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
            z ^= z >> np.uint64(31)
        return ((z >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32) * np.float32(2.0 ** -23)
    norm = lambda n: np.float32(1) + unit(n) * np.float32(0.25)
    matrix = lambda n, cols, gain=1.0: unit(n) * np.float32(gain * 2.0 ** -((cols.bit_length() - 1) // 2))
    parts = [matrix(V * d, d, g['emb']), norm(L * d), matrix(L * d * d, d), matrix(L * kv * d, d), matrix(L * kv * d, d), matrix(L * d * d, d),
             norm(L * d), matrix(L * h * d, d), matrix(L * d * h, h), matrix(L * h * d, d), norm(d), unit(seq * (d // heads)) * np.float32(0) + np.float32(0)]
    if vocab < 0: parts.append(matrix(V * d, d))
    return np.array(g['config'], '<i4').tobytes() + b''.join(p.astype('<f4').tobytes() for p in parts)

def sections3_tokenizer():
    import struct
    rows = [(0.0, t) for t in ('<unk>', '\n<s>\n', '\n</s>\n')] + [(0.0, f'<0x{b:02X}>') for b in range(256)]
    rows += [(-1.0, ' ')] + [(-2.0, chr(c)) for c in range(97, 123)]
    rows += [(-9.0, f't{i:05d}') for i in range(len(rows), 40500)]
    return struct.pack('<i', max(len(t) for _, t in rows)) + b''.join(struct.pack('<fi', s, len(t)) + t.encode() for s, t in rows)

def run(m, case):
    """Everything a case holds besides its parameters. Digests of turns keep the length they had."""
    digits = {len(t[6]) for t in case['turns']} or {64}
    prompt = bytes.fromhex(case['prompt_hex']); c = m.c
    out = {k: case[k] for k in ('name', 'prompt_hex', 'max_tokens', 'temperature_q16', 'seed', 'allowance')}
    out['prompt'] = prompt.decode(); out['state_size'] = core.state_size(c, len(prompt), case['max_tokens'])
    buf = bytearray(out['state_size'])
    core.init_state(c, buf, prompt, case['max_tokens'], case['temperature_q16'], int(case['seed']))
    out['initial_sha256'] = core.sha(buf); turns = out['turns'] = []
    while True:
        try: r = m.turn(buf, case['allowance'])
        except core.CoreError as e:
            out['error'], out['error_turn'] = e.n, len(turns) + 1
            return out
        turns.append(r['plan'].brief() + [r['work'], r['generated'], core.sha(buf)[:max(digits)]])
        if r['complete']: break
    s = core.State(c, buf); text = core.output_text(c, buf)
    out.update(prompt_tokens=[int(t) for t in s.ptok[:s['prompt_tokens']]], tokens=core.output_tokens(c, buf), text_hex=text.hex(),
               text=text.decode(errors='replace'), turn_count=len(turns), final_sha256=core.sha(buf),
               quote_turns=core.quote_turns(m, prompt, case['max_tokens'], case['temperature_q16'], case['allowance']))
    return out

def main(files, write):
    wrong = 0
    for path in files:
        name = os.path.splitext(os.path.basename(path))[0]; old = json.load(open(path)); checkpoint, tokenizer = model(name)
        artifact = core.convert(checkpoint, tokenizer); m = core.Core(artifact)
        new = {k: old[k] for k in ('about', 'generator') if k in old}
        new.update(config=list(m.c.raw), checkpoint_sha256=core.sha(checkpoint), tokenizer_sha256=core.sha(tokenizer), artifact_sha256=core.sha(artifact),
                   artifact_len=len(artifact), section_lens=[n for _, n in m.m.table], cases=[])
        for case in old['cases']:
            new['cases'].append(run(m, case))
            if new['cases'][-1] != case: wrong += 1; print(f'{name} {case["name"]}: differs in', [k for k in set(case) | set(new['cases'][-1]) if case.get(k) != new['cases'][-1].get(k)])
        if {k: v for k, v in new.items() if k != 'cases'} != {k: v for k, v in old.items() if k != 'cases'}: wrong += 1; print(f'{name}: the model differs')
        if write: json.dump(new, open(path, 'w'), separators=(',', ':'))
        print(f'{name}: {len(new["cases"])} runs')
    return wrong

if __name__ == '__main__':
    arguments = sys.argv[1:]; write = '--write' in arguments; files = [a for a in arguments if a != '--write']
    if not files: sys.exit(__doc__)
    sys.exit(1 if main(files, write) and not write else 0)
