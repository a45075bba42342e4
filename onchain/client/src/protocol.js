/**
 * Instruction data, run accounts and events to the byte, as crates/fixed/src/protocol documents them.
 * Nothing here sends anything.
 */

import { getAddressDecoder, getAddressEncoder } from '@solana/kit';

/** Bytes before a section or a state in its account, and of a section's entry in a model. */
export const HEADER = 256;
export const SECTION_ENTRY = 80;
export const CONFIG_LENGTH = 128;
/** Bytes of a section that one step of its digest takes. */
export const PIECE = 1024 * 1024;
/** Tokens of section zero that one step checks. */
export const TOKENS_A_STEP = 1024;

const EVENT_TAG = 'FACITEVT';
const RUN_TAG = 'FACITRUN';
const STATUS = ['open', 'complete', 'failed'];

/** The program's own reasons to refuse, from number 1. */
const REFUSALS = [
  'WrongAccountCount', 'DuplicateAccount', 'MissingSignature', 'NotWritable', 'WrongOwner', 'AlreadyInitialised',
  'NotRentExempt', 'WrongAuthority', 'WrongConfigAddress', 'WrongModel', 'WrongSection', 'SectionOccupied',
  'WrongSectionLength', 'ModelSealed', 'ModelNotSealed', 'SectionSealed', 'SectionNotSealed', 'WrongDigest',
  'OutOfBounds', 'RoyaltyTooHigh', 'RunsOpen', 'RunNotOpen', 'WrongTurn', 'InsufficientFunds', 'WrongSystemProgram',
  'ModelTooLarge', 'WrongConfiguration', 'TooManyLamports',
];
const PROBLEMS = ['WrongLength', 'WrongTag', 'WrongVersion', 'OutOfRange', 'NotZero', 'UnknownInstruction'];
const CORE = [
  'InvalidConfig', 'InvalidFormat', 'InvalidState', 'BufferTooSmall', 'MissingWeights', 'InvalidPrompt',
  'ContextExceeded', 'Arithmetic',
];

/** The name of a custom error of the program. @param {number} number */
export function refusalName(number) {
  const [names, first] = number > 200 ? [CORE, 201] : number > 100 ? [PROBLEMS, 101] : [REFUSALS, 1];
  return names[number - first] ?? `unknown refusal ${number}`;
}

const u32 = (value) => {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, value, true);
  return bytes;
};
const u64 = (value) => {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(value), true);
  return bytes;
};
/** @param {string} address */
const key = (address) => new Uint8Array(getAddressEncoder().encode(address));

/** Bytes one after the other. @param {...Uint8Array} parts */
export function concat(...parts) {
  const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

/** Instruction data by name. */
export const instructions = {
  setConfig: (authority, turnPrice, maxRoyalty) => concat(u32(0), key(authority), u64(turnPrice), u64(maxRoyalty)),
  createModel: (royalty, config) => concat(u32(1), u64(royalty), config),
  addWeights: (index, digest) => concat(u32(2), u32(index), digest),
  upload: (offset, bytes) => concat(u32(3), u64(offset), bytes),
  sealWeights: () => u32(4),
  sealModel: () => u32(5),
  openRun: ({ prompt = '', maxTokens, temperatureQ16 = 0, seed = 0n }) =>
    concat(u32(6), u32(maxTokens), u32(temperatureQ16), u64(seed), new TextEncoder().encode(prompt)),
  turn: (turns) => concat(u32(7), u64(turns)),
  closeRun: () => u32(8),
  closeWeights: () => u32(9),
  closeModel: () => u32(10),
  withdrawFees: (lamports) => concat(u32(11), u64(lamports)),
  withdrawRoyalties: (lamports) => concat(u32(12), u64(lamports)),
};

/** The system program's instructions that make accounts. */
export const system = {
  createAccount: (lamports, space, owner) => concat(u32(0), u64(lamports), u64(space), key(owner)),
  createAccountWithSeed: (base, seed, lamports, space, owner) => {
    const text = new TextEncoder().encode(seed);
    return concat(u32(3), key(base), u64(text.length), text, u64(lamports), u64(space), key(owner));
  },
};

/** The compute budget program's limit of a transaction. @param {number} units */
export const computeUnitLimit = (units) => concat(new Uint8Array([2]), u32(units));

function open(bytes, tag, what) {
  if (bytes.length < 128 && tag === RUN_TAG || String.fromCharCode(...bytes.subarray(0, 8)) !== tag) {
    throw new Error(`these bytes are not ${what}`);
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (view.getUint32(8, true) !== 1) throw new Error(`${what} of an unknown version`);
  return view;
}

const address = (bytes, at) => getAddressDecoder().decode(bytes.subarray(at, at + 32));

/** The header of a run account, and its state. @param {Uint8Array} bytes */
export function readRun(bytes) {
  const view = open(bytes, RUN_TAG, 'a run account');
  return {
    status: STATUS[view.getUint32(12, true)],
    owner: address(bytes, 16),
    model: address(bytes, 48),
    turnPrice: view.getBigUint64(112, true),
    royalty: view.getBigUint64(120, true),
    paid: view.getBigUint64(128, true),
    coreError: view.getUint32(148, true),
    state: bytes.subarray(HEADER),
  };
}

/** What a turn announced. @param {Uint8Array} bytes */
export function readEvent(bytes) {
  const view = open(bytes, EVENT_TAG, 'an event');
  const token = view.getUint32(108, true);
  return {
    complete: view.getUint32(12, true) === 1,
    run: address(bytes, 16),
    model: address(bytes, 48),
    turns: view.getBigUint64(80, true),
    paid: view.getBigUint64(88, true),
    work: view.getUint32(96, true),
    generated: view.getUint32(100, true),
    generatedThisTurn: view.getUint32(104, true),
    token: token === 0xffffffff ? null : token,
  };
}
