/**
 * One run of the exact core: a model, a state in the module's memory and the turns between them.
 * Not files (saved.js), not records (receipt.js).
 */

import { CoreError, FAILED } from './core.js';
import { sha256 } from './digest.js';
import { checkParams } from './params.js';

const TAG = 'CURTAST2';
/** Bytes of a state's header, and offsets in it. */
const HEADER = 128;
const OFFSET = {
  phase: 8, layer: 12, row: 16, position: 20, token: 24, promptLength: 28, promptTokens: 32, maxTokens: 36,
  temperatureQ16: 40, generated: 44, textLength: 48,
};
const TURNS = 80;
/** The phase of a run that has ended, and the first after tokenizing. */
const DONE = 20;
const EMBEDDING = 3;
/** Bytes of text a token may have. */
const TOKEN_BYTES = 128;
/** What a turn may be charged. */
export const TURN_LIMIT = 1_350_000;

const align8 = (n) => (n + 7) & ~7;

export class CoreSession {
  /** @type {import('./core.js').Bytes} */
  #state;
  /** @type {import('./core.js').Bytes} */
  #plan;
  /** @type {number[] | undefined} */
  #tokenizingWork;

  /** @private Use {@link CoreSession.start} or {@link CoreSession.from}. */
  constructor(model, state) {
    /** @type {import('./model.js').Model} */
    this.model = model;
    this.#state = state;
    this.#plan = model.core.alloc(20);
  }

  /**
   * Starts a run.
   * @param {import('./model.js').Model} model
   * @param {import('./index.js').Params} params
   */
  static start(model, { prompt = '', maxTokens, temperatureQ16 = 0, seed = 0n }) {
    const { core, configPointer: config } = model;
    checkParams({ prompt, maxTokens, temperatureQ16, seed });
    const text = core.put(new TextEncoder().encode(prompt));
    try {
      const size = core.exports.state_size(config, text.length, maxTokens) >>> 0;
      if (size === FAILED) throw new CoreError(6, 'starting the run');
      const state = core.alloc(size);
      const [low, high] = [Number(BigInt(seed) & 0xffffffffn), Number(BigInt(seed) >> 32n)];
      const error = core.exports.init_state(
        config, state.pointer, state.length, text.pointer, text.length, maxTokens, temperatureQ16, low, high,
      );
      if (error !== 0) state.free();
      core.check(error, 'starting the run');
      return new CoreSession(model, state);
    } finally {
      text.free();
    }
  }

  /**
   * Continues a run from the bytes of a state, which are checked first.
   * @param {import('./model.js').Model} model
   * @param {Uint8Array} bytes
   */
  static from(model, bytes) {
    const session = new CoreSession(model, model.core.put(bytes));
    const { core, configPointer: config } = model;
    const bad = (why) => {
      session.free();
      throw new CoreError(3, `continuing the run: ${why}`);
    };
    if (bytes.length < HEADER || String.fromCharCode(...bytes.subarray(0, TAG.length)) !== TAG) bad('not a state');
    const { promptLength, maxTokens, promptTokens, generated, textLength, complete } = session.info();
    const size = core.exports.state_size(config, promptLength, maxTokens) >>> 0;
    if (size !== bytes.length) bad('its length is not what its header and the model say');
    // The core checks the state of a run that goes on; of one that has ended, the output's bounds.
    if (complete) {
      const fits = promptTokens <= promptLength + 2 && generated <= maxTokens && textLength <= TOKEN_BYTES * generated;
      if (!fits) bad('its counts do not fit each other');
    } else {
      session.plan();
    }
    return session;
  }

  /**
   * Runs `turns` turns from the start without taking digests: the state a run must have then.
   * @param {import('./model.js').Model} model
   * @param {import('./index.js').Params} params
   * @param {number} [turns] all, if left out
   */
  static replay(model, params, turns = Infinity) {
    const session = CoreSession.start(model, params);
    try {
      for (let turn = 0; turn < turns && !session.info().complete; turn += 1) session.step();
    } catch (error) {
      session.free();
      throw error;
    }
    return session;
  }

  #view() {
    const { view } = this.#state;
    return new DataView(view.buffer, view.byteOffset, view.byteLength);
  }

  /** Where the run stands. */
  info() {
    const view = this.#view();
    const fields = Object.entries(OFFSET).map(([name, offset]) => [name, view.getUint32(offset, true)]);
    const info = Object.fromEntries(fields);
    return { ...info, turns: Number(view.getBigUint64(TURNS, true)), complete: info.phase === DONE };
  }

  /** Offsets of the prompt's tokens, the output's tokens and the output's text in the state. */
  #offsets() {
    const { promptLength, maxTokens } = this.info();
    const promptTokens = HEADER + align8(promptLength);
    const output = align8(promptTokens + 4 * (promptLength + 2));
    return { promptTokens, output, text: align8(output + 4 * maxTokens) };
  }

  /** The prompt. */
  prompt() {
    return decode(this.#state.view.slice(HEADER, HEADER + this.info().promptLength));
  }

  /** The ids generated so far. @returns {number[]} */
  tokens() {
    const [view, { output }] = [this.#view(), this.#offsets()];
    return Array.from({ length: this.info().generated }, (_, i) => view.getUint32(output + 4 * i, true));
  }

  /** The bytes of the text so far; a character may be incomplete at its end. */
  textBytes() {
    const { text } = this.#offsets();
    return this.#state.view.slice(text, text + this.info().textLength);
  }

  /** The text so far; what is not UTF-8 appears as U+FFFD. */
  text() {
    return decode(this.textBytes());
  }

  /** A copy of the state. */
  state() {
    return this.#state.view.slice();
  }

  /** SHA-256 of the state. */
  digest() {
    return sha256(this.state());
  }

  /**
   * What the next turn will do.
   * @returns {import('./index.js').Plan}
   */
  plan() {
    const { core, configPointer } = this.model;
    const state = this.#state;
    core.check(core.exports.plan_turn(configPointer, state.pointer, state.length, this.#plan.pointer), 'planning a turn');
    const view = new DataView(this.#plan.view.slice().buffer);
    const [count, first, second, estimatedCu, maxGenerated] = [0, 4, 8, 12, 16].map((at) => view.getUint32(at, true));
    return { sections: [first, second].slice(0, count), estimatedCu, maxGenerated };
  }

  /** Plans and runs one turn, without the digest of the state; for many turns at once. */
  step() {
    const plan = this.plan();
    const before = this.info();
    const { core, configPointer } = this.model;
    const none = [0, 0];
    const [first = none, second = none] = plan.sections.map((index) => this.model.section(index));
    const error = core.exports.turn_with_sections(
      configPointer, this.#state.pointer, this.#state.length, ...this.model.section(0), ...first, ...second,
    );
    core.check(error, `running turn ${before.turns + 1}`);
    const { turns, generated, complete } = this.info();
    const work = before.phase < EMBEDDING ? this.#workOfTokenizing(before.turns) : plan.estimatedCu;
    return { ...plan, turn: turns, work, generated, complete, newTokens: this.tokens().slice(before.generated) };
  }

  /** A turn that tokenizes is charged for what it did, any other for what was planned. */
  #workOfTokenizing(turn) {
    const prompt = () => this.#state.view.slice(HEADER, HEADER + this.info().promptLength);
    this.#tokenizingWork ??= this.model.tokenizingWork(prompt());
    return this.#tokenizingWork[turn];
  }

  /**
   * Plans and runs one turn.
   * @returns {Promise<import('./index.js').Turn>}
   */
  async turn() {
    const from = this.info().textLength;
    const turn = this.step();
    const newText = this.textBytes().slice(from);
    return { ...turn, newText, stateSha256: await this.digest() };
  }

  /**
   * The run, turn by turn, to its end; or for `turns` turns, or until `signal` is aborted.
   * @param {{ turns?: number, signal?: AbortSignal }} [options]
   * @returns {AsyncGenerator<import('./index.js').Turn>}
   */
  async *run({ turns = Infinity, signal } = {}) {
    for (let done = 0; done < turns && !signal?.aborted && !this.info().complete; done += 1) {
      yield await this.turn();
    }
  }

  /** Releases the module's memory. */
  free() {
    this.#state.free();
    this.#plan.free();
  }
}

/** Text as receipts and pages show it. */
function decode(bytes) {
  return new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes);
}
