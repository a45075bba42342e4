/** SHA-256 through WebCrypto: how models, states and receipts are named. */

/**
 * The SHA-256 of `bytes` as 64 lower-case hexadecimal digits.
 * @param {Uint8Array} bytes
 * @returns {Promise<string>}
 */
export async function sha256(bytes) {
  const subtle = globalThis.crypto?.subtle;
  if (!subtle) {
    throw new Error('this browser gives SHA-256 to secure pages only: open the page through https:// or from localhost');
  }
  return hex(new Uint8Array(await subtle.digest('SHA-256', bytes)));
}

/** @param {Uint8Array} bytes */
export function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** @param {string} text an even number of hexadecimal digits */
export function fromHex(text) {
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}
