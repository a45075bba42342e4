/**
 * Receipts made by the native binary: reading one, and replaying it turn by turn. The format, to
 * the byte, is described in crates/engine/src/receipt.rs.
 */

import { sha256 } from './digest.js';
import { CoreSession } from './session.js';

const FORMAT = 'facit-receipt-1';
const NUMERICS = 'facit-fixed-1';
const SEAL_BYTES = 78;
const CHECKPOINT_TURNS = 16;
const PAGE_BYTES = 256;
/** The largest receipt read. */
export const MAX_RECEIPT_BYTES = 256 << 20;

/** A receipt that cannot be read at all: nothing was replayed. */
export class ReceiptError extends Error {
  name = 'ReceiptError';
}

/** The replay disagrees. `turn` counts from 1; 0 is the state before the first turn. */
export class TurnDiffers extends Error {
  name = 'TurnDiffers';

  constructor(turn, field, recorded, computed) {
    const where = turn === 0 ? 'Before the first turn' : `Turn ${turn}`;
    super(`${where}: ${field} differs. Recorded: ${recorded}. Computed: ${computed}.`);
    Object.assign(this, { turn, field, recorded, computed });
  }
}

const u32 = (value) => Number.isInteger(value) && value >= 0 && value <= 0xffffffff;
const count = (value) => Number.isSafeInteger(value) && value >= 0;
const digest = (value) => typeof value === 'string' && /^[0-9a-f]{64}$/.test(value);
const string = (value) => typeof value === 'string';
const list = (of) => (value) => Array.isArray(value) && value.every(of);
const u64 = (value) => string(value) && /^(0|[1-9][0-9]{0,19})$/.test(value) && BigInt(value) < 1n << 64n;
const i32 = (value) => Number.isInteger(value) && value >= -(2 ** 31) && value < 2 ** 31;
const is = (members) => (value) =>
  typeof value === 'object' && value !== null && !Array.isArray(value) &&
  Object.keys(value).join() === Object.keys(members).join() &&
  Object.entries(members).every(([name, check]) => check(value[name]));

/** All members, in the order written. */
const MEMBERS = {
  format: string,
  numerics: string,
  model: is({ sha256: digest, bytes: count, config: (v) => list(i32)(v) && v.length === 7 }),
  prompt: string,
  max_tokens: u32,
  temperature_q16: u32,
  seed: u64,
  state_bytes: count,
  initial_state_sha256: digest,
  turns: list(
    is({
      sections: (v) => list(u32)(v) && v.length <= 2,
      estimated_cu: u32,
      max_generated: u32,
      work: u32,
      generated: u32,
      state_sha256: digest,
    }),
  ),
  checkpoints: list(is({ turn: count, delta: string })),
  complete: (value) => typeof value === 'boolean',
  tokens: list(u32),
  text: string,
};

/**
 * Checks a receipt's seal and its members; nothing is replayed.
 * @param {Uint8Array} bytes
 * @returns {Promise<import('./index.js').Receipt>}
 */
export async function readReceipt(bytes) {
  const refuse = (why) => {
    throw new ReceiptError(`Not a whole receipt: ${why}.`);
  };
  if (bytes.length > MAX_RECEIPT_BYTES) refuse(`it is larger than ${MAX_RECEIPT_BYTES} bytes`);
  const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  const [head, tail] = [bytes.subarray(0, -SEAL_BYTES), bytes.subarray(-SEAL_BYTES)];
  const seal = /^,"sha256":"([0-9a-f]{64})"\}\n$/.exec(String.fromCharCode(...tail));
  if (!seal || bytes.length < SEAL_BYTES) refuse('it does not end with its own SHA-256, so it was truncated or changed');
  const computed = await sha256(head);
  if (computed !== seal[1]) {
    refuse(`bytes were changed after it was written; their SHA-256 is ${computed}, the receipt says ${seal[1]}`);
  }
  let receipt;
  let json = '';
  try {
    json = `${utf8.decode(head)}}`;
    receipt = JSON.parse(json);
  } catch (error) {
    refuse(String(error));
  }
  const odd = Object.entries(MEMBERS).find(([name, check]) => !check(receipt?.[name]));
  if (odd) refuse(`its member ${odd[0]} is missing or not what it should be`);
  // Neither unknown nor repeated members, and no second spelling of a number.
  if (!is(MEMBERS)(receipt) || JSON.stringify(receipt) !== json) refuse('its members are not exactly those of the format');
  if (receipt.format !== FORMAT) refuse(`format ${receipt.format}; this version reads ${FORMAT}`);
  if (receipt.numerics !== NUMERICS) refuse(`computed by ${receipt.numerics}; this module computes by ${NUMERICS}`);
  const expected = Math.floor(Math.max(0, receipt.turns.length - 1) / CHECKPOINT_TURNS);
  const inOrder = receipt.checkpoints.every((c, i) => c.turn === (i + 1) * CHECKPOINT_TURNS);
  if (receipt.checkpoints.length !== expected || !inOrder) {
    refuse(`its ${receipt.turns.length} turns need ${expected} checkpoints, one after every ${CHECKPOINT_TURNS}`);
  }
  return receipt;
}

/**
 * Replays a receipt with `model`, one turn after the other.
 *
 * @param {import('./model.js').Model} model
 * @param {Uint8Array} bytes the receipt's file
 * @param {{ onTurn?: (turn: import('./index.js').Turn, of: number) => unknown, signal?: AbortSignal }} [options]
 *   `onTurn` is called, and awaited, with each turn that agreed
 * @returns {Promise<import('./index.js').Receipt>} the receipt, confirmed
 * @throws {ReceiptError} if it cannot be read or is of another model
 * @throws {TurnDiffers} naming the first turn that differs
 */
export async function verifyReceipt(model, bytes, { onTurn, signal } = {}) {
  const receipt = await readReceipt(bytes);
  const of = receipt.model;
  if (of.sha256 !== model.sha256 || of.bytes !== model.bytes || String(of.config) !== String(model.configWords)) {
    throw new ReceiptError(
      `The receipt is of another model (SHA-256 ${of.sha256}, ${of.bytes} bytes) than the one loaded (SHA-256 ${model.sha256}, ${model.bytes} bytes).`,
    );
  }
  let session;
  try {
    session = CoreSession.start(model, {
      prompt: receipt.prompt,
      maxTokens: receipt.max_tokens,
      temperatureQ16: receipt.temperature_q16,
      seed: BigInt(receipt.seed),
    });
  } catch (error) {
    throw new ReceiptError(`No run can have the receipt's parameters. ${error.message}.`);
  }
  try {
    await replay(session, receipt, { onTurn, signal });
  } finally {
    session.free();
  }
  return receipt;
}

/** Compares every turn, every checkpoint and the end. */
async function replay(session, receipt, { onTurn, signal }) {
  const same = (turn, field, recorded, computed) => {
    if (recorded !== computed) throw new TurnDiffers(turn, field, recorded, computed);
  };
  let checkpoint = session.state();
  same(0, "the state's length", receipt.state_bytes, checkpoint.length);
  same(0, 'the state', receipt.initial_state_sha256, await sha256(checkpoint));
  for (const [index, recorded] of receipt.turns.entries()) {
    signal?.throwIfAborted();
    const number = index + 1;
    if (session.info().complete) throw new TurnDiffers(number, 'the turn', 'done', 'the run had ended before it');
    const computed = await session.turn().catch((error) => {
      throw new TurnDiffers(number, 'the turn', 'done', error.message);
    });
    same(number, 'the sections planned', `[${recorded.sections}]`, `[${computed.sections}]`);
    same(number, 'the compute units planned', recorded.estimated_cu, computed.estimatedCu);
    same(number, 'the most tokens planned', recorded.max_generated, computed.maxGenerated);
    same(number, 'the work', recorded.work, computed.work);
    same(number, 'the count of tokens', recorded.generated, computed.generated);
    same(number, 'the state', recorded.state_sha256, computed.stateSha256);
    if (number % CHECKPOINT_TURNS === 0 && number < receipt.turns.length) {
      checkpoint = await rebuild(checkpoint, receipt.checkpoints[number / CHECKPOINT_TURNS - 1]);
      same(number, "the checkpoint's state", await sha256(checkpoint), computed.stateSha256);
    }
    await onTurn?.(computed, receipt.turns.length);
  }
  const last = receipt.turns.length;
  same(last, 'whether the run ended', receipt.complete, session.info().complete);
  same(last, 'the tokens', `[${receipt.tokens}]`, `[${session.tokens()}]`);
  same(last, 'the text', receipt.text, session.text());
}

/** The state of a checkpoint from the one before: pages that changed, exclusive-or their old content. */
async function rebuild(before, { turn, delta }) {
  const refuse = (why) => {
    throw new ReceiptError(`The checkpoint after turn ${turn} is damaged: ${why}.`);
  };
  const state = before.slice();
  const limit = state.length + 4 * Math.ceil(state.length / PAGE_BYTES);
  const records = await inflate(delta, limit).catch((error) => refuse(error.message));
  const view = new DataView(records.buffer, records.byteOffset, records.byteLength);
  let next = 0;
  for (let at = 0; at < records.length; ) {
    if (at + 4 > records.length) refuse('bytes are left over');
    const page = view.getUint32(at, true);
    const start = page * PAGE_BYTES;
    if (page < next || start >= state.length) refuse(`page ${page} is out of order or out of range`);
    const end = Math.min(start + PAGE_BYTES, state.length);
    at += 4;
    if (at + end - start > records.length) refuse(`page ${page} is cut off`);
    for (let i = start; i < end; i += 1, at += 1) state[i] ^= records[at];
    next = page + 1;
  }
  return state;
}

/** Inflates a zlib stream in base64, to at most `limit` bytes. */
async function inflate(base64, limit) {
  const packed = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const out = new Uint8Array(limit);
  let length = 0;
  for await (const chunk of stream(packed)) {
    if (length + chunk.length > limit) throw new Error('it inflates to more than a state has');
    out.set(chunk, length);
    length += chunk.length;
  }
  return out.subarray(0, length);
}

async function* stream(packed) {
  const reader = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate')).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
