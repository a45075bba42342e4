/** What several tests use: the repository's files and the native binary. */

import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = fileURLToPath(new URL('../../', import.meta.url));

/** A file of the repository. */
export const file = (path) => new Uint8Array(readFileSync(join(ROOT, path)));

export const artifact = file('assets/facit-tales/facit-tales.facit');
export const goldens = JSON.parse(readFileSync(join(ROOT, 'vectors/fixed/facit-tales.json'), 'utf8'));

/** A golden case by name, and its parameters as the package takes them. */
export function golden(name) {
  const wanted = goldens.cases.find((c) => c.name === name);
  const { prompt, max_tokens: maxTokens, temperature_q16: temperatureQ16, seed } = wanted;
  return { wanted, params: { prompt, maxTokens, temperatureQ16, seed: BigInt(seed) } };
}

/** Runs the native binary. */
export function facit(...args) {
  const binary = process.env.FACIT ?? join(ROOT, 'target/debug/facit');
  if (!existsSync(binary)) throw new Error(`${binary} is missing: build it with \`cargo build -p facit\``);
  return execFileSync(binary, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
}

/** A folder that lives as long as `use`. */
export async function withFolder(use) {
  const folder = mkdtempSync(join(tmpdir(), 'facit-web-'));
  try {
    return await use(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** A receipt of the built-in model made by the native binary. */
export function nativeReceipt(folder, ...args) {
  const path = join(folder, 'receipt.json');
  facit('run', '-q', '--receipt', path, ...args);
  return new Uint8Array(readFileSync(path));
}

/** Changes a receipt's members and seals it again, as a forger would. */
export async function forge(receipt, change) {
  const { sha256, ...members } = JSON.parse(new TextDecoder().decode(receipt));
  change(members);
  const head = JSON.stringify(members).slice(0, -1);
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(head));
  return new TextEncoder().encode(`${head},"sha256":"${Buffer.from(digest).toString('hex')}"}\n`);
}
