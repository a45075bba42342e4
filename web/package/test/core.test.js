/** The module in node, with and without SIMD, against the golden data of the Python definition. */

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { CoreSession, EXPORTS, loadCore, openSaved, saveSession, sha256, temperatureFromText } from '../src/index.js';
import { artifact, facit, file, golden, goldens, withFolder } from '../../test/helpers.js';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

for (const simd of [false, true]) {
  describe(simd ? 'with SIMD' : 'without SIMD', () => {
    let core;
    let model;
    before(async () => {
      core = await loadCore({ simd });
      model = await core.model(artifact);
    });
    after(() => model.free());

    // Catches an export that was added, lost or renamed.
    test('exports exactly what is described', () => {
      const functions = Object.keys(core.exports).filter((name) => typeof core.exports[name] === 'function');
      assert.deepEqual(functions.sort(), EXPORTS);
    });

    for (const { name } of goldens.cases) {
      // Catches any bit of any turn that differs from the definition, and a wrong plan or charge.
      test(`${name}: every turn is the golden one`, async () => {
        const { wanted, params } = golden(name);
        assert.equal(model.quote(params), BigInt(wanted.quote_turns));
        const session = CoreSession.start(model, params);
        assert.equal(await session.digest(), wanted.initial_sha256);
        let tokens = [];
        const text = [];
        let count = 0;
        for await (const turn of session.run()) {
          const [sections, estimated, most, , work, generated, digest] = wanted.turns[count];
          count += 1;
          const { turn: number, estimatedCu, maxGenerated } = turn;
          assert.deepEqual(
            [number, turn.sections, estimatedCu, maxGenerated, turn.work, turn.generated],
            [count, sections, estimated, most, work, generated],
          );
          assert.ok(turn.stateSha256.startsWith(digest), `turn ${count}: ${turn.stateSha256} is not ${digest}`);
          tokens = tokens.concat(turn.newTokens);
          text.push(Buffer.from(turn.newText));
        }
        assert.equal(count, wanted.turns.length);
        assert.equal(await session.digest(), wanted.final_sha256);
        assert.deepEqual(tokens, wanted.tokens);
        assert.deepEqual(session.tokens(), wanted.tokens);
        assert.equal(Buffer.concat(text).toString('hex'), wanted.text_hex);
        assert.equal(session.prompt(), wanted.prompt);
        assert.throws(() => session.step(), { name: 'InvalidState' });
        session.free();
      });
    }

    test('conversion gives the committed artifact', async () => {
      const folder = 'assets/facit-tales/';
      assert.equal(
        await sha256(core.convert(file(`${folder}model.bin`), file(`${folder}tokenizer.bin`))),
        await sha256(artifact),
      );
    });

    test('files that cannot be converted are refused', () => {
      const tokenizer = file('assets/facit-tales/tokenizer.bin');
      assert.throws(() => core.convert(new Uint8Array(), tokenizer), /cannot be converted/);
      assert.throws(() => core.convert(artifact, tokenizer), /cannot be converted/);
    });

    test('replay gives the state of the same turn', async () => {
      const { wanted, params } = golden('t08');
      const session = CoreSession.replay(model, params, 20);
      assert.ok((await session.digest()).startsWith(wanted.turns[19][6]));
      const end = CoreSession.replay(model, params);
      assert.equal(await end.digest(), wanted.final_sha256);
      [session, end].forEach((s) => s.free());
    });

    test('a run paused here goes on in the native binary, and back', () =>
      withFolder(async (folder) => {
        const { wanted, params } = golden('t08');
        const path = join(folder, 'state');
        const session = CoreSession.replay(model, params, 33);
        writeFileSync(path, await saveSession(session));
        session.free();
        facit('resume', '-q', path, '--turns', '44', '--save', path);
        const resumed = await openSaved(model, new Uint8Array(readFileSync(path)));
        assert.equal(resumed.info().turns, 77);
        for await (const turn of resumed.run()) assert.ok(turn.stateSha256.startsWith(wanted.turns[turn.turn - 1][6]));
        assert.equal(await resumed.digest(), wanted.final_sha256);
        // A finished run opens too.
        const finished = await openSaved(model, await saveSession(resumed));
        assert.equal(finished.text(), wanted.text);
        [resumed, finished].forEach((s) => s.free());
      }));

    test('damaged states are refused', async () => {
      const session = CoreSession.replay(model, golden('t08').params, 5);
      const saved = await saveSession(session);
      for (const at of [0, 8, 50, 80, 105, 200, saved.length - 1]) {
        const bad = saved.slice();
        bad[at] ^= 1;
        await assert.rejects(openSaved(model, bad), `byte ${at}`);
      }
      for (const length of [0, 7, 111, 143, saved.length - 1]) {
        await assert.rejects(openSaved(model, saved.subarray(0, length)), `${length} bytes`);
      }
      const state = session.state();
      state[8] = 21; // a phase that does not exist
      assert.throws(() => CoreSession.from(model, state), { name: 'InvalidState' });
      assert.throws(() => CoreSession.from(model, state.subarray(0, 100)), { name: 'InvalidState' });
      session.free();
    });

    test('parameters out of range are refused with the published error', () => {
      const start = (params) => () => CoreSession.start(model, { maxTokens: 4, ...params });
      assert.throws(start({ maxTokens: 0 }), { name: 'InvalidPrompt', number: 6 });
      assert.throws(start({ maxTokens: 513 }), { name: 'InvalidPrompt' });
      assert.throws(start({ prompt: 'x'.repeat(1025) }), { name: 'InvalidPrompt' });
      assert.throws(start({ temperatureQ16: (16 << 16) + 1 }), { name: 'InvalidPrompt' });
      assert.throws(start({ maxTokens: 1.5 }), /whole number/);
      assert.throws(start({ seed: -1n }), /seed/);
      assert.throws(start({ seed: 1n << 64n }), /seed/);
      const long = CoreSession.start(model, { prompt: 'Once upon a time', maxTokens: 512 });
      assert.throws(() => { while (true) long.step(); }, { name: 'ContextExceeded' });
      long.free();
    });

    test('damaged models are refused', async () => {
      const damaged = (change) => {
        const bad = artifact.slice();
        change(bad);
        return core.model(bad);
      };
      await assert.rejects(damaged((b) => (b[0] ^= 1)), { name: 'InvalidFormat' });
      await assert.rejects(damaged((b) => (b[128] ^= 1)), { name: 'InvalidFormat' });
      await assert.rejects(damaged((b) => (b[8] ^= 1)), { name: 'InvalidFormat' });
      for (const length of [0, 7, 100, 200, artifact.length - 1]) {
        await assert.rejects(core.model(artifact.subarray(0, length)), { name: 'InvalidFormat' });
      }
    });

    // Catches memory that is not released: a page tells many stories.
    test('memory is released', () => {
      const { params } = golden('greedy');
      for (let i = 0; i < 4; i += 1) CoreSession.replay(model, params, 1).free();
      const before = core.exports.memory.buffer.byteLength;
      for (let i = 0; i < 200; i += 1) CoreSession.replay(model, params, 1).free();
      assert.equal(core.exports.memory.buffer.byteLength, before);
    });
  });
}

// A double in between would round 0.8 * 65536 differently; ties and long decimals show it.
test('temperatures are the native binary\'s', () => {
  const exact = { 0: 0, 1: 65536, 0.8: 52429, '.5': 32768, '1.': 65536, '16.000': 1048576, '0.00000762939453125': 1, '0.99999237060546874': 65535 };
  for (const [text, q16] of Object.entries(exact)) assert.equal(temperatureFromText(text), q16, text);
  for (const text of ['', '.', '-1', '1e1', '16.1', '0x1', 'NaN']) assert.throws(() => temperatureFromText(text), RangeError, text);
});

// Catches an export without a type, and a declaration that outlived what it declares.
test('the types declare what there is', async () => {
  const types = new TextDecoder().decode(file('web/package/src/index.d.ts'));
  const all = await import('../src/index.js');
  const declared = [...types.matchAll(/^export (?:class|function|const) (\w+)/gm)].map(([, name]) => name);
  assert.deepEqual(declared.sort(), Object.keys(all).sort());
  for (const [, name, body] of types.matchAll(/^export class (\w+)[^{]*\{\n([^]*?)^\}/gm)) {
    const methods = new Set([...body.matchAll(/^  (?:static )?(\w+)\(/gm)].map(([, method]) => method));
    const own = (object) => Object.getOwnPropertyNames(object).filter((key) => typeof Object.getOwnPropertyDescriptor(object, key).value === 'function');
    const there = new Set([...own(all[name].prototype), ...own(all[name])]);
    for (const method of methods) assert.ok(there.has(method), `${name} has no ${method}`);
  }
});
