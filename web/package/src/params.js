/**
 * What WebAssembly would change without a word on the way in: numbers it wraps to 32 or 64 bits,
 * text that is not Unicode. Ranges are the core's to check.
 */

/** @param {import('./index.js').Params} params */
export function checkParams({ prompt = '', maxTokens, temperatureQ16 = 0, seed = 0n }) {
  for (const [name, value] of Object.entries({ maxTokens, temperatureQ16 })) {
    if (value >>> 0 !== value) throw new RangeError(`${name} must be a whole number from 0 to 2^32 - 1, not ${value}`);
  }
  if (BigInt.asUintN(64, BigInt(seed)) !== BigInt(seed)) {
    throw new RangeError(`the seed must be a whole number from 0 to 2^64 - 1, not ${seed}`);
  }
  if (typeof prompt !== 'string' || /\p{Surrogate}/u.test(prompt)) throw new TypeError('the prompt is not Unicode text');
}

/**
 * A temperature with 16 fractional bits, rounded as the native binary rounds it.
 * @param {string} text a decimal number
 */
export function temperatureFromText(text) {
  const match = /^(?=\.?[0-9])([0-9]{0,30})(?:\.([0-9]{0,30}))?$/.exec(text.trim());
  if (!match) throw new RangeError(`the temperature must be a decimal number from 0 to 16, not "${text}"`);
  const [, whole, fraction = ''] = match;
  const scale = 10n ** BigInt(fraction.length);
  // Twice the value with 16 fractional bits, plus one, halved: rounded, ties up.
  const q16 = Number((2n * (BigInt(whole + fraction) << 16n) + scale) / (2n * scale));
  if (q16 > 16 << 16) throw new RangeError(`the temperature must be 0 to 16, not ${text}`);
  return q16;
}
