/**
 * What the turns that tokenize a prompt are charged. The core itself tokenizes; but the charge of
 * such a turn depends on the vocabulary and on what the merges find, and the module's exports do
 * not return it. Receipts record it, so a verifier computes it again, by the published costs.
 */

/** The planner's charges, in compute units. */
const ALLOWANCE = 1_350_000;
const TURN = 18_000;
const CHUNK = 160;
const STEP = 1_000;
/** Where section zero says its tables lie. */
const STARTS = 72;
const KEYS = 76;
const TEXT = 84;
/** The token every sequence opens with; the token of byte `b` is `b + BYTE_TOKENS`. */
const OPENING = 1;
const BYTE_TOKENS = 3;

/** The texts of a vocabulary, each byte a character of a string: lookups are a map's. */
class Vocabulary {
  /** @param {Uint8Array} metadata section zero, checked by the core @param {number} size */
  constructor(metadata, size) {
    const view = new DataView(metadata.buffer, metadata.byteOffset, metadata.byteLength);
    const word = (offset) => view.getUint32(offset, true);
    const [starts, keys, text] = [word(STARTS), word(KEYS), word(TEXT)];
    /** @type {string[]} */
    this.texts = [];
    /** @type {Map<string, number>} The lowest id of each text. */
    this.ids = new Map();
    for (let id = 0; id < size; id += 1) {
      const token = latin1(metadata.subarray(text + word(starts + 4 * id), text + word(starts + 4 * id + 4)));
      this.texts.push(token);
      if (!this.ids.has(token)) this.ids.set(token, id);
    }
    /** The score's rank of an id; the higher merges first. */
    this.key = (id) => word(keys + 4 * id);
    const depth = Math.floor(Math.log2(size)) + 1;
    /** The charge of looking up `length` bytes. */
    this.lookupCost = (length) => 500 + depth * (100 + 20 * Math.min(length, 128));
  }

  /** The token of a text, or one token for each of its bytes. */
  tokens(text) {
    const id = this.ids.get(text);
    return id === undefined ? Array.from(text, (byte) => byte.charCodeAt(0) + BYTE_TOKENS) : [id];
  }
}

/**
 * The charges of the core's metered items, in order, while `prompt` becomes tokens.
 * @param {Vocabulary} vocabulary @param {Uint8Array} prompt
 * @returns {Generator<number>}
 */
function* items(vocabulary, prompt) {
  const tokens = [OPENING];
  yield STEP + (prompt.length > 0 ? vocabulary.lookupCost(1) : 0);
  if (prompt.length > 0) tokens.push(...vocabulary.tokens(' '));
  // Characters: a byte and up to three continuation bytes after it.
  for (let at = 0, end; at < prompt.length; at = end) {
    end = at + 1;
    while (end < at + 4 && (prompt[end] & 0xc0) === 0x80) end += 1;
    yield vocabulary.lookupCost(end - at);
    tokens.push(...vocabulary.tokens(latin1(prompt.subarray(at, end))));
  }
  yield STEP;
  // Merges: of all adjacent pairs the leftmost with the highest score, again and again.
  for (;;) {
    let best = { key: 0, at: 0, id: 0 };
    for (let at = 0; at + 1 < tokens.length; at += 1) {
      const pair = vocabulary.texts[tokens[at]] + vocabulary.texts[tokens[at + 1]];
      yield vocabulary.lookupCost(pair.length);
      const id = vocabulary.ids.get(pair);
      if (id !== undefined && vocabulary.key(id) > best.key) best = { key: vocabulary.key(id), at, id };
    }
    if (best.key === 0) break;
    yield STEP + 4 * tokens.length;
    tokens.splice(best.at, 2, best.id);
  }
  yield STEP;
}

/**
 * Compute units charged by each turn that tokenizes `prompt`, in order.
 * @param {Uint8Array} metadata section zero @param {number} size the vocabulary's
 * @param {Uint8Array} prompt
 * @returns {number[]}
 */
export function tokenizingWork(metadata, size, prompt) {
  const turns = [TURN];
  for (const item of items(new Vocabulary(metadata, size), prompt)) {
    const cost = item + CHUNK;
    if (turns[turns.length - 1] + cost > ALLOWANCE) turns.push(TURN);
    turns[turns.length - 1] += cost;
  }
  return turns;
}

/** Bytes as a string of one character each. (A TextDecoder's latin1 is windows-1252.) */
function latin1(bytes) {
  return String.fromCharCode(...bytes);
}
