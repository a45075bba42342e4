/**
 * The exact core as a WebAssembly module: loading it, its memory, its errors.
 * Not runs (session.js), not the weight format (model.js).
 */

import { Model } from './model.js';

/** The core's errors by number, as it publishes them. */
const ERRORS = [
  ['InvalidConfig', 'a configuration value is out of range'],
  ['InvalidFormat', 'the weights, checkpoint or tokenizer do not match their format'],
  ['InvalidState', 'the state is damaged or complete'],
  ['BufferTooSmall', "the buffer's length is not the state's size"],
  ['MissingWeights', 'a matrix section the turn needs is missing or too short'],
  [
    'InvalidPrompt',
    'the prompt (1,024 bytes of UTF-8, no zero byte, only what the vocabulary can spell), the number of tokens or the temperature is out of range',
  ],
  ['ContextExceeded', "the prompt's tokens and the tokens asked for exceed the model's context: shorten one of them"],
  ['Arithmetic', "a key or value does not fit 32 bits: this model's numbers overflow"],
];

/** What the module exports, besides its memory and the linker's two marks. */
export const EXPORTS = [
  'alloc',
  'convert',
  'dealloc',
  'init_state',
  'plan_turn',
  'quote',
  'required_section',
  'result_len',
  'state_size',
  'turn',
  'turn_with_sections',
];

/** The largest u32: `state_size` and `required_section` return it on an error. */
export const FAILED = 0xffffffff;

/** An error the core returned: `number` as published, `name` its name. */
export class CoreError extends Error {
  /**
   * @param {number} number
   * @param {string} doing
   */
  constructor(number, doing) {
    const [name, says] = ERRORS[number - 1] ?? ['Unknown', 'not an error this version knows'];
    super(`${doing}: ${says} (core error ${number}, ${name})`);
    this.name = name;
    this.number = number;
  }
}

/** Bytes in the module's memory. Views are made afresh at each use: memory that grows moves. */
export class Bytes {
  #core;

  /** @param {CoreWasm} core @param {number} pointer @param {number} length */
  constructor(core, pointer, length) {
    this.#core = core;
    this.pointer = pointer;
    this.length = length;
  }

  /** The bytes themselves, until the module runs again. */
  get view() {
    return new Uint8Array(this.#core.exports.memory.buffer, this.pointer, this.length);
  }

  /** Releases them; using them afterwards is an error of the caller. */
  free() {
    this.#core.exports.dealloc(this.pointer, this.length);
    this.pointer = 0;
    this.length = 0;
  }
}

/** The module, and the exports that take memory. */
export class CoreWasm {
  /** @param {WebAssembly.Instance} instance @param {boolean} simd */
  constructor(instance, simd) {
    /** @type {any} */
    this.exports = instance.exports;
    /** Whether this is the build with 128-bit vectors. The bits are the same. */
    this.simd = simd;
    const missing = EXPORTS.filter((name) => typeof this.exports[name] !== 'function');
    if (missing.length > 0) {
      throw new Error(`not the core's module: it does not export ${missing.join(', ')}`);
    }
  }

  /** Reserves `length` zeroed bytes. @param {number} length */
  alloc(length) {
    const pointer = length === 0 ? 0 : this.exports.alloc(length) >>> 0;
    if (length > 0 && pointer === 0) {
      throw new Error(`no room for ${length.toLocaleString('en')} bytes in WebAssembly's memory (4 GiB at most)`);
    }
    return new Bytes(this, pointer, length);
  }

  /** Copies `bytes` into the module's memory. @param {Uint8Array} bytes */
  put(bytes) {
    const memory = this.alloc(bytes.length);
    if (bytes.length > 0) memory.view.set(bytes);
    return memory;
  }

  /** Throws the error of a number that is not zero. @param {number} number @param {string} doing */
  check(number, doing) {
    if (number !== 0) throw new CoreError(number, doing);
  }

  /**
   * Converts a llama2.c checkpoint and its tokenizer to an artifact.
   * @param {Uint8Array} checkpoint
   * @param {Uint8Array} tokenizer
   * @returns {Uint8Array}
   */
  convert(checkpoint, tokenizer) {
    const inputs = [];
    try {
      inputs.push(this.put(checkpoint));
      inputs.push(this.put(tokenizer));
      const [c, t] = inputs;
      const pointer = this.exports.convert(c.pointer, c.length, t.pointer, t.length) >>> 0;
      if (pointer === 0) {
        throw new Error(
          'these two files cannot be converted: give a llama2.c checkpoint (its first 28 bytes are the configuration) and its tokenizer, both whole; `facit convert` names the fault',
        );
      }
      const artifact = new Bytes(this, pointer, this.exports.result_len() >>> 0);
      const copy = artifact.view.slice();
      artifact.free();
      return copy;
    } finally {
      inputs.forEach((input) => input.free());
    }
  }

  /**
   * Loads an artifact, to run it.
   * @param {Uint8Array} artifact
   * @returns {Promise<Model>}
   */
  model(artifact) {
    return Model.load(this, artifact);
  }
}

/** Thirty bytes that are a module only where 128-bit vectors are: `() => i8x16.splat(0)`. */
const SIMD_PROBE = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 8, 1, 6, 0, 65, 0, 253, 15, 11,
]);

/** Whether this machine runs the build with 128-bit vectors. */
export function simdSupported() {
  return WebAssembly.validate(SIMD_PROBE);
}

/**
 * Loads the core: by default the package's own module, with 128-bit vectors where there are any.
 * @param {{ simd?: boolean, module?: BufferSource | WebAssembly.Module }} [options]
 * @returns {Promise<CoreWasm>}
 */
export async function loadCore(options = {}) {
  const simd = options.simd ?? simdSupported();
  const source = options.module ?? (await readModule(simd ? 'fixed-simd.wasm' : 'fixed.wasm'));
  const module = source instanceof WebAssembly.Module ? source : await WebAssembly.compile(source);
  return new CoreWasm(await WebAssembly.instantiate(module, {}), simd);
}

/** @param {string} name */
async function readModule(name) {
  const url = new URL(`../dist/${name}`, import.meta.url);
  if (url.protocol === 'file:') {
    const { readFile } = await import('node:fs/promises');
    return readFile(url).catch((error) => {
      throw new Error(`${url.pathname} cannot be read (${error.code}): build it with \`cargo xtask wasm\``);
    });
  }
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url} cannot be loaded: HTTP status ${response.status}`);
  return response.arrayBuffer();
}
