/** A run as transactions equals the run in the core; what should fail fails, and changes nothing. */

import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { CoreSession, loadCore } from '../../../web/package/src/index.js';
import { AccountRole } from '@solana/kit';
import { readEvent } from '../src/index.js';
import { HEADER } from '../src/protocol.js';
import { LIMIT } from '../src/client.js';
import { artifact, chain } from '../litesvm.js';

const PARAMS = { prompt: 'Once upon a time', maxTokens: 12 };

const median = (numbers) => {
  const sorted = numbers.toSorted((a, b) => a - b);
  const middle = sorted.length / 2;
  return (sorted[Math.ceil(middle) - 1] + sorted[Math.floor(middle)]) / 2;
};

/** stories260K as an artifact, when the shared models are beside the repository. */
async function stories260k() {
  const models = new URL('../../../../shared/models/', import.meta.url);
  const [checkpoint, tokenizer] = ['stories260K.bin', 'tok512.bin'].map((name) => new URL(name, models));
  if (!existsSync(checkpoint) || !existsSync(tokenizer)) return null;
  return (await loadCore()).convert(readFileSync(checkpoint), readFileSync(tokenizer));
}

const MODELS = {
  'the built-in model': { bytes: artifact, text: ', there was a quiet boy named O' },
  stories260K: { bytes: await stories260k(), text: ', there was a little girl named Lily. She' },
};

for (const [name, { bytes, text }] of Object.entries(MODELS)) {
  const options = bytes ? {} : { skip: 'needs stories260K.bin and tok512.bin in ../shared/models' };

  test(`${name} runs as transactions as it does in the core`, options, async (t) => {
    const { svm, client, owner, payer } = await chain();
    const core = await (await loadCore()).model(bytes);
    const model = await client.uploadModel(owner, bytes, 700n);
    const other = await client.uploadModel(owner, bytes, 700n);
    const session = CoreSession.start(core, PARAMS);
    const run = await client.openRun(owner, model, PARAMS, session);
    const first = client.turnInstruction(payer, model, run, 0, []);

    const refused = async (why, instruction, from = payer) => {
      const before = await client.account(run);
      await assert.rejects(client.sendAll(from, await instruction), (error) => error.refusal === why);
      assert.deepEqual(await client.account(run), before);
    };
    const units = [];
    while (!session.info().complete) {
      const { units: used, events, step } = await client.turn(payer, model, run, session);
      assert.ok(used <= LIMIT);
      const event = readEvent(events[0]);
      assert.equal(event.work, step.work);
      assert.equal(event.generated, step.generated);
      units.push(used);
      if (units.length === 1) {
        await refused('WrongTurn', first);
        const { sections } = session.plan();
        const turn = (weights, model_ = model) => client.turnInstruction(payer, { ...model_, weights }, run, 1, sections);
        await refused('WrongSection', turn(model.weights.with(sections[0], model.weights[0]).with(0, other.weights[0])));
        await refused('DuplicateAccount', turn(model.weights.with(0, run)));
        await refused('WrongModel', turn(other.weights, other));
        await refused('WrongSection', turn(other.weights));
        await refused('WrongOwner', turn(model.weights.with(sections[0], owner.address)));
        const unsigned = await turn(model.weights);
        unsigned.accounts = unsigned.accounts.with(3, { address: payer.address, role: AccountRole.WRITABLE });
        await refused('MissingSignature', unsigned, owner);
        await truncated(svm, model.weights[sections[0]], () => refused('WrongSectionLength', turn(model.weights)));
      }
    }
    t.diagnostic(`${name}: ${units.length} turns, compute units: median ${median(units)}, peak ${Math.max(...units)} of ${LIMIT}`);
    const account = await client.run(run);
    assert.equal(account.status, 'complete');
    assert.equal(account.paid, 5000n * BigInt(units.length) + 700n * 12n);
    assert.equal(session.text(), text);
    await refused('RunNotOpen', client.turnInstruction(payer, model, run, units.length, [1]));
    await assert.rejects(client.closeRun(payer, model, run), (error) => error.refusal === 'WrongAuthority');

    const before = svm.getBalance(owner.address);
    await client.closeRun(owner, model, run);
    assert.ok(svm.getBalance(owner.address) > before);
    assert.equal(await client.account(run), null);
  });

  // Catches a turn that a full cache makes too long for a transaction.
  test(`${name}: the last position of a full context fits`, options, async (t) => {
    const { svm, client, owner, payer } = await chain();
    const core = await (await loadCore()).model(bytes);
    const model = await client.uploadModel(owner, bytes, 0n);
    const params = { prompt: '', maxTokens: core.config.seq };
    const tokenized = CoreSession.start(core, params);
    const run = await client.openRun(owner, model, params, tokenized);
    while (tokenized.info().phase < 3) await client.turn(payer, model, run, tokenized);
    const account = svm.getAccount(run);
    const data = Uint8Array.from(account.data);
    const header = new DataView(data.buffer, HEADER);
    for (const [at, value] of [[8, 3], [16, 0], [20, core.config.seq - 1], [44, core.config.seq - 1]]) header.setUint32(at, value, true);
    svm.setAccount({ ...account, data });
    const session = CoreSession.from(core, data.subarray(HEADER));
    const units = [];
    while (!session.info().complete) units.push((await client.turn(payer, model, run, session)).units);
    t.diagnostic(`${name}: position ${core.config.seq - 1}: compute units ${units.join(', ')} of ${LIMIT}`);
    assert.ok(units.length > 1);
  });
}

/** Calls `use` while an account is a byte shorter. */
async function truncated(svm, address, use) {
  const { exists, ...account } = svm.getAccount(address);
  svm.setAccount({ ...account, data: Uint8Array.from(account.data).subarray(0, -1), space: account.space - 1n });
  await use();
  svm.setAccount(account);
}

/**
 * A checkpoint and tokenizer like `four_sections` of ../vm/tests/common/mod.rs: layers of 21 MB, so that
 * their sections begin in the middle of a layer.
 */
function fourSections() {
  const [dim, hidden, layers, heads, kvHeads, vocab, seq] = [256, 1024, 22, 4, 2, 300, 16];
  const attention = 2 * dim + 2 * (dim / heads) * kvHeads;
  const arrays = [
    [vocab * dim], [layers * dim, 1], [layers * dim * attention], [layers * dim, 1], [3 * layers * dim * hidden],
    [dim, 1], [(seq * dim) / heads, 0],
  ];
  const floats = new Float32Array(arrays.reduce((sum, [length]) => sum + length, 0));
  let at = 0;
  let hash = 1;
  for (const [length, value] of arrays) {
    for (const end = at + length; at < end; at += 1) {
      hash = (Math.imul(hash, 1_664_525) + 1_013_904_223) >>> 0;
      floats[at] = value ?? (hash >>> 8) / 2 ** 28 - 1 / 32;
    }
  }
  const header = new Int32Array([dim, hidden, layers, heads, kvHeads, vocab, seq]);
  const names = ['<unk>', '\n<s>\n', '\n</s>\n'];
  const token = (id) => names[id] ?? (id < 259 ? `<0x${(id - 3).toString(16).toUpperCase().padStart(2, '0')}>` : `t${id}`);
  const entries = Array.from({ length: vocab }, (_, id) => [Buffer.alloc(8), Buffer.from(token(id))]);
  for (const [head, text] of entries) head.writeUInt32LE(text.length, 4);
  const tokenizer = Buffer.concat([Buffer.from([6, 0, 0, 0]), ...entries.flat()]);
  return [Buffer.concat([Buffer.from(header.buffer), Buffer.from(floats.buffer)]), tokenizer];
}

test('a model of four sections: turns that read one of them, and two', async (t) => {
  const { client, owner, payer } = await chain();
  const wasm = await loadCore();
  const bytes = wasm.convert(...fourSections());
  const core = await wasm.model(bytes);
  const model = await client.uploadModel(owner, bytes, 700n);
  assert.equal(model.weights.length, 4);
  const params = { prompt: '', maxTokens: 2, temperatureQ16: 65536, seed: 7n };
  const session = CoreSession.start(core, params);
  const run = await client.openRun(owner, model, params, session);
  const read = new Set();
  while (!session.info().complete) {
    const { sections } = session.plan();
    const unread = [1, 2, 3].find((index) => !sections.includes(index));
    if (!read.has(`${sections}`) && sections.length > 0) {
      read.add(`${sections}`);
      // The model's own other section in place of the last one that the turn reads.
      const wrong = client.turnInstruction(payer, model, run, session.info().turns, sections.with(-1, unread));
      await assert.rejects(client.sendAll(payer, await wrong), (error) => error.refusal === 'WrongSection');
    }
    await client.turn(payer, model, run, session);
  }
  assert.deepEqual([...read].toSorted(), ['1', '1,2', '2', '2,3', '3', '3,1']);
  t.diagnostic(`${session.info().turns} turns`);
});
