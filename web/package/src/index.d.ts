/** Facit's exact core for JavaScript: the same bits as the native binary, in browsers and in node. */

/** What, with the model, decides the output of a run to the bit. */
export interface Params {
  /** At most 1,024 bytes of UTF-8 without a zero byte. Empty if left out. */
  prompt?: string;
  /** From 1 to the model's context length. */
  maxTokens: number;
  /** The temperature with 16 fractional bits, at most 16 << 16; 0 (the most probable token) if left out. */
  temperatureQ16?: number;
  /** From 0 to 2^64 - 1; used above temperature 0. 0 if left out. */
  seed?: bigint | number;
}

/** What the next turn will do, known before it runs. */
export interface Plan {
  /** The matrix sections it reads besides section zero, at most two. */
  sections: number[];
  /** Compute units it is planned to be charged. */
  estimatedCu: number;
  /** The most tokens it can complete. */
  maxGenerated: number;
}

/** What a turn did. */
export interface Step extends Plan {
  /** Its number, from 1. */
  turn: number;
  /** Compute units charged. */
  work: number;
  /** Tokens of the whole run so far. */
  generated: number;
  /** Whether the run has ended. */
  complete: boolean;
  /** Ids of the tokens it completed. */
  newTokens: number[];
}

export interface Turn extends Step {
  /** The text they stand for; a character may be cut at its end. */
  newText: Uint8Array;
  /** SHA-256 of the whole state after the turn. */
  stateSha256: string;
}

/** Fields of a state's header. */
export interface StateInfo {
  phase: number;
  layer: number;
  row: number;
  position: number;
  token: number;
  promptLength: number;
  promptTokens: number;
  maxTokens: number;
  temperatureQ16: number;
  generated: number;
  textLength: number;
  turns: number;
  complete: boolean;
}

/** Bytes in the module's memory. */
export class Bytes {
  readonly pointer: number;
  readonly length: number;
  /** The bytes, until the module runs again. */
  readonly view: Uint8Array;
  free(): void;
}

/** The core as a WebAssembly module. */
export class CoreWasm {
  private constructor();
  readonly exports: WebAssembly.Exports & { readonly memory: WebAssembly.Memory };
  /** Whether this is the build with 128-bit vectors. */
  readonly simd: boolean;
  alloc(length: number): Bytes;
  put(bytes: Uint8Array): Bytes;
  /** Converts a llama2.c checkpoint and its tokenizer to an artifact. */
  convert(checkpoint: Uint8Array, tokenizer: Uint8Array): Uint8Array;
  /** Checks and loads an artifact. */
  model(artifact: Uint8Array): Promise<Model>;
}

/** Loads the core; by default the package's own module, with vectors where the machine has them. */
export function loadCore(options?: { simd?: boolean; module?: BufferSource | WebAssembly.Module }): Promise<CoreWasm>;

/** Whether this machine runs the build with 128-bit vectors. */
export function simdSupported(): boolean;

/** Names of the functions the module exports. */
export const EXPORTS: readonly string[];

/** An artifact in the module's memory. */
export class Model {
  private constructor();
  readonly core: CoreWasm;
  readonly sha256: string;
  /** Length of the artifact. */
  readonly bytes: number;
  readonly config: Readonly<Record<'dim' | 'hidden' | 'layers' | 'heads' | 'kvHeads' | 'vocab' | 'seq', number>>;
  /** The same seven numbers as receipts have them: the vocabulary negative with a classifier of its own. */
  readonly configWords: readonly number[];
  /** How many sections there are, section zero included. */
  readonly sectionCount: number;
  /** How many turns a run takes at most; 0n if the core refuses it. */
  quote(params: Params): bigint;
  free(): void;
}

/** A run: a model, a state and the turns between them. */
export class CoreSession {
  private constructor();
  readonly model: Model;
  static start(model: Model, params: Params): CoreSession;
  /** Continues a run from the bytes of a state. */
  static from(model: Model, state: Uint8Array): CoreSession;
  /** Runs `turns` turns from the start (all, if left out): the state a run must have then. */
  static replay(model: Model, params: Params, turns?: number): CoreSession;
  info(): StateInfo;
  plan(): Plan;
  /** Plans and runs one turn. */
  turn(): Promise<Turn>;
  /** Plans and runs one turn, without the digest. */
  step(): Step;
  /** Turn by turn to the end, or for `turns` turns, or until `signal` is aborted. */
  run(options?: { turns?: number; signal?: AbortSignal }): AsyncGenerator<Turn, void, void>;
  prompt(): string;
  tokens(): number[];
  text(): string;
  textBytes(): Uint8Array;
  /** A copy of the state. */
  state(): Uint8Array;
  /** SHA-256 of the state. */
  digest(): Promise<string>;
  free(): void;
}

/** What a turn may be charged, in compute units. */
export const TURN_LIMIT: number;

/** A receipt's members, as in the file. */
export interface Receipt {
  format: string;
  numerics: string;
  model: { sha256: string; bytes: number; config: number[] };
  prompt: string;
  max_tokens: number;
  temperature_q16: number;
  seed: string;
  state_bytes: number;
  initial_state_sha256: string;
  turns: {
    sections: number[];
    estimated_cu: number;
    max_generated: number;
    work: number;
    generated: number;
    state_sha256: string;
  }[];
  checkpoints: { turn: number; delta: string }[];
  complete: boolean;
  tokens: number[];
  text: string;
}

/** The largest receipt read, in bytes. */
export const MAX_RECEIPT_BYTES: number;

/** Checks a receipt's seal and members; nothing is replayed. */
export function readReceipt(bytes: Uint8Array): Promise<Receipt>;

/**
 * Replays a receipt turn by turn. Rejects with {@link ReceiptError} if it cannot be read or is of
 * another model, with {@link TurnDiffers} naming the first turn that differs.
 */
export function verifyReceipt(
  model: Model,
  receipt: Uint8Array,
  options?: { onTurn?: (turn: Turn, of: number) => unknown; signal?: AbortSignal },
): Promise<Receipt>;

export class ReceiptError extends Error {}

export class TurnDiffers extends Error {
  /** From 1; 0 is the state before the first turn. */
  readonly turn: number;
  readonly field: string;
  readonly recorded: string | number | boolean;
  readonly computed: string | number | boolean;
}

/** An error the core returned. */
export class CoreError extends Error {
  /** As published, 1 to 8. */
  readonly number: number;
}

/** The file of a paused run, which `facit resume` reads too. */
export function saveSession(session: CoreSession): Promise<Uint8Array>;

/** Continues the run of such a file. */
export function openSaved(model: Model, file: Uint8Array): Promise<CoreSession>;

/** A temperature with 16 fractional bits from a decimal number, rounded as the native binary does. */
export function temperatureFromText(text: string): number;

/** SHA-256 as 64 lower-case hexadecimal digits. */
export function sha256(bytes: Uint8Array): Promise<string>;
