/**
 * A paused run in a file, the same that `facit run --save` writes and `facit resume` reads: 112 bytes
 * of header, the state, and the SHA-256 of both (crates/engine/src/saved.rs).
 */

import { fromHex, hex, sha256 } from './digest.js';
import { CoreSession } from './session.js';

const MAGIC = 'FACITSV1';
const NUMERICS = 'facit-fixed-1';
const HEADER = 112;
const TRAILER = 32;
const ascii = (text) => new TextEncoder().encode(text);
const text = (bytes) => String.fromCharCode(...bytes);

/** @param {CoreSession} session @returns {Promise<Uint8Array>} */
export async function saveSession(session) {
  const state = session.state();
  const file = new Uint8Array(HEADER + state.length + TRAILER);
  const view = new DataView(file.buffer);
  file.set(ascii(MAGIC), 0);
  file.set(ascii(NUMERICS), 8);
  file.set(fromHex(session.model.sha256), 40);
  session.model.configWords.forEach((word, i) => view.setInt32(72 + 4 * i, word, true));
  view.setBigUint64(104, BigInt(state.length), true);
  file.set(state, HEADER);
  file.set(fromHex(await sha256(file.subarray(0, HEADER + state.length))), HEADER + state.length);
  return file;
}

/**
 * @param {import('./model.js').Model} model @param {Uint8Array} file
 * @returns {Promise<CoreSession>}
 */
export async function openSaved(model, file) {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  if (text(file.subarray(0, MAGIC.length)) !== MAGIC) throw new Error('not a saved run: it does not begin with FACITSV1');
  const body = file.length - TRAILER;
  if (body < HEADER || view.getBigUint64(104, true) !== BigInt(body - HEADER)) {
    throw new Error('the saved run is truncated, or its header was changed');
  }
  if ((await sha256(file.subarray(0, body))) !== hex(file.subarray(body))) {
    throw new Error('the saved run was changed after it was written: its SHA-256 is not the one it ends with');
  }
  const numerics = text(file.subarray(8, 40)).replace(/\0+$/, '');
  if (numerics !== NUMERICS) throw new Error(`the saved run computes by ${numerics}, this module by ${NUMERICS}`);
  if (view.getUint32(100, true) !== 0) throw new Error('the saved run uses bytes kept zero for later');
  const digest = hex(file.subarray(40, 72));
  if (digest !== model.sha256) {
    throw new Error(`the run was saved by another model (SHA-256 ${digest}) than this one (${model.sha256})`);
  }
  return CoreSession.from(model, file.subarray(HEADER, body));
}
