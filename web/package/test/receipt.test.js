/** Receipts of the native binary, replayed by the module. */

import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';

import { loadCore, verifyReceipt } from '../src/index.js';
import { artifact, forge, nativeReceipt, withFolder } from '../../test/helpers.js';

describe('receipts', () => {
  let model;
  let receipt;
  const cases = [];
  before(async () => {
    model = await (await loadCore()).model(artifact);
    await withFolder(async (folder) => {
      receipt = nativeReceipt(folder, 'Once upon a time', '-n', '20');
      cases.push(receipt);
      // A long prompt takes several turns of tokenizing, each with a charge of its own.
      cases.push(nativeReceipt(folder, 'Grüße, 世界! The old cat sat. '.repeat(9), '-n', '3', '--temperature', '0.7', '--seed', '18446744073709551615'));
      cases.push(nativeReceipt(folder, 'A "paused" run\n', '-n', '30', '--turns', '32'));
      cases.push(nativeReceipt(folder, '', '-n', '5', '--temperature', '1'));
    });
  });

  test('native receipts verify, every turn of them', async () => {
    for (const bytes of cases) {
      const turns = [];
      const { turns: recorded } = await verifyReceipt(model, bytes, { onTurn: ({ turn }) => turns.push(turn) });
      assert.deepEqual(turns, recorded.map((_, i) => i + 1));
    }
  });

  // A forger who seals the file again: the replay must name the first turn that differs.
  const digit = (hex) => (hex.startsWith('0') ? '1' : '0') + hex.slice(1);
  const forgeries = [
    ['a state', 7, (r) => (r.turns[6].state_sha256 = digit(r.turns[6].state_sha256))],
    ['the work of a turn that tokenizes', 1, (r) => (r.turns[0].work += 1)],
    ['the work of another', 2, (r) => (r.turns[1].work -= 1)],
    ['a plan', 9, (r) => (r.turns[8].estimated_cu += 1)],
    ['the sections', 9, (r) => (r.turns[8].sections = [2])],
    ['the most tokens', 9, (r) => (r.turns[8].max_generated += 1)],
    ['the count of tokens', 30, (r) => (r.turns[29].generated += 1)],
    ['the seed', 0, (r) => (r.seed = '1')],
    ['the prompt', 0, (r) => (r.prompt = 'Once upon a tide')],
    ['the initial state', 0, (r) => (r.initial_state_sha256 = digit(r.initial_state_sha256))],
    ['the length of the state', 0, (r) => (r.state_bytes += 8)],
    ['one token', 'last', (r) => (r.tokens[3] += 1)],
    ['the text', 'last', (r) => (r.text += '!')],
    ['the end', 'last', (r) => (r.complete = false)],
    ['a turn more', 'after', (r) => r.turns.push(r.turns.at(-1))],
    ['two turns exchanged', 4, (r) => r.turns.splice(3, 2, r.turns[4], r.turns[3])],
  ];
  for (const [what, where, change] of forgeries) {
    test(`forged: ${what}`, async () => {
      let last;
      const forged = await forge(receipt, (members) => {
        last = members.turns.length;
        change(members);
      });
      const turn = { last, after: last + 1 }[where] ?? where;
      await assert.rejects(verifyReceipt(model, forged), { name: 'TurnDiffers', turn });
    });
  }

  test('a forged checkpoint is named', async () => {
    const exchanged = await forge(receipt, ({ checkpoints: [a, b] }) => ([a.delta, b.delta] = [b.delta, a.delta]));
    await assert.rejects(verifyReceipt(model, exchanged), { name: 'TurnDiffers', turn: 16 });
    for (const delta of ['?', 'AAAA', '', 'eJwDAAAAAAE=']) {
      const forged = await forge(receipt, (r) => (r.checkpoints[0].delta = delta));
      await assert.rejects(verifyReceipt(model, forged), delta === 'eJwDAAAAAAE=' ? { turn: 16 } : { name: 'ReceiptError' });
    }
  });

  test('whatever byte changed, the receipt is refused', async () => {
    for (const at of [0, 1, 30, 200, 1000, receipt.length - 70, receipt.length - 2, receipt.length - 1]) {
      const bad = receipt.slice();
      bad[at] ^= 1;
      await assert.rejects(verifyReceipt(model, bad), { name: 'ReceiptError' }, `byte ${at}`);
    }
    for (const length of [0, 10, 77, 78, receipt.length - 1]) {
      await assert.rejects(verifyReceipt(model, receipt.subarray(0, length)), { name: 'ReceiptError' });
    }
  });

  const unreadable = {
    'a member too many': (r) => (r.extra = 1),
    'a member too few': (r) => delete r.text,
    'another format': (r) => (r.format = 'facit-receipt-2'),
    'other numerics': (r) => (r.numerics = 'facit-fixed-2'),
    'another model': (r) => (r.model.sha256 = digit(r.model.sha256)),
    'a number that is none': (r) => (r.turns[0].work = '1'),
    'a checkpoint too few': (r) => r.checkpoints.pop(),
    'a seed too large': (r) => (r.seed = '18446744073709551616'),
    'impossible parameters': (r) => (r.max_tokens = 0),
  };
  for (const [what, change] of Object.entries(unreadable)) {
    test(`refused before any turn: ${what}`, async () => {
      const onTurn = () => assert.fail('a turn was replayed');
      await assert.rejects(verifyReceipt(model, await forge(receipt, change), { onTurn }), { name: 'ReceiptError' });
    });
  }
});
