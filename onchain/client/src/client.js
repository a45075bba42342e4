/**
 * The steps of a model's and a run's life. Works over any way to send a transaction: a cluster's RPC,
 * or LiteSVM in the tests. Which sections a turn reads, and what its state must be, comes from the
 * same core in WebAssembly (../../web/package).
 */

import { AccountRole, createAddressWithSeed, generateKeyPairSigner } from '@solana/kit';
import {
  CONFIG_LENGTH, HEADER, PIECE, SECTION_ENTRY, TOKENS_A_STEP, computeUnitLimit, concat, instructions, readRun, system,
} from './protocol.js';

const SYSTEM = '11111111111111111111111111111111';
const COMPUTE_BUDGET = 'ComputeBudget111111111111111111111111111111';
const CONFIG_SEED = 'facit-config';
/** Compute units a transaction may use. */
export const LIMIT = 1_400_000;
/** Bytes of a section that a transaction has room for. */
const UPLOAD = 900;
/** Offsets in section zero: the section count, and (offset, length) of every section. */
const SECTION_COUNT = 36;
const SECTION_TABLE = 128;

/** An account of an instruction: an address, or a signer. */
const read = (address) => ({ address, role: AccountRole.READONLY });
const write = (address) => ({ address, role: AccountRole.WRITABLE });
const signs = (signer) => ({ address: signer.address, role: AccountRole.READONLY_SIGNER, signer });
const signsAndWrites = (signer) => ({ address: signer.address, role: AccountRole.WRITABLE_SIGNER, signer });

const sha256 = async (bytes) => new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));

/** The chained digest of a section. @param {Uint8Array} section */
export async function sectionDigest(section) {
  let digest = new Uint8Array(32);
  for (let at = 0; at < section.length; at += PIECE) {
    digest = await sha256(concat(digest, section.subarray(at, at + PIECE)));
  }
  return digest;
}

/** The sections of an artifact, section zero first. @param {Uint8Array} artifact */
export function sectionsOf(artifact) {
  const view = new DataView(artifact.buffer, artifact.byteOffset, artifact.byteLength);
  const entry = (i, field) => Number(view.getBigUint64(SECTION_TABLE + 16 * i + field, true));
  return Array.from({ length: view.getUint32(SECTION_COUNT, true) }, (_, i) =>
    artifact.subarray(entry(i, 0), entry(i, 0) + entry(i, 8)));
}

export class Client {
  /**
   * @param {object} chain
   * @param {string} chain.program address of the program
   * @param {(instructions: object[], payer: object) => Promise<{ units: number, events: Uint8Array[] }>} chain.send
   *   sends a transaction, throws if it fails
   * @param {(address: string) => Promise<Uint8Array | null>} chain.account an account's data
   * @param {(length: number) => Promise<bigint>} chain.rent lamports that keep an account of that length
   */
  constructor({ program, send, account, rent }) {
    Object.assign(this, { program, account, rent });
    this.transport = send;
  }

  /** Where the program's configuration lies. */
  config() {
    return createAddressWithSeed({ baseAddress: this.program, programAddress: this.program, seed: CONFIG_SEED });
  }

  #instruction(accounts, data) {
    return { programAddress: this.program, accounts, data };
  }

  async #create(payer, account, length) {
    const data = system.createAccount(await this.rent(length), length, this.program);
    return { programAddress: SYSTEM, accounts: [signsAndWrites(payer), signsAndWrites(account)], data };
  }

  #send(payer, ...list) {
    const limit = { programAddress: COMPUTE_BUDGET, data: computeUnitLimit(LIMIT) };
    return this.transport([limit, ...list], payer);
  }

  /** Creates the configuration; only who holds the program's key can. */
  async createConfig(authority, program, turnPrice, maxRoyalty) {
    const config = await this.config();
    const lamports = await this.rent(CONFIG_LENGTH);
    const data = system.createAccountWithSeed(this.program, CONFIG_SEED, lamports, CONFIG_LENGTH, this.program);
    const create = { programAddress: SYSTEM, accounts: [signsAndWrites(authority), write(config), signs(program)], data };
    const accounts = [write(config), signs(authority), signs(program)];
    const set = this.#instruction(accounts, instructions.setConfig(authority.address, turnPrice, maxRoyalty));
    return this.#send(authority, create, set);
  }

  /**
   * Uploads and seals a model. Returns its address and those of its sections.
   * @param {object} owner signer that pays
   * @param {Uint8Array} artifact
   * @param {bigint} royalty lamports a token
   */
  async uploadModel(owner, artifact, royalty) {
    const sections = sectionsOf(artifact);
    const config = artifact.subarray(8, 36);
    const model = await generateKeyPairSigner();
    const create = await this.#create(owner, model, HEADER + SECTION_ENTRY * sections.length);
    const accounts = [signsAndWrites(model), signs(owner), read(await this.config())];
    await this.#send(owner, create, this.#instruction(accounts, instructions.createModel(royalty, config)));
    const weights = [];
    for (const [index, section] of sections.entries()) {
      weights.push(await this.#uploadSection(owner, model.address, index, section));
    }
    await this.#send(owner, this.#instruction([write(model.address), signs(owner)], instructions.sealModel()));
    return { address: model.address, weights };
  }

  async #uploadSection(owner, model, index, section) {
    const account = await generateKeyPairSigner();
    const create = await this.#create(owner, account, HEADER + section.length);
    const data = instructions.addWeights(index, await sectionDigest(section));
    const added = this.#instruction([signsAndWrites(account), write(model), signs(owner)], data);
    await this.#send(owner, create, added);
    await this.uploadBytes(owner, model, account.address, section);
    const vocab = Math.abs(new DataView(section.buffer, section.byteOffset).getInt32(28, true));
    const checks = index === 0 ? Math.ceil(vocab / TOKENS_A_STEP) : 1;
    for (let step = Math.ceil(section.length / PIECE) + checks; step > 0; step -= 1) {
      const accounts = [write(account.address), write(model), signs(owner)];
      await this.#send(owner, this.#instruction(accounts, instructions.sealWeights()));
    }
    return account.address;
  }

  /** Uploads a section's bytes, a transaction a part. */
  async uploadBytes(owner, model, weights, section) {
    for (let at = 0; at < section.length; at += UPLOAD) {
      const bytes = instructions.upload(at, section.subarray(at, at + UPLOAD));
      await this.#send(owner, this.#instruction([write(weights), read(model), signs(owner)], bytes));
    }
  }

  /** Opens a run; `session` is the same run in the core, fresh. Returns its address. */
  async openRun(owner, model, params, session) {
    const run = await generateKeyPairSigner();
    const create = await this.#create(owner, run, HEADER + session.state().length);
    const accounts = [signsAndWrites(run), signs(owner), write(model.address), read(await this.config())];
    await this.#send(owner, create, this.#instruction(accounts, instructions.openRun(params)));
    return run.address;
  }

  /** The instruction of a run's next turn. */
  async turnInstruction(payer, model, run, turns, sections) {
    const accounts = [
      write(run), write(model.address), write(await this.config()), signsAndWrites(payer), read(SYSTEM),
      ...[0, ...sections].map((index) => read(model.weights[index])),
    ];
    return this.#instruction(accounts, instructions.turn(turns));
  }

  /**
   * Runs a run's next turn and the same turn in the core; throws unless both leave the same state.
   * @returns what the transaction used and announced, and the core's step
   */
  async turn(payer, model, run, session) {
    const { turns } = session.info();
    const { sections } = session.plan();
    const sent = await this.#send(payer, await this.turnInstruction(payer, model, run, turns, sections));
    const step = session.step();
    const { state } = await this.run(run);
    const native = session.state();
    const differs = state.findIndex((byte, i) => byte !== native[i]);
    if (state.length !== native.length || differs >= 0) {
      throw new Error(`turn ${turns + 1}: the program's state differs from the core's at byte ${differs}`);
    }
    return { ...sent, step };
  }

  /** Sends instructions of one's own making, with the limit of compute units. */
  sendAll(payer, ...list) {
    return this.#send(payer, ...list);
  }

  /** A run account. */
  async run(address) {
    const bytes = await this.account(address);
    if (!bytes) throw new Error(`there is no account ${address}`);
    return readRun(bytes);
  }

  /** Closes a run; its owner gets the rent back. */
  closeRun(owner, model, run) {
    const accounts = [write(run), signsAndWrites(owner), write(model.address)];
    return this.#send(owner, this.#instruction(accounts, instructions.closeRun()));
  }
}
