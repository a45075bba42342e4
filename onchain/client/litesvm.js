/** LiteSVM as the chain of a Client: whole transactions, signed, in the validators' runtime. */

import { readFileSync } from 'node:fs';
import {
  appendTransactionMessageInstructions, createTransactionMessage, generateKeyPairSigner, pipe,
  setTransactionMessageFeePayerSigner, signTransactionMessageWithSigners,
} from '@solana/kit';
import { FailedTransactionMetadata, LiteSVM } from 'litesvm';
import { Client, refusalName } from './src/index.js';
import { HEADER } from './src/protocol.js';

const root = new URL('../../', import.meta.url);
const PROGRAM = new URL('onchain/program/target/bpfel-unknown-none/release/libfacit_program.so', root);
const DATA = 'Program data: ';

export const artifact = new Uint8Array(readFileSync(new URL('assets/facit-tales/facit-tales.facit', root)));

/** A transaction that failed: the custom error's name, if it was one. */
export class Failed extends Error {
  constructor(meta) {
    const text = meta.meta().logs().join('\n');
    const custom = /custom program error: 0x([0-9a-f]+)/.exec(text);
    super(`${meta.err()}\n${text}`);
    this.refusal = custom ? refusalName(parseInt(custom[1], 16)) : null;
  }
}

/** Bytes of a section that is put into its account without tens of thousands of transactions. */
const LONG = 2 ** 20;

class LiteClient extends Client {
  async uploadBytes(owner, model, weights, section) {
    if (section.length <= LONG) return super.uploadBytes(owner, model, weights, section);
    const { exists, ...account } = this.svm.getAccount(weights);
    const data = Uint8Array.from(account.data);
    data.set(section, HEADER);
    this.svm.setAccount({ ...account, data });
  }
}

/** A chain with the program, its configuration and two rich people. */
export async function chain() {
  const svm = new LiteSVM();
  const [program, owner, payer] = await Promise.all([1, 2, 3].map(() => generateKeyPairSigner()));
  for (const { address } of [owner, payer]) svm.airdrop(address, 1_000_000_000_000n);
  svm.addProgram(program.address, readFileSync(PROGRAM));
  const send = async (instructions, from) => {
    svm.expireBlockhash();
    const message = pipe(
      createTransactionMessage({ version: 0 }),
      (m) => setTransactionMessageFeePayerSigner(from, m),
      (m) => svm.setTransactionMessageLifetimeUsingLatestBlockhash(m),
      (m) => appendTransactionMessageInstructions(instructions, m),
    );
    const result = svm.sendTransaction(await signTransactionMessageWithSigners(message));
    if (result instanceof FailedTransactionMetadata) throw new Failed(result);
    const events = result.logs().filter((line) => line.startsWith(DATA))
      .map((line) => new Uint8Array(Buffer.from(line.slice(DATA.length), 'base64')));
    return { units: Number(result.computeUnitsConsumed()), events };
  };
  const account = async (address) => {
    const found = svm.getAccount(address);
    return found.exists ? new Uint8Array(found.data) : null;
  };
  const rent = async (length) => svm.minimumBalanceForRentExemption(BigInt(length));
  const client = new LiteClient({ program: program.address, send, account, rent });
  client.svm = svm;
  await client.createConfig(owner, program, 5000n, 1000n);
  return { svm, client, owner, payer };
}
