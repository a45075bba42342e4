/**
 * An artifact in the module's memory: its configuration and where its sections lie. The core
 * checks section zero's content whenever it reads it; this file checks what it uses itself.
 */

import { CoreError } from './core.js';
import { sha256 } from './digest.js';
import { checkParams } from './params.js';
import { tokenizingWork } from './tokenizer.js';

const TAG = 'CURTAW01';
/** Offsets in section zero. */
const CONFIG = 8;
const SECTION_COUNT = 36;
const SECTION_TABLE = 128;
const CONFIG_WORDS = 7;
const CONFIG_FIELDS = ['dim', 'hidden', 'layers', 'heads', 'kvHeads', 'vocab', 'seq'];

export class Model {
  /** @type {import('./core.js').Bytes} */
  #artifact;
  /** @type {import('./core.js').Bytes} */
  #config;
  /** @type {{ offset: number, length: number }[]} */
  #sections;

  /**
   * @private Use {@link Model.load}.
   * @param {import('./core.js').CoreWasm} core
   */
  constructor(core, artifact, sections, digest) {
    this.core = core;
    this.#artifact = artifact;
    this.#sections = sections;
    this.#config = core.put(artifact.view.slice(CONFIG, CONFIG + 4 * CONFIG_WORDS));
    /** SHA-256 of the artifact. */
    this.sha256 = digest;
    /** Length of the artifact. */
    this.bytes = artifact.length;
    const view = new DataView(this.#config.view.slice().buffer);
    /** The seven numbers as receipts have them: the vocabulary negative with a classifier of its own. */
    this.configWords = CONFIG_FIELDS.map((_, i) => view.getInt32(4 * i, true));
    /** The same by name, the vocabulary positive. */
    this.config = Object.freeze(
      Object.fromEntries(CONFIG_FIELDS.map((name, i) => [name, Math.abs(this.configWords[i])])),
    );
  }

  /**
   * Copies an artifact into the module and checks that its sections lie inside it.
   * @param {import('./core.js').CoreWasm} core
   * @param {Uint8Array} artifact
   */
  static async load(core, artifact) {
    const sections = readSections(artifact);
    const digest = await sha256(artifact);
    const memory = core.put(artifact);
    const model = new Model(core, memory, sections, digest);
    // A quote reads all of section zero, so the core refuses a damaged one here, before a run.
    // An empty prompt and one token are possible with every model.
    if (model.quote({ prompt: '', maxTokens: 1 }) === 0n) {
      model.free();
      throw new CoreError(2, "the model's section zero is damaged");
    }
    return model;
  }

  /** The configuration's pointer, for the core. */
  get configPointer() {
    return this.#config.pointer;
  }

  /** Pointer and length of a section; of none for an index a plan leaves out. */
  section(index) {
    const section = this.#sections[index];
    if (!section) throw new RangeError(`the model has no section ${index}`);
    return [this.#artifact.pointer + section.offset, section.length];
  }

  /** How many sections there are, section zero included. */
  get sectionCount() {
    return this.#sections.length;
  }

  /** A copy of the bytes of section zero. */
  metadata() {
    return this.#artifact.view.slice(0, this.#sections[0].length);
  }

  /**
   * How many turns a run takes; 0n if the core refuses it.
   * @param {import('./index.js').Params} params
   * @returns {bigint}
   */
  quote({ prompt = '', maxTokens, temperatureQ16 = 0 }) {
    checkParams({ prompt, maxTokens, temperatureQ16 });
    const text = this.core.put(new TextEncoder().encode(prompt));
    try {
      const [zero, length] = this.section(0);
      const turns = this.core.exports.quote(
        this.configPointer, zero, length, text.pointer, text.length, maxTokens, temperatureQ16,
      );
      return BigInt.asUintN(64, turns);
    } finally {
      text.free();
    }
  }

  /**
   * Compute units charged by each turn that tokenizes `prompt`, in order.
   * @param {Uint8Array} prompt
   */
  tokenizingWork(prompt) {
    return tokenizingWork(this.metadata(), this.config.vocab, prompt);
  }

  /** Releases the module's memory. */
  free() {
    this.#artifact.free();
    this.#config.free();
  }
}

/** The section table, each entry inside the file and behind the one before. */
function readSections(artifact) {
  const refuse = (why) => {
    throw new CoreError(2, `not a model: ${why}`);
  };
  const view = new DataView(artifact.buffer, artifact.byteOffset, artifact.byteLength);
  if (String.fromCharCode(...artifact.subarray(0, TAG.length)) !== TAG) refuse('it does not begin with CURTAW01');
  if (artifact.length < SECTION_TABLE) refuse('it is cut off inside its header');
  const count = view.getUint32(SECTION_COUNT, true);
  if (count === 0 || SECTION_TABLE + 16 * count > artifact.length) refuse(`it cannot hold ${count} sections`);
  const sections = [];
  let end = 0;
  for (let i = 0; i < count; i += 1) {
    const offset = Number(view.getBigUint64(SECTION_TABLE + 16 * i, true));
    const length = Number(view.getBigUint64(SECTION_TABLE + 16 * i + 8, true));
    if (offset !== end || length === 0 || offset + length > artifact.length) {
      refuse(`section ${i} does not follow the one before inside the file's ${artifact.length} bytes`);
    }
    sections.push({ offset, length });
    end = offset + length;
  }
  if (end !== artifact.length) refuse(`${artifact.length - end} bytes follow its last section`);
  return sections;
}
